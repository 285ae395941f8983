//! The registration of a program that does not wait for the gatekeeper: what the gatekeeper announces in the session's folder, and one object that a
//! program writes to its socket for registrations.
//!
//! The object ends with the connection, and there is no answer. The gatekeeper takes it also when its sender has gone on, or has replaced itself by
//! another program.

use crate::api::Program;
use crate::client::ClientError;
use crate::paths::SessionPaths;
use crate::private_file::write_private;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};

/// The longest registration, bytes.
pub const MAX_BYTES: usize = 64 << 10;
/// The most arguments of a program that are kept, and the most characters of each.
pub const MAX_ARGUMENTS: (usize, usize) = (64, 256);
/// The longest announcement, bytes.
const MAX_ANNOUNCEMENT_BYTES: u64 = 4096;

/// What a program of the session has to know before it starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// The session's identity.
    pub id: String,
    /// The PID namespace of the gatekeeper: process ids mean the same to processes of that one only.
    pub pid_namespace: u64,
}

impl Announcement {
    /// Keeps it in the session's folder.
    pub fn write(&self, paths: &SessionPaths) -> io::Result<()> {
        write_private(&paths.announcement(), &serde_json::to_vec(self)?)
    }

    /// The announcement of a session. `None`: there is none, or it is of another form.
    pub fn read(paths: &SessionPaths) -> Option<Self> {
        let mut text = Vec::with_capacity(256);
        File::open(paths.announcement()).ok()?.take(MAX_ANNOUNCEMENT_BYTES).read_to_end(&mut text).ok()?;
        serde_json::from_slice::<Self>(&text).ok().filter(Self::is_valid)
    }

    fn is_valid(&self) -> bool {
        self.id.len() == 32 && self.id.bytes().all(|byte| byte.is_ascii_hexdigit())
    }
}

/// The PID namespace of this process.
pub fn own_pid_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/pid").ok().map(|stat| stat.st_ino)
}

/// Shortens the command of a program to what is kept.
pub fn shorten(command: &mut Vec<String>) {
    command.truncate(MAX_ARGUMENTS.0);
    for argument in command {
        if argument.len() > MAX_ARGUMENTS.1 {
            *argument = argument.chars().take(MAX_ARGUMENTS.1).collect();
        }
    }
}

/// Writes the registration of this process, without a wait: a gatekeeper that is not there, or takes no more connections, is an error at once.
pub fn send_without_answer(paths: &SessionPaths, program: &Program) -> Result<(), ClientError> {
    let text = serde_json::to_vec(program).map_err(|error| ClientError::Io(error.into()))?;
    if text.len() > MAX_BYTES {
        return Err(ClientError::Io(io::Error::other("the command line is too long")));
    }
    let failed = |error: rustix::io::Errno| ClientError::from(io::Error::from(error));
    let address = SocketAddrUnix::new(paths.programs_socket()).map_err(failed)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(failed)?;
    connect(&socket, &address).map_err(failed)?;
    match send(&socket, &text, SendFlags::NOSIGNAL).map_err(failed)? {
        sent if sent == text.len() => Ok(()),
        _ => Err(ClientError::Io(io::ErrorKind::WouldBlock.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn announcements_are_read_back_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "s").unwrap();
        paths.create().unwrap();
        assert_eq!(Announcement::read(&paths), None);
        let announcement = Announcement { id: "0123456789abcdef".repeat(2), pid_namespace: 7 };
        announcement.write(&paths).unwrap();
        assert_eq!(Announcement::read(&paths), Some(announcement));
        for wrong in ["", "{}", r#"{"id":"x","pid_namespace":7}"#, &" ".repeat(5000)] {
            std::fs::write(paths.announcement(), wrong).unwrap();
            assert_eq!(Announcement::read(&paths), None, "{wrong}");
        }
    }

    #[test]
    fn commands_are_shortened_by_characters() {
        let mut command = vec!["\u{e9}".repeat(300); 100];
        shorten(&mut command);
        assert_eq!((command.len(), command[0].chars().count()), MAX_ARGUMENTS);
    }
}
