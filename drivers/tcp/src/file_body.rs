//! Bodies that are ranges of files: sent from the kernel's cache of the file, without a copy in this process (sendfile).

use crate::socket;
use motet_proto::message::FileRange;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fs::sendfile;
use motet_sys::rustix::io::{Errno, pread};
use motet_sys::thread;
use std::io::IoSlice;

/// Bytes that are read at a time from a file that the kernel cannot send from.
const READ_BYTES: usize = 16 << 10;
/// What is sent in place of bytes that a file has no more.
static ZEROS: [u8; READ_BYTES] = [0; READ_BYTES];

/// Why bytes of a file were not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileBodyError {
    /// The connection.
    Socket(Errno),
    /// The file cannot be read.
    Unreadable,
}

/// Whether files can be sent from. Like write(2), sendfile raises SIGPIPE on a connection that is broken, which must not end the process.
pub fn is_possible() -> bool {
    thread::ignores_broken_pipes()
}

/// Sends the beginning of a range without blocking; returns how many bytes were taken. The file may have become shorter: what is missing is sent as zeros.
pub fn send(fd: &PrivateFd, file: &FileRange) -> Result<usize, FileBodyError> {
    let (mut offset, length) = (file.offset(), usize::try_from(file.len()).unwrap_or(usize::MAX));
    match sendfile(fd, file.file(), Some(&mut offset), length) {
        Ok(0) => {
            let length = length.min(ZEROS.len());
            socket::send(fd, &[IoSlice::new(&ZEROS[..length])], false).map_err(FileBodyError::Socket)
        }
        Ok(sent) => Ok(sent),
        Err(errno @ (Errno::AGAIN | Errno::INTR | Errno::PIPE | Errno::CONNRESET | Errno::TIMEDOUT)) => {
            Err(FileBodyError::Socket(errno))
        }
        // Either the file cannot be read, or its file system does not support this, or the connection is broken in another way.
        Err(_) => send_copy(fd, file),
    }
}

/// Sends as [`send`] does, through memory of this process.
fn send_copy(fd: &PrivateFd, file: &FileRange) -> Result<usize, FileBodyError> {
    let mut bytes = [0; READ_BYTES];
    let length = READ_BYTES.min(usize::try_from(file.len()).unwrap_or(READ_BYTES));
    let bytes = &mut bytes[..length];
    match pread(file.file(), &mut *bytes, file.offset()) {
        Ok(_) => socket::send(fd, &[IoSlice::new(bytes)], false).map_err(FileBodyError::Socket),
        Err(Errno::INTR) => Err(FileBodyError::Socket(Errno::INTR)),
        Err(_) => Err(FileBodyError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn pair() -> (PrivateFd, UnixStream) {
        let (near, far) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
                .unwrap();
        (PrivateFd::new(near), far.into())
    }

    fn sent(file: &FileRange, into: usize) -> Vec<u8> {
        let (near, mut far) = pair();
        let mut all = Vec::new();
        while all.len() < into {
            let count = send(&near, &file.part(all.len() as u64, u64::MAX)).unwrap();
            let mut bytes = vec![0; count];
            far.set_nonblocking(false).unwrap();
            far.read_exact(&mut bytes).unwrap();
            all.extend(bytes);
        }
        all
    }

    #[test]
    fn a_range_is_sent_and_what_the_file_has_no_more_is_zeros() {
        let content: Vec<u8> = (0..100_000).map(|at| (at * 7 % 251) as u8).collect();
        let memory = motet_sys::rustix::fs::memfd_create("range", motet_sys::rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = File::from(memory);
        file.write_all(&content).unwrap();
        let range = |offset, length| FileRange::new(file.try_clone().unwrap().into(), offset, length).unwrap();
        assert!(sent(&range(10, 50_000), 50_000) == content[10..50_010]);
        let longer = sent(&range(90_000, 60_000), 60_000);
        assert!(longer[..10_000] == content[90_000..] && longer[10_000..].iter().all(|&byte| byte == 0));
        assert!(sent(&range(200_000, 10), 10) == [0; 10]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_an_error_and_a_full_socket_is_another() {
        let (near, far) = pair();
        let folder = FileRange::new(File::open("/").unwrap().into(), 0, 10).unwrap();
        assert_eq!(send(&near, &folder), Err(FileBodyError::Unreadable));
        let zeros = FileRange::new(File::open("/proc/self/exe").unwrap().into(), 0, 8 << 20).unwrap();
        assert!(is_possible());
        let full = (0..10_000).find_map(|_| send(&near, &zeros).err());
        assert_eq!(full, Some(FileBodyError::Socket(Errno::AGAIN)));
        drop(far);
        assert_eq!(send(&near, &zeros), Err(FileBodyError::Socket(Errno::PIPE)));
    }
}
