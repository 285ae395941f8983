//! The worker process of a test (`motet_torture::worker`). Its arguments name a role; lines on its standard input control it.
//!
//! | role | behaviour |
//! | --- | --- |
//! | `mesh NAME ADDRESS ...` | Traffic with every node that connects and with the nodes of these addresses. Prints its address first. |
//! | `mesh-at LISTEN NAME ADDRESS ...` | Like `mesh`, listening at LISTEN; `nowhere`: without a listener. |
//! | `idle-at LISTEN NAME ADDRESS ...` | Links without traffic. Prints its address when they are up. |
//! | `proxy-at LISTEN TARGET SEED` | Forwards and cuts connections. Prints its address, and at the end of its input the number of cuts. |
//! | `sink SIZE` | Receives messages of at most SIZE bytes on the first channel to service 1. Prints its address, then `waits` when it has the channel, |
//! |  | then tag, length and checksum of each message, or the error. |
//! | `fork NAME` | A node that makes progress. Prints its address, forks a child and prints the child's pid. |
//!
//! A mesh obeys `stop` (ends the traffic in order; prints `stopped`, the number of completed operations and of lost links), `connect ADDRESS`, and
//! `end` or the end of its input (prints the resources that it still holds). The role `fork` obeys `fork` (forks again) and `exec` (executes another
//! program).
#![forbid(unsafe_code)]

use motet::node::Node;
use motet_sys::rustix::process::Signal;
use motet_torture::mesh::Mesh;
use motet_torture::proxy::Proxy;
use motet_torture::random::Random;
use motet_torture::{HANG_LIMIT, system};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Instant;

fn orders() -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    receiver
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match &words[..] {
        ["mesh", name, others @ ..] => mesh("127.0.0.1:0", name, others),
        ["mesh-at", at, name, others @ ..] => mesh(at, name, others),
        ["idle-at", at, name, others @ ..] => idle(at, name, others),
        ["proxy-at", at, target, seed] => proxy(at, target, seed.parse().expect("a seed")),
        ["fork", name] => fork(name),
        ["sink", size] => sink(size.parse().expect("a size")),
        _ => panic!("no such role: {words:?}"),
    }
}

fn fork(name: &str) {
    use std::os::unix::process::CommandExt;
    let orders = orders();
    let node = Node::listen(name, "127.0.0.1:0".parse().expect("an address")).expect("a node");
    println!("{}", node.address().expect("a node"));
    let child = || {
        println!(
            "{}",
            system::fork_child(|| loop {
                std::thread::sleep(motet_torture::HANG_LIMIT)
            })
        )
    };
    child();
    loop {
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
        match orders.try_recv() {
            Ok(order) if order == "fork" => child(),
            Ok(order) if order == "exec" => panic!("{}", std::process::Command::new("sleep").arg("20").exec()),
            Ok(_) | Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {}
        }
    }
}

fn sink(size: usize) {
    use motet::node::{Node, Serve};
    let node = Node::listen("", "127.0.0.1:0".parse().expect("an address")).expect("a node");
    node.serve(1, Serve::Queue).expect("a service");
    println!("{}", node.address().expect("a node"));
    let channel = node.accept(1, Some(HANG_LIMIT)).expect("a channel");
    println!("waits");
    let mut buffer = vec![0; size];
    loop {
        match node.receive(channel, &mut buffer, None) {
            Ok(received) => {
                let sum = system::sum(&buffer[..received.length]);
                println!("{} {} {sum}", received.tag, received.length);
            }
            Err(error) => {
                println!("{error}");
                return;
            }
        }
    }
}

fn node(at: &str, name: &str) -> Arc<Node> {
    let node = match at {
        "nowhere" => Node::open(name),
        _ => Node::listen(name, at.parse().expect("an address")),
    };
    Arc::new(node.expect("a node"))
}

fn idle(at: &str, name: &str, others: &[&str]) {
    let orders = orders();
    let node = node(at, name);
    for address in others {
        node.connect(address, Some(HANG_LIMIT)).expect("a link");
    }
    println!("{}", node.address().expect("a node"));
    while !matches!(orders.try_recv(), Err(TryRecvError::Disconnected)) {
        let _ = node.progress_until(|| false, Some(motet::node::deadline_in(1_000_000)));
    }
}

fn proxy(at: &str, target: &str, seed: u64) {
    let orders = orders();
    let mut random = Random(seed);
    // One of eight connections is cut soon.
    let quota = move || {
        let most = if random.once_in(8) { 200 } else { 2 << 20 };
        random.below(most)
    };
    let proxy = Proxy::new(at, target, quota).expect("a port");
    println!("{}", proxy.address);
    while orders.recv().is_ok() {}
    println!("cuts {}", proxy.cuts());
}

fn mesh(at: &str, name: &str, others: &[&str]) {
    system::interrupt_by(Signal::USR1);
    let orders = orders();
    let mut mesh = Mesh::of(node(at, name), u64::from(std::process::id())).expect("a node");
    println!("{}", mesh.node.address().expect("a node"));
    let descriptors = system::descriptors();
    for address in others {
        // The called process may have been killed meanwhile.
        if let Err(error) = mesh.connect(address) {
            eprintln!("{address}: {error}");
        }
    }
    loop {
        mesh.step();
        mesh.sweep();
        match orders.try_recv() {
            Ok(order) if order == "stop" => {
                mesh.stop();
                for link in mesh.sides.keys().copied().collect::<Vec<_>>() {
                    mesh.forget(link);
                }
                println!("stopped {} {}", mesh.done(), mesh.lost.len());
            }
            Ok(order) if order.starts_with("connect ") => {
                let answer = mesh.connect(&order["connect ".len()..]).map_or_else(|e| e.to_string(), |_| String::new());
                println!("connected {answer}");
            }
            Ok(_) | Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {}
        }
    }
    for link in mesh.sides.keys().copied().collect::<Vec<_>>() {
        mesh.forget(link);
    }
    mesh.sweep();
    // A goodbye over TCP takes time.
    let until = Instant::now() + HANG_LIMIT;
    while system::descriptors() > descriptors && Instant::now() < until {
        mesh.step();
    }
    println!(
        "holds {} {}",
        system::descriptors().saturating_sub(descriptors),
        mesh.node.links().expect("a node").len()
    );
}
