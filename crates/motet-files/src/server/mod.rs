//! The server of one export.
//!
//! One thread at a time has the *turn*: it waits for requests and executes those that do not wait for a device or a client itself. Before an operation that may
//! wait it gives the turn to another thread of the pool. So a short request costs no switch of threads, and a slow one keeps none waiting.
//!
//! | module | what |
//! | --- | --- |
//! | this one | threads, requests, answers |
//! | `sessions` | the sessions of all clients |
//! | `session` | one session: slots, open files, notices |
//! | `leases` | what clients may have cached |
//! | `notices` | tells clients what others have changed |
//!
//! The module `storage` executes the operations.

mod leases;
mod notices;
mod session;
mod sessions;

use crate::Result;
use crate::engine_error as failed;
use crate::exports::{Exported, Publication};
use crate::identity::{Identities, Identity};
use crate::protocol::{
    Answer, MAX_DATA_BYTES, MAX_REQUEST_BYTES, NEVER, Operation, Reply, Request, SERVICE, SLOT_MASK, SessionKey,
    VERSION, acknowledgement_tag, answer_tag, append, data_tag, parse_acknowledgement, parse_request, request_tag,
};
pub use crate::storage::Striping;
use crate::storage::{Body, Tree, execute};
use leases::Leases;
use motet::node::{
    Channel, Completion, CompletionOptions, Context, CqId, Error, Mode, Node, OperationMemory, Outgoing, RecvFrom,
    Serve, Status,
};
use notices::Changes;
use rustix::io::Errno;
use session::{Admitted, Session};
use sessions::Sessions;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Threads of a server. Those that wait for a device or a client keep none of the others.
const THREADS: usize = 16;
/// Receives that are posted for requests.
const POSTED: usize = 64;
/// How long a client may take to receive an answer, or to send data that it has announced.
const CLIENT_LIMIT: Duration = Duration::from_secs(10);
/// The user data of receives for requests. That of receives that watch a channel are larger.
const REQUESTS: u64 = 0;
/// The user data of receives for acknowledgements, and how many are posted.
const ACKNOWLEDGEMENTS: u64 = u64::MAX;
const ACKNOWLEDGEMENTS_POSTED: usize = 16;
/// Longest acknowledgement, bytes.
const MAX_ACKNOWLEDGEMENT_BYTES: usize = 8;

/// What is exported, and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The name of the export.
    pub name: String,
    /// The directory.
    pub directory: PathBuf,
    /// Changes are refused.
    pub read_only: bool,
    /// The address at which clients of other hosts connect. `None`: none, until a gatekeeper asks for one.
    pub listen: Option<SocketAddr>,
    /// Clients of this host and user may get the directory itself and use it without the server. Not if files are striped.
    pub direct: bool,
    /// How new files are striped over this and other exports. `None`: each file is in this export alone.
    pub striping: Option<Striping>,
    /// All requests are executed as the user of this process. Otherwise a server of root executes them as the users that they name.
    pub squash: bool,
}

/// A running server. Dropping it ends it: clients see a lost server.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    _publication: Publication,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a server share.
#[derive(Debug)]
struct Shared {
    options: Options,
    node: Node,
    tree: Tree,
    sessions: Sessions,
    leases: Leases,
    context: Context,
    cq: CqId,
    boot: [u8; 16],
    /// Held by the thread that has the turn.
    turn: Mutex<()>,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// What a thread of a server runs.
type Task = fn(&Shared);

/// The turn of a thread to receive requests.
struct Turn<'a>(Option<MutexGuard<'a, ()>>);

impl Turn<'_> {
    /// Lets another thread receive.
    fn give(&mut self) {
        self.0 = None;
    }
}

/// The buffers of a thread.
struct Buffers {
    /// Data of a request.
    data: Vec<u8>,
    /// What is read for an answer.
    read: Vec<u8>,
    /// The headers of an answer.
    headers: Vec<u8>,
}

impl Server {
    /// Starts to serve. Fails if another server of this user has an export of this name on this host.
    pub fn start(options: Options) -> Result<Self> {
        let identities = if options.squash { None } else { Identities::find() };
        let tree = Tree::open(&options.directory, options.read_only, options.striping.clone(), identities)?;
        let node = match options.listen {
            Some(address) => Node::listen("", address),
            None => Node::open(""),
        }
        .map_err(failed)?;
        let context = node.context().map_err(failed)?;
        let cq = node.add_cq().map_err(failed)?;
        node.serve(SERVICE, Serve::Tagged(context)).map_err(failed)?;
        let sessions = Sessions::default();
        let counters = Counters::default();
        let shared = Arc::new(Shared {
            options,
            node,
            tree,
            sessions,
            leases: Leases::default(),
            context,
            cq,
            boot: boot_id(),
            turn: Mutex::new(()),
            counters,
        });
        for _ in 0..POSTED {
            shared.post(vec![0; MAX_REQUEST_BYTES])?;
        }
        for _ in 0..ACKNOWLEDGEMENTS_POSTED {
            shared.post_acknowledgement(vec![0; MAX_ACKNOWLEDGEMENT_BYTES])?;
        }
        let exported = Arc::clone(&shared);
        let publication = Publication::start(&shared.options.name, exported)?;
        let mut server = Self { shared, _publication: publication, threads: Vec::new() };
        let workers = (0..THREADS).map(|_| ("work", Shared::work as Task));
        for (name, run) in std::iter::once(("expire", Shared::expire as Task)).chain(workers) {
            let shared = Arc::clone(&server.shared);
            let thread = thread::Builder::new().name(format!("files-{name}")).spawn(move || run(&shared))?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// The address of the server, which contains a secret. A client connects to it with `Source::Address`.
    pub fn address(&self) -> Result<String> {
        self.shared.node.address().map_err(failed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.shared.node.shut_down();
        self.shared.sessions.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Exported for Shared {
    fn info(&self, listen: Option<IpAddr>) -> Result<crate::exports::Info> {
        if let Some(ip) = listen {
            // A node that listens already goes on as it is.
            self.node.listen_for_hosts(SocketAddr::new(ip, 0)).map_err(failed)?;
        }
        let Options { name, directory, read_only, .. } = &self.options;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Ok(crate::exports::Info {
            name: name.clone(),
            directory: directory.display().to_string(),
            process: std::process::id(),
            read_only: *read_only,
            direct: self.is_direct(),
            identities: self.tree.has_identities(),
            address: self.node.address().map_err(failed)?,
            clients: self.sessions.count(),
            open_files: self.sessions.open_files(),
            locks: self.sessions.lock_owners(),
            requests: count(&self.counters.requests),
            bytes_read: count(&self.counters.bytes_read),
            bytes_written: count(&self.counters.bytes_written),
        })
    }

    fn root(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.is_direct().then(|| self.tree.root())
    }
}

impl Shared {
    /// Whether clients of this host may use the directory itself.
    fn is_direct(&self) -> bool {
        self.options.direct && self.options.striping.is_none()
    }

    /// Posts a receive for a request.
    fn post(&self, memory: Vec<u8>) -> Result<()> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: REQUESTS, errors_only: false };
        let memory = OperationMemory::Owned(memory);
        self.node
            .post(RecvFrom::Any(self.context), request_tag(0), SLOT_MASK, memory, options)
            .map(drop)
            .map_err(failed)
    }

    /// Posts a receive for an acknowledgement.
    fn post_acknowledgement(&self, memory: Vec<u8>) -> Result<()> {
        let options = CompletionOptions { cq: Some(self.cq), user_data: ACKNOWLEDGEMENTS, errors_only: false };
        let memory = OperationMemory::Owned(memory);
        self.node.post(RecvFrom::Any(self.context), acknowledgement_tag(), 0, memory, options).map(drop).map_err(failed)
    }

    /// Accepts channels up to this one, and watches each for its loss. False: this one is lost already.
    ///
    /// The first request of a client calls this. A thread that waited for channels would run the node's progress in turns with the one that waits for
    /// requests, which costs two switches of threads for each request.
    fn accept(&self, channel: Channel) -> bool {
        while let Ok(accepted) = self.node.accept(SERVICE, Some(Duration::ZERO)) {
            let user_data = self.sessions.watch(accepted);
            let options = CompletionOptions { cq: Some(self.cq), user_data, errors_only: false };
            let memory = OperationMemory::Owned(Vec::new());
            if self.node.post(RecvFrom::Channel(accepted), NEVER, 0, memory, options).is_err() {
                self.lost(user_data);
            }
            if accepted == channel {
                break;
            }
        }
        self.sessions.is_watched(channel)
    }

    /// Ends sessions whose clients do not come back.
    fn expire(&self) {
        while self.sessions.expire() {}
    }

    /// Executes requests until the node is shut down.
    fn work(&self) {
        let mut buffers = Buffers { data: vec![0; MAX_DATA_BYTES], read: vec![0; MAX_DATA_BYTES], headers: Vec::new() };
        loop {
            let mut turn = Turn(Some(self.turn.lock().unwrap_or_else(PoisonError::into_inner)));
            while turn.0.is_some() {
                match self.node.wait_cq(self.cq, None) {
                    Ok(Completion {
                        user_data: REQUESTS, status, channel, length, tag, memory: Some(memory), ..
                    }) => {
                        let message = memory.get(..length as usize).unwrap_or(&[]);
                        match (status, channel) {
                            (Status::Done, Some(channel)) => self.serve(channel, tag, message, &mut buffers, &mut turn),
                            // Longer than any request.
                            (Status::Truncated, Some(channel)) => self.refuse(channel),
                            _ => {}
                        }
                        if self.post(memory).is_err() {
                            return;
                        }
                        // The wait makes no progress while there are completions: clients beyond the posted receives would starve.
                        let _ = self.node.progress();
                    }
                    Ok(Completion {
                        user_data: ACKNOWLEDGEMENTS,
                        status,
                        channel,
                        length,
                        memory: Some(memory),
                        ..
                    }) => {
                        if let Some(channel) = channel {
                            let whole = memory.get(..length as usize).filter(|_| status == Status::Done);
                            self.acknowledge(channel, whole.unwrap_or(&[]));
                        }
                        if self.post_acknowledgement(memory).is_err() {
                            return;
                        }
                    }
                    Ok(Completion { user_data: REQUESTS | ACKNOWLEDGEMENTS, .. }) => {}
                    Ok(Completion { user_data, .. }) => self.lost(user_data),
                    Err(Error::NoNode(_)) => return,
                    Err(_) => {}
                }
            }
        }
    }

    /// The channel is gone, or its client has sent what no client sends.
    fn lost(&self, watched: u64) {
        if let Some(channel) = self.sessions.lose(watched) {
            if let Some(session) = self.sessions.lose_notices(channel)
                && session.loses_notices(channel)
            {
                self.leases.unsubscribe(session.key());
            }
            let _ = self.node.close_channel(channel);
        }
    }

    /// A client uses nothing any more of what it was told.
    fn acknowledge(&self, channel: Channel, message: &[u8]) {
        let known = match (self.sessions.of_notices(channel), parse_acknowledgement(message)) {
            (Some(session), Some(number)) => session.acknowledge(channel, number),
            _ => false,
        };
        if !known {
            self.refuse(channel);
        }
    }

    /// Ends the connection of a client that has broken the protocol.
    fn refuse(&self, channel: Channel) {
        let _ = self.node.disconnect(channel.link);
    }

    /// Executes one request and answers it.
    fn serve(&self, channel: Channel, tag: u64, message: &[u8], buffers: &mut Buffers, turn: &mut Turn<'_>) {
        let parsed = parse_request(message).filter(|(request, _)| request_tag(request.slot) == tag);
        let Some((request, inline)) = parsed else { return self.refuse(channel) };
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
        if let Operation::Attach { version, resume } = request.operation {
            return self.attach(channel, version, resume, turn);
        }
        if let Operation::Subscribe { session } = request.operation {
            return self.subscribe(channel, session, turn);
        }
        let Some(session) = self.sessions.of(channel) else { return self.refuse(channel) };
        // Data come first: a request whose data are lost with the connection is not under way, and may come again.
        let Buffers { data, read, headers } = buffers;
        let Some(data) = self.data(channel, &request, inline, data, turn) else { return self.refuse(channel) };
        match session.admit(&request) {
            Admitted::Execute => {
                let result = match request.operation {
                    Operation::Detach => Ok((Reply::Done, Body::Empty)),
                    ref operation => self.execute(&session, request.identity.as_ref(), operation, data, read, turn),
                };
                self.count(&request.operation, &result);
                self.answer(&session, &request, result, read, headers, turn);
                if request.operation == Operation::Detach {
                    self.end_notices(&session);
                    self.sessions.detach(&session);
                }
            }
            Admitted::Repeat(headers, body) => self.send(channel, request.slot, &headers, &body, turn),
            Admitted::Running => {}
            Admitted::Refused => self.refuse(channel),
        }
    }

    /// Executes an operation of a client, and tells the others what it has changed.
    fn execute(
        &self,
        session: &Session,
        identity: Option<&Identity>,
        operation: &Operation<'_>,
        data: &[u8],
        buffer: &mut [u8],
        turn: &mut Turn<'_>,
    ) -> Result<(Reply, Body)> {
        let mut execute = |turn: &mut Turn<'_>| {
            execute(&self.tree, session.files(), identity, operation, data, buffer, &mut || turn.give())
        };
        if self.leases.is_unused() {
            return execute(turn);
        }
        let file = |number| Some(session.files().get(number).ok()?.identity());
        let changes = Changes::of(&self.tree, operation, file);
        let count = self.leases.changes();
        let (reply, body) = execute(turn)?;
        self.grant(session, operation, (&reply, &body), count);
        self.tell(session, &changes, turn);
        Ok((reply, body))
    }

    /// The data of a request: in its message, or in one that follows.
    fn data<'a>(
        &self,
        channel: Channel,
        request: &Request<'_>,
        inline: &'a [u8],
        buffer: &'a mut [u8],
        turn: &mut Turn<'_>,
    ) -> Option<&'a [u8]> {
        let length = request.data as usize;
        if length == inline.len() {
            return Some(inline);
        }
        if !inline.is_empty() {
            return None;
        }
        let buffer = buffer.get_mut(..length)?;
        turn.give();
        let from = RecvFrom::Channel(channel);
        let received = self.node.receive_tagged(from, data_tag(request.slot), 0, buffer, Some(CLIENT_LIMIT)).ok()?;
        (received.length == length).then_some(&*buffer)
    }

    /// Begins a session on a new channel, or goes on with one. The thread has the turn, so the loss of the channel is seen after this.
    fn attach(&self, channel: Channel, version: u32, resume: Option<SessionKey>, turn: &mut Turn<'_>) {
        if !self.accept(channel) {
            return self.refuse(channel);
        }
        let result =
            if version == VERSION { self.sessions.attach(channel, resume) } else { Err(Errno::PROTONOSUPPORT.into()) };
        let (read_only, identities) = (self.tree.is_read_only(), self.tree.has_identities());
        let result = result
            .map(|(key, resumed)| Reply::Attached { key, read_only, resumed, identities, boot: self.boot })
            .map_err(|error| errno(&error));
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result }, &mut headers);
        self.send(channel, 0, &headers, &[], turn);
    }

    /// The client of a session gets notices on this channel.
    fn subscribe(&self, channel: Channel, session: SessionKey, turn: &mut Turn<'_>) {
        if !self.accept(channel) {
            return self.refuse(channel);
        }
        let Some((session, before)) = self.sessions.subscribe(session, channel) else { return self.refuse(channel) };
        self.leases.subscribe(session.key());
        if let Some(before) = before {
            self.refuse(before);
        }
        let mut headers = Vec::new();
        append(&Answer { sequence: 0, result: Ok(Reply::Done) }, &mut headers);
        self.send(channel, 0, &headers, &[], turn);
    }

    fn count(&self, operation: &Operation<'_>, result: &Result<(Reply, Body)>) {
        if let Ok((Reply::Count(bytes), _)) = result {
            let counter = match operation {
                Operation::Read { .. } => &self.counters.bytes_read,
                Operation::Write { .. } => &self.counters.bytes_written,
                _ => return,
            };
            counter.fetch_add(*bytes, Ordering::Relaxed);
        }
    }

    fn answer(
        &self,
        session: &Session,
        request: &Request<'_>,
        result: Result<(Reply, Body)>,
        buffer: &[u8],
        headers: &mut Vec<u8>,
        turn: &mut Turn<'_>,
    ) {
        let (result, body) = match result {
            Ok((reply, body)) => (Ok(reply), body),
            Err(error) => (Err(errno(&error)), Body::Empty),
        };
        let body = match &body {
            Body::Empty => &[],
            Body::Buffered(length) => buffer.get(..*length).unwrap_or(&[]),
            Body::Owned(bytes) => &bytes[..],
        };
        headers.clear();
        append(&Answer { sequence: request.sequence, result }, headers);
        session.answered(request, (!request.operation.is_idempotent()).then_some((headers, body)));
        // The client may have come back on another channel meanwhile; if it is away, it asks again.
        if let Some(channel) = session.channel() {
            self.send(channel, request.slot, headers, body, turn);
        }
    }

    /// Sends an answer. The thread keeps the turn if it need not wait for the client.
    fn send(&self, channel: Channel, slot: u16, headers: &[u8], body: &[u8], turn: &mut Turn<'_>) {
        let message = Outgoing { channel, tag: answer_tag(slot), headers, mode: Mode::Automatic };
        let sent = match self.node.try_inject(&message, &[body]) {
            Err(Error::WouldBlock | Error::TooLong) => {
                turn.give();
                self.node.send_with(&message, &[body], Some(CLIENT_LIMIT))
            }
            sent => sent,
        };
        if sent.is_err() {
            self.refuse(channel);
        }
    }
}

/// Names the time since this host has started. Without the kernel's word it is taken for another one each time.
fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut digits = text.bytes().filter(u8::is_ascii_hexdigit);
    let mut id = [0; 16];
    let known = id.iter_mut().all(|byte| {
        let pair = [digits.next(), digits.next()].map(|digit| char::from(digit.unwrap_or(b'-')).to_digit(16));
        let [Some(high), Some(low)] = pair else { return false };
        *byte = (high << 4 | low) as u8;
        true
    });
    if !known {
        let _ = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
    }
    id
}

/// The error number of an error.
fn errno(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(Errno::IO.raw_os_error())
}
