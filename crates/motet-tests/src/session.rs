//! A session in a folder of its own: `motet up` at its begin, `motet down` at its end.

use crate::temporary::Temporary;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A session of the built command. Dropping it ends it.
#[derive(Debug)]
pub struct Session {
    folder: Temporary,
    motet: PathBuf,
}

impl Session {
    /// Begins a session. `None`, with a message, if the command or the library is not built.
    #[track_caller]
    pub fn up(test: &str) -> Option<Self> {
        let motet = crate::engine().and_then(Path::parent).map(|built| built.join("motet"));
        let Some(motet) = motet.filter(|motet| motet.exists()) else {
            return crate::programs::skip(test, "motet or libmotet.so.0 is not built (make build)");
        };
        let session = Self { folder: Temporary::new("session"), motet };
        let up = session.command(&["up"]).output().expect("motet");
        assert!(up.status.success(), "{}", String::from_utf8_lossy(&up.stderr));
        Some(session)
    }

    /// The command `motet` in this session.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.set(Command::new(&self.motet), arguments)
    }

    /// The command `motet` in this session, for at most `seconds`.
    pub fn command_within(&self, seconds: u32, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg(seconds.to_string()).arg(&self.motet);
        self.set(command, arguments)
    }

    fn set(&self, mut command: Command, arguments: &[&str]) -> Command {
        command.args(arguments).env("MOTET_SESSION_DIR", self.folder.join("sessions")).env_remove("MOTET_SESSION");
        command.env("LD_LIBRARY_PATH", self.motet.parent().expect("a folder"));
        command
    }

    /// Runs a program as a group of `size` processes, for at most `seconds`. Returns the output, standard error included, and whether all succeeded.
    pub fn run_group(
        &self,
        (group, size): (&str, u32),
        program: &Path,
        arguments: &[&str],
        seconds: u32,
    ) -> (String, bool) {
        let mut command = self.command_within(seconds, &["run", "--group", group, "-n", &size.to_string(), "--"]);
        let Output { status, stdout, stderr } = command.arg(program).args(arguments).output().expect("timeout");
        let text = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        (text, status.success())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.command(&["down"]).output();
    }
}
