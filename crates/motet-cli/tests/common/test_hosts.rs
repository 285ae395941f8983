//! A session of test hosts (`scripts/hosts`), each with a network, mounts and processes of its own.

use super::{Folder, finish, until};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts");

/// Test hosts with a session. They end when this is dropped.
pub struct TestHosts {
    pub folder: Folder,
    set: String,
    first: String,
    agents: Vec<Child>,
}

impl TestHosts {
    /// Makes hosts of these names; the first one is the primary one of their session.
    pub fn up(test: &str, names: &[&str]) -> Self {
        let folder = Folder::new(test);
        folder.libraries();
        let set = format!("{}{}", &test[..1], std::process::id());
        let mut hosts = Self { folder, set, first: names[0].to_owned(), agents: Vec::new() };
        assert!(hosts.script().arg("up").args(names).status().unwrap().success());
        for host in names {
            let socket = hosts.path(&format!("{host}.sock"));
            let agent = hosts.on(host, &[&format!("{SCRIPTS}/host-agent"), "serve", socket.to_str().unwrap()]).spawn();
            hosts.agents.push(agent.unwrap());
            until("the agent", || socket.exists());
        }
        let folder = hosts.folder.path().display();
        let agent = format!("{SCRIPTS}/host-agent {folder}/%h.sock env MOTET_SESSION_DIR={folder}/%h");
        let others = names[1..].join(",");
        let (code, _, err) =
            finish(&mut hosts.motet(names[0], &["up", "--host", names[0], "--hosts", &others, "--agent", &agent]));
        assert_eq!(code, 0, "{err}");
        hosts
    }

    fn script(&self) -> Command {
        let mut command = Command::new(format!("{SCRIPTS}/hosts"));
        command.args(["--set", &self.set]);
        command
    }

    /// A path in the folder, which all hosts see.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A command on a host. Each command has a mount namespace of its own.
    pub fn on(&self, host: &str, words: &[&str]) -> Command {
        let mut command = self.script();
        let folder = self.folder.path().display();
        let own = [format!("MOTET_SESSION_DIR={folder}/{host}"), format!("MOTET_LIBDIR={folder}")];
        command.args(["exec", host, "--", "env"]).args(own).arg("MOTET_CONFIG=/dev/null").args(words);
        command.stdin(Stdio::null());
        command
    }

    /// `motet` on a host.
    pub fn motet(&self, host: &str, words: &[&str]) -> Command {
        self.on(host, &[&[env!("CARGO_BIN_EXE_motet")], words].concat())
    }
}

impl Drop for TestHosts {
    fn drop(&mut self) {
        let _ = self.motet(&self.first, &["down"]).output();
        for agent in &mut self.agents {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = self.script().arg("down").status();
    }
}
