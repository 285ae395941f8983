//! How a link's connections come and go: rails more, and a first one again after a break.

use super::Link;
use crate::dial::{Dial, Dialed, Failure};
use motet_engine::message::medium::Lost;
use motet_engine::reason::Reason;
use motet_proto::message::session::Role;
use motet_proto::message::session::greeting::{Greeting, Wish};
use motet_sys::fds::PrivateFd;
use motet_sys::rustix::io::Errno;

impl Link {
    /// Whatever is due. Costs a few loads when nothing is.
    pub(super) fn connections_step(&mut self, now: u64) -> Result<(), Lost> {
        if self.mailbox.is_full() {
            self.visits(now)?;
        }
        if !self.session.tick(now) {
            return Err(self.end(Reason::PEER_GONE));
        }
        if self.dial.is_none() {
            if !self.session.is_up() {
                self.dial_again(now)?;
            } else if self.role == Role::Caller && self.session.wants_rail() {
                let greeting = self.session.another();
                self.dial(greeting, now)?;
            }
        }
        if self.dial.is_some() {
            self.dialed(now)?;
        }
        Ok(())
    }

    /// A connection has broken: all are void.
    pub(super) fn broke(&mut self, now: u64) {
        self.session.lost(now);
        self.sockets.fill_with(|| None);
        self.dial = None;
    }

    /// The link is over.
    pub(super) fn end(&mut self, reason: Reason) -> Lost {
        self.lost = Some(reason);
        self.sockets.fill_with(|| None);
        self.dial = None;
        self.node.leave(self.session.number());
        Lost(reason)
    }

    fn dial_again(&mut self, now: u64) -> Result<(), Lost> {
        if self.address.is_some()
            && let Some(greeting) = self.session.attempt(now)
        {
            self.dial(greeting, now)?;
        }
        Ok(())
    }

    fn dial(&mut self, greeting: Greeting, now: u64) -> Result<(), Lost> {
        let Some(address) = &self.address else { return Ok(()) };
        match Dial::new(address, greeting, now) {
            Ok(dial) => {
                // Where the set cannot hold it, it is stepped by time alone.
                let _ = self.set.add(dial.set());
                self.dial = Some(dial);
                Ok(())
            }
            Err(Errno::CONNREFUSED) if !self.session.is_up() => Err(self.end(Reason::PEER_GONE)),
            Err(_) => Ok(()),
        }
    }

    /// Goes on with the connection that is on its way.
    fn dialed(&mut self, now: u64) -> Result<(), Lost> {
        let Some(dial) = &mut self.dial else { return Ok(()) };
        let asked = dial.greeting().wish;
        let outcome = dial.step(now);
        if matches!(outcome, Dialed::Pending) {
            return Ok(());
        }
        self.dial = None;
        match outcome {
            Dialed::Answered(fd, reply) if reply.wish == Wish::Welcome => self.welcomed(asked, fd, &reply, now),
            // The node has forgotten, or is another one.
            Dialed::Answered(_, reply) if reply.wish == Wish::Unknown => Err(self.end(Reason::PEER_GONE)),
            // Nobody has its port any more.
            Dialed::Nobody | Dialed::Failed(Failure::Foreign | Failure::Version) if asked != Wish::Rail => {
                Err(self.end(Reason::PEER_GONE))
            }
            _ => Ok(()),
        }
    }

    fn welcomed(&mut self, asked: Wish, fd: PrivateFd, reply: &Greeting, now: u64) -> Result<(), Lost> {
        if asked == Wish::Probe {
            return Ok(()); // there still is a caller: it will come
        }
        match self.session.welcomed(asked, reply, now) {
            Ok(Some(slot)) => self.joined(slot, fd, now),
            Ok(None) => Ok(()),
            Err(_) => Err(self.end(Reason::BROKEN)),
        }
    }

    /// Connections that have come for this session.
    fn visits(&mut self, now: u64) -> Result<(), Lost> {
        for visit in self.mailbox.take() {
            match self.session.visited(&visit.greeting, now) {
                Ok(Some(slot)) => {
                    if visit.greeting.wish == Wish::Resume {
                        self.sockets.fill_with(|| None);
                        self.dial = None;
                    }
                    self.joined(slot, visit.fd, now)?;
                }
                Ok(None) => {}
                Err(_) => return Err(self.end(Reason::BROKEN)),
            }
        }
        Ok(())
    }

    fn joined(&mut self, slot: usize, fd: PrivateFd, now: u64) -> Result<(), Lost> {
        if self.install(slot, fd).is_err() {
            self.broke(now);
        }
        self.flush(false);
        Ok(())
    }
}
