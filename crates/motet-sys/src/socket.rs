//! Socket calls: TCP under a stream, poll and eventfds, and the SEQPACKET sockets by which processes of a host exchange descriptors.

use crate::{Errno, errno};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::path::Path;
use syscalls::{Sysno, syscall};

const SOL_SOCKET: usize = 1;
const SO_RCVLOWAT: usize = 18;
const TCP_DEFER_ACCEPT: usize = 9;
const SO_NETNS_COOKIE: usize = 71;
const SO_COOKIE: usize = 57;
const SO_PEERCRED: usize = 17;
const SO_PEERPIDFD: usize = 77;
const SO_PEERGROUPS: usize = 59;
const IPPROTO_TCP: usize = 6;
const TCP_INFO: usize = 11;

/// Credentials of a peer process, attested by the kernel.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Process number in this PID namespace; 0 if the process is not visible here.
    pub pid: i32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// Sets `SO_RCVLOWAT`: a socket with fewer unread bytes is not readable, unless its peer has closed or it has an error.
pub fn set_receive_low_water(fd: RawFd, bytes: i32) -> Result<(), Errno> {
    let length = size_of::<i32>();
    // SAFETY: the kernel reads `length` bytes of `bytes`, which lives until it returns.
    unsafe { syscall!(Sysno::setsockopt, fd, SOL_SOCKET, SO_RCVLOWAT, &raw const bytes, length) }.map_err(errno)?;
    Ok(())
}

/// Sets `TCP_DEFER_ACCEPT`: for `seconds` a listener does not hand over a connection on which no data has arrived.
pub fn set_defer_accept(fd: RawFd, seconds: i32) -> Result<(), Errno> {
    let length = size_of::<i32>();
    // SAFETY: the kernel reads `length` bytes of `seconds`, which lives until it returns.
    unsafe { syscall!(Sysno::setsockopt, fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &raw const seconds, length) }
        .map_err(errno)?;
    Ok(())
}

fn getsockopt<T: Default>(fd: RawFd, level: usize, name: usize) -> Result<T, Errno> {
    let mut value = T::default();
    let mut length = size_of::<T>() as u32;
    // SAFETY: the kernel writes at most `length` bytes into `value`; the types used here are plain integers.
    unsafe { syscall!(Sysno::getsockopt, fd, level, name, &raw mut value, &raw mut length) }.map_err(errno)?;
    Ok(value)
}

/// The socket's cookie (`SO_COOKIE`): unique on this host until reboot.
pub fn cookie(fd: RawFd) -> Result<u64, Errno> {
    getsockopt(fd, SOL_SOCKET, SO_COOKIE)
}

/// The cookie of the socket's network namespace (`SO_NETNS_COOKIE`).
pub fn netns_cookie(fd: RawFd) -> Result<u64, Errno> {
    getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE)
}

/// A pidfd of the process at the other end of a Unix socket (`SO_PEERPIDFD`). It is readable once the process has ended. Works across PID
/// namespaces.
pub fn peer_process(fd: RawFd) -> Result<OwnedFd, Errno> {
    getsockopt::<i32>(fd, SOL_SOCKET, SO_PEERPIDFD).map(crate::private_fds::own)
}

/// Credentials of the process at the other end of a Unix socket (`SO_PEERCRED`).
pub fn peer_credentials(fd: impl AsFd) -> Result<Credentials, Errno> {
    getsockopt(fd.as_fd().as_raw_fd(), SOL_SOCKET, SO_PEERCRED)
}

/// Supplementary groups of the process at the other end of a Unix socket when it connected (`SO_PEERGROUPS`).
pub fn peer_groups(fd: impl AsFd) -> Result<Vec<u32>, Errno> {
    const ERANGE: Errno = 34;
    /// Most groups that a process has on Linux (NGROUPS_MAX).
    const MAX_GROUPS: usize = 65_536;
    let mut groups = vec![0u32; 64];
    loop {
        let mut length = size_of_val(&groups[..]) as u32;
        // SAFETY: the kernel writes at most `length` bytes into `groups`, which has as many.
        let asked = unsafe {
            syscall!(
                Sysno::getsockopt,
                fd.as_fd().as_raw_fd(),
                SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr(),
                &raw mut length
            )
        };
        match asked.map_err(errno) {
            Ok(_) => {
                groups.truncate(length as usize / size_of::<u32>());
                return Ok(groups);
            }
            Err(ERANGE) if groups.len() < MAX_GROUPS => groups.resize(MAX_GROUPS, 0),
            Err(error) => return Err(error),
        }
    }
}

/// Local and peer address of a connected TCP socket. Errors: EPROTONOSUPPORT (not TCP), ENOTCONN, EAFNOSUPPORT.
pub fn addresses(fd: RawFd) -> Result<(SocketAddr, SocketAddr), Errno> {
    let fd = crate::private_fds::borrow(fd);
    let protocol = rustix::net::sockopt::socket_protocol(fd).map_err(|e| e.raw_os_error())?;
    if rustix::net::sockopt::socket_type(fd).map_err(|e| e.raw_os_error())? != SocketType::STREAM
        || protocol != Some(rustix::net::ipproto::TCP)
    {
        return Err(rustix::io::Errno::PROTONOSUPPORT.raw_os_error());
    }
    let local = rustix::net::getsockname(fd).map_err(|e| e.raw_os_error())?;
    let peer = rustix::net::getpeername(fd).map_err(|e| e.raw_os_error())?;
    let convert = |a: rustix::net::SocketAddrAny| {
        SocketAddr::try_from(a).map_err(|_| rustix::io::Errno::AFNOSUPPORT.raw_os_error())
    };
    Ok((convert(local)?, convert(peer.ok_or(rustix::io::Errno::NOTCONN.raw_os_error())?)?))
}

/// Payload bytes that this end has written since the connection began, as the kernel counts them. `None`: acknowledgements arrive too fast
/// for a consistent reading. `connected`: this end called connect().
pub fn sent_position(fd: RawFd, connected: bool) -> Result<Option<u64>, Errno> {
    for _ in 0..4 {
        let before = tcp_info(fd)?.acknowledged;
        let unacknowledged = queued_bytes(fd, 0x5411)?; // SIOCOUTQ
        if tcp_info(fd)?.acknowledged == before {
            // The active opener's SYN is counted as acknowledged.
            return Ok(Some((before + unacknowledged).saturating_sub(u64::from(connected))));
        }
    }
    Ok(None)
}

/// Payload bytes that this end has read since the connection began, as the kernel counts them. `None`: data arrives too fast for a consistent
/// reading.
pub fn received_position(fd: RawFd) -> Result<Option<u64>, Errno> {
    for _ in 0..4 {
        let before = tcp_info(fd)?.received;
        let unread = queued_bytes(fd, 0x541b)?; // SIOCINQ
        if tcp_info(fd)?.received == before {
            return Ok(Some(before.saturating_sub(unread)));
        }
    }
    Ok(None)
}

/// Payload bytes that all processes together have written to this socket, if that is more than `counted`. Otherwise, and if the kernel cannot
/// tell, `counted`.
pub fn written_beyond(fd: RawFd, connected: bool, counted: u64) -> u64 {
    // One system call, but bytes that the device did not accept at once are counted twice.
    if tcp_info(fd).map_or(true, |info| info.written <= counted) {
        return counted;
    }
    sent_position(fd, connected).ok().flatten().map_or(counted, |written| written.max(counted))
}

/// Payload bytes that all processes together have read from this socket, if that is more than `counted`. Otherwise, and if the kernel cannot
/// tell, `counted`.
pub fn read_beyond(fd: RawFd, counted: u64) -> u64 {
    let Ok(info) = tcp_info(fd) else { return counted };
    // After both FINs their order decides whether the peer's is counted.
    if info.closed || info.received <= counted {
        return counted;
    }
    let read = info.received.saturating_sub(unread_bytes(fd));
    // Unread bytes are counted up to the urgent mark only.
    if read <= counted || poll([(fd, 0x2)], Some(0)).map_or(true, |[events]| events & 0x2 != 0) {
        return counted;
    }
    read
}

/// Fields of TCP_INFO (linux/tcp.h); counts are payload bytes.
struct TcpInfo {
    closed: bool,
    acknowledged: u64,
    received: u64,
    written: u64,
    least_round_trip_us: u32,
}

/// States after the peer's FIN, which counts as a received byte: TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const FIN_RECEIVED: [u8; 4] = [6, 8, 9, 11];
/// State in which neither end sends. Received bytes may be unread.
const CLOSED: u8 = 7;

fn tcp_info(fd: RawFd) -> Result<TcpInfo, Errno> {
    let mut info = [0u64; 32];
    let mut length = size_of_val(&info) as u32;
    // SAFETY: the kernel writes at most `length` bytes.
    unsafe { syscall!(Sysno::getsockopt, fd, IPPROTO_TCP, TCP_INFO, info.as_mut_ptr(), &raw mut length) }
        .map_err(errno)?;
    if length < 216 {
        return Err(rustix::io::Errno::OPNOTSUPP.raw_os_error());
    }
    let half = |at: usize| u32::from_ne_bytes(info[at / 8].to_ne_bytes()[at % 8..][..4].try_into().unwrap());
    let state = info[0].to_ne_bytes()[0];
    let fin = FIN_RECEIVED.contains(&state);
    Ok(TcpInfo {
        closed: state == CLOSED,
        acknowledged: info[15],
        received: info[16].saturating_sub(u64::from(fin)),
        // tcpi_bytes_sent less tcpi_bytes_retrans, and tcpi_notsent_bytes.
        written: (info[25].saturating_sub(info[26])) + u64::from(half(144)),
        least_round_trip_us: half(148),
    })
}

/// The least round trip of a connection that the kernel has seen lately, us (tcpi_min_rtt).
pub fn least_round_trip_us(fd: RawFd) -> Result<u32, Errno> {
    tcp_info(fd).map(|info| info.least_round_trip_us)
}

/// Free bytes of the send buffer, by the kernel's memory accounting; 0 if the kernel does not tell.
pub fn send_room(fd: RawFd) -> u64 {
    const SO_MEMINFO: i32 = 55;
    const SNDBUF: usize = 3;
    const WMEM_QUEUED: usize = 5;
    let mut words = [0u32; 16];
    let mut length = size_of_val(&words) as u32;
    // SAFETY: the kernel writes at most `length` bytes.
    let asked = unsafe { syscall!(Sysno::getsockopt, fd, SOL_SOCKET, SO_MEMINFO, words.as_mut_ptr(), &raw mut length) };
    if asked.is_err() || length < 24 {
        return 0;
    }
    u64::from(words[SNDBUF].saturating_sub(words[WMEM_QUEUED]))
}

/// Bytes that a receive would return; 0 if the kernel does not tell.
pub fn unread_bytes(fd: RawFd) -> u64 {
    queued_bytes(fd, 0x541b).unwrap_or(0) // SIOCINQ
}

/// The byte count of an ioctl (SIOCINQ, SIOCOUTQ).
fn queued_bytes(fd: RawFd, request: usize) -> Result<u64, Errno> {
    let mut n = 0i32;
    // SAFETY: both requests write one int.
    unsafe { syscall!(Sysno::ioctl, fd, request, &raw mut n) }.map_err(errno)?;
    Ok(n.max(0) as u64)
}

/// Sends the bytes that the kernel holds back to fill a segment, also under TCP_CORK. To set TCP_NODELAY does that.
pub fn push_corked(fd: RawFd) {
    let before = nodelay(fd);
    set_nodelay(fd, true);
    if !before {
        set_nodelay(fd, false);
    }
}

/// Sets TCP_NODELAY.
pub fn set_nodelay(fd: RawFd, on: bool) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(crate::private_fds::borrow(fd), on);
}

/// Whether TCP_NODELAY is set.
pub fn nodelay(fd: RawFd) -> bool {
    rustix::net::sockopt::tcp_nodelay(crate::private_fds::borrow(fd)).unwrap_or(false)
}

/// Whether the descriptor is O_NONBLOCK.
pub fn is_nonblocking(fd: RawFd) -> bool {
    rustix::fs::fcntl_getfl(crate::private_fds::borrow(fd)).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Sends bytes (sendmsg without control data, never with SIGPIPE).
pub fn send(fd: RawFd, bufs: &[IoSlice<'_>], flags: i32) -> Result<usize, Errno> {
    let flags = SendFlags::from_bits_retain(flags as u32) | SendFlags::NOSIGNAL;
    if let [one] = bufs {
        return rustix::net::send(crate::private_fds::borrow(fd), one, flags).map_err(|e| e.raw_os_error()); // avoids the copy of the vector
    }
    rustix::net::sendmsg(crate::private_fds::borrow(fd), bufs, &mut SendAncillaryBuffer::default(), flags)
        .map_err(|e| e.raw_os_error())
}

/// Receives bytes (recvmsg without control data).
pub fn receive(fd: RawFd, bufs: &mut [IoSliceMut<'_>], flags: i32) -> Result<usize, Errno> {
    let flags = RecvFlags::from_bits_retain(flags as u32);
    if let [one] = bufs {
        return rustix::net::recv(crate::private_fds::borrow(fd), &mut **one, flags)
            .map(|(n, _)| n)
            .map_err(|e| e.raw_os_error());
    }
    rustix::net::recvmsg(crate::private_fds::borrow(fd), bufs, &mut RecvAncillaryBuffer::default(), flags)
        .map(|m| m.bytes)
        .map_err(|e| e.raw_os_error())
}

/// Dissolves the connection (connect to AF_UNSPEC): receives fail with ENOTCONN in all processes that share the socket.
pub fn disconnect(fd: RawFd) -> Result<(), Errno> {
    rustix::net::connect_unspec(crate::private_fds::borrow(fd)).map_err(|e| e.raw_os_error())
}

/// shutdown(2).
pub fn shutdown(fd: RawFd, how: i32) -> Result<(), Errno> {
    let how = match how {
        0 => rustix::net::Shutdown::Read,
        1 => rustix::net::Shutdown::Write,
        2 => rustix::net::Shutdown::Both,
        _ => return Err(rustix::io::Errno::INVAL.raw_os_error()),
    };
    rustix::net::shutdown(crate::private_fds::borrow(fd), how).map_err(|e| e.raw_os_error())
}

/// POLLIN | POLLRDHUP.
pub const READABLE_EVENTS: u16 = 0x1 | 0x2000;
/// POLLOUT.
pub const WRITABLE_EVENTS: u16 = 0x4;
const HUNG_UP_EVENTS: u16 = 0x8 | 0x10 | 0x2000; // POLLERR | POLLHUP | POLLRDHUP

/// The receive timeout (`SO_RCVTIMEO`), ns, if there is one.
pub fn receive_timeout(fd: RawFd) -> Option<u64> {
    use rustix::net::sockopt::{Timeout, socket_timeout};
    let limit = socket_timeout(crate::private_fds::borrow(fd), Timeout::Recv).ok().flatten()?;
    u64::try_from(limit.as_nanos()).ok()
}

/// Waits for events on descriptors (poll(2)). `timeout` in ns; `None`: no limit. Returns the events of each; `Err(EINTR)` after a signal.
pub fn poll<const N: usize>(fds: [(RawFd, u16); N], timeout: Option<u64>) -> Result<[u16; N], Errno> {
    use rustix::event::{PollFd, PollFlags};
    let borrowed = fds.map(|(fd, _)| crate::private_fds::borrow(fd));
    let mut polled: [PollFd<'_>; N] =
        std::array::from_fn(|i| PollFd::new(&borrowed[i], PollFlags::from_bits_retain(fds[i].1)));
    let timeout = timeout
        .map(|ns| rustix::time::Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
    rustix::event::poll(&mut polled, timeout.as_ref()).map_err(|e| e.raw_os_error())?;
    Ok(std::array::from_fn(|i| polled[i].revents().bits()))
}

/// Whether a receive would return without waiting.
pub fn readable(fd: RawFd) -> bool {
    poll([(fd, READABLE_EVENTS)], Some(0)).is_ok_and(|[events]| events != 0)
}

/// Whether the connection is up: neither hung up nor in error.
pub fn is_connected(fd: RawFd) -> bool {
    poll_now(fd).is_ok_and(|events| events & HUNG_UP_EVENTS == 0)
}

/// Whether the socket has a pending error.
pub fn has_error(fd: RawFd) -> bool {
    poll_now(fd).is_ok_and(|events| events & 0x8 != 0) // POLLERR
}

/// The current events. Retries after EINTR, which even a poll without a wait can return.
fn poll_now(fd: RawFd) -> Result<u16, Errno> {
    loop {
        match poll([(fd, READABLE_EVENTS)], Some(0)) {
            Ok([events]) => return Ok(events),
            Err(errno) if errno == rustix::io::Errno::INTR.raw_os_error() => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A new eventfd, non-blocking.
pub fn eventfd() -> Result<OwnedFd, Errno> {
    use rustix::event::EventfdFlags;
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| e.raw_os_error())
}

/// Rings a doorbell: adds 1 to an eventfd. Errors are ignored.
pub fn ring_eventfd(fd: RawFd) {
    let _ = rustix::io::write(crate::private_fds::borrow(fd), &1u64.to_ne_bytes());
}

/// Resets an eventfd to 0. Errors are ignored.
pub fn drain_eventfd(fd: RawFd) {
    let _ = rustix::io::read(crate::private_fds::borrow(fd), &mut [0u8; 8]);
}

/// Most descriptors in one message.
pub const MAX_FDS: usize = 4;

// ---- descriptor exchange over SEQPACKET ------------------------------------------------------------------------------------------------------

/// Opens a non-blocking SEQPACKET listener with an abstract name.
pub fn listen_abstract(name: &[u8], backlog: i32) -> Result<OwnedFd, Errno> {
    let fd = seqpacket()?;
    let address = SocketAddrUnix::new_abstract_name(name).map_err(|e| e.raw_os_error())?;
    rustix::net::bind(&fd, &address).map_err(|e| e.raw_os_error())?;
    rustix::net::listen(&fd, backlog).map_err(|e| e.raw_os_error())?;
    Ok(fd)
}

/// Connects to the SEQPACKET listener with an abstract name, without blocking.
pub fn connect_abstract(name: &[u8]) -> Result<OwnedFd, Errno> {
    let fd = seqpacket()?;
    let address = SocketAddrUnix::new_abstract_name(name).map_err(|e| e.raw_os_error())?;
    rustix::net::connect(&fd, &address).map_err(|e| e.raw_os_error())?;
    Ok(fd)
}

/// Opens a non-blocking SEQPACKET listener on a file in a folder, which all network namespaces that see the folder can reach.
pub fn listen_in(folder: &Path, name: &str, backlog: i32) -> Result<OwnedFd, Errno> {
    let fd = seqpacket()?;
    in_folder(folder, name, |address| {
        rustix::net::bind(&fd, address)?;
        rustix::net::listen(&fd, backlog)
    })?;
    Ok(fd)
}

/// Connects to the SEQPACKET listener on a file in a folder, without blocking.
pub fn connect_in(folder: &Path, name: &str) -> Result<OwnedFd, Errno> {
    let fd = seqpacket()?;
    in_folder(folder, name, |address| rustix::net::connect(&fd, address))?;
    Ok(fd)
}

/// Calls `run` with the address of a file in a folder. A path that is longer than an address goes by the folder's descriptor.
fn in_folder(
    folder: &Path,
    name: &str,
    run: impl FnOnce(&SocketAddrUnix) -> rustix::io::Result<()>,
) -> Result<(), Errno> {
    let error = |e: rustix::io::Errno| e.raw_os_error();
    if let Ok(address) = SocketAddrUnix::new(folder.join(name)) {
        return run(&address).map_err(error);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(error)?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    SocketAddrUnix::new(path).and_then(|address| run(&address)).map_err(error)
}

/// Accepts a connection, without blocking.
pub fn accept(fd: impl AsFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(fd, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(|e| e.raw_os_error())
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(|e| e.raw_os_error())
}

/// Sends a message with one descriptor.
pub fn send_with_fd(socket: impl AsFd, bytes: &[u8], fd: impl AsFd) -> Result<(), Errno> {
    send_with_fds(socket, bytes, &[fd.as_fd()])
}

/// Sends a message with up to [`MAX_FDS`] descriptors, without blocking.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(fds));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) => Err(rustix::io::Errno::MSGSIZE.raw_os_error()),
        Err(e) => Err(e.raw_os_error()),
    }
}

/// Sends a message, without blocking.
pub fn send_message(socket: impl AsFd, bytes: &[u8]) -> Result<(), Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::send(socket, bytes, flags).map(|_| ()).map_err(|e| e.raw_os_error())
}

/// Receives a message and at most one descriptor, without blocking. Further descriptors are closed.
pub fn receive_with_fd(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let (length, [first]) = receive_with_fds(socket, bytes)?;
    Ok((length, first))
}

/// Receives a message and at most `N` descriptors ([`MAX_FDS`] or fewer), without blocking. Further descriptors are closed.
pub fn receive_with_fds<const N: usize>(
    socket: impl AsFd,
    bytes: &mut [u8],
) -> Result<(usize, [Option<OwnedFd>; N]), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)
        .map_err(|e| e.raw_os_error())?;
    let mut received = [const { None }; N];
    let mut free = received.iter_mut();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = item {
            for fd in fds {
                if let Some(entry) = free.next() {
                    *entry = Some(fd);
                } // the others are dropped, which closes them
            }
        }
    }
    Ok((message.bytes, received))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eventfd_is_a_doorbell() {
        use crate::private_fds::is_doorbell;
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(is_doorbell(&eventfd().unwrap()));
        assert!(!is_doorbell(&pipe) && !is_doorbell(&seqpacket().unwrap()));
    }
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn kernel_counts_agree_with_bytes_moved() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let (n, f) = (near.as_raw_fd(), far.as_raw_fd());
        assert_eq!(sent_position(n, true), Ok(Some(0)));
        assert_eq!(sent_position(f, false), Ok(Some(0)));
        near.write_all(&[1; 1000]).unwrap();
        far.write_all(&[2; 77]).unwrap();
        far.read_exact(&mut [0; 300]).unwrap();
        assert_eq!(sent_position(n, true), Ok(Some(1000)));
        assert_eq!(sent_position(f, false), Ok(Some(77)));
        assert_eq!(received_position(f), Ok(Some(300)));
        assert_eq!(received_position(n), Ok(Some(0)));
        assert_eq!((written_beyond(n, true, 1000), written_beyond(n, true, 990)), (1000, 1000));
        assert_eq!((read_beyond(f, 300), read_beyond(f, 250)), (300, 300));
        near.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read_beyond(f, 250), 300, "a FIN over unread bytes");
        far.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!((read_beyond(f, 1000), read_beyond(f, 990)), (1000, 1000), "a FIN that was read");
        far.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(read_beyond(n, 0), 0, "both FINs over unread bytes");
    }

    #[test]
    fn urgent_data_counts_no_bytes_as_read() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.write_all(&[1; 10]).unwrap();
        send(near.as_raw_fd(), &[IoSlice::new(b"!")], 0x1).unwrap(); // MSG_OOB
        near.write_all(&[1; 10]).unwrap();
        assert_eq!(read_beyond(far.as_raw_fd(), 0), 0);
    }

    #[test]
    fn descriptor_is_received_with_its_message() {
        let name = format!("motet-test-{}", std::process::id());
        let listener = listen_abstract(name.as_bytes(), 4).unwrap();
        let near = connect_abstract(name.as_bytes()).unwrap();
        let far = accept(&listener).unwrap();
        assert_eq!(peer_credentials(&near).unwrap().pid, std::process::id() as i32);
        send_with_fd(&near, b"hello", &listener).unwrap();
        let mut bytes = [0; 16];
        let (n, fd) = receive_with_fd(&far, &mut bytes).unwrap();
        assert_eq!((&bytes[..n], fd.is_some()), (&b"hello"[..], true));
    }
}
