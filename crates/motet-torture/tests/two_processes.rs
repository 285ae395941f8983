//! Random operations between two processes, with an oracle at both ends.
#![forbid(unsafe_code)]

use motet_torture::mesh::{Mesh, address_for};
use motet_torture::random::Random;
use motet_torture::worker::Worker;
use motet_torture::{seconds, seed};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");

fn torture(driver: &str) {
    let mut random = Random(seed());
    let mut worker = Worker::start(PROGRAM, &["mesh", ""]);
    let address = address_for(&worker.address(), driver);
    let mut mesh = Mesh::new("", random.number()).unwrap();
    mesh.connect(&address).unwrap();
    let until = Instant::now() + seconds(5);
    let mut links = 1;
    while Instant::now() < until {
        mesh.step();
        assert!(mesh.lost.is_empty(), "a link was lost");
        if random.once_in(200) {
            std::thread::sleep(Duration::from_micros(random.below(5_000)));
        }
        if random.once_in(3_000) {
            // Both ends stop in order and connect again.
            mesh.wait_for_peers();
            worker.tell("stop");
            mesh.stop();
            for link in mesh.sides.keys().copied().collect::<Vec<_>>() {
                mesh.forget(link);
            }
            let answer = worker.line();
            assert!(answer.starts_with("stopped "), "{answer}");
            mesh.connect(&address).unwrap();
            links += 1;
        }
    }
    mesh.wait_for_peers();
    worker.tell("stop");
    mesh.stop();
    let done = mesh.done();
    println!("{driver}: {done} operations on {links} links");
    for link in mesh.sides.keys().copied().collect::<Vec<_>>() {
        mesh.forget(link);
    }
    drop(mesh); // the worker's goodbyes need an answer
    assert!(worker.line().starts_with("stopped "));
    worker.tell("end");
    assert_eq!(worker.line(), "holds 0 0");
    worker.finish();
    assert!(done > 0);
}

#[test]
fn random_operations_of_two_processes_complete_over_shm() {
    torture("shm");
}

#[test]
fn random_operations_of_two_processes_complete_over_tcp() {
    torture("tcp");
}
