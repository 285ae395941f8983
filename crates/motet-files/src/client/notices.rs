//! Notices of the server about what other clients have changed.
//!
//! They come on a connection with a node of its own: a thread that always waits on the node of the requests would make its progress in turns with those that wait
//! for answers.

use super::Client;
use super::locate::Source;
use super::transport::Transport;
use crate::exports::members::split_ticket;
use crate::protocol::{
    self, Answer, MAX_NOTICE_BYTES, Operation, Reply, Request, SERVICE, SessionKey, acknowledgement_tag, answer_tag,
    append, notice_tag, parse_answer, parse_notice, request_tag,
};
use crate::{Result, engine_error};
use motet::node::{Channel, Mode, Node, Outgoing, RecvFrom, Serve, deadline_in};
use rustix::io::Errno;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long an attempt to connect may take, and an acknowledgement.
const LIMIT: Duration = Duration::from_secs(3);
/// The pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// What a client must not use any more if it has cached it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'a> {
    /// All: the notices of some time were not received.
    Everything,
    /// The attributes, and the content, of the file with this number on this device of the server.
    Attributes {
        /// The device.
        device: u64,
        /// The number.
        inode: u64,
    },
    /// The name at a path.
    Name {
        /// The path.
        path: &'a [u8],
    },
}

/// A subscription to notices. Dropping it ends it.
#[derive(Debug)]
pub struct Subscription {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    ended: bool,
    /// The node of the present connection.
    node: Option<Arc<Node>>,
}

impl Client {
    /// Calls `told` with what other clients change, in a thread of its own; the server waits, up to half a second, until it has returned. It must not wait for
    /// other requests of this client. What programs of the server's host change is not reported. `None`: the client uses the directory itself.
    pub fn subscribe(&self, told: impl FnMut(Notice<'_>) + Send + 'static) -> Result<Option<Subscription>> {
        if matches!(self.shared.transport, Transport::Direct(_)) {
            return Ok(None);
        }
        let shared = Arc::new(Shared::default());
        let (client, state) = (self.clone(), Arc::clone(&shared));
        let run = move || state.run(&client, told);
        let thread = thread::Builder::new().name("files-notices".to_owned()).spawn(run)?;
        Ok(Some(Subscription { shared, thread: Some(thread) }))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = true;
        if let Some(node) = &state.node {
            let _ = node.shut_down();
        }
        drop(state);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// Receives notices until the subscription is dropped.
    fn run(&self, client: &Client, mut told: impl FnMut(Notice<'_>)) {
        let Transport::Messages(connection) = &client.shared.transport else { return };
        while !self.has_ended() {
            if let Some(key) = connection.session()
                && let Ok((node, channel)) = self.connect(connection.source(), key)
            {
                told(Notice::Everything);
                while receive(&node, channel, &mut told).is_ok() {}
                // Until the next subscription there are no notices.
                told(Notice::Everything);
            }
            self.pause();
        }
    }

    fn has_ended(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    fn pause(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.node = None;
        if !state.ended {
            drop(self.changed.wait_timeout(state, RETRY_PAUSE).unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Connects, and subscribes for a session.
    fn connect(&self, source: &Source, session: SessionKey) -> Result<(Arc<Node>, Channel)> {
        let address = source.address()?;
        let (address, _) = split_ticket(&address)?;
        let node = Arc::new(source.node()?);
        let context = Serve::Tagged(node.context().map_err(engine_error)?);
        let link = node.connect(address, Some(LIMIT)).map_err(engine_error)?;
        let channel = node.open_channel(link, SERVICE, context, Some(LIMIT)).map_err(engine_error)?;
        let mut message = Vec::new();
        let operation = Operation::Subscribe { session };
        append(&Request { slot: 0, sequence: 0, data: 0, identity: None, operation }, &mut message);
        send(&node, channel, request_tag(0), &message)?;
        let mut headers = Vec::new();
        let from = RecvFrom::Channel(channel);
        node.receive_with(from, answer_tag(0), 0, &mut headers, &mut [], Some(LIMIT)).map_err(engine_error)?;
        match parse_answer(&headers) {
            Some(Answer { result: Ok(Reply::Done), .. }) => {}
            _ => return Err(Errno::PROTO.into()),
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.ended {
            return Err(Errno::SHUTDOWN.into());
        }
        state.node = Some(Arc::clone(&node));
        Ok((node, channel))
    }
}

/// Receives a notice, and acknowledges it.
fn receive(node: &Node, channel: Channel, told: &mut impl FnMut(Notice<'_>)) -> Result<()> {
    let mut bytes = [0; MAX_NOTICE_BYTES];
    let from = RecvFrom::Channel(channel);
    let received = node.receive_tagged(from, notice_tag(), 0, &mut bytes, None).map_err(engine_error)?;
    let (number, notice) = parse_notice(&bytes[..received.length]).ok_or(Errno::PROTO)?;
    told(match notice {
        protocol::Notice::Attributes { device, inode } => Notice::Attributes { device, inode },
        protocol::Notice::Name { path } => Notice::Name { path },
    });
    let mut message = Vec::new();
    append(&number, &mut message);
    send(node, channel, acknowledgement_tag(), &message)
}

/// Sends a message in one packet: a server receives no other.
fn send(node: &Node, channel: Channel, tag: u64, message: &[u8]) -> Result<()> {
    let outgoing = Outgoing { channel, tag, headers: &[], mode: Mode::Inject };
    node.inject(&outgoing, &[message], Some(deadline_in(LIMIT.as_nanos() as u64))).map_err(engine_error)
}
