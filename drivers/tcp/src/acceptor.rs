//! A listening socket and its incoming connections, up to their first handshake.
//!
//! An incoming connection is unauthenticated until its handshake is complete. A connection for an existing session is delivered to the
//! link of that session, a question whether a session exists is answered, and a new session needs permission ([`crate::admission`]).
//! What it is not: it makes no links. An admitted new session is returned to the acceptor's owner.

use crate::admission::PeerOwner;
use crate::incoming::{FirstMessage, IncomingConnection};
use crate::session_table::{SessionConnection, SessionTable};
use crate::socket::{self, PollSet};
use motet_proto::message::session::MAX_PACKET_BYTES;
use motet_proto::message::session::handshake::{Handshake, HandshakeOp};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::io::{Errno, Result};
use std::net::SocketAddr;

/// Most incoming connections whose handshake is incomplete; a further one replaces the oldest. The kernel hands over a connection only
/// once bytes have arrived, and a handshake arrives whole, so an honest connection rarely waits here.
const MAX_INCOMING: usize = 64;
/// Most connections that one step accepts: with a step every 10 ms, more than 10 000 unwanted connections a second.
const MAX_ACCEPTS_PER_STEP: usize = 256;
/// After a failure to accept for lack of descriptors or memory, the socket is left alone for this time, ns.
const ACCEPT_PAUSE_NS: u64 = 100_000_000;

/// A connection that may begin a new session.
#[derive(Debug)]
pub struct Admitted {
    /// The connection, whose next byte is the session's.
    pub incoming: IncomingConnection,
    /// Its handshake.
    pub handshake: Handshake,
    /// The owner of its other end.
    pub owner: PeerOwner,
}

/// A listening socket with its incoming connections.
#[derive(Debug)]
pub struct Acceptor {
    fd: PrivateFd,
    address: SocketAddr,
    set: PollSet,
    incoming: Vec<IncomingConnection>,
    /// Until when no connections are accepted.
    paused_until: Option<u64>,
}

impl Acceptor {
    /// Begins to listen.
    pub fn new(wanted: &SocketAddr) -> Result<Self> {
        let (fd, address) = socket::listen(wanted)?;
        let set = PollSet::new()?;
        set.add(&fd)?;
        Ok(Self { fd, address, set, incoming: Vec::new(), paused_until: None })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Readable when `step` would do something.
    pub fn set(&self) -> &PollSet {
        &self.set
    }

    /// When `step` must be called although the set is not readable.
    pub fn due(&self) -> Option<u64> {
        self.incoming.iter().map(IncomingConnection::deadline).chain(self.paused_until).min()
    }

    /// Accepts connections and answers handshakes. Returns the next admitted connection that asks for a new session; call again until it
    /// returns `None`.
    pub fn step(&mut self, sessions: &SessionTable, now: u64) -> Option<Admitted> {
        let mut i = 0;
        while i < self.incoming.len() {
            match self.incoming[i].step(now) {
                FirstMessage::Pending => i += 1,
                message => {
                    let incoming = self.incoming.remove(i);
                    self.set.remove(&incoming.fd);
                    let new = handle_first_message(sessions, incoming, message);
                    if new.is_some() {
                        return new; // the others are still readable
                    }
                }
            }
        }
        self.accept_incoming(sessions, now)
    }

    /// Reads each connection as it is accepted, so one that has sent its handshake neither waits behind silent ones nor is dropped for them.
    fn accept_incoming(&mut self, sessions: &SessionTable, now: u64) -> Option<Admitted> {
        if let Some(until) = self.paused_until {
            if now < until {
                return None;
            }
            self.paused_until = self.set.add(&self.fd).is_err().then(|| now.saturating_add(ACCEPT_PAUSE_NS));
        }
        for _ in 0..MAX_ACCEPTS_PER_STEP {
            match socket::accept(&self.fd) {
                Ok((fd, peer)) => {
                    let mut incoming = IncomingConnection::new(fd, peer, now);
                    match incoming.step(now) {
                        FirstMessage::Pending => self.keep(incoming),
                        message => {
                            let new = handle_first_message(sessions, incoming, message);
                            if new.is_some() {
                                return new;
                            }
                        }
                    }
                }
                Err(Errno::AGAIN) => return None,
                // The peer has closed the connection already.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO | Errno::NOTCONN) => {}
                Err(_) => {
                    self.set.remove(&self.fd);
                    self.paused_until = Some(now.saturating_add(ACCEPT_PAUSE_NS));
                    return None;
                }
            }
        }
        None
    }

    /// Keeps a connection until the rest of its handshake arrives.
    fn keep(&mut self, incoming: IncomingConnection) {
        if self.incoming.len() == MAX_INCOMING {
            self.incoming.remove(0);
        }
        if self.set.add(&incoming.fd).is_ok() {
            self.incoming.push(incoming);
        }
    }
}

/// Answers the first message of a connection, or returns the connection if it may begin a new session.
fn handle_first_message(
    sessions: &SessionTable,
    incoming: IncomingConnection,
    message: FirstMessage,
) -> Option<Admitted> {
    match message {
        FirstMessage::Handshake(handshake) if handshake.op != HandshakeOp::New => {
            serve_known_session(sessions, incoming, &handshake);
        }
        FirstMessage::Handshake(handshake) => match sessions.admits(&incoming, &handshake) {
            Some(owner) => return Some(Admitted { incoming, handshake, owner }),
            None => incoming.answer(&reply(sessions, HandshakeOp::NotPermitted, &handshake)),
        },
        FirstMessage::OtherVersion => {
            let (op, id, session) = (HandshakeOp::Version, sessions.id().0, [0; 16]);
            incoming.answer(&Handshake {
                op,
                epoch: 0,
                node: id,
                session,
                expected: 0,
                secret: 0,
                largest: 0,
                port: 0,
            });
        }
        FirstMessage::Invalid | FirstMessage::Pending => {}
    }
    None
}

/// A node's answer to a handshake. To a peer without permission it reveals nothing of the node.
pub fn reply(sessions: &SessionTable, op: HandshakeOp, to: &Handshake) -> Handshake {
    let (epoch, session, largest) = (to.epoch, to.session, MAX_PACKET_BYTES as u32);
    let (id, port) = if op == HandshakeOp::NotPermitted { ([0; 16], 0) } else { (sessions.id().0, sessions.port()) };
    let secret = if op == HandshakeOp::Admitted { sessions.secret().answer } else { 0 };
    Handshake { op, epoch, node: id, session, expected: 0, secret, largest, port }
}

/// Serves a handshake that does not ask for a new session.
fn serve_known_session(sessions: &SessionTable, incoming: IncomingConnection, handshake: &Handshake) {
    match handshake.op {
        HandshakeOp::Resume | HandshakeOp::Rail => match sessions.find(&handshake.session) {
            Some(mailbox) if mailbox.is_accepted() => {
                socket::set_options(&incoming.fd);
                mailbox.deliver(SessionConnection { fd: incoming.fd, handshake: *handshake });
            }
            _ => incoming.answer(&reply(sessions, HandshakeOp::Unknown, handshake)),
        },
        HandshakeOp::Probe => {
            let known = sessions.find(&handshake.session).is_some();
            let op = if known { HandshakeOp::Welcome } else { HandshakeOp::Unknown };
            incoming.answer(&reply(sessions, op, handshake));
        }
        // `New` does not get here; the others are answers, which a connecting peer does not send.
        HandshakeOp::New
        | HandshakeOp::Admitted
        | HandshakeOp::Welcome
        | HandshakeOp::Unknown
        | HandshakeOp::Version
        | HandshakeOp::Refused
        | HandshakeOp::NotPermitted => {}
    }
}
