//! Lists the holders of abstract Unix socket names and the TCP connections of this host, by sock_diag (linux/unix_diag.h, inet_diag.h).
//!
//! What it is: two lists for `motet doctor`, which reports why a name is taken. What it is not: for use on a connection path; the cost is
//! proportional to the number of sockets.

use crate::Errno;
use crate::private_fds::PrivateFd;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST, NLM_F_ROOT and NLM_F_MATCH: list all sockets.
const DUMP: u16 = 0x301;
const UNIX: u8 = 1;
const INET: [u8; 2] = [2, 10];
const TCP: u8 = 6;
/// UDIAG_SHOW_NAME and UDIAG_SHOW_UID, and the attributes that carry them.
const SHOW_NAME_AND_UID: u32 = 0x41;
const NAME: u16 = 0;
const UID: u16 = 7;
/// Bytes of a netlink header, of a unix_diag_msg and of an inet_diag_msg.
const HEAD_BYTES: usize = 16;
const UNIX_BODY_BYTES: usize = 16;
const INET_BODY_BYTES: usize = 72;

/// A Unix socket with an abstract name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameHolder {
    /// The name, without its leading zero byte.
    pub name: Vec<u8>,
    /// The user who owns the socket.
    pub uid: u32,
    /// Its inode, as in /proc/PID/fd.
    pub inode: u32,
}

/// All sockets with abstract names of this network namespace.
pub fn name_holders() -> Result<Vec<NameHolder>, Errno> {
    let mut request = [0u8; HEAD_BYTES + 24];
    request[HEAD_BYTES] = UNIX;
    request[HEAD_BYTES + 4..HEAD_BYTES + 8].copy_from_slice(&u32::MAX.to_ne_bytes()); // any state
    request[HEAD_BYTES + 12..HEAD_BYTES + 16].copy_from_slice(&SHOW_NAME_AND_UID.to_ne_bytes());
    let mut held = Vec::new();
    dump(&mut request, |message| held.extend(parse_name_holder(message)))?;
    Ok(held)
}

/// Cookie and user of each TCP connection of this network namespace.
pub fn tcp_connections() -> Result<Vec<(u64, u32)>, Errno> {
    let mut found = Vec::new();
    for family in INET {
        let mut request = [0u8; HEAD_BYTES + 56];
        (request[HEAD_BYTES], request[HEAD_BYTES + 1]) = (family, TCP);
        request[HEAD_BYTES + 4..HEAD_BYTES + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
        dump(&mut request, |message| found.extend(parse_tcp_connection(message)))?;
    }
    Ok(found)
}

/// Sends a list request, and passes each message of the reply to `each`.
fn dump(request: &mut [u8], mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let error = |e: rustix::io::Errno| e.raw_os_error();
    let flags = SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(SOCK_DIAG));
    let fd = PrivateFd::new(fd.map_err(error)?);
    let length = request.len() as u32;
    request[0..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&DUMP.to_ne_bytes());
    rustix::net::send(&fd, request, SendFlags::NOSIGNAL).map_err(error)?;
    let mut reply = vec![0u8; 1 << 16];
    loop {
        let (n, _) = rustix::net::recv(&fd, &mut reply[..], RecvFlags::empty()).map_err(error)?;
        if n == 0 || parse_messages(&reply[..n], &mut each)? {
            return Ok(());
        }
    }
}

/// Parses a datagram, and passes each message, without its netlink header, to `each`. Returns whether the datagram ends the reply.
pub fn parse_messages(mut bytes: &[u8], each: &mut impl FnMut(&[u8])) -> Result<bool, Errno> {
    while let Some(head) = bytes.get(..HEAD_BYTES) {
        let length = word(head, 0) as usize;
        let Some(message) = bytes.get(HEAD_BYTES..length) else { return Err(rustix::io::Errno::PROTO.raw_os_error()) };
        match u16::from_ne_bytes([head[4], head[5]]) {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR if message.len() >= 4 => return Err((word(message, 0) as i32).wrapping_neg()),
            SOCK_DIAG_BY_FAMILY => each(message),
            _ => {}
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(false)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(std::array::from_fn(|n| bytes[at + n]))
}

/// Parses a Unix socket. `None`: it has no abstract name, or the message is malformed.
pub fn parse_name_holder(message: &[u8]) -> Option<NameHolder> {
    let (fixed, mut attributes) = message.split_at_checked(UNIX_BODY_BYTES)?;
    let (mut name, mut uid) = (None, None);
    while let Some(head) = attributes.get(..4) {
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let value = attributes.get(4..length)?;
        match u16::from_ne_bytes([head[2], head[3]]) {
            NAME => name = value.strip_prefix(&[0]).map(<[u8]>::to_vec),
            UID if value.len() == 4 => uid = Some(word(value, 0)),
            _ => {}
        }
        attributes = attributes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Some(NameHolder { name: name?, uid: uid?, inode: word(fixed, 4) })
}

/// Parses a TCP socket: cookie and user. `None`: the message is too short.
pub fn parse_tcp_connection(message: &[u8]) -> Option<(u64, u32)> {
    let fixed = message.get(..INET_BODY_BYTES)?;
    Some((u64::from(word(fixed, 44)) | u64::from(word(fixed, 48)) << 32, word(fixed, 64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn own_name_and_connection_are_listed() {
        let name = format!("motet-names-{}", std::process::id()).into_bytes();
        let _listener = crate::socket::listen_abstract(&name, 1).unwrap();
        let found: Vec<NameHolder> = name_holders().unwrap().into_iter().filter(|holder| holder.name == name).collect();
        assert_eq!((found.len(), found[0].uid), (1, crate::thread::euid()));
        for bind in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = std::net::TcpListener::bind(bind) else { continue };
            let near = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let cookie = crate::socket::cookie(near.as_raw_fd()).unwrap();
            assert!(tcp_connections().unwrap().contains(&(cookie, crate::thread::euid())));
        }
    }

    #[test]
    fn any_reply_is_parsed_or_refused() {
        for length in 0..200 {
            for fill in [0u8, 0xff, 4, 16, 20] {
                let bytes = vec![fill; length];
                let _ = (parse_messages(&bytes, &mut |_| ()), parse_name_holder(&bytes), parse_tcp_connection(&bytes));
            }
        }
    }
}
