//! An export of a test, and `motet run --files` with it.

use super::{Folder, motet};
use motet_files::server::{Options, Server};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// An export, and the libraries that `motet run` needs.
pub struct Export {
    pub name: String,
    pub libraries: Folder,
    pub folder: Folder,
    _server: Server,
}

impl Export {
    /// An export with the default options, changed by `change`.
    pub fn new(change: impl FnOnce(&mut Options)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("run-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (libraries, folder) = (Folder::new("files-libraries"), Folder::new("files-export"));
        libraries.libraries();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters/files");
        let out = format!("OUT={}", libraries.path().display());
        let built = Command::new("make").arg("-s").arg("-C").arg(source).arg(out).output().expect("make is installed");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let exported = folder.path().to_owned();
        let mut options = Options { name: name.clone(), directory: exported, direct: true, ..Options::default() };
        change(&mut options);
        let server = Server::start(options).expect("a server");
        Self { name, libraries, folder, _server: server }
    }

    /// `motet run --files` with the export at a path.
    pub fn run(&self, prefix: &str, words: &[&str]) -> Command {
        let mut command = motet(["run", "--files", &format!("{}={prefix}", self.name), "--"]);
        command.args(words).env("MOTET_LIBDIR", self.libraries.path());
        command
    }
}
