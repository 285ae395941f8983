//! TCP sockets and sets of them, as this driver uses them: nonblocking, private, never through the C library.

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

/// Connections that the kernel keeps for a listener that has not taken them yet.
const BACKLOG: i32 = 4096;
/// A connection on which nothing has been said is not handed over for so long, s: it costs the kernel a record, and us nothing.
const SILENT: i32 = 3;
/// A host that does not answer is dead after about so long: with data under way, and without.
const UNANSWERED_MS: u32 = 8_000;
const QUIET: Duration = Duration::from_secs(4);
const BETWEEN: Duration = Duration::from_secs(1);
const PROBES: u32 = 4;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

fn fresh(address: &SocketAddr) -> Result<PrivateFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(PrivateFd::close_on_fork(net::socket_with(family, SocketType::STREAM, FLAGS, None)?))
}

/// A listening socket, and where it listens.
pub fn listen(address: &SocketAddr) -> Result<(PrivateFd, SocketAddr)> {
    let fd = fresh(address)?;
    sockopt::set_socket_reuseaddr(&fd, true)?;
    let _ = motet_sys::socket::set_defer_accept(fd.as_fd().as_raw_fd(), SILENT);
    net::bind(&fd, address)?;
    net::listen(&fd, BACKLOG)?;
    let actual = own_address(&fd)?;
    Ok((fd, actual))
}

/// The address of this end.
pub fn own_address(fd: &PrivateFd) -> Result<SocketAddr> {
    SocketAddr::try_from(net::getsockname(fd)?)
}

/// Takes a connection that has come, and says from where. It is not [prepared](prepare): it may be anybody's.
pub fn accept(listener: &PrivateFd) -> Result<(PrivateFd, SocketAddr)> {
    let (fd, from) = net::acceptfrom_with(listener, FLAGS)?;
    let from = from.map(SocketAddr::try_from).ok_or(Errno::NOTCONN)??;
    Ok((PrivateFd::close_on_fork(fd), from))
}

/// Begins to connect: writable when that has ended, well or badly.
pub fn connect(address: &SocketAddr) -> Result<PrivateFd> {
    let fd = fresh(address)?;
    prepare(&fd);
    match net::connect(&fd, &SocketAddrAny::from(*address)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(fd),
        Err(errno) => Err(errno),
    }
}

/// What was wrong with a connection, if anything.
pub fn error(fd: &PrivateFd) -> Result<()> {
    sockopt::socket_error(fd)?
}

/// Small packets go at once, and a host that has died is noticed. What the system refuses stays as it is.
pub fn prepare(fd: &PrivateFd) {
    let _ = sockopt::set_tcp_nodelay(fd, true);
    let _ = sockopt::set_tcp_user_timeout(fd, UNANSWERED_MS);
    let _ = sockopt::set_socket_keepalive(fd, true);
    let _ = sockopt::set_tcp_keepidle(fd, QUIET);
    let _ = sockopt::set_tcp_keepintvl(fd, BETWEEN);
    let _ = sockopt::set_tcp_keepcnt(fd, PROBES);
}

/// Sends what goes at once of `pieces`.
#[inline]
pub fn send(fd: &PrivateFd, pieces: &[IoSlice<'_>]) -> Result<usize> {
    let flags = net::SendFlags::NOSIGNAL | net::SendFlags::DONTWAIT;
    match pieces {
        [piece] => net::send(fd, piece, flags),
        _ => net::sendmsg(fd, pieces, &mut net::SendAncillaryBuffer::default(), flags),
    }
}

/// Receives what is there; 0 is the end.
#[inline]
pub fn receive(fd: &PrivateFd, into: &mut [u8]) -> Result<usize> {
    net::recv(fd, into, RecvFlags::DONTWAIT).map(|(n, _)| n)
}

/// A socket with fewer bytes than these is not ready, and wakes no thread; one that has ended is. What the system refuses stays as it is.
pub fn wait_for(fd: &PrivateFd, bytes: usize) {
    let _ = motet_sys::socket::set_receive_low_water(fd.as_fd().as_raw_fd(), i32::try_from(bytes).unwrap_or(i32::MAX));
}

/// A set of descriptors that is itself readable when one of them is ready.
#[derive(Debug)]
pub struct Set(PrivateFd);

impl Set {
    /// An empty one.
    pub fn new() -> Result<Self> {
        epoll::create(CreateFlags::CLOEXEC).map(|fd| Self(PrivateFd::new(fd)))
    }

    /// Its own descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }

    /// Whether one of them is ready. Takes no lock of a socket.
    pub fn is_ready(&self) -> bool {
        let mut event = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }];
        epoll::wait(&self.0, &mut event[..], Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Watches a descriptor for input.
    pub fn add(&self, fd: impl AsFd) -> Result<()> {
        epoll::add(&self.0, fd, EventData::new_u64(0), EventFlags::IN)
    }

    /// What a descriptor is watched for from now on.
    pub fn change(&self, fd: impl AsFd, input: bool, output: bool) -> Result<()> {
        let mut events = EventFlags::empty();
        events.set(EventFlags::IN, input);
        events.set(EventFlags::OUT, output);
        epoll::modify(&self.0, fd, EventData::new_u64(0), events)
    }

    /// No longer. A descriptor that is closed leaves by itself.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }
}

impl AsFd for Set {
    fn as_fd(&self) -> motet_sys::rustix::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}
