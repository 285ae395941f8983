//! Replies that cannot leave at once: long ones, and those to a peer that has no room or to which there is no route yet. Their data are copied, and the
//! thread that has run the handler goes on: a caller that is stopped delays its own replies, and no other caller's requests.
//!
//! A reply is sent by operations of the node, which need no thread. One thread looks at those under way, and ends those that take longer than
//! [`crate::Options::reply_limit_ns`]. It runs from the first such reply on. Opening a route waits, so it gets a thread of its own.

use crate::deadline::Deadline;
use crate::error::Error;
use motet::node::{
    Channel, CompletionOptions, Error as NodeError, LinkId, Mode, Node, OperationId, OperationMemory, Outgoing, Status,
};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often operations are looked at.
const LOOK: Duration = Duration::from_millis(1);
/// The most that counts of the time between two looks. More passes where this process is stopped, and a caller could not receive.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_millis(100);
/// Replies to one peer that are under way at a time. It has at most as many calls of one channel outstanding, see `routes`.
const MOST_OF_A_PEER: usize = 256;
/// Routes that are opened at a time.
const MOST_OPENINGS: usize = 64;
/// A cancelled send completes within this time: the engine gives a peer that does not release it 3 s.
const CANCEL_LIMIT: Duration = Duration::from_secs(5);

/// A reply: its messages with their tags, the head first.
#[derive(Debug)]
pub struct Reply {
    pub messages: VecDeque<(u64, Vec<u8>)>,
    /// The longest time that it takes.
    pub limit: Duration,
}

/// A reply under way.
#[derive(Debug)]
struct Sending {
    reply: Reply,
    channel: Channel,
    length: usize,
    operation: Option<OperationId>,
    /// For how long it has been under way, and this process has sent.
    age: Duration,
    cancelled: bool,
}

/// All that are under way.
#[derive(Default)]
pub struct Delayed {
    state: Mutex<State>,
    /// There is a reply, or the end.
    work: Condvar,
}

#[derive(Default)]
struct State {
    sending: Vec<Sending>,
    /// Replies and bytes of each link, those that the thread looks at just now among them.
    of_links: HashMap<LinkId, (usize, usize)>,
    openings: usize,
    thread: Option<JoinHandle<()>>,
    ended: bool,
}

impl Reply {
    fn length(&self) -> usize {
        self.messages.iter().map(|(_, bytes)| bytes.len()).sum()
    }
}

impl Sending {
    /// Goes on. False: it has ended.
    fn go_on(&mut self, node: &Node) -> bool {
        let is_late = self.age >= self.reply.limit;
        loop {
            if let Some(operation) = self.operation {
                match node.test(operation) {
                    Ok(None) if !is_late => return true,
                    Ok(None) => {
                        if !self.cancelled {
                            self.cancelled = true;
                            let _ = node.cancel(operation);
                        }
                        return self.age.saturating_sub(self.reply.limit) < CANCEL_LIMIT;
                    }
                    Ok(Some(completion)) if completion.status == Status::Done => self.operation = None,
                    Ok(Some(_)) | Err(_) => return false, // the caller has gone, or has been waited for long enough
                }
            }
            let Some((tag, bytes)) = self.reply.messages.pop_front() else { return false };
            let message = Outgoing { channel: self.channel, tag, headers: &[], mode: Mode::Automatic };
            if is_late {
                // A caller that has got the head waits for data that do not come: a message of another length says so.
                let _ = node.try_inject(&message, &[]);
                return false;
            }
            match node.start_send(&message, OperationMemory::Owned(bytes), Vec::new(), CompletionOptions::default()) {
                Ok(begun) => self.operation = begun,
                Err((NodeError::WouldBlock, OperationMemory::Owned(bytes), _)) => {
                    self.reply.messages.push_front((tag, bytes));
                    return true;
                }
                Err(_) => return false,
            }
        }
    }
}

impl Delayed {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a reply by this channel, without waiting. `most`: bytes of replies to one peer. [`Error::TimedOut`]: as many are under way, because it does not
    /// receive.
    pub fn send(self: &Arc<Self>, node: &Arc<Node>, channel: Channel, reply: Reply, most: usize) -> Result<(), Error> {
        let length = reply.length();
        {
            let mut state = self.state();
            let (count, bytes) = state.of_links.entry(channel.link).or_default();
            if *count >= MOST_OF_A_PEER || *count > 0 && *bytes + length > most {
                return Err(Error::TimedOut);
            }
            (*count, *bytes) = (*count + 1, *bytes + length);
        }
        let mut sending = Sending { reply, channel, length, operation: None, age: Duration::ZERO, cancelled: false };
        let goes_on = sending.go_on(node);
        let mut state = self.state();
        if !goes_on {
            state.forget(&sending);
            return Ok(());
        }
        state.sending.push(sending);
        if state.thread.is_none() {
            let (delayed, node) = (self.clone(), node.clone());
            let thread = std::thread::Builder::new().name("motet-rsr-reply".to_owned());
            state.thread = thread.spawn(move || delayed.run(&node)).ok(); // without one, the next reply tries again
        }
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// Sends a reply when there is a channel to its caller, which `open` opens in a thread.
    pub fn open_and_send(
        self: &Arc<Self>,
        node: &Arc<Node>,
        open: impl FnOnce(Deadline) -> Option<Channel> + Send + 'static,
        mut reply: Reply,
        most: usize,
    ) -> Result<(), Error> {
        {
            let mut state = self.state();
            if state.openings >= MOST_OPENINGS {
                return Err(Error::TimedOut);
            }
            state.openings += 1;
        }
        let (delayed, node) = (self.clone(), node.clone());
        let open = move || {
            let deadline = Deadline::within(Some(reply.limit));
            if let Some(channel) = open(deadline) {
                reply.limit = deadline.at_most(reply.limit);
                let _ = delayed.send(&node, channel, reply, most); // who has called may be gone
            }
            delayed.opened();
        };
        let thread = std::thread::Builder::new().name("motet-rsr-open".to_owned());
        thread.spawn(open).map(drop).map_err(|_| {
            self.opened();
            Error::Invalid("the system gives no thread")
        })
    }

    fn opened(&self) {
        self.state().openings -= 1;
        self.work.notify_all();
    }

    fn run(&self, node: &Node) {
        let mut state = self.state();
        let mut last_look = Instant::now();
        loop {
            while state.sending.is_empty() {
                if state.ended {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                last_look = Instant::now();
            }
            let mut sending = std::mem::take(&mut state.sending);
            drop(state);
            let since = last_look.elapsed().min(MOST_BETWEEN_LOOKS);
            last_look = Instant::now();
            sending.iter_mut().for_each(|one| one.age = one.age.saturating_add(since));
            let _ = node.progress();
            let (go_on, over): (Vec<_>, Vec<_>) =
                sending.drain(..).map(|mut one| (one.go_on(node), one)).partition(|(goes_on, _)| *goes_on);
            state = self.state();
            over.iter().for_each(|(_, one)| state.forget(one));
            state.sending.extend(go_on.into_iter().map(|(_, one)| one));
            self.work.notify_all();
            if !state.sending.is_empty() {
                state = self.work.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }

    /// Waits until all replies have left or are given up, and ends the thread.
    pub fn end(&self) {
        let mut state = self.state();
        while state.openings > 0 || !state.of_links.is_empty() && state.thread.is_some() {
            state = self.work.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.ended = true;
        let thread = state.thread.take();
        drop(state);
        self.work.notify_all();
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl State {
    fn forget(&mut self, sending: &Sending) {
        if let Some((count, bytes)) = self.of_links.get_mut(&sending.channel.link) {
            (*count, *bytes) = (*count - 1, *bytes - sending.length);
            if *count == 0 {
                self.of_links.remove(&sending.channel.link);
            }
        }
    }
}
