//! A connect whose time limit passes leaves no link at the peer.
#![forbid(unsafe_code)]

use motet::node::{Error, Node};
use std::time::{Duration, Instant};

fn abandoned(driver: &str) {
    let listen = "127.0.0.1:0".parse().unwrap();
    let (near, far) = (Node::listen("", listen).unwrap(), Node::listen("", listen).unwrap());
    let address = far.address().unwrap();
    let address = address.split(',').find(|part| part.starts_with(driver)).unwrap();
    for attempt in 0..200u32 {
        // The peer makes progress before, during or after the attempt.
        let limit = Duration::from_micros(u64::from(attempt % 20) * 40);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let until = Instant::now() + Duration::from_micros(u64::from(attempt % 7) * 100);
                while Instant::now() < until {
                    far.progress().unwrap();
                }
            });
            match near.connect(address, Some(limit)) {
                Ok(link) => near.disconnect(link).unwrap(),
                Err(Error::TimedOut) => {}
                Err(error) => panic!("{error}"),
            }
            other.join().unwrap();
        });
        let began = Instant::now();
        loop {
            near.progress().unwrap();
            far.progress().unwrap();
            let links = far.links().unwrap();
            if links.iter().all(|link| far.link_info(*link).is_ok_and(|info| info.gone.is_some())) {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(5), "{driver}: attempt {attempt} left {} links", links.len());
        }
    }
}

#[test]
fn abandoned_connect_over_shared_memory_leaves_no_link() {
    abandoned("shm");
}

#[test]
fn abandoned_connect_over_tcp_leaves_no_link() {
    abandoned("tcp");
}
