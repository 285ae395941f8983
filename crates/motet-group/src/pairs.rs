//! The pairs of a circuit: this member with each other one. What is sent within a pair is one stream with one life: once a link that carried it is lost,
//! messages may be missing, so neither end sends or receives any more.
//!
//! A link is lost as well when its member dies. The views tell which it is, so a wait goes on for [`VIEW_TIME`].

use crate::links::id_of;
use motet::node::{Channel, Node, NodeId};
use motet_session::api::Member;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A member that has died has left the group within this time after its links. One that has not is there, and only the link is lost.
const VIEW_TIME: Duration = Duration::from_secs(3);

/// The pairs, by rank.
#[derive(Debug)]
pub(crate) struct Pairs {
    service: u64,
    nodes: Vec<Option<NodeId>>,
    /// Whether a message of the member has arrived. Its channel is open then, and it opens no other one.
    heard: Box<[AtomicBool]>,
    state: Mutex<State>,
    /// Held while channels are taken from the node and noted.
    accepting: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// The channels that members have opened to this one.
    incoming: Vec<(usize, Channel)>,
    lost: Vec<Option<Loss>>,
    /// A pair of two other members is lost: collective operations cannot end.
    of_others: bool,
    closed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Loss {
    since: Instant,
    /// The other members know it.
    told: bool,
}

impl Pairs {
    /// The pairs with these members. `service`: the one of the circuit's messages.
    pub fn new(service: u64, members: &[Member]) -> Self {
        let state = State { lost: vec![None; members.len()], ..State::default() };
        Self {
            service,
            nodes: members.iter().map(|member| id_of(member).ok()).collect(),
            heard: members.iter().map(|_| AtomicBool::new(false)).collect(),
            state: Mutex::new(state),
            accepting: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A message of a member has arrived.
    #[inline]
    pub fn hear(&self, node: &Node, rank: usize) {
        if !self.heard[rank].load(Ordering::Relaxed) {
            self.hear_first(node, rank);
        }
    }

    #[cold]
    fn hear_first(&self, node: &Node, rank: usize) {
        self.accept(node);
        self.heard[rank].store(true, Ordering::Relaxed);
    }

    /// Takes note of the channels that members have opened: a link stays known, when it is gone as well, as long as they are not closed.
    fn accept(&self, node: &Node) {
        // The lock of the state is not held: the node may run functions of the program, which may send.
        let _one_at_a_time = self.accepting.lock().unwrap_or_else(PoisonError::into_inner);
        while let Ok(channel) = node.accept(self.service, Some(Duration::ZERO)) {
            let peer = node.link_info(channel.link).ok().map(|info| info.peer);
            let rank = self.nodes.iter().position(|node| node.is_some() && *node == peer);
            let mut state = self.state();
            match rank {
                Some(rank) if !state.closed => state.incoming.push((rank, channel)),
                _ => {
                    drop(state);
                    let _ = node.close_channel(channel); // no member's, or the circuit has ended here
                }
            }
        }
    }

    /// Looks for links that are lost; returns the ranks whose pairs are lost with them. `outgoing`: the channels to members.
    pub fn look(&self, node: &Node, outgoing: &[Option<Channel>]) -> Vec<usize> {
        self.accept(node);
        let is_up = |channel: &Channel| node.link_info(channel.link).is_ok_and(|info| info.gone.is_none());
        let state = self.state();
        let (incoming, known) = (state.incoming.clone(), state.lost.clone());
        drop(state);
        // An attempt to open a channel may have left one behind whose link is gone: one of the member's channels has to be up.
        let mut heard_of = vec![false; self.nodes.len()];
        incoming.iter().filter(|(_, channel)| is_up(channel)).for_each(|(rank, _)| heard_of[*rank] = true);
        let is_lost = |rank: &usize| {
            let heard = self.heard[*rank].load(Ordering::Relaxed);
            heard && !heard_of[*rank] || outgoing[*rank].as_ref().is_some_and(|channel| !is_up(channel))
        };
        (0..self.nodes.len()).filter(|rank| known[*rank].is_none()).filter(is_lost).collect()
    }

    /// The link of a pair is lost.
    pub fn lose(&self, rank: usize) {
        self.state().lost[rank].get_or_insert(Loss { since: Instant::now(), told: false });
    }

    /// A member tells that it has lost the pair of two members; `own`: the other one, if this member is one of them.
    pub fn told(&self, own: Option<usize>) {
        let mut state = self.state();
        match own {
            Some(rank) => {
                let since = Instant::now().checked_sub(VIEW_TIME).unwrap_or_else(Instant::now);
                state.lost[rank] = Some(Loss { since, told: true });
            }
            None => state.of_others = true,
        }
    }

    /// The pairs that are lost although their members are there, of which the other members do not know yet. Each is returned once.
    pub fn to_tell(&self) -> Vec<usize> {
        let mut found = Vec::new();
        for (rank, loss) in self.state().lost.iter_mut().enumerate() {
            if let Some(loss) = loss
                && loss.since.elapsed() >= VIEW_TIME
                && !std::mem::replace(&mut loss.told, true)
            {
                found.push(rank);
            }
        }
        found
    }

    /// Whether nothing can be sent to a member any more.
    pub fn is_lost(&self, rank: usize) -> bool {
        self.state().lost[rank].is_some()
    }

    /// Whether a member's messages do not come any more, although the member is there. `None`: those of any.
    pub fn is_over(&self, rank: Option<usize>) -> bool {
        let is_over = |loss: &Option<Loss>| loss.is_some_and(|loss| loss.since.elapsed() >= VIEW_TIME);
        match rank {
            Some(rank) => is_over(&self.state().lost[rank]),
            None => self.state().lost.iter().any(is_over),
        }
    }

    /// Whether two other members have lost each other.
    pub fn is_lost_elsewhere(&self) -> bool {
        self.state().of_others
    }

    /// Closes the channels that members have opened.
    pub fn close(&self, node: &Node) {
        let mut state = self.state();
        state.closed = true;
        let incoming = std::mem::take(&mut state.incoming);
        drop(state);
        for (_, channel) in incoming {
            let _ = node.close_channel(channel);
        }
    }
}
