//! Links over sessions over a network that delays, loses, repeats, reorders and resets, under a virtual clock.
//!
//! The oracle is that of [`crate::simulation`]: every message arrives once, in order and whole; every operation completes once; memory
//! and atomics are as if executed in the order in which they were started; in the end no memory is left. A case is a list of steps, so
//! that a failure shrinks to few steps. Cases follow from one seed. `MOTET_CARRIED=n` runs n cases.

use crate::prng::Prng;
use crate::schedule::{self, Pending};
use crate::session_network::{Network, Seen};
use crate::simulation::{Simulation, TIGHT};
use motet_proto::message::{Limits, Rights};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;

/// A step.
#[derive(Debug, Clone, Copy)]
enum Step {
    /// A step of a side, chosen by the word.
    Act {
        side: usize,
        word: u64,
    },
    /// The session of a side writes this many bytes to each connection, or reads them.
    Write {
        side: usize,
        most: usize,
    },
    Read {
        side: usize,
        most: usize,
    },
    /// The caller connects if an attempt is due; the handshake may be lost.
    Connect {
        lost: bool,
    },
    Rail,
    /// Faults of one of the connections.
    Cut {
        which: usize,
        keep: usize,
    },
    Swallow {
        which: usize,
        side: usize,
    },
    Stall {
        which: usize,
        side: usize,
        us: u64,
    },
    Repeat {
        which: usize,
        side: usize,
        back: usize,
    },
    /// Time passes.
    Pass {
        us: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let (side, which) = (0..2usize, 0..4usize);
    let most = || prop_oneof![3 => Just(usize::MAX), 1 => 1..2000usize];
    prop_oneof![
        60 => (side.clone(), any::<u64>()).prop_map(|(side, word)| Step::Act { side, word }),
        20 => (side.clone(), most()).prop_map(|(side, most)| Step::Write { side, most }),
        20 => (side.clone(), most()).prop_map(|(side, most)| Step::Read { side, most }),
        6 => prop::bool::weighted(0.2).prop_map(|lost| Step::Connect { lost }),
        1 => Just(Step::Rail),
        1 => (which.clone(), 0..3000usize).prop_map(|(which, keep)| Step::Cut { which, keep }),
        1 => (which.clone(), side.clone()).prop_map(|(which, side)| Step::Swallow { which, side }),
        2 => (which.clone(), side.clone(), 0..20_000u64).prop_map(|(which, side, us)| Step::Stall { which, side, us }),
        3 => (which, side, 0..8usize).prop_map(|(which, side, back)| Step::Repeat { which, side, back }),
        10 => (0..4000u64).prop_map(|us| Step::Pass { us }),
    ]
}

fn limits(wide: bool) -> Limits {
    if wide {
        Limits { window: 1 << 20, max_rendezvous: 100, channels: 50, ahead: 4000, eager: 4000, ..TIGHT }
    } else {
        TIGHT
    }
}

/// One case. `given_up`: in the end no connection is made any more.
fn run(steps: &[Step], wide: bool, given_up: bool) -> Seen {
    let mut world = Simulation::new(1, limits(wide), if wide { 100_000 } else { 2500 });
    let mut network = Network::new();
    network.under(&mut world);
    for side in [0, 0, 1] {
        world.register(side, Rights::ALL);
    }
    let mut pending = Pending::new();
    for step in steps {
        happen(&mut world, &mut network, &mut pending, *step);
    }
    if given_up {
        give_up(&mut world, &mut network);
    } else {
        settle(&mut world, &mut network);
        assert!(world.nodes.iter().all(|node| node.link.broken().is_none()), "no fault of these breaks a link");
        let left: Vec<_> = world.unmatched.iter().filter(|(_, message)| !message.1).collect();
        assert!(world.lossy || left.is_empty(), "lost: {left:?}");
    }
    let network = RefCell::new(network);
    schedule::finish(&mut world, |world| {
        if given_up { schedule::settle(world) } else { settle(world, &mut network.borrow_mut()) }
    });
    world.finish_memory();
    let mut network = network.into_inner();
    if !given_up {
        part(&mut world, &mut network);
    }
    network.seen
}

fn happen(world: &mut Simulation, network: &mut Network, pending: &mut Pending, step: Step) {
    match step {
        Step::Act { side, word } => {
            world.prng = Prng(word);
            schedule::step(world, side, pending);
        }
        Step::Write { side, most } => network.write(side, most),
        Step::Read { side, most } => network.read(side, most, world.now),
        Step::Connect { lost } => network.connect(world.now, lost),
        Step::Rail => network.add_rail(),
        Step::Cut { which, keep } => network.cut(which, keep),
        Step::Swallow { which, side } => network.swallow(which, side, world.now),
        Step::Stall { which, side, us } => network.stall(which, side, world.now + us * 1000),
        Step::Repeat { which, side, back } => network.repeat(which, side, back),
        Step::Pass { us } => {
            world.now += us * 1000;
            assert!(network.pass(world.now), "ten seconds without a connection have not passed");
        }
    }
}

/// Without further faults everything arrives.
fn settle(world: &mut Simulation, network: &mut Network) {
    // Longer than the delay of an acknowledgement.
    const QUIET_ROUNDS: u32 = 30;
    let (mut quiet, mut rounds) = (0, 0);
    while quiet < QUIET_ROUNDS {
        world.now += 1_000_000;
        let put = world.transports.iter().map(|lane| lane.put).sum::<u64>();
        let moved = network.round(world.now);
        schedule::settle(world);
        let more = world.transports.iter().map(|lane| lane.put).sum::<u64>() > put;
        quiet = if moved || more { 0 } else { quiet + 1 };
        rounds += 1;
        assert!(rounds < 20_000, "it settles");
    }
}

/// Without further connections the sessions are lost in time, and the links with them.
fn give_up(world: &mut Simulation, network: &mut Network) {
    network.down = true;
    for which in 0..8 {
        network.cut(which, 0);
    }
    let until = world.now + 12_000_000_000;
    let mut over = false;
    while world.now < until && !over {
        world.now += 100_000_000;
        for side in [0, 1] {
            network.read(side, usize::MAX, world.now);
        }
        network.connect(world.now, false);
        over = !network.pass(world.now);
    }
    assert!(over, "a session that is not resumed ends");
    for side in [0, 1] {
        world.break_link(side);
        while !world.nodes[side].side.copies.is_empty() {
            world.copy(side, true);
        }
        while !world.nodes[side].side.remote.copies.is_empty() {
            world.copy_memory(side, true);
        }
    }
    schedule::settle(world);
}

/// Both sides say goodbye and keep nothing.
fn part(world: &mut Simulation, network: &mut Network) {
    network.sessions.iter().for_each(|session| session.borrow_mut().say_goodbye());
    let done = |network: &Network| network.sessions.iter().all(|session| session.borrow().is_done());
    let mut rounds = 0;
    while !done(network) {
        world.now += 1_000_000;
        network.round(world.now);
        for session in &network.sessions {
            assert_eq!(session.borrow_mut().ready(world.now), Ok(false), "nothing arrives that was not put");
        }
        rounds += 1;
        assert!(rounds < 1000, "goodbyes arrive");
    }
    for session in &network.sessions {
        let mut session = session.borrow_mut();
        assert!(session.is_peer_closed() && session.tick(world.now + 2_000_000_000));
        assert_eq!(session.memory(), 0, "what is idle keeps nothing");
    }
}

fn cases(most: u32) -> u32 {
    std::env::var("MOTET_CARRIED").ok().and_then(|n| n.parse().ok()).unwrap_or(most)
}

fn check(seed: u8, count: u32, given_up: bool) -> Seen {
    let config = Config { cases: cases(count), failure_persistence: None, max_shrink_iters: 4000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let total = RefCell::new(Seen::default());
    let case = (prop::collection::vec(step(), 1..2000), any::<bool>());
    let result = TestRunner::new_with_rng(config, rng).run(&case, |(steps, wide)| {
        let seen = run(&steps, wide, given_up);
        let mut total = total.borrow_mut();
        total.resumed += seen.resumed;
        total.repeated += seen.repeated;
        total.swallowed += seen.swallowed;
        total.cut += seen.cut;
        total.stalled += seen.stalled;
        total.most_rails = total.most_rails.max(seen.most_rails);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
    total.into_inner()
}

#[test]
fn links_over_sessions_survive_any_network_fault() {
    let seen = check(1, 400, false);
    let Seen { resumed, repeated, swallowed, cut, stalled, most_rails } = seen;
    let faults = [resumed, repeated, swallowed, cut, stalled].into_iter().min();
    assert!(faults >= Some(u64::from(cases(400)) / 3) && most_rails > 1, "{seen:?}");
}

#[test]
fn operations_complete_when_the_session_is_not_resumed() {
    let seen = check(2, 200, true);
    assert!(seen.cut >= u64::from(cases(200)), "{seen:?}");
}
