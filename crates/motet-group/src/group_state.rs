//! What a node knows of one of its groups: the view, the agreement on circuits, and the circuits that are open here.

use crate::active::{Active, FunctionCell};
use crate::channels::Channels;
use crate::end_points::{EndPoints, Table};
use crate::error::Error;
use crate::opener::{Message, Opener, Opening, Steps};
use crate::pairs::Pairs;
use motet::node::{Context, Node, Serve};
use motet_session::api::{Member, View};
use motet_session::attach::Sender;
use motet_session::circuits::{CircuitId, CircuitPart};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Views that are kept for circuits of which a member hears late.
const MAX_PAST_VIEWS: usize = 64;
/// Services of circuits have this bit; programs do not use it.
const CIRCUIT_SERVICE: u64 = 1 << 63;

/// A node's membership in a group without a break: the node's identity and the view since which it has been a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct MemberId {
    node: u128,
    since: u64,
}

impl MemberId {
    /// The membership of a member.
    pub fn of(member: &Member) -> Option<Self> {
        u128::from_str_radix(&member.node, 16).ok().map(|node| Self { node, since: member.since })
    }

    /// The node, as the session writes it.
    pub fn node(self) -> String {
        format!("{:032x}", self.node)
    }

    /// Whether it belongs to this node.
    pub fn is_of(self, node: &str) -> bool {
        self.node() == node
    }
}

impl From<MemberId> for String {
    fn from(id: MemberId) -> Self {
        format!("{:032x}.{}", id.node, id.since)
    }
}

impl TryFrom<String> for MemberId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let parsed = text.split_once('.').and_then(|(node, since)| {
            let is_plain = node.len() == 32 && node.bytes().all(|byte| byte.is_ascii_hexdigit());
            Some(Self { node: u128::from_str_radix(node, 16).ok().filter(|_| is_plain)?, since: since.parse().ok()? })
        });
        parsed.ok_or("a membership is 32 hexadecimal digits, a point and a number")
    }
}

/// What a member tells the others when it has lost its pair with one of them in a circuit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PairLost {
    /// The view and the number of the circuit.
    pub view: u64,
    pub circuit: u64,
    /// The other member of the pair.
    pub peer: MemberId,
}

/// One group of the node.
#[derive(Debug, Default)]
pub(crate) struct GroupState {
    /// The last view. `None`: the node is about to join.
    pub view: Option<Arc<View>>,
    /// Why the gatekeeper has refused the node.
    pub refusal: Option<String>,
    /// The last views, the newest one last.
    past: VecDeque<Arc<View>>,
    /// This node's part in the agreement, from its first view on.
    opener: Option<(MemberId, Opener<MemberId>)>,
    /// The circuits that are open here, by their numbers. `Err`: the node could not install it.
    circuits: HashMap<u64, Result<OpenCircuit, motet::node::Error>>,
}

/// A circuit that peers can use already. A clone is another handle.
#[derive(Debug, Clone)]
pub(crate) struct OpenCircuit {
    pub opening: Opening,
    /// The view whose members it joins.
    pub view: Arc<View>,
    pub context: Context,
    /// What all of the program's handles share.
    pub shared: Arc<Shared>,
}

/// What all handles of a circuit share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The channels to the other members.
    pub channels: Channels,
    /// What has become of the links to them.
    pub pairs: Pairs,
    /// Active messages, which have channels of their own.
    pub active: Arc<Active>,
    /// End points, which have channels of their own, too.
    pub end_points: Arc<EndPoints>,
    /// The number of the next collective operation, the same at all members.
    pub collectives: AtomicU32,
}

impl GroupState {
    /// This node's membership.
    pub fn own_id(&self) -> Option<MemberId> {
        self.opener.as_ref().map(|(id, _)| *id)
    }

    /// A new view with this node in it. Older ones are ignored.
    pub fn install(&mut self, view: View, own: &str, node: &Node, sender: &Sender) -> Steps<MemberId> {
        if self.view.as_ref().is_some_and(|last| last.number >= view.number) {
            return Vec::new();
        }
        let members: Option<Vec<_>> = view.members.iter().map(MemberId::of).collect();
        let own = view.rank_of(own).and_then(|rank| MemberId::of(&view.members[rank]));
        let (Some(members), Some(own)) = (members, own) else { return Vec::new() };
        if self.own_id() != Some(own) {
            // The node was out of the group meanwhile: what was agreed on before is void here.
            self.opener = Some((own, Opener::new(own)));
            self.past.clear();
            self.retire_circuits(node, Some(sender), |_| true);
        }
        let number = view.number;
        let view = Arc::new(view);
        self.past.push_back(view.clone());
        if self.past.len() > MAX_PAST_VIEWS {
            self.past.pop_front();
        }
        self.view = Some(view);
        let steps = self.opener.as_mut().map_or_else(Vec::new, |(_, opener)| opener.install(number, &members));
        self.retire_unused(node, sender);
        steps
    }

    /// The oldest view that is kept and has a higher number.
    pub fn next_view(&self, after: u64) -> Option<Arc<View>> {
        self.past.iter().find(|view| view.number > after).cloned()
    }

    /// A message of another member.
    pub fn receive(&mut self, from: MemberId, view: u64, message: Message<MemberId>) -> Steps<MemberId> {
        self.opener.as_mut().map_or_else(Vec::new, |(_, opener)| opener.receive(from, view, message))
    }

    /// Wants a circuit of this name. `None`: it is open or wanted already, or the node has no view yet.
    pub fn open(&mut self, name: &str) -> Option<Steps<MemberId>> {
        let (_, opener) = self.opener.as_mut()?;
        (opener.number_of(name).is_none() && !opener.wants(name)).then(|| opener.open(name))
    }

    /// The circuit that the name stands for, if it is open here.
    pub fn circuit(&self, name: &str) -> Option<Result<OpenCircuit, Error>> {
        let number = self.opener.as_ref()?.1.number_of(name)?;
        self.circuits.get(&number).cloned().map(|circuit| circuit.map_err(Into::into))
    }

    /// All circuits that are open here, in the order of their numbers.
    pub fn circuits(&self) -> Vec<(u64, String)> {
        let open = self.circuits.values().flatten();
        let mut all: Vec<_> = open.map(|circuit| (circuit.opening.number, circuit.opening.name.clone())).collect();
        all.sort_unstable();
        all
    }

    /// Lets peers send on a new circuit, and tells the gatekeeper of it.
    pub fn serve(&mut self, node: &Node, sender: &Sender, opening: Opening) {
        let Some(view) = self.past.iter().find(|view| view.number == opening.view).cloned() else { return };
        let number = opening.number;
        let [service, active_service, end_points_service] =
            [0, 1, 2].map(|kind| service_of(&view.group, &opening, kind));
        let install = || {
            let context = node.context()?;
            node.serve(service, Serve::Tagged(context)).inspect_err(|_| {
                let _ = node.remove_context(context);
            })?;
            let size = view.members.len();
            let channels = Channels::new(service, size);
            let active = Arc::new(Active::new(active_service, size, FunctionCell::default()));
            let end_points = Arc::new(EndPoints::new(end_points_service, size, Table::default()));
            let pairs = Pairs::new(service, &view.members);
            let shared = Arc::new(Shared { channels, pairs, active, end_points, collectives: AtomicU32::new(0) });
            Ok(OpenCircuit { opening, view: view.clone(), context, shared })
        };
        let installed = install();
        if let (Ok(circuit), Some(own)) = (&installed, self.own_id())
            && let Some(part) = circuit.part_of(&own.node())
        {
            sender.circuit_opened(part);
        }
        self.circuits.insert(number, installed);
    }

    /// Another member has lost its pair with the member `peer` in a circuit.
    pub fn pair_is_lost(&self, own: &str, from: MemberId, notice: &PairLost, node: &Node) {
        let Some(Ok(circuit)) = self.circuits.get(&notice.circuit) else { return };
        let rank_of = |id: MemberId| circuit.view.members.iter().position(|member| MemberId::of(member) == Some(id));
        let (Some(one), Some(other)) = (rank_of(from), rank_of(notice.peer)) else { return };
        if circuit.opening.view != notice.view || one == other {
            return;
        }
        if circuit.view.rank_of(own) == Some(other) {
            circuit.lose(node, one);
            circuit.shared.pairs.told(Some(one));
        } else {
            circuit.shared.pairs.told(None);
        }
    }

    /// Whether a member of a circuit is still there, without a break since then.
    pub fn is_there(&self, member: &Member) -> bool {
        let now = self.view.as_ref().and_then(|view| view.members.iter().find(|now| now.node == member.node));
        now.is_some_and(|now| now.since == member.since)
    }

    /// Ends the circuits that a member has left and for which the program has no handle.
    pub fn retire_unused(&mut self, node: &Node, sender: &Sender) {
        let view = self.view.clone();
        let is_there = |member: &Member| {
            view.iter().flat_map(|view| &view.members).any(|now| now.node == member.node && now.since == member.since)
        };
        self.retire_circuits(node, Some(sender), |circuit| {
            Arc::strong_count(&circuit.shared) == 1 && !circuit.view.members.iter().all(is_there)
        });
    }

    /// The node has left the group, which also tells the gatekeeper that the circuits there have ended.
    pub fn retire(mut self, node: &Node) {
        self.retire_circuits(node, None, |_| true);
    }

    /// `sender`: tells the gatekeeper.
    fn retire_circuits(&mut self, node: &Node, sender: Option<&Sender>, which: impl Fn(&OpenCircuit) -> bool) {
        self.circuits.retain(|_, circuit| {
            let Ok(circuit) = circuit else { return true };
            let ends = which(circuit);
            if ends {
                circuit.retire(node);
                sender.into_iter().for_each(|sender| sender.circuit_closed(&circuit.id()));
            }
            !ends
        });
    }
}

impl OpenCircuit {
    /// The link to a member is lost: nothing is sent to it any more.
    pub fn lose(&self, node: &Node, rank: usize) {
        let Shared { channels, pairs, active, end_points, .. } = &*self.shared;
        pairs.lose(rank);
        for channels in [channels, active.channels(), end_points.channels()] {
            channels.lose(node, rank);
        }
    }

    /// What the gatekeeper calls it.
    fn id(&self) -> CircuitId {
        CircuitId { group: self.view.group.clone(), view: self.view.number, number: self.opening.number }
    }

    /// What one of its members says of it to the gatekeeper.
    fn part_of(&self, node: &str) -> Option<CircuitPart> {
        let rank = u32::try_from(self.view.rank_of(node)?).ok()?;
        let size = u32::try_from(self.view.members.len()).ok()?;
        Some(CircuitPart { id: self.id(), name: self.opening.name.clone(), rank, size })
    }

    /// Closes all channels of the circuit, those that peers have opened among them. What was not received is discarded.
    fn retire(&self, node: &Node) {
        self.shared.channels.close(node);
        self.shared.pairs.close(node);
        self.shared.active.close(node);
        self.shared.end_points.close(node);
        let _ = node.remove_context(self.context);
    }
}

/// A service of a circuit, the same at all members: `kind` 0 for messages, 1 for active ones, 2 for those to end points. It depends on the view, because numbers begin again when
/// all members have left.
fn service_of(group: &str, opening: &Opening, kind: u8) -> u64 {
    // FNV-1a
    let bytes = group.bytes().chain([0, kind]).chain(opening.number.to_le_bytes()).chain(opening.view.to_le_bytes());
    CIRCUIT_SERVICE
        | bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_are_written_and_read() {
        let id = MemberId { node: 0xabc, since: 7 };
        let text = String::from(id);
        assert_eq!(text, format!("{:032x}.7", 0xabc));
        assert_eq!(MemberId::try_from(text), Ok(id));
        for wrong in ["", ".", "0.1", &format!("{:032x}", 1), &format!("{:032x}.x", 1), &format!("+{:031x}.1", 1)] {
            assert!(MemberId::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
