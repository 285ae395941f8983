//! The folder in which nodes of this host meet, also those of containers with other network namespaces: each node has a socket in it.
//!
//! A node looks for the folder when it attaches, so the session allows such links by having it. Nodes remove their own sockets; this module removes
//! those of nodes that were killed.

use crate::options::Containers;
use motet_session::paths::SessionPaths;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// ECONNREFUSED: nothing listens.
const REFUSED: motet_sys::Errno = 111;

/// Creates the folder, or removes it, as the session allows. What killed nodes have left in it is removed.
pub fn prepare(paths: &SessionPaths, containers: Containers) -> io::Result<()> {
    let folder = paths.nodes();
    let result = match containers {
        Containers::SameUid => std::fs::DirBuilder::new().mode(0o700).create(&folder),
        Containers::Off => std::fs::remove_dir_all(&folder),
    };
    match result {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            for entry in std::fs::read_dir(&folder)?.flatten() {
                remove_stale(&folder, &entry.file_name().to_string_lossy());
            }
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Removes the socket of a node if nothing listens there any more.
pub fn remove_stale(folder: &Path, node: &str) {
    if motet_sys::socket::connect_in(folder, node).is_err_and(|error| error == REFUSED) {
        let _ = std::fs::remove_file(folder.join(node));
    }
}
