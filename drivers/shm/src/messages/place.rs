//! Where nodes of a host find each other: under an abstract name, which one network namespace has, or in a folder, which all processes have that see it.
//!
//! The file of a node in a folder is its number, so no two nodes have the same one. The node removes it; what a killed one leaves, its session removes.

use motet_engine::message::transport::{Identity, NodeId};
use motet_engine::reason::Reason;
use motet_sys::Errno;
use motet_sys::fork_detect::ForkMark;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::socket;
use motet_sys::thread::euid;
use std::path::PathBuf;

/// An address in the folder of the node that connects begins so.
const IN_FOLDER: &str = "./";

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Under its abstract name.
    Name(String),
    /// In a folder, as the file of this name.
    Folder(PathBuf, String),
}

impl Place {
    /// The place of a node in its folder.
    pub fn in_folder(node: &Identity) -> Result<Self, Reason> {
        let folder = node.folder.clone().ok_or(Reason::NO_SUCH_NODE)?;
        Ok(Self::Folder(folder, file_name(node.id)))
    }

    /// The place that an address names, for the node that connects. An address is what any process has written.
    pub fn parse(node: &Identity, address: &str) -> Result<Self, Reason> {
        match address.strip_prefix(IN_FOLDER) {
            Some(file) if is_file_name(file) => {
                let folder = node.folder.clone().ok_or(Reason::NO_SUCH_NODE)?;
                Ok(Self::Folder(folder, file.to_owned()))
            }
            None if is_valid_name(address) => Ok(Self::Name(address.to_owned())),
            _ => Err(Reason::BAD_NAME),
        }
    }

    /// The address, as other nodes of the place get it.
    pub fn address(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Folder(_, file) => format!("{IN_FOLDER}{file}"),
        }
    }

    /// Connects to the node that listens there.
    pub fn connect(&self) -> Result<OwnedFd, Errno> {
        match self {
            Self::Name(name) => socket::connect_abstract(&socket_name(name)),
            Self::Folder(folder, file) => socket::connect_in(folder, file),
        }
    }

    /// Listens there.
    pub fn listen(&self, backlog: i32) -> Result<OwnedFd, Errno> {
        match self {
            Self::Name(name) => socket::listen_abstract(&socket_name(name), backlog),
            Self::Folder(folder, file) => socket::listen_in(folder, file, backlog),
        }
    }
}

/// The socket name of a node: the same in every version of Motet.
fn socket_name(name: &str) -> Vec<u8> {
    format!("motet/node/{}/{name}", euid()).into_bytes()
}

/// Whether a node may have this name: 1 to 64 letters, digits, dots, underscores, hyphens and at signs.
pub fn is_valid_name(name: &str) -> bool {
    let known = |c: char| c.is_ascii_alphanumeric() || "._-@".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(known)
}

fn file_name(id: NodeId) -> String {
    format!("{:032x}", u128::from_be_bytes(id.0))
}

fn is_file_name(file: &str) -> bool {
    file.len() == 32 && file.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// The file of a listener, which is removed with it, but not by a forked child.
pub struct ListenerFile {
    place: Place,
    process: ForkMark,
}

impl ListenerFile {
    /// The file at a place, once this process listens there.
    pub fn new(place: Place) -> Result<Self, Errno> {
        Ok(Self { place, process: ForkMark::of_this_process()? })
    }

    /// The place.
    pub fn place(&self) -> &Place {
        &self.place
    }
}

impl Drop for ListenerFile {
    fn drop(&mut self) {
        if let Place::Folder(folder, file) = &self.place
            && self.process.is_own()
        {
            let _ = motet_sys::rustix::fs::unlink(folder.join(file));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_engine::message::transport::Secret;

    #[test]
    fn addresses_name_places_and_nothing_else() {
        let folder = Some(PathBuf::from("/f"));
        let secret = Secret::random().unwrap();
        let node =
            Identity { id: NodeId([0xab; 16]), name: "n".to_owned(), listen: None, secret, other_users: false, folder };
        let own = Place::in_folder(&node).unwrap();
        assert_eq!(own.address(), format!("./{}", "ab".repeat(16)));
        assert_eq!(Place::parse(&node, &own.address()), Ok(own.clone()));
        assert_eq!(Place::parse(&node, "n"), Ok(Place::Name("n".to_owned())));
        for wrong in ["./", "./../x", "./a/b", "/f/x", "a/b", "", &format!("./{}", "AB".repeat(16))] {
            assert_eq!(Place::parse(&node, wrong), Err(Reason::BAD_NAME), "{wrong}");
        }
        let nowhere = Identity { folder: None, ..node };
        assert_eq!(Place::parse(&nowhere, &own.address()), Err(Reason::NO_SUCH_NODE));
    }
}
