//! A running gatekeeper, and nodes that record what it says.
#![allow(dead_code)] // each test binary uses a part

pub mod etcd;

use etcd::EtcdServer;
use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_session::SESSION_ID_VARIABLE;
use motet_session::api::{Session, ToNode, View};
use motet_session::attach::{Attachment, Event};
use motet_session::client::Client;
use motet_session::etcd_address::EtcdAddress;
use motet_session::hosts::JoinConfig;
use motet_session::paths::DIR_VARIABLE;
use motet_session::paths::SessionPaths;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nothing takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Waits for a condition.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < LIMIT, "never happens: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The identity of a node.
pub fn node_id(number: u32) -> String {
    format!("{number:032x}")
}

/// A gatekeeper in a thread of this process.
pub struct Running {
    pub host: String,
    pub paths: SessionPaths,
    pub address: Option<SocketAddr>,
    directory: Option<EtcdAddress>,
    /// The etcd that holds its directory, if no other test uses it.
    pub etcd: Option<EtcdServer>,
    runtime: Option<tokio::runtime::Runtime>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub fn start() -> Self {
        Self::start_with("here", None)
    }

    /// A session in an etcd of its own. `None`: there is no etcd.
    pub fn start_over_etcd() -> Option<Self> {
        let etcd = EtcdServer::start()?;
        let session = Self::start_with("here", Some(etcd.address("test")));
        Some(Self { etcd: Some(etcd), ..session })
    }

    /// The gatekeeper of a host, with its own folder.
    pub fn start_with(host: &str, directory: Option<EtcdAddress>) -> Self {
        let mut running = Self { directory, ..Self::stopped(host) };
        running.start_again();
        // A later one finds it in the session's options.
        running.directory = None;
        running
    }

    /// A gatekeeper of another host that has joined this one's session.
    pub fn join(primary: &Self, host: &str) -> Self {
        let running = Self::stopped(host);
        let config = primary.join_config();
        running.paths.create().unwrap();
        std::fs::write(running.paths.join_config(), serde_json::to_vec(&config).unwrap()).unwrap();
        let mut running = running;
        running.start_again();
        running
    }

    /// What another host needs to join this one's session.
    pub fn join_config(&self) -> JoinConfig {
        self.client().post("/v1/join", &serde_json::json!({ "listen": "127.0.0.1:0" })).unwrap()
    }

    fn stopped(host: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
        let host = host.to_owned();
        Self { host, paths, address: None, directory: None, etcd: None, runtime: None, _dir: dir }
    }

    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let gatekeeper = runtime.block_on(Gatekeeper::start(self.options())).unwrap();
        self.address = gatekeeper.address().ok();
        runtime.spawn(async move { gatekeeper.run(std::future::pending()).await.unwrap() });
        self.runtime = Some(runtime);
    }

    fn options(&self) -> Options {
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let directory = self.directory.clone();
        Options { paths: self.paths.clone(), host: Some(self.host.clone()), listen, directory, containers: None }
    }

    /// Starts another gatekeeper of the same session.
    pub fn second(&self) -> std::io::Result<Gatekeeper> {
        self.runtime.as_ref().unwrap().block_on(Gatekeeper::start(self.options()))
    }

    /// Ends the gatekeeper in the middle of whatever it does.
    pub fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(10));
        until("the lock is free", || {
            let lock = std::fs::File::open(self.paths.lock()).unwrap();
            rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
        });
    }

    pub fn client(&self) -> Client {
        Client::of(&self.paths).unwrap()
    }
}

/// A node that records what the gatekeeper says.
pub struct Node {
    pub id: String,
    pub attachment: Attachment,
    record: Arc<Mutex<Record>>,
}

#[derive(Default)]
struct Record {
    lines: Vec<ToNode>,
    views: HashMap<String, Vec<View>>,
}

impl Node {
    pub fn attach(session: &Running, number: u32) -> Self {
        Self::attach_to(&session.paths, number)
    }

    pub fn attach_to(paths: &SessionPaths, number: u32) -> Self {
        let record = Arc::new(Mutex::new(Record::default()));
        let (id, writer) = (node_id(number), record.clone());
        let attachment = Attachment::open(paths, &id, "nowhere", move |_, event| {
            if let Event::Line(line) = event {
                writer.lock().unwrap().take(line);
            }
        })
        .unwrap();
        Self { id, attachment, record }
    }

    pub fn lines(&self) -> Vec<ToNode> {
        self.record.lock().unwrap().lines.clone()
    }

    pub fn views(&self, group: &str) -> Vec<View> {
        self.record.lock().unwrap().views.get(group).cloned().unwrap_or_default()
    }

    pub fn last(&self, group: &str) -> Option<View> {
        self.views(group).pop()
    }

    pub fn messages(&self) -> Vec<serde_json::Value> {
        let lines = self.lines();
        lines
            .into_iter()
            .filter_map(|line| if let ToNode::Message { body, .. } = line { Some(body) } else { None })
            .collect()
    }
}

impl Record {
    fn take(&mut self, line: ToNode) {
        match &line {
            ToNode::View(view) => {
                let views = self.views.entry(view.group.clone()).or_default();
                if views.last().is_none_or(|last| last.number < view.number) {
                    views.push(view.clone());
                }
            }
            ToNode::Change(change) => {
                let views = self.views.get_mut(&change.group).expect("a view before its change");
                let mut next = views.last().expect("a view before its change").clone();
                assert!(next.apply(change), "{change:?} follows {}", next.number);
                views.push(next);
            }
            _ => {}
        }
        self.lines.push(line);
    }
}

/// Starts this test binary in a role, as a process of the session.
pub fn child(session: &Running, role: &str) -> Child {
    let about = session.client().get::<Session>("/v1/session").unwrap();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .env(DIR_VARIABLE, session.paths.dir().parent().unwrap())
        .env(SESSION_ID_VARIABLE, about.id)
        .env("MOTET_TEST_ROLE", role)
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// The session of a process that [`child`] started.
pub fn paths_from_env() -> SessionPaths {
    SessionPaths::of("test").unwrap()
}

/// A connection to the gatekeeper on which a test writes whatever it likes.
pub struct Raw(pub UnixStream);

impl Raw {
    pub fn connect(paths: &SessionPaths) -> Self {
        let stream = UnixStream::connect(paths.socket()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self(stream)
    }

    /// A connection that has been upgraded to that of a node.
    pub fn upgraded(paths: &SessionPaths) -> Self {
        let mut raw = Self::connect(paths);
        raw.write(b"GET /v1/attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: motet-attach/1\r\n\r\n");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let mut byte = [0];
            raw.0.read_exact(&mut byte).unwrap();
            head.push(char::from(byte[0]));
        }
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        raw
    }

    pub fn write(&mut self, bytes: &[u8]) {
        // The gatekeeper may have closed the connection already.
        let _ = self.0.write_all(bytes);
    }

    /// What the gatekeeper says until it closes the connection.
    pub fn rest(mut self) -> String {
        let mut text = Vec::new();
        let _ = self.0.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// The first line of a node.
pub fn hello(number: u32) -> Vec<u8> {
    format!("{{\"hello\":{{\"node\":\"{}\",\"address\":\"a\"}}}}\n", node_id(number)).into_bytes()
}

/// Attaches, joins `fluid` and starts a child that keeps the connection open. The child outlives this process, which is killed.
#[allow(clippy::zombie_processes)]
pub fn join_with_child_that_keeps_the_connection(paths: &SessionPaths) -> Raw {
    let mut raw = Raw::upgraded(paths);
    raw.write(&hello(98));
    raw.write(b"{\"join\":{\"group\":\"fluid\",\"rank\":null}}\n");
    rustix::io::fcntl_setfd(&raw.0, rustix::io::FdFlags::empty()).unwrap();
    Command::new("sleep").arg("1000").spawn().unwrap();
    raw
}
