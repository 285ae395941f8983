//! Clients of other users of this host: members of the group that the export is for.
//!
//! They have a node of their own, whose links never are of a client that is trusted. A member gets a *ticket* at the socket of the export, where the kernel says
//! who it is, and begins its session with that. Each request of the session is executed as that user, with the groups that it had then, whatever it names.

use super::{Options, Shared};
use crate::Result;
use crate::engine_error as failed;
use crate::exports::members::{self, Group, Member};
use crate::exports::{Exported, Info};
use crate::identity::Identity;
use motet::node::{MessageLimits, Node, NodeOptions, options};
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a ticket is valid.
const VALIDITY: Duration = Duration::from_secs(30);
/// Tickets that are valid at a time, of one user.
const MAX_TICKETS: usize = 1024;
/// Channels of one link. A client has one for its requests on one link, and one for its notices on another.
const MAX_CHANNELS: u32 = 4;

/// What a member of the group shows to begin a session.
pub type Ticket = [u8; 16];

/// Who has tickets.
#[derive(Debug, Default)]
pub struct Tickets(Mutex<HashMap<Ticket, (Identity, Instant)>>);

impl Tickets {
    fn all(&self) -> MutexGuard<'_, HashMap<Ticket, (Identity, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A ticket for this user. EAGAIN: it has too many.
    pub fn issue(&self, identity: &Identity) -> Result<Ticket> {
        let mut ticket = [0; 16];
        getrandom(&mut ticket, GetRandomFlags::empty())?;
        let mut all = self.all();
        all.retain(|_, (_, since)| since.elapsed() < VALIDITY);
        if all.values().filter(|(other, _)| other.user == identity.user).count() >= MAX_TICKETS {
            return Err(Errno::AGAIN.into());
        }
        all.insert(ticket, (identity.clone(), Instant::now()));
        Ok(ticket)
    }

    /// Whose ticket this is. It cannot be used again.
    pub fn redeem(&self, ticket: &Ticket) -> Option<Identity> {
        let (identity, since) = self.all().remove(ticket)?;
        (since.elapsed() < VALIDITY).then_some(identity)
    }
}

/// The node of members. It has the drivers that do not share memory, and other users of this host may connect to it.
pub fn node() -> Result<Node> {
    let all = options("", Some((Ipv4Addr::LOCALHOST, 0).into()));
    let drivers = all.drivers.iter().copied().filter(|driver| driver.capabilities().between_hosts).collect();
    let limits = MessageLimits { channels: MAX_CHANNELS, ..all.limits };
    Node::with(&NodeOptions { drivers, other_users: true, limits, ..all }).map_err(failed)
}

/// How members find the export.
#[derive(Debug)]
pub struct Reception {
    /// The members' part of the server.
    pub(super) shared: Arc<Shared>,
    /// The group.
    pub(super) group: Group,
}

impl members::Receives for Reception {
    fn group(&self) -> &Group {
        &self.group
    }

    fn info(&self, member: &Member) -> Result<Info> {
        let Some(tickets) = &self.shared.tickets else { return Err(Errno::ACCESS.into()) };
        let ticket = tickets.issue(&member.identity()?)?;
        let mut info = self.shared.info(None)?;
        info.address = members::with_ticket(&info.address, &ticket);
        // The path of the directory is none of the members' business.
        info.directory = String::new();
        Ok(info)
    }
}

/// The options of the members' part of a server.
pub fn options_for_members(options: &Options) -> Options {
    // The directory itself leads to what is around it (`..`), with the rights of the member: only the server confines paths.
    Options { direct: false, listen: None, striping: None, group: None, ..options.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_used_once_and_tickets_are_bounded() {
        let tickets = Tickets::default();
        let user = |user| Identity { user, group: 5, groups: vec![6] };
        let ticket = tickets.issue(&user(1)).expect("a ticket");
        assert_eq!(tickets.redeem(&[0; 16]), None);
        assert_eq!(tickets.redeem(&ticket), Some(user(1)));
        assert_eq!(tickets.redeem(&ticket), None);
        for _ in 0..MAX_TICKETS {
            tickets.issue(&user(1)).expect("a ticket");
        }
        assert!(tickets.issue(&user(1)).is_err());
        assert!(tickets.issue(&user(2)).is_ok(), "another user");
    }
}
