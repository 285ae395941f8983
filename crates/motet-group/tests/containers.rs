//! Nodes in containers of one user on one host, each with its own network, IPC and PID namespaces, share memory through the session's folder.
//! Containers are made by `unshare`, as root and as a plain user.
#![forbid(unsafe_code)]

use motet::node::Node;
use motet_gatekeeper::options::Containers;
use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_group::{Membership, op};
use motet_session::api::{Session, View};
use motet_session::client::Client;
use motet_session::paths::{DIR_VARIABLE, SessionPaths};
use motet_tests::mpi::skip;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Duration = Duration::from_secs(60);
/// Own namespaces, as containers have them.
const CONTAINER: &[&str] = &["unshare", "--net", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"];
/// A container with a user namespace of its own, too.
const CONTAINER_OF_USER: &[&str] =
    &["unshare", "--user", "--map-root-user", "--net", "--ipc", "--pid", "--mount-proc", "--fork", "--kill-child"];

/// A session in a folder of its own, of root or of a plain user.
struct Place {
    paths: SessionPaths,
    user: Vec<String>,
    children: Vec<Child>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn new(user: Vec<String>) -> Self {
        // In /tmp, which other users may enter, whatever TMPDIR is.
        let dir = tempfile::Builder::new().prefix("motet-containers").tempdir_in("/tmp").unwrap();
        if !user.is_empty() {
            motet_programs::give_away(dir.path()).unwrap();
        }
        let paths = SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
        Self { paths, user, children: Vec::new(), _dir: dir }
    }

    /// Starts this test binary in a role, in a container or not, and waits for its first line.
    fn start(&mut self, role: &str, rank: u32, container: &[&str]) -> BufReader<ChildStdout> {
        let mut words: Vec<String> = ["setpriv", "--pdeathsig", "KILL"].map(str::to_owned).into();
        words.extend(self.user.iter().cloned());
        words.extend(container.iter().map(|word| (*word).to_owned()));
        words.push(self.binary());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--exact", "child", "--ignored", "--nocapture"])
            .current_dir("/")
            .env(DIR_VARIABLE, self.paths.dir().parent().unwrap())
            .env("MOTET_TEST_ROLE", role)
            .env("MOTET_TEST_RANK", rank.to_string())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        self.children.push(child);
        output
    }

    /// The gatekeeper, which is ready.
    fn gatekeeper(&mut self, role: &str, container: &[&str]) {
        let mut output = self.start(role, 0, container);
        assert_eq!(said(&mut output), "ready");
    }

    /// This test binary, where the user can read it.
    fn binary(&self) -> String {
        let own = std::env::current_exe().unwrap();
        if self.user.is_empty() {
            return own.display().to_string();
        }
        let copy = self.paths.dir().parent().unwrap().with_file_name("binary");
        if !copy.exists() {
            std::fs::copy(own, &copy).unwrap();
        }
        copy.display().to_string()
    }

    /// The members of the group, once there are so many.
    fn members(&self, count: usize) -> View {
        let began = Instant::now();
        loop {
            let view = Client::at(&self.paths.socket()).get::<View>("/v1/groups/g");
            if let Ok(view) = view
                && view.members.len() == count
            {
                return view;
            }
            assert!(began.elapsed() < LIMIT, "there are never {count} members");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(kill);
    }
}

/// Kills a child with all processes of its container, which are its process group.
fn kill(child: &mut Child) {
    let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", child.id())]).stderr(Stdio::null()).status();
    let _ = child.wait();
}

/// The next line of a role.
fn said(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0, "the process has ended");
        if let Some((_, text)) = line.split_once("says ") {
            return text.trim_end().to_owned();
        }
    }
}

/// Whether `unshare` makes such containers here.
fn can(test: &str, user: &[String], container: &[&str]) -> bool {
    let words: Vec<_> =
        ["setpriv"].into_iter().chain(user.iter().map(|word| &word[..])).chain(container.iter().copied()).collect();
    let words = if user.is_empty() { &words[1..] } else { &words[..] };
    let made = Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|status| status.success());
    if !made {
        skip(test, &format!("this system does not allow {}", words.join(" ")));
    }
    made
}

/// Two containers and a process of the host, in one circuit.
fn share_memory(test: &str, user: &[String], container: &[&str]) {
    if !can(test, user, container) {
        return;
    }
    let mut place = Place::new(user.to_vec());
    place.gatekeeper("gatekeeper", &[]);
    let mut outputs: Vec<_> = [container, container, &[]]
        .iter()
        .zip(0..)
        .map(|(container, rank)| place.start("member", rank, container))
        .collect();
    for output in &mut outputs {
        assert_eq!(said(output), "sum 3 by {\"shm\"}");
    }
    place.children.iter_mut().skip(1).for_each(kill);
    // The gatekeeper removes the sockets of nodes whose processes have ended. (It answers its own user only, who may not be this one.)
    let began = Instant::now();
    while std::fs::read_dir(place.paths.nodes()).unwrap().next().is_some() {
        assert!(began.elapsed() < LIMIT, "sockets of killed nodes are left");
    }
}

#[test]
fn containers_share_memory() {
    if motet_programs::is_root() {
        share_memory("containers_share_memory", &[], CONTAINER);
    }
}

#[test]
fn containers_with_user_namespaces_share_memory() {
    share_memory("containers_with_user_namespaces_share_memory", &[], CONTAINER_OF_USER);
}

#[test]
fn containers_of_a_plain_user_share_memory() {
    let user = motet_programs::unprivileged();
    share_memory("containers_of_a_plain_user_share_memory", &user, CONTAINER_OF_USER);
}

#[test]
fn gatekeeper_in_a_container_sees_the_end_of_processes_outside() {
    let test = "gatekeeper_in_a_container_sees_the_end_of_processes_outside";
    if !can(test, &[], CONTAINER_OF_USER) {
        return;
    }
    let mut place = Place::new(Vec::new());
    place.gatekeeper("gatekeeper", CONTAINER_OF_USER);
    let mut first = place.start("guest", 0, &[]);
    let mut second = place.start("guest", 1, CONTAINER_OF_USER);
    assert_eq!([said(&mut first), said(&mut second)], ["in", "in"]);
    let view = place.members(2);
    assert!(view.members.iter().all(|member| member.process.pid == 0), "they have no numbers there: {view:?}");
    kill(&mut place.children[2]);
    let left = place.members(1);
    assert_eq!(left.members[0].rank, Some(0));
    kill(&mut place.children[1]);
    place.members(0);
    let about = Client::at(&place.paths.socket()).get::<Session>("/v1/session").unwrap();
    assert_eq!(about.name, "test");
}

#[test]
fn session_may_refuse_such_links() {
    let mut place = Place::new(Vec::new());
    place.gatekeeper("strict-gatekeeper", &[]);
    assert_eq!(said(&mut place.start("guest", 0, &[])), "in");
    assert!(!place.paths.nodes().exists());
}

/// The roles of the processes that the tests start: this test binary itself.
#[test]
#[ignore = "a role of the other tests"]
fn child() {
    let paths = SessionPaths::of("test").unwrap();
    let role = std::env::var("MOTET_TEST_ROLE").unwrap();
    if role.ends_with("gatekeeper") {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let containers = role.starts_with("strict").then_some(Containers::Off);
        let options =
            Options { paths: paths.clone(), host: Some("here".to_owned()), listen: None, directory: None, containers };
        return runtime.block_on(async {
            let gatekeeper = Gatekeeper::start(options).await.unwrap();
            println!("says ready");
            gatekeeper.run(std::future::pending()).await.unwrap();
        });
    }
    let node = Arc::new(Node::open("").unwrap());
    let membership = Membership::attach_to(&node, &paths).unwrap();
    let group = membership.join("g", Some(std::env::var("MOTET_TEST_RANK").unwrap().parse().unwrap())).unwrap();
    if role == "guest" {
        println!("says in");
        std::thread::sleep(LIMIT);
    }
    group.wait_for_members(3, Some(LIMIT)).unwrap();
    let circuit = group.open("all", Some(LIMIT)).unwrap();
    let mut sum = [circuit.rank() as u64];
    circuit.all_reduce(&mut sum, op::sum).unwrap();
    for to in (0..3).filter(|to| *to != circuit.rank()) {
        circuit.send(to, 7, &vec![7; 4000]).unwrap();
    }
    for from in (0..3).filter(|from| *from != circuit.rank()) {
        let mut body = vec![0; 4000];
        circuit.receive(from, 7, &mut body).unwrap();
        assert!(body.iter().all(|byte| *byte == 7));
    }
    // Two nodes that connect at the same time may have two links.
    let driver = |link| node.link_info(link).unwrap().driver;
    let drivers: BTreeSet<_> = node.links().unwrap().into_iter().map(driver).collect();
    println!("says sum {} by {drivers:?}", sum[0]);
    std::thread::sleep(LIMIT);
}
