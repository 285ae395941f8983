//! A client's session: its slots with the answers that may be asked for again, its postponed requests, its open files, and the channel on which it is reached.

use super::backlog::Backlog;
use super::threads::ClientThreads;
use crate::identity::Identity;
use crate::protocol::{Answer, OpenFlags, Operation, Request, SLOTS, SessionKey, append};
use crate::storage::{ClosedFiles, FileTable, Quota};
use motet::node::Channel;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A session.
#[derive(Debug)]
pub struct Session {
    key: SessionKey,
    /// The user of a client of another user: as whom all its requests are executed.
    member: Option<Identity>,
    link: Mutex<LinkState>,
    slots: Vec<Mutex<Slot>>,
    backlog: Backlog,
    threads: ClientThreads,
    files: FileTable,
    /// How often its files have ended.
    ends: AtomicU64,
    notices: Mutex<Notices>,
    acknowledged: Condvar,
}

/// The notices that the client gets.
#[derive(Debug, Default)]
struct Notices {
    /// Where it gets them.
    channel: Option<Channel>,
    /// The number of the last one.
    sent: u32,
    /// The last one of which it has said that it uses nothing any more.
    acknowledged: u32,
}

/// How the client is reached.
#[derive(Debug, Clone, Copy)]
enum LinkState {
    /// On this channel.
    Up(Channel),
    /// Not since then.
    Lost(Instant),
}

/// A slot: the last request, and what became of it.
#[derive(Debug, Default)]
struct Slot {
    sequence: u32,
    state: SlotState,
    /// How often the files of the session had ended when the request was admitted.
    ends: u64,
}

#[derive(Debug, Default)]
enum SlotState {
    /// Answered; the answer may be executed again.
    #[default]
    Idle,
    /// A thread executes the request.
    Running,
    /// Answered with these headers and body.
    Answered(Vec<u8>, Vec<u8>, WithoutFiles),
}

/// What becomes of an answer when the files of the session end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WithoutFiles {
    /// It is still right.
    Right,
    /// The request is executed again.
    Again,
    /// It is an error: the request may not be executed again.
    Error,
}

impl WithoutFiles {
    fn of(operation: &Operation<'_>) -> Self {
        match operation {
            Operation::Open { flags, .. } if flags.contains(OpenFlags::EXCLUSIVE - OpenFlags::TMPFILE) => {
                if operation.is_repeatable() { Self::Again } else { Self::Error }
            }
            _ if operation.concerns_open_files() => Self::Again,
            _ => Self::Right,
        }
    }
}

impl SlotState {
    /// The answer to a request that was executed, and whose result is lost.
    fn failed(sequence: u32) -> Self {
        let mut headers = Vec::new();
        append(&Answer { sequence, result: Err(Errno::IO.raw_os_error()) }, &mut headers);
        Self::Answered(headers, Vec::new(), WithoutFiles::Right)
    }
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admitted {
    /// Execute it.
    Execute,
    /// Send this answer again: headers and body.
    Repeat(Vec<u8>, Vec<u8>),
    /// Nothing: a thread executes it already, and answers on the present channel.
    Running,
    /// The client has broken the protocol.
    Refused,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// A session of the client at this channel. `quota`: the descriptors that it may use; `threads`: the threads.
    pub fn new(
        key: SessionKey,
        channel: Channel,
        member: Option<Identity>,
        quota: Arc<Quota>,
        threads: ClientThreads,
    ) -> Self {
        Self {
            key,
            member,
            link: Mutex::new(LinkState::Up(channel)),
            slots: (0..SLOTS).map(|_| Mutex::default()).collect(),
            backlog: Backlog::default(),
            threads,
            files: FileTable::with(quota),
            ends: AtomicU64::new(0),
            notices: Mutex::default(),
            acknowledged: Condvar::new(),
        }
    }

    /// Its key.
    pub fn key(&self) -> SessionKey {
        self.key
    }

    /// The user of its client, if that is another one than the server's.
    pub fn member(&self) -> Option<&Identity> {
        self.member.as_ref()
    }

    /// The channel of its client, if the client is connected.
    pub fn channel(&self) -> Option<Channel> {
        match *locked(&self.link) {
            LinkState::Up(channel) => Some(channel),
            LinkState::Lost(_) => None,
        }
    }

    /// The client has come back on another channel; returns the one before.
    pub fn resume(&self, channel: Channel) -> Option<Channel> {
        self.backlog.clear();
        self.threads.clear();
        match std::mem::replace(&mut *locked(&self.link), LinkState::Up(channel)) {
            LinkState::Up(before) => Some(before),
            LinkState::Lost(_) => None,
        }
    }

    /// The channel is lost; returns false if the session is on another one already.
    pub fn lose(&self, channel: Channel) -> bool {
        let mut link = locked(&self.link);
        let own = matches!(*link, LinkState::Up(present) if present == channel);
        if own {
            *link = LinkState::Lost(Instant::now());
        }
        own
    }

    /// Since when the client is not connected.
    pub fn lost_since(&self) -> Option<Instant> {
        match *locked(&self.link) {
            LinkState::Up(_) => None,
            LinkState::Lost(since) => Some(since),
        }
    }

    /// Its requests that are postponed.
    pub fn backlog(&self) -> &Backlog {
        &self.backlog
    }

    /// The threads that it occupies.
    pub fn threads(&self) -> &ClientThreads {
        &self.threads
    }

    /// Decides about a request, by its slot and number.
    pub fn admit(&self, request: &Request<'_>) -> Admitted {
        let Some(slot) = self.slots.get(usize::from(request.slot)) else { return Admitted::Refused };
        let mut slot = locked(slot);
        if request.sequence == slot.sequence.wrapping_add(1) {
            if matches!(slot.state, SlotState::Running) {
                return Admitted::Refused;
            }
            let ends = self.ends.load(Ordering::SeqCst);
            *slot = Slot { sequence: request.sequence, state: SlotState::Running, ends };
            return Admitted::Execute;
        }
        if request.sequence != slot.sequence {
            return Admitted::Refused;
        }
        match &slot.state {
            SlotState::Idle => {
                (slot.state, slot.ends) = (SlotState::Running, self.ends.load(Ordering::SeqCst));
                Admitted::Execute
            }
            SlotState::Running => Admitted::Running,
            SlotState::Answered(headers, body, _) => Admitted::Repeat(headers.clone(), body.clone()),
        }
    }

    /// The request has been executed. `keep`: the answer, which must not be found by executing it again. False: the answer is about open files, and the files of the
    /// session have ended meanwhile.
    pub fn answered(&self, request: &Request<'_>, keep: Option<(&[u8], &[u8])>) -> bool {
        let Some(slot) = self.slots.get(usize::from(request.slot)) else { return true };
        let mut slot = locked(slot);
        let without_files = WithoutFiles::of(&request.operation);
        let is_valid = without_files == WithoutFiles::Right || slot.ends == self.ends.load(Ordering::SeqCst);
        slot.state = match keep {
            Some((headers, body)) if is_valid => SlotState::Answered(headers.to_vec(), body.to_vec(), without_files),
            Some(_) if without_files == WithoutFiles::Error => SlotState::failed(request.sequence),
            _ => SlotState::Idle,
        };
        is_valid
    }

    /// The client has not come back in time: its files are closed, and its locks released. What its last requests have done is still known. Returns the
    /// files, whose descriptors are closed when that is dropped.
    pub fn end_files(&self) -> ClosedFiles {
        self.ends.fetch_add(1, Ordering::SeqCst);
        let closed = self.files.end();
        self.backlog.clear();
        self.threads.clear();
        for slot in &self.slots {
            let mut slot = locked(slot);
            match slot.state {
                SlotState::Answered(_, _, WithoutFiles::Again) => slot.state = SlotState::Idle,
                SlotState::Answered(_, _, WithoutFiles::Error) => slot.state = SlotState::failed(slot.sequence),
                _ => {}
            }
        }
        closed
    }

    /// The client gets notices on this channel from now on. Returns the one before.
    pub fn begin_notices(&self, channel: Channel) -> Option<Channel> {
        let before =
            std::mem::replace(&mut *locked(&self.notices), Notices { channel: Some(channel), ..Notices::default() });
        self.acknowledged.notify_all();
        before.channel
    }

    /// The client gets no notices any more. Returns the channel.
    pub fn end_notices(&self) -> Option<Channel> {
        let channel = locked(&self.notices).channel.take();
        self.acknowledged.notify_all();
        channel
    }

    /// A channel for notices is lost. Returns whether it is the present one; then the client gets none any more.
    pub fn loses_notices(&self, channel: Channel) -> bool {
        let mut notices = locked(&self.notices);
        let present = notices.channel == Some(channel);
        if present {
            notices.channel = None;
            self.acknowledged.notify_all();
        }
        present
    }

    /// The channel and the number of the next notice.
    pub fn next_notice(&self) -> Option<(Channel, u32)> {
        let mut notices = locked(&self.notices);
        let channel = notices.channel?;
        notices.sent = notices.sent.wrapping_add(1);
        Some((channel, notices.sent))
    }

    /// The client uses nothing any more of what was told up to this notice. False: it has not been sent.
    pub fn acknowledge(&self, channel: Channel, number: u32) -> bool {
        let mut notices = locked(&self.notices);
        let outstanding = notices.sent.wrapping_sub(notices.acknowledged);
        let valid = notices.channel == Some(channel) && number.wrapping_sub(notices.acknowledged) <= outstanding;
        if valid {
            notices.acknowledged = number;
            self.acknowledged.notify_all();
        }
        valid
    }

    /// Waits until the client has acknowledged a notice, or gets none on this channel any more. False: it has not in time.
    pub fn wait_for_acknowledgement(&self, channel: Channel, number: u32, deadline: Instant) -> bool {
        let mut notices = locked(&self.notices);
        while notices.channel == Some(channel) && (number.wrapping_sub(notices.acknowledged) as i32) > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            notices = self.acknowledged.wait_timeout(notices, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Its open files.
    pub fn files(&self) -> &FileTable {
        &self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Operation;
    use crate::protocol::Target;
    use crate::server::backlog::tests::channel;

    fn session() -> Session {
        Session::new(SessionKey([1; 16]), channel(), None, Quota::new(100, None), ClientThreads::default())
    }

    fn request(slot: u16, sequence: u32) -> Request<'static> {
        Request { slot, sequence, data: 0, identity: None, operation: Operation::Statfs }
    }

    #[test]
    fn a_request_is_executed_once_and_its_answer_repeated() {
        let session = session();
        assert_eq!(session.admit(&request(3, 1)), Admitted::Execute);
        assert_eq!(session.admit(&request(3, 1)), Admitted::Running);
        session.answered(&request(3, 1), Some((b"head", b"body")));
        assert_eq!(session.admit(&request(3, 1)), Admitted::Repeat(b"head".to_vec(), b"body".to_vec()));
        assert_eq!(session.admit(&request(3, 2)), Admitted::Execute);
        session.answered(&request(3, 2), None);
        assert_eq!(session.admit(&request(3, 2)), Admitted::Execute, "an idempotent request is executed again");
    }

    #[test]
    fn answers_outlive_the_files_of_a_session() {
        let session = session();
        let open = |flags| Operation::Open { path: b"file", flags, mode: 0 };
        let new = OpenFlags::CREATE | OpenFlags::EXCLUSIVE;
        let operations = [
            Operation::Mkdir { path: b"new", mode: 0 },
            open(OpenFlags::CREATE),
            open(new),
            Operation::Close { file: 1 },
            Operation::OpenKnown { target: Target::Path(b"file"), flags: OpenFlags::READ },
        ];
        let requests: Vec<_> =
            (0..).zip(operations).map(|(slot, operation)| Request { operation, ..request(slot, 1) }).collect();
        for request in &requests {
            assert_eq!(session.admit(request), Admitted::Execute);
            assert!(session.answered(request, Some((b"head", b"body"))));
        }
        drop(session.end_files());
        assert_eq!(session.admit(&requests[0]), Admitted::Repeat(b"head".to_vec(), b"body".to_vec()));
        assert_eq!(session.admit(&requests[1]), Admitted::Execute, "its file is closed");
        let Admitted::Repeat(headers, body) = session.admit(&requests[2]) else { panic!("it would be executed twice") };
        let answer = crate::protocol::parse_answer(&headers).expect("an answer");
        assert_eq!((answer.result, body.len()), (Err(Errno::IO.raw_os_error()), 0));
        assert_eq!(session.admit(&requests[3]), Admitted::Execute);
        assert_eq!(session.admit(&requests[4]), Admitted::Execute, "its file is closed");
        // An open that is executed while the files end.
        assert!(session.answered(&requests[1], Some((b"head", b"body"))));
        let late = Request { operation: open(OpenFlags::CREATE), ..request(1, 2) };
        assert_eq!(session.admit(&late), Admitted::Execute);
        drop(session.end_files());
        assert!(!session.answered(&late, Some((b"head", b"body"))), "its file is closed");
        assert_eq!(session.admit(&late), Admitted::Execute);
    }

    #[test]
    fn acknowledgements_are_of_notices_that_were_sent() {
        let session = session();
        let channel = session.channel().expect("a channel");
        assert_eq!(session.next_notice(), None);
        assert_eq!(session.begin_notices(channel), None);
        let long_ago = Instant::now();
        assert_eq!((session.next_notice(), session.next_notice()), (Some((channel, 1)), Some((channel, 2))));
        assert!(!session.wait_for_acknowledgement(channel, 1, long_ago));
        assert!(session.acknowledge(channel, 1) && session.wait_for_acknowledgement(channel, 1, long_ago));
        assert!(!session.acknowledge(channel, 3), "not sent");
        assert!(!session.acknowledge(channel, 0), "before the last one");
        assert!(!session.wait_for_acknowledgement(channel, 2, long_ago));
        assert_eq!(session.end_notices(), Some(channel));
        assert!(session.wait_for_acknowledgement(channel, 2, long_ago), "no client is waited for");
    }

    #[test]
    fn requests_out_of_sequence_and_unknown_slots_are_refused() {
        let session = session();
        assert_eq!(session.admit(&request(0, 2)), Admitted::Refused);
        assert_eq!(session.admit(&request(SLOTS, 1)), Admitted::Refused);
        assert_eq!(session.admit(&request(0, 1)), Admitted::Execute);
        assert_eq!(session.admit(&request(0, 2)), Admitted::Refused, "the slot is in use");
    }
}
