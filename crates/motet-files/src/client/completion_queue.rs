//! Completion queues: many reads and writes under way without a thread for each, as those of verbs and libfabric.
//!
//! By messages a submitted request is on its way when [`CompletionQueue::submit`] returns. Where the client uses the directory itself the request is
//! executed at its submission: the page cache answers at once, so there is nothing to wait for. Requests of striped files are executed at their submission,
//! too.

use super::connection::{Body, Connection, Queued};
use super::transport::Transport;
use super::{Client, File, Shared, unexpected};
use crate::Result;
use crate::protocol::{MAX_DATA_BYTES, Operation, Reply};
use motet::node::{CqId, OperationMemory};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use super::slots::MAX_QUEUED;

/// How long [`CompletionQueue::close`] waits for answers before it ends the connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
/// How often a thread that waits looks whether the queue is closed.
const LOOK: Duration = Duration::from_millis(50);

/// A request for a completion queue. Its memory is in use until it completes.
#[derive(Debug)]
pub enum Submission {
    /// Reads from `offset` on, fewer bytes than `into` has only at the end of the file.
    Read {
        /// Bytes from the beginning of the file.
        offset: u64,
        /// At most 1 MiB.
        into: OperationMemory,
    },
    /// Writes at `offset`, or at the end of a file that is open for appending.
    Write {
        /// Bytes from the beginning of the file.
        offset: u64,
        /// At most 1 MiB.
        data: OperationMemory,
    },
    /// Waits until writes that have completed are on the server's disk.
    Sync {
        /// Without times.
        data_only: bool,
    },
}

/// A request that has completed.
#[derive(Debug)]
pub struct Completed {
    /// That of its submission.
    pub user_data: u64,
    /// How many bytes.
    pub result: Result<usize>,
    /// Its memory, if it owned some.
    pub memory: Option<Vec<u8>>,
}

/// A queue of completions of one client. All calls may be made by several threads.
#[derive(Debug)]
pub struct CompletionQueue {
    client: Arc<Shared>,
    /// The queue of the client's node.
    cq: Option<CqId>,
    outstanding: usize,
    closed: AtomicBool,
    state: Mutex<State>,
    completed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that were submitted and not fetched.
    count: usize,
    last_key: u64,
    under_way: HashMap<u64, Entry>,
    /// Of requests that were executed at their submission.
    completed: VecDeque<Completed>,
}

/// What a submitted request does.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Read {
        offset: u64,
        length: usize,
    },
    Write {
        offset: u64,
        length: usize,
    },
    /// With the changes of the file that it covers, if they are known.
    Sync {
        data_only: bool,
        changes: Option<u64>,
    },
}

/// A request under way.
#[derive(Debug)]
struct Entry {
    request: Queued,
    job: Job,
}

#[derive(Debug)]
struct Job {
    /// Kept open until the request completes: its number must not be another file's.
    file: Arc<File>,
    kind: Kind,
    user_data: u64,
}

impl Job {
    fn operation(&self) -> Result<Operation<'static>> {
        let file = self.file.state().number()?;
        Ok(match self.kind {
            Kind::Read { offset, length } => {
                Operation::Read { file, offset, length: u32::try_from(length).unwrap_or(0) }
            }
            Kind::Write { offset, .. } => self.file.state().write(file, offset),
            Kind::Sync { data_only, .. } => Operation::Fsync { file, data_only },
        })
    }

    /// The completion, of an answer and the number of bytes in memory.
    fn complete(self, answer: Result<(Reply, usize)>, body: Body) -> Completed {
        let state = self.file.state();
        let checked = answer.and_then(|(reply, read)| match (self.kind, reply) {
            (Kind::Read { length, .. }, Reply::Count(count)) if count == read as u64 && read <= length => Ok(read),
            (Kind::Write { length, .. }, Reply::Count(count)) if read == 0 && count <= length as u64 => {
                Ok(usize::try_from(count).unwrap_or(0))
            }
            (Kind::Sync { changes, .. }, Reply::Done) => {
                changes.into_iter().for_each(|changes| state.synced(changes));
                Ok(0)
            }
            _ => Err(unexpected()),
        });
        if let Kind::Write { .. } = self.kind {
            // A synchronisation that began before this does not cover it.
            state.note_change();
        }
        Completed { user_data: self.user_data, result: checked, memory: owned(body) }
    }
}

fn owned(body: Body) -> Option<Vec<u8>> {
    match body {
        Body::Data(OperationMemory::Owned(bytes)) | Body::Into(OperationMemory::Owned(bytes)) => Some(bytes),
        _ => None,
    }
}

impl CompletionQueue {
    /// A queue for at most `outstanding` requests, 1 to [`MAX_QUEUED`], that are submitted and not fetched. All queues of a client together have
    /// [`MAX_QUEUED`] by messages.
    pub fn new(client: &Client, outstanding: usize) -> Result<Self> {
        if !(1..=MAX_QUEUED).contains(&outstanding) {
            return Err(Errno::INVAL.into());
        }
        let client = Arc::clone(&client.shared);
        let cq = match &client.transport {
            Transport::Messages(connection) => Some(connection.add_cq()?),
            Transport::Direct(_) => None,
        };
        Ok(Self {
            client,
            cq,
            outstanding,
            closed: AtomicBool::new(false),
            state: Mutex::default(),
            completed: Condvar::new(),
        })
    }

    /// Submits a request; waits only while the server is away. With an error, nothing is submitted, and its memory is returned if it owned some.
    ///
    /// Errors: EAGAIN (as many requests as are allowed are outstanding, or there is no room to send), E2BIG (longer than 1 MiB), EXDEV (a file of another
    /// client), ESHUTDOWN (the queue is closed), and those of a lost file.
    pub fn submit(
        &self,
        file: &Arc<File>,
        submission: Submission,
        user_data: u64,
    ) -> std::result::Result<(), (std::io::Error, Option<Vec<u8>>)> {
        let (mut kind, body) = match submission {
            Submission::Read { offset, into } => (Kind::Read { offset, length: into.len() }, Body::Into(into)),
            Submission::Write { offset, data } => (Kind::Write { offset, length: data.len() }, Body::Data(data)),
            Submission::Sync { data_only } => (Kind::Sync { data_only, changes: None }, Body::Empty),
        };
        let mut state = self.state();
        let refused = match kind {
            _ if self.closed.load(Ordering::SeqCst) => Some(Errno::SHUTDOWN),
            Kind::Read { length, .. } | Kind::Write { length, .. } if length > MAX_DATA_BYTES => Some(Errno::TOOBIG),
            _ if !file.is_of(&self.client) => Some(Errno::XDEV),
            _ if state.count >= self.outstanding => Some(Errno::AGAIN),
            _ => None,
        };
        if let Some(errno) = refused {
            return Err((errno.into(), owned(body)));
        }
        let (Transport::Messages(connection), Some(cq), false) = (&self.client.transport, self.cq, file.is_striped())
        else {
            state.count += 1;
            drop(state);
            let completed = execute(file, kind, body, user_data);
            self.state().completed.push_back(completed);
            self.completed.notify_one();
            return Ok(());
        };
        match &mut kind {
            Kind::Write { .. } => file.state().note_change(),
            Kind::Sync { changes, .. } => *changes = Some(file.state().changes()),
            Kind::Read { .. } => {}
        }
        let job = Job { file: Arc::clone(file), kind, user_data };
        state.last_key += 1;
        let key = state.last_key;
        let request =
            connection.start((cq, key), || job.operation(), body).map_err(|(error, body)| (error, owned(body)))?;
        state.under_way.insert(key, Entry { request, job });
        state.count += 1;
        Ok(())
    }

    /// Takes the next completion, if there is one.
    pub fn poll(&self) -> Result<Option<Completed>> {
        self.next(Some(Instant::now()))
    }

    /// Waits for the next completion. ETIMEDOUT: there is none in time; ESHUTDOWN: the queue is closed.
    ///
    /// Requests whose connection was lost are made again here, so this waits for the server as long as a call of the client does.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Completed> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        self.next(until)?.ok_or_else(|| Errno::TIMEDOUT.into())
    }

    /// Requests that were submitted and whose completions were not taken.
    pub fn outstanding(&self) -> usize {
        self.state().count
    }

    /// Closes the queue: requests without an answer are waited for, a second at most, then cancelled; their completions are dropped. When this returns,
    /// their memory is free. Whether a cancelled write was executed is not known.
    pub fn close(&self) {
        if self.closed.swap(true, Ordering::SeqCst) {
            return;
        }
        self.completed.notify_all();
        {
            let mut state = self.state();
            state.count -= state.completed.len();
            state.completed.clear();
        }
        let (Transport::Messages(connection), Some(cq)) = (&self.client.transport, self.cq) else { return };
        let began = Instant::now();
        let mut given_up = false;
        // A thread that is taking a completion ends its request itself.
        while self.outstanding() > 0 {
            if began.elapsed() >= CLOSE_LIMIT && !given_up {
                given_up = true;
                let channel = self.state().under_way.values().next().map(|entry| entry.request.channel());
                channel.into_iter().for_each(|channel| connection.give_up(channel));
            }
            match connection.next_completion(cq, LOOK) {
                Ok(Some(completion)) => {
                    if let Some(Entry { request, .. }) = self.note(completion) {
                        connection.drop_request(request);
                        self.state().count -= 1;
                    }
                }
                Ok(None) => {}
                Err(_) => break, // the node has ended, and with it all operations
            }
        }
        connection.remove_cq(cq);
    }

    /// Takes note of the completion of an operation. Returns its request if that has no other one.
    fn note(&self, completion: motet::node::Completion) -> Option<Entry> {
        let key = Queued::key_of(completion.user_data);
        let mut state = self.state();
        let ended = state.under_way.get_mut(&key).is_some_and(|entry| entry.request.note(completion));
        ended.then(|| state.under_way.remove(&key)).flatten()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next completion, until a moment.
    fn next(&self, until: Option<Instant>) -> Result<Option<Completed>> {
        match (&self.client.transport, self.cq) {
            (Transport::Messages(connection), Some(cq)) => self.next_by_messages(connection, cq, until),
            _ => self.next_executed(until),
        }
    }

    fn next_executed(&self, until: Option<Instant>) -> Result<Option<Completed>> {
        let mut state = self.state();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Errno::SHUTDOWN.into());
            }
            if let Some(completed) = state.completed.pop_front() {
                state.count -= 1;
                return Ok(Some(completed));
            }
            let left = until.map_or(LOOK, |until| until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(None);
            }
            state = self.completed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A completion of a request that was executed at its submission.
    fn take_executed(&self) -> Option<Completed> {
        let mut state = self.state();
        let completed = state.completed.pop_front()?;
        state.count -= 1;
        Some(completed)
    }

    fn next_by_messages(&self, connection: &Connection, cq: CqId, until: Option<Instant>) -> Result<Option<Completed>> {
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Errno::SHUTDOWN.into());
            }
            if let Some(completed) = self.take_executed() {
                return Ok(Some(completed));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match connection.next_completion(cq, left.unwrap_or(LOOK).min(LOOK))? {
                Some(completion) => {
                    let Some(Entry { request, job }) = self.note(completion) else { continue };
                    let (answer, body) = connection.end(request, || job.operation());
                    self.state().count -= 1;
                    return Ok(Some(job.complete(answer, body)));
                }
                None => {
                    self.give_up_what_is_late(connection);
                    if left.is_some_and(|left| left <= LOOK) && until.is_some_and(|until| Instant::now() >= until) {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Ends a connection on which a request has no answer within the client's limit.
    fn give_up_what_is_late(&self, connection: &Connection) {
        let Some(limit) = connection.limit() else { return };
        let late = |entry: &&Entry| entry.request.began().elapsed() >= limit;
        let channel = self.state().under_way.values().find(late).map(|entry| entry.request.channel());
        if let Some(channel) = channel {
            connection.give_up(channel);
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.close();
    }
}

/// Executes a request, and waits for it.
fn execute(file: &File, kind: Kind, mut body: Body, user_data: u64) -> Completed {
    let result = match (kind, &mut body) {
        (Kind::Read { offset, length }, Body::Into(into)) => into.write(0, length, |into| file.read_at(into, offset)),
        (Kind::Write { offset, length }, Body::Data(data)) => file.write_at(data.bytes(0, length), offset),
        (Kind::Sync { data_only, .. }, _) => file.sync(data_only).map(|()| 0),
        _ => Err(unexpected()),
    };
    Completed { user_data, result, memory: owned(body) }
}
