//! Peers that are stopped and continued, frequent signals, and receivers that do not receive.
#![forbid(unsafe_code)]

use motet::node::{Channel, CompletionOptions, Error, Mode, Node, OperationMemory, Outgoing, Serve};
use motet::reason::Reason;
use motet_sys::rustix::process::Signal;
use motet_torture::mesh::{Mesh, address_for};
use motet_torture::random::Random;
use motet_torture::worker::Worker;
use motet_torture::{HANG_LIMIT, seconds, seed, system};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");

/// Two workers: one is stopped and interrupted at random, and the other must not be affected.
fn stops(driver: &str) {
    let mut random = Random(seed());
    system::interrupt_by(Signal::USR1);
    let mut workers = [0, 1].map(|_| Worker::start(PROGRAM, &["mesh", ""]));
    let mut mesh = Mesh::new("", random.number()).unwrap();
    let links = workers.each_mut().map(|worker| mesh.connect(&address_for(&worker.address(), driver)).unwrap());
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
                    assert!(began.elapsed() < HANG_LIMIT, "another peer makes no progress");
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
fn stopped_peer_continues_where_it_was_over_shared_memory() {
    stops("shm");
}

#[test]
fn stopped_peer_continues_where_it_was_over_tcp() {
    stops("tcp");
}

#[test]
fn idle_receiver_holds_at_most_one_window() {
    for driver in ["shm", "tcp"] {
        let (near, far) = [0, 1].map(|_| Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap()).into();
        far.serve(1, Serve::Queue).unwrap();
        let (here, there) = std::thread::scope(|scope| {
            let there = scope.spawn(|| far.accept(1, Some(HANG_LIMIT)).unwrap());
            let link = near.connect(&address_for(&far.address().unwrap(), driver), Some(HANG_LIMIT)).unwrap();
            (near.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap(), there.join().unwrap())
        });
        let begin = |tag| {
            let message = Outgoing { channel: here, tag, headers: &[], mode: Mode::Automatic };
            near.start_send(&message, OperationMemory::Owned(vec![1; 1000]), Vec::new(), CompletionOptions::default())
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
                    assert_eq!(far.receive(there, &mut buffer, Some(HANG_LIMIT)).unwrap().tag, tag);
                }
            });
            near.send(here, sent, b"at last", Some(HANG_LIMIT)).unwrap();
            while !receiver.is_finished() {
                let _ = near.progress_until(|| receiver.is_finished(), Some(motet::node::deadline_in(5_000_000)));
            }
        });
    }
}

/// A stopped sink and a channel to it.
fn stopped_sink(driver: &str, size: usize) -> (Node, Worker, Channel) {
    let node = Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    let mut sink = Worker::start(PROGRAM, &["sink", &size.to_string()]);
    let link = node.connect(&address_for(&sink.address(), driver), Some(HANG_LIMIT)).unwrap();
    let channel = node.open_channel(link, 1, Serve::Queue, Some(HANG_LIMIT)).unwrap();
    assert_eq!(sink.line(), "waits");
    sink.signal(Signal::STOP);
    (node, sink, channel)
}

/// A timed send to a stopped receiver must not outlast its time limit. The receiver would copy 32 MiB from the sender's memory; 1 MiB is sent in
/// pieces.
#[test]
fn timed_long_send_to_stopped_receiver_is_never_received() {
    for (driver, length) in [("shm", 32 << 20), ("shm", 1 << 20), ("tcp", 1 << 20)] {
        let (node, mut sink, channel) = stopped_sink(driver, length);
        let mut body = vec![1; length];
        let began = Instant::now();
        let sent = node.send(channel, 7, &body, Some(Duration::from_millis(50)));
        assert_eq!(sent, Err(Error::Lost(Reason::UNANSWERED)), "{driver} {length}");
        println!("{driver} {length}: {:?}", began.elapsed());
        assert_eq!(node.link_info(channel.link).unwrap().gone, Some(Reason::UNANSWERED));
        assert_eq!(node.send(channel, 8, b"later", None), Err(Error::Lost(Reason::UNANSWERED)));
        let received = node.receive(channel, &mut [0; 8], Some(HANG_LIMIT)).map(|got| got.tag);
        assert_eq!(received, Err(Error::Lost(Reason::UNANSWERED)), "{driver} {length}");
        // The memory belongs to the caller again, and its later content is not part of a message.
        body.fill(2);
        sink.signal(Signal::CONT);
        assert!(sink.line().starts_with("the link is gone"), "{driver} {length}");
        sink.finish();
    }
}

/// The receiver continues in time, so nothing is lost.
#[test]
fn timed_send_to_resumed_receiver_keeps_the_link() {
    for driver in ["shm", "tcp"] {
        let (node, mut sink, channel) = stopped_sink(driver, 1 << 20);
        let body = vec![1; 1 << 20];
        let sent = std::thread::scope(|scope| {
            let sent = scope.spawn(|| node.send(channel, 7, &body, Some(Duration::from_millis(50))));
            std::thread::sleep(Duration::from_millis(300));
            sink.signal(Signal::CONT);
            sent.join().unwrap()
        });
        // The receive was posted already, so the message may have been received before the cancellation.
        match sent {
            Ok(()) => assert_eq!(sink.line(), format!("7 {} {}", body.len(), system::sum(&body))),
            Err(error) => assert_eq!(error, Error::TimedOut, "{driver}"),
        }
        node.send(channel, 8, b"later", Some(HANG_LIMIT)).unwrap();
        assert_eq!(sink.line(), format!("8 5 {}", system::sum(b"later")));
        sink.kill();
    }
}

/// The receiver has granted credit for an eager message: the node sends a copy, and the caller's memory is free.
#[test]
fn timed_eager_send_to_stopped_receiver_is_buffered() {
    for driver in ["shm", "tcp"] {
        let (node, mut sink, channel) = stopped_sink(driver, 1 << 20);
        let (mut sums, mut tags) = (Vec::new(), 0u64);
        // As many as there is credit for. The next one is announced by an RTS, and its time limit passes.
        let end = loop {
            let mut body = vec![tags as u8; 60_000];
            sums.push(format!("{tags} 60000 {}", system::sum(&body)));
            let sent = node.send(channel, tags, &body, Some(Duration::from_millis(20)));
            body.fill(0xee);
            match sent {
                Ok(()) => tags += 1,
                Err(error) => break error,
            }
            assert!(tags < 1000, "credit is never exhausted");
        };
        println!("{driver}: {tags} on their way, then {end}");
        assert!(tags >= 2, "{driver}");
        sink.signal(Signal::CONT);
        match end {
            // There was no room for the RTS, so nothing was begun.
            Error::TimedOut => {
                node.send(channel, tags, b"later", Some(HANG_LIMIT)).unwrap();
                assert!(sums[..tags as usize].iter().all(|sum| sink.line() == *sum), "{driver}");
                assert_eq!(sink.line(), format!("{tags} 5 {}", system::sum(b"later")));
            }
            // The receiver gets the first messages, each complete and unchanged, then the end.
            end => {
                assert_eq!(end, Error::Lost(Reason::UNANSWERED), "{driver}");
                let end = |line: &String| !line.starts_with("the link is gone");
                let lines: Vec<String> = std::iter::from_fn(|| Some(sink.line())).take_while(end).collect();
                assert!(lines.len() < sums.len() && lines.iter().zip(&sums).all(|(line, sum)| line == sum), "{driver}");
            }
        }
        sink.kill();
    }
}
