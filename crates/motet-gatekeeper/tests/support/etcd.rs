//! An etcd of a test: its own folder, its own address, ended with the test.

use motet_gatekeeper::store::EtcdAddress;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server.
pub struct EtcdServer {
    /// Any of the loopback interface. Connections of other programs take ports of 127.0.0.1 only, so the ports are free, also at a restart.
    ip: Ipv4Addr,
    child: Option<Child>,
    dir: tempfile::TempDir,
}

impl EtcdServer {
    /// A server that answers. `None`: etcd is not installed, and this process may not install it.
    pub fn start() -> Option<Self> {
        if !Path::new("/usr/bin/etcd").exists() {
            assert!(!rustix::process::getuid().is_root(), "etcd is missing: scripts/setup --tests");
            eprintln!("SKIPPED: etcd is not installed");
            return None;
        }
        let mut random = [0; 3];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        let ip = Ipv4Addr::new(127, random[0] | 1, random[1], random[2]);
        let mut server = Self { ip, child: None, dir: tempfile::tempdir().unwrap() };
        server.start_again();
        Some(server)
    }

    /// Starts the server with the data that it has.
    pub fn start_again(&mut self) {
        let [client, peer] = [2379, 2380].map(|port| format!("http://{}:{port}", self.ip));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "etcd", "--name", "one", "--heartbeat-interval", "20"])
            .args(["--election-timeout", "200", "--log-level", "error", "--data-dir"])
            .arg(self.dir.path().join("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
        super::until("etcd answers", || {
            let running = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(running.is_none(), "{}", std::fs::read_to_string(self.dir.path().join("log")).unwrap());
            self.ctl(&["get", "x"]).is_some()
        });
    }

    /// Ends the server in the middle of whatever it does.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What `etcdctl` prints. `None`: it fails.
    pub fn ctl(&self, arguments: &[&str]) -> Option<String> {
        let output = Command::new("etcdctl")
            .args(["--endpoints", &format!("{}:2379", self.ip)])
            .args(arguments)
            .env("ETCDCTL_API", "3")
            .output()
            .unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Its address, for a session that uses this prefix.
    pub fn address(&self, prefix: &str) -> EtcdAddress {
        let url = format!("etcd://{}:2379/{prefix}", self.ip);
        EtcdAddress { url, authorities: None, login: None }
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
