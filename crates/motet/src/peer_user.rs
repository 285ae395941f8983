//! Who is at the other end of a Unix socket, as the kernel says.

use motet_sys::socket;
use std::io;
use std::os::unix::net::UnixStream;

/// The user of the other end of a Unix socket when it connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUser {
    /// Its effective user.
    pub user: u32,
    /// Its effective group.
    pub group: u32,
    /// Its supplementary groups.
    pub groups: Vec<u32>,
}

impl PeerUser {
    /// Asks the kernel (`SO_PEERCRED`, `SO_PEERGROUPS`).
    pub fn of(socket: &UnixStream) -> io::Result<Self> {
        let credentials = socket::peer_credentials(socket).map_err(io::Error::from_raw_os_error)?;
        let groups = socket::peer_groups(socket).map_err(io::Error::from_raw_os_error)?;
        Ok(Self { user: credentials.uid, group: credentials.gid, groups })
    }
}
