//! Operations: what a program has begun and will be told the end of.
//!
//! What it is: their records, and the groups that ends are put into. An operation ends once. Its record stays until somebody has
//! taken note of the end: whoever waits for *this one* or for *any of these*, or, of operations in a completion group, the group at
//! once. What it is not: it waits for nothing.

use super::loans::{Lent, Loan, Part, Returns};
use super::{Channel, Error, OperationId};
use motet_proto::message::matching::Ticket;
use motet_proto::message::pool::{self, Number, Pool};
use motet_proto::message::{Envelope, Outcome, Status};
use motet_sys::span::Memory;
use motet_wire::lane::bulk::Run;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// What to do when an operation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notice {
    /// The group that is told; none: the record waits for whoever asks.
    pub group: Option<GroupId>,
    /// The program's word for it, which comes back.
    pub context: u64,
    /// A success is only counted (selective completion). Needs a group.
    pub quiet: bool,
}

/// A completion group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(pub u32);

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// Which.
    pub operation: OperationId,
    /// The program's word for it.
    pub context: u64,
    /// How it has ended.
    pub status: Status,
    /// Bytes of the body that were sent, or are in the buffer.
    pub length: u64,
    /// Of a receive: the message's tag, its whole length, its headers (outermost first), and where it came.
    pub tag: u64,
    /// Bytes of the body before it was truncated.
    pub full: u64,
    /// Of the message.
    pub headers: Vec<u8>,
    /// Of the message.
    pub channel: Option<Channel>,
    /// The operation's own memory, given back.
    pub memory: Option<Vec<u8>>,
    /// Of a receive in place: the message, where it is.
    pub lent: Option<Lent>,
}

/// How a receive has ended for which a thread has waited right here.
#[derive(Debug)]
pub struct Got {
    /// How.
    pub status: Status,
    /// Bytes that are in the buffer.
    pub length: u64,
    /// The message's tag.
    pub tag: u64,
    /// Bytes of the body before it was truncated.
    pub full: u64,
    /// Where it came.
    pub channel: Option<Channel>,
}

/// What the node must know to cancel it.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A receive that waits, or has been matched.
    Receive(Option<Ticket>),
    /// A message that is not all gone.
    Send(Option<Number>),
}

/// What a receive in place sees.
#[derive(Debug)]
pub enum Seen {
    /// It is none.
    Nothing,
    /// Nothing yet, or a copy of at most so many bytes.
    Wanted {
        /// Bytes.
        most: u64,
    },
    /// The sender's memory; the protocol's name for the message.
    Lent(Part, Number),
}

/// One operation.
#[derive(Debug)]
pub struct Operation {
    /// Its body, or where that goes.
    pub memory: Memory,
    /// The rest of a gathered body.
    pub more: Vec<Memory>,
    /// What it is.
    pub kind: Kind,
    /// On which channel, where it is on one.
    pub channel: Option<Channel>,
    /// Nobody waits for it any more.
    pub detached: bool,
    /// Of a receive in place: what it sees.
    pub seen: Seen,
    notice: Notice,
    outcome: Option<Outcome>,
    tag: u64,
    full: u64,
    headers: Vec<u8>,
}

impl Default for Operation {
    fn default() -> Self {
        Self::new(Memory::Owned(Vec::new()), Kind::Receive(None), None, Notice::default())
    }
}

impl Operation {
    /// One that has just begun.
    pub fn new(memory: Memory, kind: Kind, channel: Option<Channel>, notice: Notice) -> Self {
        let (outcome, tag, full) = (None, 0, 0);
        let (more, headers) = (Vec::new(), Vec::new());
        let (detached, seen) = (false, Seen::Nothing);
        Self { memory, more, kind, channel, detached, seen, notice, outcome, tag, full, headers }
    }

    /// Room for the copy that a receive in place gets after all. Where there is no memory for it, the receive fails with its end.
    #[cold]
    pub fn make_room(&mut self) {
        let (Seen::Wanted { most }, Memory::Owned(bytes)) = (&self.seen, &mut self.memory) else { return };
        let length = usize::try_from(self.full.min(*most)).unwrap_or(usize::MAX);
        if bytes.is_empty() && bytes.try_reserve_exact(length).is_ok() {
            bytes.resize(length, 0);
        }
    }

    /// Bytes for the buffer; a receive in place has none before the first of them comes.
    #[inline(always)]
    pub fn place(&mut self, at: usize, bytes: &[u8]) {
        if self.memory.fill(at, bytes) < bytes.len() {
            self.place_in_room(at, bytes);
        }
    }

    /// The same of bytes that lie in a ring.
    pub fn place_run(&mut self, at: usize, run: Run) {
        if self.memory.len() < at + run.len() {
            self.make_room();
        }
        self.memory.write(at, run.len(), |into| run.read(into));
    }

    #[cold]
    fn place_in_room(&mut self, at: usize, bytes: &[u8]) {
        self.make_room();
        self.memory.fill(at, bytes);
    }

    /// Shows bytes of a body, which may lie in several pieces.
    pub fn body(&self, at: usize, length: usize, put: &mut dyn FnMut(&[&[u8]]) -> bool) -> bool {
        let mut parts = SmallVec::<[&[u8]; 8]>::new();
        let (mut skip, mut left) = (at, length);
        for memory in std::iter::once(&self.memory).chain(&self.more) {
            let bytes = memory.bytes(skip, left);
            skip = skip.saturating_sub(memory.len());
            left -= bytes.len();
            if !bytes.is_empty() {
                parts.push(bytes);
            }
        }
        put(&parts)
    }
}

/// Ends that one thread waits for.
#[derive(Debug, Default)]
pub struct Group {
    ended: VecDeque<Completion>,
    /// Operations that ended as asked, and others.
    pub counts: [u64; 2],
    /// Operations under way.
    pub under_way: u64,
    /// Whoever waits, or waits next, is to stop.
    pub signalled: bool,
}

/// The one operation that has no record of its own: a receive for which a thread waits right here.
pub const DIRECT: OperationId = OperationId(0);

/// All of a node.
#[derive(Debug, Default)]
pub struct Operations {
    pool: Pool<Operation>,
    groups: Pool<Group>,
    direct: Direct,
    /// Loans of whose end nobody is told, on their way; and the last such that has come back.
    loans: Pool<Loan>,
    spare: Option<Loan>,
    /// Where loans go that are dropped.
    pub returns: Option<Arc<Returns>>,
}

/// In the protocol's name of an operation: it is a loan of whose end nobody is told, which needs no more of a record than itself.
const LOAN: u64 = 1 << 32;

/// The place of [`DIRECT`].
#[derive(Debug, Default)]
struct Direct {
    operation: Operation,
    busy: bool,
}

impl Operations {
    /// A new record.
    ///
    /// Errors: [`Error::Full`]; [`Error::Unknown`] when there is no such group.
    #[inline(always)]
    pub fn begin(&mut self, operation: Operation) -> Result<OperationId, Error> {
        let Some(group) = operation.notice.group else {
            return self.pool.insert(operation).map(|number| OperationId(number.0)).ok_or(Error::Full);
        };
        let known = self.groups.named(Number(group.0)).ok_or(Error::Unknown)?;
        let number = self.pool.insert(operation).ok_or(Error::Full)?;
        known.under_way += 1;
        Ok(OperationId(number.0))
    }

    /// A record, by the name that the protocol knows it by.
    #[inline(always)]
    pub fn get(&mut self, name: u64) -> Option<&mut Operation> {
        if name == u64::from(DIRECT.0) {
            return self.direct.busy.then_some(&mut self.direct.operation);
        }
        if name >= LOAN {
            return None;
        }
        self.pool.named(Number(name as u32))
    }

    /// Begins the receive that has no record. False: there is one.
    #[inline(always)]
    pub fn begin_direct(&mut self, memory: Memory) -> bool {
        let Direct { operation, busy } = &mut self.direct;
        if *busy {
            return false;
        }
        *busy = true;
        (operation.memory, operation.outcome, operation.channel, operation.full) = (memory, None, None, 0);
        operation.kind = Kind::Receive(None);
        true
    }

    /// Whether that has ended.
    #[inline(always)]
    pub fn direct_has_ended(&self) -> bool {
        self.direct.operation.outcome.is_some()
    }

    /// How that has ended: then there is none any more. Its headers are exchanged for what is in `headers`.
    #[inline(always)]
    pub fn take_direct(&mut self, headers: Option<&mut Vec<u8>>) -> Option<Got> {
        let Operation { outcome, tag, full, headers: known, channel, .. } = &mut self.direct.operation;
        let Outcome { status, length } = outcome.take()?;
        if let Some(headers) = headers {
            std::mem::swap(headers, known);
        }
        known.clear();
        self.direct.busy = false;
        Some(Got { status, length, tag: *tag, full: *full, channel: *channel })
    }

    /// Takes a record back that never began.
    pub fn withdraw(&mut self, operation: OperationId) -> Option<Operation> {
        let operation = self.pool.find(Number(operation.0)).and_then(|index| self.pool.remove(index))?;
        if let Some(group) = operation.notice.group.and_then(|group| self.group(group)) {
            group.under_way -= 1;
        }
        Some(operation)
    }

    /// A receive has its message.
    #[inline(always)]
    pub fn matched(&mut self, name: u64, channel: Channel, envelope: &Envelope<'_>) {
        let Some(operation) = self.get(name) else { return };
        (operation.tag, operation.full, operation.channel) = (envelope.tag, envelope.length, Some(channel));
        if let Kind::Receive(ticket) = &mut operation.kind {
            *ticket = None;
        }
        if !envelope.headers.is_empty() {
            operation.headers.extend_from_slice(envelope.headers);
        }
    }

    /// An operation has ended.
    #[inline(always)]
    pub fn complete(&mut self, name: u64, outcome: Outcome) {
        if name >= LOAN {
            if let Some(loan) = self.take_loan(name).filter(Loan::is_part) {
                self.spare = Some(loan);
            }
            return;
        }
        let Some(operation) = self.get(name) else { return };
        operation.outcome = Some(outcome);
        if operation.detached {
            self.forget(OperationId(name as u32));
        } else if let Some(group) = operation.notice.group {
            self.report(OperationId(name as u32), group);
        }
    }

    #[cold]
    fn forget(&mut self, operation: OperationId) {
        if operation == DIRECT {
            self.direct = Direct::default();
        } else {
            self.take(operation);
        }
    }

    fn report(&mut self, operation: OperationId, group: GroupId) {
        let Some(quiet) = self.get(u64::from(operation.0)).map(|known| known.notice.quiet) else { return };
        let Some(completion) = self.take(operation) else { return };
        let Some(group) = self.group(group) else { return };
        group.under_way -= 1;
        let done = completion.status == Status::Done;
        group.counts[usize::from(!done)] += 1;
        if !(quiet && done) {
            group.ended.push_back(completion);
        }
    }

    /// Whether an operation has ended; one that is not known has.
    #[inline(always)]
    pub fn has_ended(&mut self, operation: OperationId) -> bool {
        self.get(u64::from(operation.0)).is_none_or(|known| known.outcome.is_some())
    }

    /// The end of an operation, if it has ended: its record is gone then.
    #[inline(always)]
    pub fn take(&mut self, operation: OperationId) -> Option<Completion> {
        let index = self.pool.find(Number(operation.0))?;
        let outcome = self.pool.get(index)?.outcome?;
        let known = self.pool.remove(index)?;
        let Operation { memory, notice, tag, full, headers, channel, seen, .. } = known;
        let memory = match memory {
            Memory::Owned(bytes) => Some(bytes),
            Memory::Span(_) | Memory::Block(_) => None,
        };
        let Outcome { mut status, length } = outcome;
        let lent = match (seen, channel, &self.returns) {
            (Seen::Lent(part, record), Some(channel), Some(returns)) => {
                Some(Lent::new(part, channel.link, record, returns.clone()))
            }
            (Seen::Wanted { .. }, ..) if memory.as_ref().is_none_or(|bytes| (bytes.len() as u64) < length) => {
                status = Status::Full; // there was no memory for the copy
                None
            }
            _ => None,
        };
        let context = notice.context;
        Some(Completion { operation, context, status, length, tag, full, headers, channel, memory, lent })
    }

    /// Records held.
    pub fn count(&self) -> u32 {
        self.pool.count() + self.loans.count()
    }

    // ---- loans of whose end nobody is told ---------------------------------------------------------------------------

    /// Keeps one; its name for the protocol. It comes back when there are too many.
    #[inline]
    pub fn keep_loan(&mut self, loan: Loan) -> Result<u64, Loan> {
        if self.loans.count() == pool::MOST {
            return Err(loan);
        }
        Ok(self.loans.insert(loan).map_or(0, |number| LOAN | u64::from(number.0)))
    }

    /// One that has not gone, or has come back.
    #[inline]
    pub fn take_loan(&mut self, name: u64) -> Option<Loan> {
        let index = self.loans.find(Number((name & !LOAN) as u32))?;
        self.loans.remove(index)
    }

    /// Bytes of one.
    pub fn loan(&mut self, name: u64) -> Option<&Loan> {
        if name < LOAN { None } else { self.loans.named(Number((name & !LOAN) as u32)).map(|loan| &*loan) }
    }

    /// The last one that has come back: another use of it costs the pool nothing.
    #[inline]
    pub fn take_spare(&mut self) -> Option<Loan> {
        self.spare.take()
    }

    /// Bytes of that, which are free although the pool does not have them.
    pub fn spare_bytes(&self) -> usize {
        self.spare.as_ref().map_or(0, Loan::size)
    }

    // ---- groups -----------------------------------------------------------------------------------------------------

    /// A new completion group; `None` when there are too many.
    pub fn add_group(&mut self) -> Option<GroupId> {
        self.groups.insert(Group::default()).map(|number| GroupId(number.0))
    }

    /// Ends a group, and forgets what nobody has taken note of. [`Error::WouldBlock`], and nothing is done, while operations in it
    /// are under way.
    pub fn remove_group(&mut self, group: GroupId) -> Result<(), Error> {
        let number = Number(group.0);
        if self.groups.named(number).ok_or(Error::Unknown)?.under_way > 0 {
            return Err(Error::WouldBlock);
        }
        self.groups.remove(number.index());
        Ok(())
    }

    /// A group.
    #[inline(always)]
    pub fn group(&mut self, group: GroupId) -> Option<&mut Group> {
        self.groups.named(Number(group.0))
    }
}

impl Group {
    /// The next end in it.
    #[inline(always)]
    pub fn take(&mut self) -> Option<Completion> {
        self.ended.pop_front()
    }

    /// Whether there is one.
    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// Whether a wait is to stop; asked once for each time.
    pub fn interrupted<R>(&mut self) -> Option<Result<R, Error>> {
        std::mem::take(&mut self.signalled).then_some(Err(Error::Interrupted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gathered_body_is_shown_from_anywhere() {
        let bytes: Vec<u8> = (0..30).collect();
        let mut operation =
            Operation::new(Memory::Owned(bytes[..10].to_vec()), Kind::Send(None), None, Notice::default());
        let rest = [&bytes[10..11], &[], &bytes[11..30]];
        operation.more = rest.map(|part| Memory::Owned(part.to_vec())).into();
        for at in 0..30 {
            for length in 0..=30 - at {
                let mut seen = Vec::new();
                assert!(operation.body(at, length, &mut |parts| {
                    seen = parts.concat();
                    true
                }));
                assert_eq!(seen, bytes[at..at + length], "{at} {length}");
            }
        }
    }

    #[test]
    fn a_loan_of_whose_end_nobody_is_told_is_kept_until_then_and_used_again() {
        let pool = motet_sys::lending::Pool::new(1 << 30);
        let mut operations = Operations::default();
        let take = |length| {
            let mut loan = pool.take(length).unwrap();
            loan.fill(length as u8);
            loan
        };
        let [first, second, long] =
            [5000, 9000, (64 << 20) + 1].map(|length| operations.keep_loan(take(length)).unwrap());
        assert_eq!((operations.count(), operations.loan(first).unwrap()[4999]), (3, 5000u16 as u8));
        // No name of one is an operation's, nor the other way round.
        assert!(operations.get(first).is_none() && operations.loan(first & 0xffff_ffff).is_none());
        let done = Outcome { status: Status::Done, length: 5000 };
        operations.complete(first, done);
        operations.complete(first, done);
        assert_eq!((operations.count(), operations.spare_bytes(), operations.loan(first).is_none()), (2, 8192, true));
        let spare = operations.take_spare().unwrap().again(9000).unwrap_err();
        assert_eq!(spare.again(8192).unwrap().len(), 8192);
        operations.complete(second, done);
        operations.complete(long, done);
        assert_eq!((operations.count(), operations.spare_bytes()), (0, 16 << 10), "a long one goes back at once");
        assert_eq!(pool.size()[2], 16 << 10);
        drop(operations);
        assert_eq!(pool.size()[2], 0);
    }

    #[test]
    fn a_group_counts_and_reports_what_it_is_told_to() {
        let mut operations = Operations::default();
        let group = operations.add_group().unwrap();
        let mut begin = |quiet| {
            let notice = Notice { group: Some(group), context: 7, quiet };
            let operation = Operation::new(Memory::Owned(Vec::new()), Kind::Send(None), None, notice);
            operations.begin(operation).unwrap()
        };
        let [loud, quiet, fails] = [begin(false), begin(true), begin(true)];
        assert_eq!(operations.remove_group(group), Err(Error::WouldBlock), "operations are under way");
        for (operation, status) in [(loud, Status::Done), (quiet, Status::Done), (fails, Status::Broken)] {
            operations.complete(u64::from(operation.0), Outcome { status, length: 1 });
            operations.complete(u64::from(operation.0), Outcome { status: Status::Full, length: 2 });
        }
        let known = operations.group(group).unwrap();
        let ended: Vec<_> = std::iter::from_fn(|| known.take()).map(|end| (end.operation, end.status)).collect();
        assert_eq!((ended, known.counts), (vec![(loud, Status::Done), (fails, Status::Broken)], [2, 1]));
        assert_eq!((operations.remove_group(group), operations.count()), (Ok(()), 0));
        assert_ne!(operations.add_group(), Some(group), "its number is not used again so soon");
        assert_eq!(operations.remove_group(group), Err(Error::Unknown));
        let notice = Notice { group: Some(group), ..Notice::default() };
        let late = Operation::new(Memory::Owned(Vec::new()), Kind::Send(None), None, notice);
        assert_eq!((operations.begin(late), operations.count()), (Err(Error::Unknown), 0));
    }
}
