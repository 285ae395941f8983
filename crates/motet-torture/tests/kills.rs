//! Processes are killed during traffic: the remaining peers get errors, continue, and hold no more resources than before.
#![forbid(unsafe_code)]

use motet_torture::mesh::{Mesh, address_for};
use motet_torture::random::Random;
use motet_torture::worker::Worker;
use motet_torture::{HANG_LIMIT, one_at_a_time, seconds, seed, system};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_motet-torture");
const KILLS: u32 = 1000;

/// Makes steps until `done` returns true.
fn until(mesh: &mut Mesh, what: &str, mut done: impl FnMut(&mut Mesh) -> bool) {
    let began = Instant::now();
    while !done(mesh) {
        assert!(began.elapsed() < HANG_LIMIT, "{what}: {:?}", mesh.sides.values());
        mesh.step();
        mesh.sweep();
    }
}

fn kills(driver: &str) {
    let mut random = Random(seed());
    let mark = format!("torture-{driver}-{}", std::process::id());
    let mut other = Worker::start(PROGRAM, &["mesh", &format!("{mark}-other")]);
    let address = address_for(&other.address(), driver);
    let mut mesh = Mesh::new(&format!("{mark}-one"), random.number()).unwrap();
    let to_other = mesh.connect(&address).unwrap();
    let here = mesh.address(driver);
    until(&mut mesh, "traffic begins", |mesh| mesh.done() > 100);
    let descriptors = system::descriptors();
    let end = Instant::now() + seconds(6);
    let (mut kills, mut cut, mut slowest, mut total) = (0, 0, Duration::ZERO, Duration::ZERO);
    while kills < KILLS && Instant::now() < end {
        let mut victim = Worker::start(PROGRAM, &["mesh", &format!("{mark}-victim-{kills}"), &here, &address]);
        if random.once_in(4) {
            // At a random instant of its first steps.
            let instant = Instant::now() + Duration::from_micros(random.below(8_000));
            until(&mut mesh, "an instant", |_| Instant::now() >= instant);
        } else {
            victim.address();
            let links = mesh.lost.len();
            until(&mut mesh, "the victim comes", |mesh| mesh.sides.len() > 1 || mesh.lost.len() > links);
            let instant = Instant::now() + Duration::from_micros(random.below(6_000));
            until(&mut mesh, "an instant", |_| Instant::now() >= instant);
        }
        let (began, met) = (Instant::now(), mesh.sides.len() > 1);
        victim.kill();
        until(&mut mesh, "the victim's operations end", |mesh| {
            mesh.sides.len() == 1 && mesh.node.links().unwrap().len() == 1
        });
        if met {
            cut += 1;
            slowest = slowest.max(began.elapsed());
            total += began.elapsed();
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        kills += 1;
        assert!(mesh.sides.contains_key(&to_other), "the remaining peer keeps its link");
    }
    let done = mesh.done();
    until(&mut mesh, "others go on", |mesh| mesh.done() > done + 100);
    println!(
        "{driver}: {kills} kills, {cut} of them on a link; the end after {:?}, {slowest:?} at most",
        total / cut.max(1)
    );
    assert!(cut > 0);
    assert!(system::descriptors() <= descriptors, "{} descriptors, {descriptors} before", system::descriptors());
    assert_eq!(system::names(&mark).len(), 2, "{:?}", system::names(&mark));
    let shared = std::fs::read_dir("/dev/shm").map_or(0, |files| {
        files.flatten().filter(|file| file.file_name().to_string_lossy().contains("motet-link")).count()
    });
    assert_eq!(shared, 0);
    println!("Pss {} KiB", system::memory() >> 10);
    other.tell("stop");
    mesh.stop();
    mesh.forget(to_other);
    until_line(&mut mesh, &mut other, "stopped");
    other.tell("end");
    until_line(&mut mesh, &mut other, "holds 0 0");
    other.finish();
}

/// Waits for a line of the worker, after this side's goodbyes.
fn until_line(mesh: &mut Mesh, worker: &mut Worker, expected: &str) {
    for _ in 0..200 {
        mesh.step();
    }
    let line = worker.line();
    assert!(line.starts_with(expected), "{line}");
}

#[test]
fn killed_peers_end_pending_operations_over_shared_memory() {
    let _exclusive = one_at_a_time();
    kills("shm");
}

#[test]
fn killed_peers_end_pending_operations_over_tcp() {
    let _exclusive = one_at_a_time();
    kills("tcp");
}
