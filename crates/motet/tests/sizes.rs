//! Bodies of every size around every limit: with and without headers, expected or not, in order, by tag and by handler, truncated.

use motet::node::{Body, Channel, Error, Message, Mode, Node, Outgoing, RecvFrom, Serve};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// Sizes around one cell, two cells, the steps in which a message is published, the longest packet, and the longest eager message.
fn sizes() -> Vec<usize> {
    let edges = [0, 40, 56, 96, 112, 2048, 4096, 8192, 12_288, 16_384, 65_536];
    let mut sizes: Vec<usize> = edges.iter().flat_map(|&edge: &usize| edge.saturating_sub(18)..edge + 18).collect();
    sizes.dedup();
    sizes
}

fn body(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at * 7 + size) as u8).collect()
}

/// Two nodes, and a channel between them.
fn pair(serve: impl Fn(&Node) -> Serve) -> (Node, Node, Channel, Channel) {
    let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
    far.serve(1, serve(&far)).unwrap();
    let (here, there) = std::thread::scope(|scope| {
        let there = scope.spawn(|| far.accept(1, TIMEOUT).unwrap());
        let link = near.connect(&far.name().unwrap(), TIMEOUT).unwrap();
        let here = near.open_channel(link, 1, Serve::Queue, TIMEOUT).unwrap();
        (here, there.join().unwrap())
    });
    (near, far, here, there)
}

fn send(node: &Node, channel: Channel, size: usize, headers: &[u8]) {
    let bytes = body(size);
    let (front, back) = bytes.split_at(size / 3);
    let message = Outgoing { channel, tag: size as u64, headers, mode: Mode::Automatic };
    if headers.is_empty() && size.is_multiple_of(2) {
        node.send(channel, size as u64, &bytes, TIMEOUT).unwrap();
    } else {
        node.send_with(&message, &[front, back], TIMEOUT).unwrap();
    }
}

/// Receives a message of this size into a buffer of `room` bytes, which may be too short.
fn receive(node: &Node, from: RecvFrom, ignore: u64, size: usize, headers: &[u8], room: usize) {
    let (mut buffer, mut found) = (vec![0; room], vec![9]);
    let received = node.receive_with(from, size as u64, ignore, &mut found, &mut buffer, TIMEOUT);
    let fits = size.min(room);
    assert_eq!(
        received.map(|received| (received.tag, received.length)).ok(),
        (fits == size).then_some((size as u64, size))
    );
    assert!(buffer[..fits] == body(size)[..fits], "the bytes of {size}");
    assert_eq!(found, headers, "{size}");
}

#[test]
fn messages_of_every_size_arrive_whole_in_any_order() {
    for tagged in [false, true] {
        let serve = |node: &Node| if tagged { Serve::Tagged(node.context().unwrap()) } else { Serve::Queue };
        let (near, far, here, there) = pair(serve);
        let ignore = if tagged { 0 } else { u64::MAX };
        for headers in [&b""[..], b"head", &[7; 256]] {
            std::thread::scope(|scope| {
                scope.spawn(|| sizes().iter().for_each(|&size| send(&near, here, size, headers)));
                let from = RecvFrom::Channel(there);
                sizes().iter().for_each(|&size| receive(&far, from, ignore, size, headers, size));
            });
        }
    }
}

#[test]
fn unexpected_messages_of_every_size_are_received() {
    let (near, far, here, there) = pair(|node| Serve::Tagged(node.context().unwrap()));
    let eager: Vec<usize> = sizes().into_iter().filter(|&size| size < 20_000).collect();
    for sizes in eager.chunks(8) {
        // as many as a FIFO holds without a poll
        sizes.iter().for_each(|&size| send(&near, here, size, b"head"));
        // In reverse order: the others stay unexpected.
        sizes.iter().rev().for_each(|&size| receive(&far, RecvFrom::Channel(there), 0, size, b"head", size));
    }
}

#[test]
fn messages_of_every_size_are_truncated_to_the_buffer() {
    let (near, far, here, there) = pair(|_| Serve::Queue);
    std::thread::scope(|scope| {
        scope.spawn(|| sizes().iter().for_each(|&size| send(&near, here, size, b"")));
        for (n, size) in sizes().into_iter().enumerate() {
            let room = [size, size / 2, size.saturating_sub(1), 0][n % 4];
            receive(&far, RecvFrom::Channel(there), u64::MAX, size, b"", room);
        }
    });
}

#[test]
fn handlers_get_messages_of_every_size() {
    let (near, far) = (Node::open("").unwrap(), Node::open("").unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = seen.clone();
    let handler = move |_: &Node, message: Message<'_>| {
        let length = match &message.body {
            Body::Whole(bytes) => {
                assert!(**bytes == body(bytes.len()));
                bytes.len()
            }
            Body::Long(held) => held.as_ref().unwrap().length as usize,
        };
        told.lock().unwrap().push((message.tag as usize, length, message.headers.to_vec()));
    };
    far.serve(1, far.handler(handler).unwrap()).unwrap();
    let sent = sizes();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let link = near.connect(&far.name().unwrap(), TIMEOUT).unwrap();
            let here = near.open_channel(link, 1, Serve::Queue, TIMEOUT).unwrap();
            for &size in &sent {
                // A message that the handler does not take is discarded, and its send may fail.
                let (bytes, message) =
                    (body(size), Outgoing { channel: here, tag: size as u64, headers: b"head", mode: Mode::Automatic });
                match near.send_with(&message, &[&bytes], TIMEOUT) {
                    Ok(()) => {}
                    Err(Error::Closed) => assert!(size > 16_384),
                    Err(error) => panic!("{size}: {error}"),
                }
            }
        });
        let limit = Some(motet::node::deadline_in(60_000_000_000));
        far.progress_until(|| seen.lock().unwrap().len() == sent.len(), limit).unwrap();
    });
    for (tag, length, headers) in seen.lock().unwrap().iter() {
        assert_eq!((tag, &headers[..]), (length, &b"head"[..]));
    }
}
