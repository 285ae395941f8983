//! A server that listens for TCP, for the tests of what clients of other hosts do.

use motet_files::server::{Options, Server};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// The server, and the folder that it exports under a name of its own.
pub struct Scene {
    pub server: Server,
    pub folder: TempDir,
    pub name: String,
}

impl Scene {
    /// Starts it. Nothing is in the folder.
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::tempdir().expect("a folder");
        let name = format!("scene-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let listen = Some("127.0.0.1:0".parse().expect("an address"));
        let options = Options { name: name.clone(), directory: folder.path().to_owned(), listen, ..Options::default() };
        Self { server: Server::start(options).expect("a server"), folder, name }
    }

    /// The address of the server.
    pub fn address(&self) -> String {
        self.server.address().expect("the address")
    }
}
