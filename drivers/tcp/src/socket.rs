//! TCP sockets and epoll sets as this driver uses them: nonblocking, private to Motet, by system calls of its own.

use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::event::Timespec;
use motet_sys::rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use motet_sys::rustix::fd::{AsFd, AsRawFd};
use motet_sys::rustix::io::{Errno, Result};
use motet_sys::rustix::net::{self, AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, sockopt};
use std::io::IoSlice;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Duration;

/// Connections that the kernel keeps for a listener until they are accepted.
const BACKLOG: i32 = 4096;
/// TCP_DEFER_ACCEPT, s: a connection without data is not handed over for this time. It costs the kernel a record, and this process nothing.
const DEFER_ACCEPT_S: i32 = 3;
/// A host that does not answer is considered dead after 8 s: by the user timeout while data is in flight, by keepalive otherwise.
const USER_TIMEOUT_MS: u32 = 8_000;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(4);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
const KEEPALIVE_PROBES: u32 = 4;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn new_socket(address: &SocketAddr) -> Result<PrivateFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(PrivateFd::close_on_fork(net::socket_with(family, SocketType::STREAM, FLAGS, None)?))
}

/// Opens a listening socket; also returns its address.
pub fn listen(address: &SocketAddr) -> Result<(PrivateFd, SocketAddr)> {
    let fd = new_socket(address)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    let _ = motet_sys::socket::set_defer_accept(fd.as_fd().as_raw_fd(), DEFER_ACCEPT_S);
    net::bind(&fd, address)?;
    net::listen(&fd, BACKLOG)?;
    let actual = local_address(&fd)?;
    Ok((fd, actual))
}

/// The address of this end.
pub fn local_address(fd: &PrivateFd) -> Result<SocketAddr> {
    SocketAddr::try_from(net::getsockname(fd)?)
}

/// Accepts a connection; also returns the peer's address. Its options are not set ([`set_options`]): the peer is unauthenticated.
pub fn accept(listener: &PrivateFd) -> Result<(PrivateFd, SocketAddr)> {
    let (fd, peer) = net::acceptfrom_with(listener, FLAGS)?;
    let peer = peer.map(SocketAddr::try_from).ok_or(Errno::NOTCONN)??;
    Ok((PrivateFd::close_on_fork(fd), peer))
}

/// Begins to connect. The socket is writable once the attempt has succeeded or failed ([`take_error`]).
pub fn connect(address: &SocketAddr) -> Result<PrivateFd> {
    let fd = new_socket(address)?;
    set_options(&fd);
    match net::connect(&fd, &SocketAddrAny::from(*address)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// Takes the pending error of a socket (SO_ERROR).
pub fn take_error(fd: &PrivateFd) -> Result<()> {
    sockopt::socket_error(fd)?
}

/// Sets the options of a link's connection: no delay for small packets, and detection of a dead host. Options that the system refuses keep
/// their values.
pub fn set_options(fd: &PrivateFd) {
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_tcp_user_timeout(fd, USER_TIMEOUT_MS);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, KEEPALIVE_IDLE);
    let _ = sockopt::set_tcp_keepintvl(fd, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepcnt(fd, KEEPALIVE_PROBES);
}

/// Sends `pieces` without blocking; returns the number of bytes that were taken. `more`: other bytes follow at once.
#[inline]
pub fn send(fd: &PrivateFd, pieces: &[IoSlice<'_>], more: bool) -> Result<usize> {
    let mut flags = net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT;
    flags.set(net::SendFlags::MORE, more);
    match pieces {
        [piece] => net::send(fd, piece, flags),
        _ => net::sendmsg(fd, pieces, &mut net::SendAncillaryBuffer::default(), flags),
    }
}

/// Receives without blocking; 0 is the end of the stream.
#[inline]
pub fn receive(fd: &PrivateFd, into: &mut [u8]) -> Result<usize> {
    net::recv(fd, into, RecvFlags::DONTWAIT).map(|(n, _)| n)
}

/// Sets the low-water mark: a socket with fewer bytes is not readable and wakes no thread, except at the end of the stream. If the system
/// refuses, the mark stays as it is.
pub fn set_low_water(fd: &PrivateFd, bytes: usize) {
    let _ = motet_sys::socket::set_receive_low_water(fd.as_fd().as_raw_fd(), i32::try_from(bytes).unwrap_or(i32::MAX));
}

/// An epoll set: a set of descriptors that is itself readable when one of them is ready.
#[derive(Debug)]
pub struct PollSet(PrivateFd);

impl PollSet {
    /// An empty set.
    pub fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(|fd| Self(PrivateFd::new(fd)))
    }

    /// The set's own descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    /// Whether a descriptor of the set is ready. Takes no lock of a socket.
    pub fn is_ready(&self) -> bool {
        let mut event = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        epoll::wait(&self.0, &mut event[..], Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Watches a descriptor for input.
    pub fn add(&self, fd: impl AsFd) -> Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(0), EventFlags::IN)
    }

    /// Changes what a descriptor is watched for.
    pub fn change(&self, fd: impl AsFd, input: bool, output: bool) -> Result<()> {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, input);
        events.set(EventFlags::OUT, output);
        epoll::modify(&self.0, fd, EventData::new_u64(0), events)
    }

    /// Removes a descriptor. A descriptor that is closed is removed by the kernel.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }
}

impl AsFd for PollSet {
    fn as_fd(&self) -> motet_sys::rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
