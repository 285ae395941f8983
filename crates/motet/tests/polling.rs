//! Work that is due every few rounds is done however a node is polled.

use motet::node::{Node, Serve};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TIMEOUT: Option<Duration> = Some(Duration::from_secs(20));
const SERVICE: u64 = 42;

/// Incoming connections are accepted in a round that asks the kernel, one of many.
#[test]
fn polling_and_progress_in_turn_accept_new_links() {
    let listen = || Node::listen("", "127.0.0.1:0".parse().unwrap()).unwrap();
    let (near, far, over) = (listen(), listen(), AtomicBool::new(false));
    near.serve(SERVICE, Serve::Queue).unwrap();
    let address = near.address().unwrap();
    let way = address.split(',').find(|way| way.starts_with("shm")).unwrap();
    let cq = near.add_cq().unwrap();
    // One busy link: polls for its messages take no lock.
    std::thread::scope(|scope| {
        scope.spawn(|| near.accept(SERVICE, TIMEOUT).unwrap());
        let link = far.connect(way, TIMEOUT).unwrap();
        far.open_channel(link, SERVICE, Serve::Queue, TIMEOUT).unwrap();
    });
    for (looks, phase) in [3, 7].into_iter().flat_map(|looks| (0..8).map(move |phase| (looks, phase))) {
        over.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..phase).for_each(|_| assert!(near.progress().is_ok()));
                while !over.load(Ordering::Relaxed) {
                    (0..looks).for_each(|_| assert_eq!(near.poll_cq(cq, 1, |_| {}).unwrap(), (0, false)));
                    near.progress().unwrap();
                }
            });
            let caller = Node::open("").unwrap();
            let met = caller.connect(way, TIMEOUT);
            over.store(true, Ordering::Relaxed);
            assert!(met.is_ok(), "{looks} looks, {phase} rounds before: {met:?}");
        });
    }
}
