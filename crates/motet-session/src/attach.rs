//! The connection of a node to its host's gatekeeper: the node joins groups, and gets views and messages.
//!
//! One thread reads and hands each line to a function. A connection that breaks is made again, for as long as the session may come back; the
//! gatekeeper keeps the node's places in its groups meanwhile, for a short time, and gives each of its groups a new view then, because messages may
//! have been lost. The program's data never pass here.
//!
//! What is said about circuits is said without a wait: what the connection does not take at once, the thread writes once it does.

use crate::api::{ANOTHER_SESSION, ATTACH_PROTOCOL, FromNode, MAX_ANSWER_LINE_BYTES, MAX_LINE_BYTES, PREFIX, ToNode};
use crate::circuits::{CircuitId, CircuitPart};
use crate::client::{ClientError, connect, head, read_head, refusal};
use crate::modules::{ModuleAnswer, ModuleStatus};
use crate::paths::SessionPaths;
use crate::told::Told;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The wait before the first attempt to connect again; it doubles with each one.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// The longest wait between two attempts.
const MAX_RETRY: Duration = Duration::from_secs(2);
/// The longest wait while the gatekeeper still keeps the node's places.
const QUICK_RETRY: Duration = Duration::from_millis(200);
/// The gatekeeper keeps the places for about this time.
const QUICK_TIME: Duration = Duration::from_secs(10);
/// A node gives up when the gatekeeper has been away for this long.
const MAX_AWAY: Duration = Duration::from_secs(3600);
/// The status of HTTP for a session that has ended.
const GONE: u16 = 410;
/// The longest wait for the gatekeeper to take a line or to answer the first one.
const LIMIT: Duration = Duration::from_secs(5);

/// What the connection reports.
#[derive(Debug)]
pub enum Event {
    /// A line of the gatekeeper.
    Line(ToNode),
    /// The connection broke, and is being made again.
    Away,
    /// The connection is back; all groups have been joined again.
    Back,
    /// The gatekeeper has been away for too long, or the session has ended.
    Gone,
}

/// A node's connection. Dropping it says goodbye.
#[derive(Debug)]
pub struct Attachment {
    sender: Sender,
    reader: Option<JoinHandle<()>>,
}

/// The sending half of a connection. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Sender(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    paths: SessionPaths,
    node: String,
    address: String,
    state: Mutex<State>,
    /// Circuit lines that are not sent yet. No thread waits for the connection while it holds this lock.
    told: Mutex<Told>,
    /// Wakes the reader, which writes what is left to say about circuits.
    waker: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    /// The connection, while there is one.
    stream: Option<UnixStream>,
    /// The groups that the node is in, with the ranks that it asked for.
    groups: BTreeMap<String, Option<u32>>,
    /// The session's identity, from the gatekeeper's first answer on.
    session: Option<String>,
    /// The rest of a line about a circuit, of which the connection has taken a part.
    rest: Vec<u8>,
    ending: bool,
}

impl Attachment {
    /// Connects a node. `on_event` runs in the connection's thread, and may send.
    pub fn open(
        paths: &SessionPaths,
        node: &str,
        address: &str,
        mut on_event: impl FnMut(&Sender, Event) + Send + 'static,
    ) -> Result<Self, ClientError> {
        let waker = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?;
        let (state, told) = (Mutex::default(), Mutex::default());
        let (node, address) = (node.to_owned(), address.to_owned());
        let sender = Sender(Arc::new(Shared { paths: paths.clone(), node, address, state, told, waker }));
        let stream = sender.0.connect()?;
        let reader = {
            let sender = sender.clone();
            let run = move || sender.0.run(stream, |event| on_event(&sender, event));
            std::thread::Builder::new().name("motet-session".to_owned()).spawn(run)?
        };
        Ok(Self { sender, reader: Some(reader) })
    }

    /// The sending half.
    pub fn sender(&self) -> &Sender {
        &self.sender
    }
}

impl Sender {
    /// Joins a group.
    pub fn join(&self, group: &str, rank: Option<u32>) -> io::Result<()> {
        let mut state = self.0.lock();
        state.groups.insert(group.to_owned(), rank);
        state.send(&FromNode::Join { group: group.to_owned(), rank }).map(drop)
    }

    /// Leaves a group. False: the gatekeeper is away, and will not confirm it; the next connection begins without the group.
    pub fn leave(&self, group: &str) -> io::Result<bool> {
        let mut state = self.0.lock();
        state.groups.remove(group);
        self.0.told().left(group);
        state.send(&FromNode::Leave { group: group.to_owned() })
    }

    /// Forgets a group that the gatekeeper has refused.
    pub fn forget(&self, group: &str) {
        self.0.lock().groups.remove(group);
    }

    /// A circuit is open at the node. The gatekeeper learns it, also after a break of the connection; this does not wait for that.
    pub fn circuit_opened(&self, part: CircuitPart) {
        self.0.about_circuits(|told| told.opened(part));
    }

    /// A circuit is open at the node no more. The gatekeeper learns it as in [`Sender::circuit_opened`].
    pub fn circuit_closed(&self, id: &CircuitId) {
        self.0.about_circuits(|told| told.closed(id));
    }

    /// The gatekeeper has removed the node from a group, and has forgotten its circuits there.
    pub fn circuits_ended(&self, group: &str) {
        self.0.about_circuits(|told| told.left(group));
    }

    /// Sends a message to another member of a group. While the gatekeeper is away it is lost, and a new view follows.
    pub fn send(&self, group: &str, to: &str, body: serde_json::Value) -> io::Result<()> {
        self.0.lock().send(&FromNode::Send { group: group.to_owned(), to: to.to_owned(), body }).map(drop)
    }

    /// Says which modules the node has. While the gatekeeper is away it is lost: say it again on [`Event::Back`].
    pub fn say_modules(&self, is_default: bool, modules: Vec<ModuleStatus>) -> io::Result<()> {
        self.0.lock().send(&FromNode::Modules { is_default, modules }).map(drop)
    }

    /// Answers a question about modules.
    pub fn answer(&self, request: u64, answer: ModuleAnswer) -> io::Result<()> {
        self.0.lock().send(&FromNode::ModuleAnswer { request, answer }).map(drop)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        let mut state = self.sender.0.lock();
        state.ending = true;
        let _ = state.send(&FromNode::Bye);
        if let Some(stream) = state.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        drop(state);
        if let Some(reader) = self.reader.take()
            && reader.thread().id() != std::thread::current().id()
        {
            let _ = reader.join();
        }
    }
}

impl State {
    /// Sends a line. False: there is no connection. One that fails is closed, which the reader notices.
    fn send(&mut self, line: &FromNode) -> io::Result<bool> {
        let Some(stream) = &mut self.stream else { return Ok(false) };
        let written = stream.write_all(&self.rest).and_then(|()| {
            self.rest.clear();
            write_line(stream, line)
        });
        match written {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(error),
            Err(_) => {
                self.close();
                Ok(false)
            }
        }
    }

    /// Closes the connection, which the reader notices.
    fn close(&mut self) {
        if let Some(stream) = self.stream.take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Says what is left about circuits, as far as the connection takes it at once. True: there is more.
    fn tell(&mut self, told: &Mutex<Told>) -> bool {
        while let Some(stream) = &self.stream {
            if self.rest.is_empty() {
                let Some(line) = lock(told).next() else { return false };
                // A line about a circuit is short, so it is never refused.
                let Ok(()) = write_line(&mut self.rest, &line) else { continue };
            }
            match rustix::net::send(stream, &self.rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.rest.drain(..count)),
                Err(Errno::AGAIN) => return true,
                Err(Errno::INTR) => {}
                Err(_) => self.close(),
            }
        }
        false
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        lock(&self.told)
    }

    /// Notes a change of circuits, and tells the gatekeeper. What the connection does not take, the reader writes later.
    fn about_circuits(&self, change: impl FnOnce(&mut Told)) {
        change(&mut self.told());
        let is_more = match self.state.try_lock() {
            Ok(mut state) => state.tell(&self.told),
            Err(TryLockError::Poisoned(error)) => error.into_inner().tell(&self.told),
            Err(TryLockError::WouldBlock) => true, // the thread that has it may wait for the gatekeeper
        };
        if is_more {
            let _ = rustix::io::write(&self.waker, &1u64.to_ne_bytes()); // fails if the reader has not seen the last one yet
        }
    }

    /// Waits until the gatekeeper says something, or ends the connection. Writes meanwhile what is left about circuits.
    fn wait(&self, stream: &UnixStream) {
        loop {
            let mut wanted = PollFlags::IN;
            if self.lock().tell(&self.told) {
                wanted |= PollFlags::OUT;
            }
            let mut ready = [PollFd::new(stream, wanted), PollFd::new(&self.waker, PollFlags::IN)];
            match poll(&mut ready, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return, // the read waits instead
            }
            let [line, waker] = ready.map(|one| one.revents());
            if !waker.is_empty() {
                let _ = rustix::io::read(&self.waker, &mut [0; 8]);
            }
            if !(line - PollFlags::OUT).is_empty() {
                return;
            }
        }
    }

    /// Connects and says hello, with the groups of the node. Returns once the gatekeeper has answered; lines that are sent from then on follow.
    fn connect(&self) -> Result<UnixStream, ClientError> {
        let mut stream = connect(&self.paths)?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let headers = format!("Connection: Upgrade\r\nUpgrade: {ATTACH_PROTOCOL}\r\n");
        stream.write_all(&head("GET", &format!("{PREFIX}/attach"), &headers))?;
        match read_head(&mut stream)? {
            101 => {}
            status => return Err(refusal(status, b"")),
        }
        let mut state = self.lock();
        let groups = state.groups.iter().map(|(group, rank)| (group.clone(), *rank)).collect();
        let (node, address, session) = (self.node.clone(), self.address.clone(), state.session.clone());
        let circuits = self.told().begin_again();
        state.rest.clear();
        let hello = FromNode::Hello { node, address, groups, session, circuits };
        write_line(&mut stream, &hello)?;
        // Byte by byte, because what follows the line belongs to the reader.
        let session = match read_line(&mut BufReader::with_capacity(1, &stream))? {
            Some(ToNode::Welcome { session, .. }) => session,
            Some(ToNode::Refused { group: None, error }) if error == ANOTHER_SESSION => {
                return Err(ClientError::Refused(GONE, error));
            }
            Some(ToNode::Refused { error, .. }) => return Err(ClientError::Refused(403, error)),
            _ => return Err(ClientError::Malformed("no welcome")),
        };
        state.session = Some(session);
        stream.set_read_timeout(None)?;
        state.stream = Some(stream.try_clone()?);
        Ok(stream)
    }

    /// Reads until the node ends; connects again when the connection breaks.
    fn run(&self, mut stream: UnixStream, mut on_event: impl FnMut(Event)) {
        loop {
            let mut reader = BufReader::new(&stream);
            loop {
                if reader.buffer().is_empty() {
                    self.wait(&stream);
                }
                let Ok(Some(line)) = read_line(&mut reader) else { break };
                on_event(Event::Line(line));
            }
            // A gatekeeper that says what is no line is not read any more: it must not wait for that.
            let _ = stream.shutdown(Shutdown::Both);
            let mut state = self.lock();
            state.stream = None;
            if state.ending {
                return;
            }
            drop(state);
            on_event(Event::Away);
            match self.connect_again() {
                Some(again) => stream = again,
                None if self.lock().ending => return,
                None => return on_event(Event::Gone),
            }
            on_event(Event::Back);
        }
    }

    /// Connects until that succeeds. `None`: the node ends, the session has ended, or the gatekeeper stays away.
    fn connect_again(&self) -> Option<UnixStream> {
        let (since, mut wait) = (Instant::now(), FIRST_RETRY);
        while since.elapsed() < MAX_AWAY && !self.lock().ending {
            // The wait comes first: a gatekeeper that takes connections and breaks them at once is not asked without a pause.
            std::thread::sleep(wait);
            match self.connect() {
                Ok(stream) => return Some(stream),
                Err(ClientError::Refused(GONE, _)) => return None,
                Err(ClientError::NotUp) if !self.paths.dir().exists() => return None,
                Err(_) => {}
            }
            wait = (wait * 2).min(if since.elapsed() < QUICK_TIME { QUICK_RETRY } else { MAX_RETRY });
        }
        None
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes one line. A line that is too long is refused.
fn write_line(stream: &mut impl Write, line: &FromNode) -> io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    if text.len() > MAX_LINE_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
    }
    stream.write_all(&text)
}

/// Reads one line. `None`: the connection has ended.
fn read_line(reader: &mut impl BufRead) -> io::Result<Option<ToNode>> {
    let mut line = Vec::new();
    reader.take(MAX_ANSWER_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
    match line.last() {
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        _ => Ok(None),
    }
}
