//! How a client comes to its session: at first, and again when the connection is lost.

use super::{Attempt, CONNECT_LIMIT, Connection, Link, Question, RETRY_PAUSE, Session};
use crate::client::failure::Failure;
use crate::client::slots::Slot;
use crate::client::waits::UNATTENDED;
use crate::exports::members::split_ticket;
use crate::protocol::{MAX_LAYOUT_BYTES, Operation, Reply, Resumed, SERVICE, VERSION};
use crate::{Result, engine_error};
use motet::node::Channel;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

impl Connection {
    /// The present channel, for the call in this slot. Waits for the server if it is away, unless no program waits for the call. EINTR: the call is to end.
    pub(super) fn connected(&self, slot: &Slot) -> Result<Attempt> {
        let mut link = self.link();
        let before = link.attempts;
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(Errno::SHUTDOWN.into());
            }
            if slot.has_ended() {
                return Err(Errno::INTR.into());
            }
            if let Some(channel) = link.channel {
                return Ok(Attempt { channel, epoch: link.session.epoch });
            }
            let began = *link.lost.get_or_insert_with(Instant::now);
            let is_over = self.has_stopped() || self.limit.is_some_and(|limit| began.elapsed() >= limit);
            if slot.is_unattended() || is_over && link.attempts != before {
                return Err(Errno::IO.into());
            }
            let is_due = !link.connecting && link.tried.is_none_or(|tried| tried.elapsed() >= RETRY_PAUSE);
            link = if is_due {
                self.try_to_connect(link).0
            } else {
                // Others may close the connection meanwhile, or find the server.
                self.connected.wait_timeout(link, RETRY_PAUSE).unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// Whether a call of this caller that waits for a slot is to end.
    pub(super) fn gives_up(&self, caller: u32) -> bool {
        caller == UNATTENDED && self.link().channel.is_none() || self.has_ended(caller)
    }

    /// Makes one attempt to connect. No other thread does meanwhile, and threads that wait for the connection can give up.
    pub(super) fn try_to_connect<'a>(&'a self, mut link: MutexGuard<'a, Link>) -> (MutexGuard<'a, Link>, Result<()>) {
        link.connecting = true;
        let mut session = link.session;
        drop(link);
        let connected = self.connect(&mut session);
        let mut link = self.link();
        link.session = session;
        (link.connecting, link.tried) = (false, Some(Instant::now()));
        link.attempts += 1;
        let connected = connected.map(|channel| {
            (link.channel, link.lost) = (Some(channel), None);
        });
        drop(link);
        self.connected.notify_all();
        self.pay_present();
        (self.link(), connected)
    }

    /// Connects, and goes on with the session or begins another one, in which the open files are opened again.
    fn connect(&self, session: &mut Session) -> Result<Channel> {
        let address = self.source.address()?;
        let (address, ticket) = split_ticket(&address)?;
        let opened = self.node.connect(address, Some(CONNECT_LIMIT)).map_err(engine_error)?;
        let channel = match self.node.open_channel(opened, SERVICE, self.context, Some(CONNECT_LIMIT)) {
            Ok(channel) => channel,
            Err(error) => {
                let _ = self.node.disconnect(opened);
                return Err(engine_error(error));
            }
        };
        let began = self.begin_session(session, channel, ticket);
        if began.is_err() {
            let _ = self.node.disconnect(channel.link);
        }
        began.map(|()| channel)
    }

    fn begin_session(&self, session: &mut Session, channel: Channel, ticket: Option<[u8; 16]>) -> Result<()> {
        let (version, resume) = (VERSION, session.key);
        let attach = match ticket {
            Some(ticket) => Operation::AttachMember { version, resume, ticket },
            None => Operation::Attach { version, resume },
        };
        let attempt = Attempt { channel, epoch: session.epoch };
        let answered =
            self.attempt(attempt, &mut Slot::to_attach(), Question::own(&attach), &mut [], Some(CONNECT_LIMIT));
        let Reply::Attached { key, read_only, resumed, identities, boot } = answered.map_err(Failure::into_error)?.0
        else {
            return Err(Errno::PROTO.into());
        };
        (session.read_only, session.identities) = (read_only, identities);
        let restarted_host = session.key.is_some() && session.boot != boot;
        if resumed == Resumed::Nothing {
            session.epoch += 1;
            self.slots.renew();
        }
        if resumed != Resumed::Whole {
            // Not before all files are opened again: the numbers of the others would be those of an earlier session.
            session.key = None;
            self.reopen_files(Attempt { channel, epoch: session.epoch }, restarted_host)?;
        }
        (session.key, session.boot) = (Some(key), boot);
        // First of all, so that what is owed is done before anything else with those files.
        self.pay(Attempt { channel, epoch: session.epoch }).map_err(Failure::into_error)
    }

    /// Opens the files again in a session that does not have them.
    fn reopen_files(&self, attempt: Attempt, restarted_host: bool) -> Result<()> {
        let mut slot = self.slots.take_connection_slot();
        let mut layout = [0; MAX_LAYOUT_BYTES];
        let limit = Some(CONNECT_LIMIT);
        if slot.is_uncertain() {
            // Its last request may have been executed in this session or not.
            match self.attempt(attempt, &mut slot, Question::own(&Operation::Ping), &mut layout, limit) {
                Ok(_) | Err(Failure::Final(_)) => {}
                Err(failure) => return Err(failure.into_error()),
            }
        }
        self.files.reclaim(restarted_host, |identity, operation| {
            slot.begin();
            let question = Question { identity, ..Question::own(operation) };
            let answered = self.attempt(attempt, &mut slot, question, &mut layout, limit);
            answered.map(|(reply, _)| reply)
        })
    }
}
