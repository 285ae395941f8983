//! An etcd of a test: its own folder, its own address, ended with the test.

use motet_session::etcd_address::EtcdAddress;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A start of etcd takes less time.
const LIMIT: Duration = Duration::from_secs(60);

/// A server.
pub struct EtcdServer {
    /// Any of the loopback interface. Connections of other programs take ports of 127.0.0.1 only, so the ports are free, also at a restart.
    ip: Ipv4Addr,
    child: Option<Child>,
    dir: tempfile::TempDir,
    tls: bool,
    /// `USER:PASSWORD` for `etcdctl`.
    pub login: Option<String>,
}

impl EtcdServer {
    /// A server that answers. `None`: etcd is not installed, and this process may not install it.
    pub fn start() -> Option<Self> {
        Self::start_with(false)
    }

    /// A server whose clients have to use TLS, or not.
    pub fn start_with(tls: bool) -> Option<Self> {
        if !Path::new("/usr/bin/etcd").exists() {
            assert!(!rustix::process::getuid().is_root(), "etcd is missing: scripts/setup --tests");
            eprintln!("SKIPPED: etcd is not installed");
            return None;
        }
        let mut random = [0; 3];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
        let ip = Ipv4Addr::new(127, random[0] | 1, random[1], random[2]);
        let mut server = Self { ip, child: None, dir: tempfile::tempdir().unwrap(), tls, login: None };
        if tls {
            server.make_certificate();
        }
        server.start_again();
        Some(server)
    }

    /// Starts the server with the data that it has.
    pub fn start_again(&mut self) {
        let (client, peer) = (self.url(), format!("http://{}:2380", self.ip));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.file("log")).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "etcd", "--name", "one", "--heartbeat-interval", "20"])
            .args(["--election-timeout", "200", "--log-level", "error", "--data-dir"])
            .arg(self.file("data"))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if self.tls {
            command.arg("--cert-file").arg(self.file("cert")).arg("--key-file").arg(self.file("key"));
        }
        self.child = Some(command.spawn().unwrap());
        let began = Instant::now();
        while self.ctl(&["get", "x"]).is_none() {
            let running = self.child.as_mut().unwrap().try_wait().unwrap();
            let failed = running.is_some() || began.elapsed() > LIMIT;
            assert!(!failed, "{}", std::fs::read_to_string(self.file("log")).unwrap());
        }
    }

    /// Ends the server in the middle of whatever it does.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// What `etcdctl` prints. `None`: it fails.
    pub fn ctl(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("etcdctl");
        command.args(["--endpoints", &self.url()]).args(arguments).env("ETCDCTL_API", "3");
        if self.tls {
            command.arg("--cacert").arg(self.file("cert"));
        }
        if let Some(login) = &self.login {
            command.args(["--user", login]);
        }
        let output = command.output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// Its address, for a session that uses this prefix.
    pub fn address(&self, prefix: &str) -> EtcdAddress {
        let scheme = if self.tls { "etcds" } else { "etcd" };
        let url = format!("{scheme}://{}:2379/{prefix}", self.ip);
        EtcdAddress { url, authorities: self.tls.then(|| self.file("cert")), login: None }
    }

    /// A file in its folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn url(&self) -> String {
        format!("{}://{}:2379", if self.tls { "https" } else { "http" }, self.ip)
    }

    /// A certificate that its own key has signed.
    fn make_certificate(&self) {
        let config = format!(
            "[req]\ndistinguished_name=name\nx509_extensions=extensions\nprompt=no\n[name]\nCN=etcd\n\
             [extensions]\nbasicConstraints=critical,CA:FALSE\nsubjectAltName=IP:{}\n",
            self.ip
        );
        std::fs::write(self.file("config"), config).unwrap();
        let output = Command::new("openssl")
            .args(["req", "-x509", "-days", "2", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"])
            .arg("-config")
            .arg(self.file("config"))
            .arg("-keyout")
            .arg(self.file("key"))
            .arg("-out")
            .arg(self.file("cert"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
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
