//! One side of random operations of every kind on one link, and the oracle of their results.
//!
//! Both sides send numbered messages of random lengths on one channel and receive the other's messages into posted buffers. Each puts into and gets
//! from a region of the other, increments a word of it, and begins operations that match nothing and are cancelled. While the link is up, every
//! operation completes successfully with the right bytes, messages in order. Once the link is gone, every operation completes.

use crate::random::Random;
use motet::node::{
    Atomic, Channel, Completion, CompletionOptions, Context, CqId, Datatype, Error, Key, LinkId, Mode, Node, Operation,
    OperationId, OperationMemory, Outgoing, RecvFrom, Rights, Serve, Status, Target,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The service of numbered messages.
pub const NUMBERED_SERVICE: u64 = 71;
/// The service of messages that are never received.
pub const UNRECEIVED_SERVICE: u64 = 72;

/// Words of a region: a counter, then words that the peer writes, then words that are never written.
const WORDS: usize = 64 << 10;
const WRITABLE_BYTES: usize = WORDS * 8 / 2;
/// Bytes of the longest message.
const MAX_MESSAGE_BYTES: usize = 300_000;
/// Limits on the number of operations of a kind.
const POSTED: usize = 6;
const SENDS: usize = 12;

/// Headers of a message, which say what it is.
const DATA: &[u8] = b"data";
const STOP: &[u8] = b"stop";

/// A pending operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Send,
    Receive(u64),
    Put { at: usize, length: usize, seed: u64 },
    GetBack { length: usize, seed: u64 },
    GetTheirs { at: usize, length: usize },
    Count(u64),
    Fence,
    NeverReceived,
    NeverSent,
}

/// One side of a link.
pub struct Side {
    node: Arc<Node>,
    /// Its link.
    pub link: LinkId,
    numbered: Channel,
    idle: Channel,
    cq: CqId,
    words: Arc<[AtomicU64]>,
    key: Key,
    theirs: Option<Key>,
    pending: HashMap<u64, (OperationId, Pending)>,
    contexts: u64,
    taken: u64,
    sent: u64,
    posted: u64,
    received: u64,
    counted: u64,
    writing: bool,
    counting: bool,
    stopping: bool,
    stopped: [bool; 2],
    gone: bool,
    random: Random,
    /// The number of operations that completed successfully.
    pub done: u64,
}

/// Bytes that depend on `seed`.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.number().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The value of a word that is never written.
fn constant(word: usize) -> u64 {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Accepts peers. Returns the context in which messages wait that are never received.
pub fn serve(node: &Node) -> Result<Context, Error> {
    let context = node.context()?;
    node.serve(NUMBERED_SERVICE, Serve::Queue)?;
    node.serve(UNRECEIVED_SERVICE, Serve::Tagged(context))?;
    Ok(context)
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pending: Vec<_> = self.pending.values().collect();
        let info = self.node.link_info(self.link);
        write!(f, "sent {} received {} stopped {:?}: {pending:?} on {info:?}", self.sent, self.received, self.stopped)
    }
}

impl Side {
    /// The side that made the link.
    pub fn begin(node: &Arc<Node>, link: LinkId, context: Context, seed: u64) -> Result<Self, Error> {
        let limit = Some(crate::HANG_LIMIT);
        let numbered = node.open_channel(link, NUMBERED_SERVICE, Serve::Queue, limit)?;
        let idle = node.open_channel(link, UNRECEIVED_SERVICE, Serve::Tagged(context), limit)?;
        Self::over(node, numbered, idle, seed)
    }

    /// A side over open channels.
    pub fn over(node: &Arc<Node>, numbered: Channel, idle: Channel, seed: u64) -> Result<Self, Error> {
        let words: Arc<[AtomicU64]> =
            (0..WORDS).map(|word| AtomicU64::new(if word * 8 < WRITABLE_BYTES { 0 } else { constant(word) })).collect();
        let key = node.register_words(&words, Rights::ALL)?;
        Ok(Self {
            node: node.clone(),
            link: numbered.link,
            numbered,
            idle,
            cq: node.add_cq()?,
            words,
            key,
            theirs: None,
            pending: HashMap::new(),
            contexts: 0,
            taken: 0,
            sent: 0,
            posted: 0,
            received: 0,
            counted: 0,
            writing: false,
            counting: false,
            stopping: false,
            stopped: [false; 2],
            gone: false,
            random: Random(seed),
            done: 0,
        })
    }

    fn next_completion(&mut self) -> CompletionOptions {
        self.contexts += 1;
        CompletionOptions { cq: Some(self.cq), user_data: self.contexts, errors_only: false }
    }

    /// The number of pending operations.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether the link is gone.
    pub fn is_gone(&self) -> bool {
        self.gone
    }

    /// Returns whether the peer's side exists: a message of it has been received.
    pub fn has_peer(&self) -> bool {
        self.received > 0
    }

    /// Begins no further sends.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Returns whether both sides have announced that they send no more.
    pub fn has_stopped(&self) -> bool {
        self.stopped == [true; 2]
    }

    /// Returns whether both sides have stopped and no operation is pending but receives that cannot match.
    pub fn is_over(&self) -> bool {
        let waits = |pending: &Pending| matches!(pending, Pending::Receive(_) | Pending::NeverReceived);
        self.stopped == [true; 2] && self.pending.values().all(|(_, pending)| waits(pending))
    }

    /// Begins a few operations and checks completed ones. Makes no progress.
    pub fn step(&mut self) {
        if !self.gone {
            for _ in 0..4 {
                match self.begin_one() {
                    Ok(()) | Err(Error::WouldBlock | Error::Full) => {}
                    Err(Error::Lost(_) | Error::Closed | Error::Unknown) => self.gone = true,
                    Err(error) => panic!("an operation was refused: {error}"),
                }
            }
        }
        // The counters are read first, because any wait yields the CPU.
        let [done, failed, _] = self.node.cq_counts(self.cq).expect("its cq");
        while self.taken < done + failed {
            let end = self.node.wait_cq(self.cq, Some(0)).expect("a completion that was counted");
            self.taken += 1;
            self.completed(end);
        }
    }

    fn count(&self, which: impl Fn(&Pending) -> bool) -> usize {
        self.pending.values().filter(|(_, pending)| which(pending)).count()
    }

    fn begin_one(&mut self) -> Result<(), Error> {
        let node = self.node.clone();
        if self.count(|pending| matches!(pending, Pending::Receive(_))) < POSTED {
            let completion = self.next_completion();
            let memory = OperationMemory::Owned(vec![0; MAX_MESSAGE_BYTES]);
            let operation = node.post(RecvFrom::Channel(self.numbered), 0, u64::MAX, memory, completion)?;
            self.pending.insert(completion.user_data, (operation, Pending::Receive(self.posted)));
            self.posted += 1;
        }
        if self.stopped[0] {
            return Ok(());
        }
        if self.sent == 0 {
            let key = self.key.0.to_le_bytes();
            return self.send(DATA, key.to_vec());
        }
        let sends = self.count(|pending| *pending == Pending::Send);
        if self.stopping {
            self.cancel_something()?;
            // No operation is pending that the peer would have to answer.
            if self.count(|pending| !matches!(pending, Pending::Receive(_) | Pending::NeverReceived)) == 0 {
                self.send(STOP, Vec::new())?;
                self.stopped[0] = true;
            }
            return Ok(());
        }
        match self.random.below(16) {
            0..8 if sends < SENDS => {
                let length = self.random.length();
                self.send(DATA, pattern(length, self.sent))
            }
            8 | 9 => self.put(),
            10 => self.get_theirs(),
            11 | 12 => self.count_one(),
            13 => self.cancel_something(),
            14 => self.start_unmatched(),
            15 if self.count(|pending| *pending == Pending::Fence) == 0 => {
                let completion = self.next_completion();
                let operation = node.fence(self.link, completion)?;
                self.pending.insert(completion.user_data, (operation, Pending::Fence));
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn send(&mut self, headers: &[u8], body: Vec<u8>) -> Result<(), Error> {
        let completion = self.next_completion();
        let message = Outgoing { channel: self.numbered, tag: self.sent, headers, mode: Mode::Automatic };
        let begun = self.node.start_send(&message, OperationMemory::Owned(body), Vec::new(), completion);
        if let Some(operation) = begun.map_err(|(error, ..)| error)? {
            self.pending.insert(completion.user_data, (operation, Pending::Send));
        }
        self.sent += 1;
        Ok(())
    }

    // ---- remote memory -----------------------------------------------------------------------------------------------

    fn put(&mut self) -> Result<(), Error> {
        let Some(key) = self.theirs.filter(|_| !self.writing) else { return Ok(()) };
        let length = self.random.length().min(WRITABLE_BYTES - 16);
        let at = 8 + self.random.below((WRITABLE_BYTES - 8 - length) as u64) as usize;
        let seed = self.random.number();
        let completion = self.next_completion();
        let operation = self.node.put(
            Target { link: self.link, key, offset: at as u64 },
            OperationMemory::Owned(pattern(length, seed)),
            completion,
        )?;
        self.pending.insert(completion.user_data, (operation, Pending::Put { at, length, seed }));
        self.writing = true;
        Ok(())
    }

    fn get_back(&mut self, at: usize, length: usize, seed: u64) -> Result<(), Error> {
        let Some(key) = self.theirs else { return Ok(()) };
        let completion = self.next_completion();
        let operation = self.node.get(
            Target { link: self.link, key, offset: at as u64 },
            OperationMemory::Owned(vec![0; length]),
            completion,
        )?;
        self.pending.insert(completion.user_data, (operation, Pending::GetBack { length, seed }));
        Ok(())
    }

    fn get_theirs(&mut self) -> Result<(), Error> {
        let Some(key) = self.theirs else { return Ok(()) };
        let length = self.random.length().min(WRITABLE_BYTES) / 8 * 8;
        let at = WRITABLE_BYTES + self.random.below(((WRITABLE_BYTES - length) / 8) as u64 + 1) as usize * 8;
        let at = at.min(WORDS * 8 - length);
        let completion = self.next_completion();
        let operation = self.node.get(
            Target { link: self.link, key, offset: at as u64 },
            OperationMemory::Owned(vec![0; length]),
            completion,
        )?;
        self.pending.insert(completion.user_data, (operation, Pending::GetTheirs { at, length }));
        Ok(())
    }

    fn count_one(&mut self) -> Result<(), Error> {
        let Some(key) = self.theirs.filter(|_| !self.counting) else { return Ok(()) };
        let completion = self.next_completion();
        let (operand, compare) = (&1u64.to_le_bytes()[..], &[][..]);
        let add = Atomic { operation: Operation::Sum, datatype: Datatype::U64, count: 1, operand, compare };
        let operation = self.node.atomic(
            Target { link: self.link, key, offset: 0 },
            &add,
            OperationMemory::Owned(vec![0; 8]),
            completion,
        )?;
        self.pending.insert(completion.user_data, (operation, Pending::Count(self.counted)));
        self.counted += 1;
        self.counting = true;
        Ok(())
    }

    // ---- operations without a match ----------------------------------------------------------------------------------

    fn start_unmatched(&mut self) -> Result<(), Error> {
        let completion = self.next_completion();
        if self.random.once_in(2) {
            let from = RecvFrom::Channel(self.idle);
            let operation = self.node.post(from, 5, 0, OperationMemory::Owned(vec![0; 64]), completion)?;
            self.pending.insert(completion.user_data, (operation, Pending::NeverReceived));
        } else if self.count(|pending| *pending == Pending::NeverSent) < 4 {
            let message = Outgoing { channel: self.idle, tag: 6, headers: &[], mode: Mode::Synchronous };
            let body = OperationMemory::Owned(pattern(100_000, 1));
            let begun = self.node.start_send(&message, body, Vec::new(), completion).map_err(|(error, ..)| error)?;
            if let Some(operation) = begun {
                self.pending.insert(completion.user_data, (operation, Pending::NeverSent));
            }
        }
        Ok(())
    }

    fn cancel_something(&mut self) -> Result<(), Error> {
        let idle = |pending: &Pending| matches!(pending, Pending::NeverReceived | Pending::NeverSent);
        let found = self.pending.values().find(|(_, pending)| idle(pending)).map(|(operation, _)| *operation);
        match found.map_or(Ok(()), |operation| self.node.cancel(operation)) {
            Err(Error::Unknown) => Ok(()), // it has completed, and its completion is still in the queue
            cancelled => cancelled,
        }
    }

    // ---- completions -------------------------------------------------------------------------------------------------

    fn completed(&mut self, end: Completion) {
        let (operation, pending) = self.pending.remove(&end.user_data).expect("a completion of a pending operation");
        assert_eq!(operation, end.operation);
        if matches!(end.status, Status::LinkDown | Status::Closed) {
            let gone = self.node.link_info(self.link).map_or(true, |info| info.gone.is_some());
            assert!(gone || self.has_stopped(), "{pending:?} ended as {:?} on a link that is up", end.status);
            self.gone = true;
            return;
        }
        let memory = end.memory.unwrap_or_default();
        match pending {
            Pending::Send | Pending::Fence => assert_eq!(end.status, Status::Done, "{pending:?}"),
            Pending::NeverReceived => return assert_eq!(end.status, Status::Cancelled),
            Pending::NeverSent => return assert_eq!(end.status, Status::Cancelled),
            Pending::Receive(number) => {
                assert_eq!((end.status, end.tag), (Status::Done, number), "messages are in order");
                let bytes = &memory[..end.length as usize];
                match &end.headers[..] {
                    STOP => self.stopped[1] = true,
                    _ if number == 0 => self.theirs = bytes.try_into().ok().map(|key| Key(u64::from_le_bytes(key))),
                    _ => assert!(bytes == pattern(bytes.len(), number), "bytes of message {number}"),
                }
                self.received += 1;
            }
            Pending::Put { at, length, seed } => {
                assert_eq!(end.status, Status::Done);
                if self.get_back(at, length, seed).is_err() {
                    self.writing = false;
                }
            }
            Pending::GetBack { length, seed } => {
                self.writing = false;
                assert_eq!(end.status, Status::Done);
                assert!(memory == pattern(length, seed), "what was put is there");
            }
            Pending::GetTheirs { at, length } => {
                assert_eq!(end.status, Status::Done);
                let expected = (at / 8..(at + length) / 8).flat_map(|word| constant(word).to_le_bytes());
                assert!(memory.iter().copied().eq(expected), "words that are never written");
            }
            Pending::Count(before) => {
                self.counting = false;
                assert_eq!((end.status, memory), (Status::Done, before.to_le_bytes().to_vec()));
            }
        }
        self.done += 1;
    }

    /// Removes everything. On a link that is up all operations must have completed ([`Side::is_over`]).
    pub fn end(mut self) {
        let orderly = !self.gone && self.is_over();
        for (operation, _) in self.pending.values() {
            let _ = self.node.cancel(*operation);
        }
        let until = motet::node::deadline_in(crate::HANG_LIMIT.as_nanos() as u64);
        while !self.pending.is_empty() {
            let Ok(end) = self.node.wait_cq(self.cq, Some(until)) else { panic!("never ended: {:?}", self.pending) };
            // The peer may have closed the channels first.
            assert!(
                !orderly || matches!(end.status, Status::Cancelled | Status::Closed | Status::LinkDown),
                "{:?}",
                end.status
            );
            self.pending.remove(&end.user_data).expect("a completion of a pending operation");
        }
        if orderly {
            let words = self.words.iter().enumerate().skip(WRITABLE_BYTES / 8);
            words.for_each(|(at, word)| assert_eq!(word.load(Ordering::Relaxed), constant(at)));
        }
        self.node.remove_cq(self.cq).expect("nothing is pending in the completion queue");
        self.node.revoke(self.key, Some(until)).expect("the region of a link that is gone is unused");
        let _ = self.node.close_channel(self.numbered);
        let _ = self.node.close_channel(self.idle);
    }
}
