//! Peers that are stopped and go on, signals all the time, and receivers that do not receive.
#![forbid(unsafe_code)]

use motet::node::{Error, Memory, Mode, Node, Notice, Outgoing, Serve};
use motet_sys::rustix::process::Signal;
use motet_torture::mesh::{Mesh, way};
use motet_torture::random::Random;
use motet_torture::worker::Worker;
use motet_torture::{LIMIT, seconds, seed, system};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");

/// Two workers; one is stopped and interrupted at random, and the other must not notice.
fn stops(driver: &str) {
    let mut random = Random(seed());
    system::interrupt_by(Signal::USR1);
    let mut workers = [0, 1].map(|_| Worker::start(PROGRAM, &["mesh", ""]));
    let mut mesh = Mesh::new("", random.number()).unwrap();
    let links = workers.each_mut().map(|worker| mesh.connect(&way(&worker.address(), driver)).unwrap());
    let until = Instant::now() + seconds(4);
    let (mut stopped, mut stops, mut held) = (false, 0, 0);
    let mut change = Instant::now();
    while Instant::now() < until {
        mesh.step();
        if random.once_in(10) {
            workers[1].signal(Signal::USR1);
            system::signal(std::process::id(), Signal::USR1);
        }
        if Instant::now() >= change {
            let before = mesh.sides[&links[0]].done;
            stopped = !stopped;
            workers[1].signal(if stopped { Signal::STOP } else { Signal::CONT });
            stops += u32::from(stopped);
            change = Instant::now() + Duration::from_micros(random.below(60_000));
            if stopped && random.once_in(4) {
                let began = Instant::now();
                while mesh.sides[&links[0]].done < before + 20 {
                    assert!(began.elapsed() < LIMIT, "another peer is disturbed");
                    mesh.step();
                }
            }
        }
        held = held.max(mesh.node.link_info(links[1]).unwrap().bytes.iter().sum::<usize>());
        assert!(mesh.lost.is_empty(), "a peer that is stopped is not gone");
    }
    workers[1].signal(Signal::CONT);
    workers.iter_mut().for_each(|worker| worker.tell("stop"));
    mesh.stop();
    println!("{driver}: {stops} stops, {} operations, at most {held} bytes held for the link", mesh.done());
    assert!(held < 4 << 20);
    for link in links {
        mesh.forget(link);
    }
}

#[test]
fn a_stopped_peer_goes_on_where_it_was_over_shared_memory() {
    stops("shm");
}

#[test]
fn a_stopped_peer_goes_on_where_it_was_over_tcp() {
    stops("tcp");
}

#[test]
fn a_receiver_that_does_not_receive_holds_a_window_and_no_more() {
    for driver in ["shm", "tcp"] {
        let (near, far) = [0, 1].map(|_| Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap()).into();
        far.serve(1, Serve::Queue).unwrap();
        let (here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(|| far.accept(1, Some(LIMIT)).unwrap());
            let link = near.connect(&way(&far.address().unwrap(), driver), Some(LIMIT)).unwrap();
            (near.open_channel(link, 1, Serve::Queue, Some(LIMIT)).unwrap(), there.join().unwrap())
        });
        let begin = |tag| {
            let message = Outgoing { channel: here, tag, headers: &[], mode: Mode::Automatic };
            near.start_send(&message, Memory::Owned(vec![1; 1000]), Vec::new(), Notice::default())
        };
        let (mut sent, mut refused) = (0u64, 0);
        while refused < 200 {
            match begin(sent) {
                Ok(_) => sent += 1,
                Err((Error::WouldBlock, ..)) => refused += 1,
                Err((error, ..)) => panic!("{driver}: {error}"),
            }
            for node in [&near, &far] {
                let _ = node.progress();
            }
        }
        let held = far.link_info(there.link).unwrap();
        println!("{driver}: {sent} messages, {held:?}");
        assert!(held.bytes.iter().sum::<usize>() < 2 << 20, "{held:?}");
        let mut buffer = [0; 1000];
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                for tag in 0..sent {
                    assert_eq!(far.receive(there, &mut buffer, Some(LIMIT)).unwrap().tag, tag);
                }
            });
            near.send(here, sent, b"at last", Some(LIMIT)).unwrap();
            while !receiver.is_finished() {
                let _ = near.until(|| receiver.is_finished(), Some(motet::node::in_ns(5_000_000)));
            }
        });
    }
}
