//! One end of a connection is killed, with and without a listener at the caller, with traffic and idle: the other end notices at once.
//!
//! At once means without the 10 s in which a caller may reconnect. The delay is printed.
#![forbid(unsafe_code)]

use motet::node::Node;
use motet_torture::HANG_LIMIT;
use motet_torture::mesh::{Mesh, address_for};
use motet_torture::worker::Worker;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");
const LOCAL_ADDRESS: &str = "127.0.0.1:0";
/// Much less than the time for a reconnect, much more than a busy machine needs.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(4);

fn until(mesh: &mut Mesh, what: &str, mut done: impl FnMut(&mut Mesh) -> bool) {
    let began = Instant::now();
    while !done(mesh) {
        assert!(began.elapsed() < HANG_LIMIT, "{what}");
        mesh.step();
        mesh.sweep();
    }
}

/// A mesh and a linked worker.
fn linked(caller_is_killed: bool, caller: &str, role: &str) -> (Mesh, Worker) {
    if caller_is_killed {
        let mesh = Mesh::of(Arc::new(Node::listen("", LOCAL_ADDRESS.parse().unwrap()).unwrap()), 1).unwrap();
        let worker = Worker::start(PROGRAM, &[role, caller, "", &mesh.address("tcp")]);
        return (mesh, worker);
    }
    let mut worker = Worker::start(PROGRAM, &[role, LOCAL_ADDRESS, ""]);
    let address = address_for(&worker.address(), "tcp");
    let node = if caller == LOCAL_ADDRESS { Node::listen("", LOCAL_ADDRESS.parse().unwrap()) } else { Node::open("") };
    let mut mesh = Mesh::of(Arc::new(node.unwrap()), 1).unwrap();
    if role == "mesh-at" {
        mesh.connect(&address).unwrap();
    } else {
        mesh.node.connect(&address, Some(HANG_LIMIT)).unwrap();
    }
    (mesh, worker)
}

fn killed(caller_is_killed: bool, caller: &str, role: &str) {
    for turn in 0..4 {
        let (mut mesh, worker) = linked(caller_is_killed, caller, role);
        until(&mut mesh, "a link", |mesh| !mesh.node.links().unwrap().is_empty());
        match role {
            "mesh-at" => until(&mut mesh, "traffic", |mesh| mesh.done() > 50 * turn),
            _ => (0..500 * turn).for_each(|_| mesh.step()),
        }
        let began = Instant::now();
        worker.kill();
        until(&mut mesh, "the end of the link", |mesh| mesh.node.links().unwrap().is_empty());
        println!("noticed after {:?}", began.elapsed());
        assert!(began.elapsed() < NOTICE_TIMEOUT, "{:?}", began.elapsed());
    }
}

#[test]
fn killed_listening_caller_is_noticed_under_traffic() {
    killed(true, LOCAL_ADDRESS, "mesh-at");
}

#[test]
fn killed_listening_caller_is_noticed_when_idle() {
    killed(true, LOCAL_ADDRESS, "idle-at");
}

#[test]
fn killed_nonlistening_caller_is_noticed_under_traffic() {
    killed(true, "nowhere", "mesh-at");
}

#[test]
fn killed_nonlistening_caller_is_noticed_when_idle() {
    killed(true, "nowhere", "idle-at");
}

#[test]
fn listening_caller_notices_killed_peer_under_traffic() {
    killed(false, LOCAL_ADDRESS, "mesh-at");
}

#[test]
fn listening_caller_notices_killed_peer_when_idle() {
    killed(false, LOCAL_ADDRESS, "idle-at");
}

#[test]
fn nonlistening_caller_notices_killed_peer_under_traffic() {
    killed(false, "nowhere", "mesh-at");
}

#[test]
fn nonlistening_caller_notices_killed_peer_when_idle() {
    killed(false, "nowhere", "idle-at");
}
