//! Exports for other users of this host: a Unix socket with the abstract name `motet/files/UID/NAME`, UID of the server's user.
//!
//! An abstract name has no owner and leaves nothing in a file system, however its process ends. So each end asks the kernel who is at the other one. A client goes
//! on only with a socket of the user that it has named. The server answers members of one group: by user, group and supplementary groups at the time of the
//! connection. Others get the reason. A member gets the address of the server's node for members, and a ticket.

use super::socket::{Bound, Socket};
use super::{Info, LIMIT, MAX_LINE_BYTES, line_until};
use crate::Result;
use crate::identity::{Identity, MAX_GROUPS};
use motet::peer_user::PeerUser;
use motet_session::paths::check_name;
use motet_session::unix_socket::connect_within;
use nix::unistd::{Group as SystemGroup, User};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use rustix::process::getuid;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

/// What separates the user from the name of an export.
const OF_USER: char = '@';
/// What separates a ticket from an address.
const TICKET: char = '#';
/// The user that stands for all users that this user namespace does not know.
const UNKNOWN_USER: u32 = 65_534;

/// The group that an export is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Its number.
    pub number: u32,
}

impl Group {
    /// The group of this name or number.
    pub fn find(name: &str) -> Result<Self> {
        let found = match name.parse() {
            Ok(number) => Some(number),
            Err(_) => SystemGroup::from_name(name)?.map(|group| group.gid.as_raw()),
        };
        let number =
            found.ok_or_else(|| std::io::Error::new(ErrorKind::NotFound, format!("there is no group {name}")))?;
        Ok(Self { name: name.to_owned(), number })
    }
}

/// Who asks, as the kernel says.
#[derive(Debug, Clone)]
pub struct Member(PeerUser);

impl Member {
    /// As whom its requests are executed. An error: it has more groups than an identity.
    pub fn identity(&self) -> Result<Identity> {
        let PeerUser { user, group, groups } = &self.0;
        if groups.len() > MAX_GROUPS {
            let refused = format!("user {user} has more than {MAX_GROUPS} supplementary groups");
            return Err(std::io::Error::other(refused));
        }
        Ok(Identity { user: *user, group: *group, groups: groups.clone() })
    }
}

/// What receives members.
pub trait Receives: Send + Sync + 'static {
    /// The group.
    fn group(&self) -> &Group;
    /// Describes the export to a member.
    fn info(&self, member: &Member) -> Result<Info>;
}

/// Why someone is not answered.
#[derive(Debug, Serialize, Deserialize)]
struct Refusal {
    /// The reason.
    refused: String,
}

/// The socket for members. Dropping it removes the socket.
#[derive(Debug)]
pub struct Publication {
    _socket: Socket,
}

impl Publication {
    /// Answers members that ask for the export `name`.
    pub fn start(name: &str, reception: Arc<impl Receives>) -> Result<Self> {
        check_name("export", name).map_err(super::unusable)?;
        let own = getuid().as_raw();
        let place = place(own, name);
        let bound = Bound::named(&place).map_err(|error| match holder(&place) {
            Ok((_, user)) if error.kind() == ErrorKind::AddrInUse && user != own => {
                std::io::Error::other(format!("user {user} holds the name of its socket"))
            }
            _ => error,
        })?;
        let socket = bound.answer("files-members", move |stream| answer(stream, &*reception))?;
        Ok(Self { _socket: socket })
    }
}

/// The abstract name of the socket at which a user's server answers members that ask for the export `name`.
fn place(user: u32, name: &str) -> String {
    format!("motet/files/{user}/{name}")
}

/// Connects to a socket, and says which user's it is. ECONNREFUSED: there is none.
fn holder(place: &str) -> Result<(UnixStream, u32)> {
    let address = SocketAddrUnix::new_abstract_name(place.as_bytes())?;
    // Another user's socket that accepts nothing keeps a client no longer.
    let stream = connect_within(&address, LIMIT)?;
    let user = PeerUser::of(&stream)?.user;
    Ok((stream, user))
}

/// Answers one who asks. Nothing that it says is read: all depends on who it is.
fn answer(mut stream: &UnixStream, reception: &impl Receives) -> Result<()> {
    stream.set_write_timeout(Some(LIMIT))?;
    let who = PeerUser::of(stream)?;
    let Group { name, number } = reception.group();
    let is_member = who.group == *number || who.groups.contains(number);
    let mut text = if who.user == UNKNOWN_USER || !is_member && who.user != getuid().as_raw() {
        let refused = format!("it is for members of group {name}, and user {} is none", who.user);
        serde_json::to_vec(&Refusal { refused })?
    } else {
        match reception.info(&Member(who)) {
            Ok(info) => serde_json::to_vec(&info)?,
            Err(error) => serde_json::to_vec(&Refusal { refused: error.to_string() })?,
        }
    };
    text.push(b'\n');
    debug_assert!(text.len() <= MAX_LINE_BYTES);
    stream.write_all(&text)
}

/// Whether a name is that of another user's export: `USER@NAME`.
pub fn is_of_user(name: &str) -> bool {
    name.contains(OF_USER)
}

/// Asks the server of an export `USER@NAME` of this host. EACCES: the caller is not in its group.
pub fn ask(name: &str) -> Result<Info> {
    let (user, name) = name.split_once(OF_USER).ok_or(Errno::INVAL)?;
    check_name("export", name).map_err(super::unusable)?;
    let number = match user.parse() {
        Ok(number) => Some(number),
        Err(_) => User::from_name(user)?.map(|user| user.uid.as_raw()),
    };
    let number = number.ok_or_else(|| std::io::Error::new(ErrorKind::NotFound, format!("there is no user {user}")))?;
    let (stream, holder) = match holder(&place(number, name)) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return Err(Errno::NOENT.into()),
        found => found?,
    };
    // Any user can take the name while that user's server does not run.
    if holder != number || holder == UNKNOWN_USER {
        let taken = format!("user {holder} holds the name of the export of user {number}");
        return Err(std::io::Error::new(ErrorKind::NotFound, taken));
    }
    described(stream)
}

/// What a server says about its export to one who has connected.
fn described(stream: UnixStream) -> Result<Info> {
    let line = line_until(&stream, Vec::new(), Instant::now() + LIMIT)?;
    if let Ok(Refusal { refused }) = serde_json::from_slice(&line) {
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, refused));
    }
    Ok(serde_json::from_slice(&line)?)
}

/// An address with a ticket.
pub fn with_ticket(address: &str, ticket: &[u8; 16]) -> String {
    format!("{address}{TICKET}{:032x}", u128::from_be_bytes(*ticket))
}

/// The address and the ticket behind it, if there is one.
pub fn split_ticket(address: &str) -> Result<(&str, Option<[u8; 16]>)> {
    match address.split_once(TICKET) {
        None => Ok((address, None)),
        Some((address, digits)) => {
            let ticket = u128::from_str_radix(digits, 16).map_err(|_| Errno::INVAL)?;
            Ok((address, Some(ticket.to_be_bytes())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_follow_addresses() {
        let ticket = [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9];
        let text = with_ticket("tcp://secret@127.0.0.1:5", &ticket);
        assert_eq!(split_ticket(&text).expect("an address"), ("tcp://secret@127.0.0.1:5", Some(ticket)));
        assert_eq!(split_ticket("name").expect("an address"), ("name", None));
        assert!(split_ticket("name#x").is_err() && split_ticket("name#").is_err());
    }

    #[test]
    fn groups_and_users_are_found_by_name_and_number() {
        assert_eq!(Group::find("0").expect("a group").number, 0);
        assert_eq!(Group::find("root").expect("a group").number, 0);
        assert!(Group::find("no-such-group").is_err());
        assert_eq!(ask("4294967294@nothing").expect_err("none").kind(), ErrorKind::NotFound);
        assert!(ask("no-such-user@x").is_err() && ask("root@../x").is_err());
    }
}
