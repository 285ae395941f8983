//! sshfs beside Motet: a server of ssh with keys made for the run, and mounts of it.

use super::scene::{LIMIT, Mounted, Server};
use crate::cleanup;
use anyhow::{Context, Result, ensure};
use motet_programs::{find, free_port, is_root};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// A server of ssh that only this run can use.
pub struct SshServer {
    folder: TempDir,
    port: u16,
    _server: Server,
}

impl SshServer {
    /// Starts it; `before` is the words in front of the command that run it on another host. An error that begins with `SKIPPED` says what is missing.
    pub fn start(before: &[OsString]) -> Result<Self> {
        find("sshfs").context("SKIPPED: no sshfs (package sshfs)")?;
        let server = Path::new("/usr/sbin/sshd");
        ensure!(server.exists(), "SKIPPED: no sshd (package openssh-server)");
        let folder = cleanup::folder()?;
        let path = |name: &str| folder.path().join(name);
        for name in ["key", "host_key"] {
            let mut made = Command::new("ssh-keygen");
            made.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path(name));
            ensure!(cleanup::output(&mut made)?.status.success(), "ssh-keygen has failed");
        }
        std::fs::copy(path("key.pub"), path("authorized"))?;
        if is_root() {
            std::fs::create_dir_all("/run/sshd")?; // sshd of root wants it
        }
        let port = free_port()?;
        let settings = format!(
            "Port {port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PasswordAuthentication no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n",
            path("host_key").display(),
            path("authorized").display()
        );
        std::fs::write(path("server"), settings)?;
        let log = std::fs::File::create(path("log"))?;
        let mut words = before.to_vec();
        words.extend([server.as_os_str().to_owned(), "-D".into(), "-e".into(), "-f".into(), path("server").into()]);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut server = Server::of(cleanup::start(&mut command)?);
        let began = Instant::now();
        while !std::fs::read_to_string(path("log"))?.contains("Server listening on 0.0.0.0") {
            ensure!(!server.ended() && began.elapsed() < LIMIT, "sshd does not start");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        Ok(Self { folder, port, _server: server })
    }

    /// The words of a command that mounts a folder of `host` and stays in the foreground. Its settings are those of sshfs.
    pub fn mount_words(&self, host: &str, folder: &Path, at: &Path) -> Vec<OsString> {
        let options = format!(
            "port={},IdentityFile={},StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null,LogLevel=ERROR,BatchMode=yes",
            self.port,
            self.folder.path().join("key").display()
        );
        let source = format!("{host}:{}", folder.display());
        ["sshfs", "-f", "-o", &options, &source].map(OsString::from).into_iter().chain([at.into()]).collect()
    }

    /// Mounts a folder of this host.
    pub fn mount(&self, folder: &Path, at: PathBuf) -> Result<Mounted> {
        std::fs::create_dir(&at)?;
        let words = self.mount_words("127.0.0.1", folder, &at);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null());
        Mounted::by(at, Server::of(cleanup::start(&mut command)?))
    }
}
