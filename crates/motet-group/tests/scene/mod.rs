//! A session in this process, and its members: nodes of this process, and processes that are this test binary in a role.
#![allow(dead_code)] // each test binary uses a part

use motet::node::{BodyPath, Node};
use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_group::{Circuit, Group, Membership};
use motet_session::paths::{DIR_VARIABLE, SessionPaths};
use std::io::BufReader;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing takes so long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A gatekeeper in a thread of this process.
pub struct Session {
    pub paths: SessionPaths,
    runtime: Option<tokio::runtime::Runtime>,
    _dir: tempfile::TempDir,
}

impl Session {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let paths = SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
        let mut session = Self { paths, runtime: None, _dir: dir };
        session.start_again();
        session
    }

    pub fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let options = Options {
            paths: self.paths.clone(),
            host: Some("here".to_owned()),
            listen: None,
            directory: None,
            containers: None,
        };
        let began = Instant::now();
        let gatekeeper = loop {
            match runtime.block_on(Gatekeeper::start(options.clone())) {
                Ok(gatekeeper) => break gatekeeper,
                Err(error) => assert!(began.elapsed() < LIMIT, "{error}"), // the lock of the one that was killed
            }
        };
        runtime.spawn(async move { gatekeeper.run(std::future::pending()).await.unwrap() });
        self.runtime = Some(runtime);
    }

    pub fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_timeout(Duration::from_secs(10));
        while std::os::unix::net::UnixStream::connect(self.paths.socket()).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn member(&self, rank: Option<u32>) -> Member {
        Member::attach(&self.paths, rank)
    }

    /// Starts this test binary in a role, as a member.
    pub fn child(&self, role: &str, rank: u32) -> (Child, BufReader<ChildStdout>) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .env(DIR_VARIABLE, self.paths.dir().parent().unwrap())
            .env("MOTET_TEST_ROLE", role)
            .env("MOTET_TEST_RANK", rank.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (child, output)
    }
}

/// A node in the group `g`.
pub struct Member {
    pub node: Arc<Node>,
    pub group: Group,
    pub membership: Membership,
}

impl Member {
    pub fn attach(paths: &SessionPaths, rank: Option<u32>) -> Self {
        let mut options = motet::node::options("", None);
        options.limits.body_path = BodyPath::Measured;
        let node = Arc::new(Node::with(&options).unwrap());
        // Some tests use two nodes in one thread, which waits at one of them.
        let progress = node.clone();
        std::thread::spawn(move || progress.run_progress_thread());
        let membership = Membership::attach_to(&node, paths).unwrap();
        let group = membership.join("g", rank).unwrap();
        Self { node, group, membership }
    }

    pub fn open(&self, name: &str) -> Circuit {
        self.group.open(name, Some(LIMIT)).unwrap()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.node.shut_down().unwrap();
    }
}

/// Runs `body` as each of `size` members of a group, in threads.
pub fn as_members(session: &Session, size: u32, body: impl Fn(&Member) + Sync) {
    // A member that left early would end circuits that others have not opened yet.
    let end = std::sync::Barrier::new(size as usize);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (body, end) = (&body, &end);
            scope.spawn(move || {
                let member = session.member(Some(rank));
                member.group.wait_for_members(size as usize, Some(LIMIT)).unwrap();
                body(&member);
                end.wait();
            });
        }
    });
}
