//! A process with a node forks: the child has no node, does not disturb other processes, and does not keep its parent's links alive.
#![forbid(unsafe_code)]

use motet::node::{Error, Node, Serve};
use motet_sys::rustix::io::Errno;
use motet_torture::mesh::address_for;
use motet_torture::system::{fork_child, wait_child};
use motet_torture::worker::Worker;
use motet_torture::{HANG_LIMIT, system};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");
const ECHILD: i32 = Errno::CHILD.raw_os_error();

fn node() -> Node {
    Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap()
}

#[test]
fn forked_child_calls_fail_and_the_parent_continues() {
    for driver in ["shm", "tcp"] {
        let (near, far) = (node(), node());
        far.serve(1, Serve::Queue).unwrap();
        let (link, here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(|| far.accept(1, Some(HANG_LIMIT)).unwrap());
            let link = near.connect(&address_for(&far.address().unwrap(), driver), Some(HANG_LIMIT)).unwrap();
            (link, near.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap(), there.join().unwrap())
        });
        let mut near = Some(near);
        // A thread holds the lock most of the time; the child must not wait for it.
        let child = std::thread::scope(|scope| {
            let node = near.as_ref().unwrap();
            scope.spawn(|| node.progress_until(|| false, Some(motet::node::deadline_in(50_000_000))));
            std::thread::sleep(Duration::from_millis(5));
            fork_child(|| {
                let denied = Some(Error::NoNode(ECHILD));
                let mut bad = 0;
                bad += i32::from(node.send(here, 1, b"x", Some(HANG_LIMIT)).err() != denied);
                bad += i32::from(node.receive(here, &mut [0; 8], Some(HANG_LIMIT)).err() != denied);
                bad += i32::from(node.links().err() != denied);
                bad += i32::from(node.progress().err() != denied);
                bad += i32::from(node.disconnect(link).err() != denied);
                bad += i32::from(node.connect("unknown", Some(HANG_LIMIT)).err() != denied);
                // A new node of the child is independent.
                bad += i32::from(Node::open("").is_err());
                bad
            })
        });
        assert_eq!(wait_child(child), 0, "{driver}");
        // A child that drops its copy.
        let child = fork_child(|| {
            drop(near.take());
            0
        });
        assert_eq!(wait_child(child), 0, "{driver}");
        let near = near.unwrap();
        near.send(here, 7, b"still here", Some(HANG_LIMIT)).unwrap();
        let mut bytes = [0; 16];
        assert_eq!(far.receive(there, &mut bytes, Some(HANG_LIMIT)).unwrap().length, 10);
        far.send(there, 8, b"there, too", Some(HANG_LIMIT)).unwrap();
        assert_eq!(near.receive(here, &mut bytes, Some(HANG_LIMIT)).unwrap().tag, 8, "{driver}");
        assert!(near.link_info(link).unwrap().gone.is_none());
    }
}

/// A worker forks two children, which live on with all its descriptors; then the worker is killed.
fn the_end_is_seen(driver: &str) {
    let mut worker = Worker::start(PROGRAM, &["fork", ""]);
    let address = address_for(&worker.address(), driver);
    let child: u32 = worker.line().parse().unwrap();
    let node = node();
    let link = node.connect(&address, Some(HANG_LIMIT)).unwrap();
    worker.tell("fork");
    let second: u32 = worker.line().parse().unwrap();
    let began = Instant::now();
    worker.kill();
    let gone = || node.link_info(link).is_ok_and(|info| info.gone.is_some());
    while !gone() {
        assert!(began.elapsed() < HANG_LIMIT, "{driver}: a child keeps its parent's link alive");
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
    }
    println!("{driver}: seen after {:?}", began.elapsed());
    for pid in [child, second] {
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists(), "the children live");
        system::signal(pid, motet_sys::rustix::process::Signal::KILL);
    }
}

#[test]
fn parent_death_with_live_children_is_seen_over_shm() {
    the_end_is_seen("shm");
}

#[test]
fn parent_death_with_live_children_is_seen_over_tcp() {
    the_end_is_seen("tcp");
}

#[test]
fn node_ends_with_exec() {
    let mut worker = Worker::start(PROGRAM, &["fork", ""]);
    let address = worker.address();
    let child: u32 = worker.line().parse().unwrap();
    let node = node();
    let links = ["shm", "tcp"].map(|driver| node.connect(&address_for(&address, driver), Some(HANG_LIMIT)).unwrap());
    worker.tell("exec");
    let began = Instant::now();
    while !links.iter().all(|link| node.link_info(*link).is_ok_and(|info| info.gone.is_some())) {
        assert!(
            began.elapsed() < HANG_LIMIT,
            "an exec keeps links alive: {:?}",
            links.map(|link| node.link_info(link))
        );
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
    }
    assert!(std::path::Path::new(&format!("/proc/{}/comm", worker.pid())).exists());
    system::signal(child, motet_sys::rustix::process::Signal::KILL);
}
