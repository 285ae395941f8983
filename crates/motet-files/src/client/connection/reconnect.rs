//! How a client comes to its session: at first, and again when the connection is lost.

use super::{Attempt, CONNECT_LIMIT, Connection, Link, Question, RETRY_PAUSE};
use crate::client::failure::Failure;
use crate::client::slots::Slot;
use crate::exports::members::split_ticket;
use crate::protocol::{MAX_LAYOUT_BYTES, Operation, Reply, Resumed, SERVICE, VERSION};
use crate::{Result, engine_error};
use motet::node::Channel;
use rustix::io::Errno;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

impl Connection {
    /// The present channel; waits for the server if it is away.
    pub(super) fn connected(&self) -> Result<Attempt> {
        let mut link = self.link();
        loop {
            if self.closed.load(Ordering::SeqCst) {
                return Err(std::io::Error::from_raw_os_error(Errno::SHUTDOWN.raw_os_error()));
            }
            if let Some(channel) = link.channel {
                return Ok(Attempt { channel, epoch: link.epoch });
            }
            let began = *link.lost.get_or_insert_with(Instant::now);
            match self.connect(&mut link) {
                Ok(()) => {}
                Err(_) if self.limit.is_none_or(|limit| began.elapsed() < limit) => {
                    // Others may close the connection meanwhile, or find the server.
                    drop(link);
                    thread::sleep(RETRY_PAUSE);
                    link = self.link();
                }
                Err(_) => return Err(Errno::IO.into()),
            }
        }
    }

    /// Connects, and goes on with the session or begins another one, in which the open files are opened again.
    pub(super) fn connect(&self, link: &mut Link) -> Result<()> {
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
        let began = self.begin_session(link, channel, ticket);
        if began.is_err() {
            let _ = self.node.disconnect(channel.link);
        }
        began
    }

    fn begin_session(&self, link: &mut Link, channel: Channel, ticket: Option<[u8; 16]>) -> Result<()> {
        let (version, resume) = (VERSION, link.key);
        let attach = match ticket {
            Some(ticket) => Operation::AttachMember { version, resume, ticket },
            None => Operation::Attach { version, resume },
        };
        let attempt = Attempt { channel, epoch: link.epoch };
        let answered =
            self.attempt(attempt, &mut Slot::to_attach(), Question::own(&attach), &mut [], Some(CONNECT_LIMIT));
        let Reply::Attached { key, read_only, resumed, identities, boot } = answered.map_err(Failure::into_error)?.0
        else {
            return Err(Errno::PROTO.into());
        };
        (link.read_only, link.identities) = (read_only, identities);
        let restarted_host = link.key.is_some() && link.boot != boot;
        if resumed == Resumed::Nothing {
            link.epoch += 1;
            self.slots.renew();
        }
        if resumed != Resumed::Whole {
            // Not before all files are opened again: the numbers of the others would be those of an earlier session.
            link.key = None;
            self.reopen_files(Attempt { channel, epoch: link.epoch }, restarted_host)?;
        }
        link.key = Some(key);
        (link.channel, link.lost, link.boot) = (Some(channel), None, boot);
        Ok(())
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
