//! Runs every target over its seeds and a bounded number of mutations, which are the same in every run.
//!
//! A failure prints the input. `MOTET_FUZZ_ROUNDS=n` runs n rounds of each target.

use motet_fuzz::mutate::{Prng, mutate};
use motet_fuzz::{TARGETS, Target};
use std::panic::catch_unwind;

fn run(target: &Target) {
    let rounds = std::env::var("MOTET_FUZZ_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(target.rounds);
    let mut corpus = (target.seeds)();
    let mut prng = Prng(1);
    let check = |input: &[u8]| {
        if let Err(panic) = catch_unwind(|| (target.run)(input)) {
            eprintln!("{}: fails with {input:02x?}", target.name);
            std::panic::resume_unwind(panic);
        }
    };
    corpus.iter().for_each(|seed| check(seed));
    for _ in 0..rounds {
        let at = prng.below(corpus.len());
        let mut input = corpus[at].clone();
        mutate(&mut input, &mut prng);
        check(&input);
        // Some mutated inputs join the corpus, so that changes accumulate; the first eight entries stay.
        if prng.below(8) == 0 && input.len() < 2000 {
            if corpus.len() < 200 {
                corpus.push(input);
            } else {
                let victim = 8 + prng.below(corpus.len() - 8);
                corpus[victim] = input;
            }
        }
    }
}

fn target(name: &str) -> &'static Target {
    TARGETS.iter().find(|t| t.name == name).expect("a target of the table")
}

#[test]
fn segment_head() {
    run(target("segment_head"));
}

#[test]
fn offer() {
    run(target("offer"));
}

#[test]
fn segment_message() {
    run(target("segment_message"));
}

#[test]
fn shm_handshake() {
    run(target("shm_handshake"));
}

#[test]
fn node_address() {
    run(target("node_address"));
}

#[test]
fn diag_answer() {
    run(target("diag_answer"));
}

#[test]
fn profile() {
    run(target("profile"));
}

#[test]
fn descriptor() {
    run(target("descriptor"));
}

#[test]
fn slot() {
    run(target("slot"));
}

/// Yields `rounds` mutations, each of a random seed.
fn mutated(seeds: &[Vec<u8>], rounds: u64) -> impl Iterator<Item = Vec<u8>> {
    let mut prng = Prng(2);
    (0..rounds).map(move |_| {
        let mut input = seeds[prng.below(seeds.len())].clone();
        mutate(&mut input, &mut prng);
        input
    })
}

/// The seeds, and mutations of them, reach every path of large blocks.
#[test]
fn slot_seeds_reach_the_large_block_paths() {
    use motet_fuzz::slot::{Reached, play, seeds};
    let seeds = seeds();
    let sum =
        |inputs: &mut dyn Iterator<Item = Vec<u8>>| inputs.fold(Reached::default(), |all, input| all.and(play(&input)));
    let (unchanged, after) = (sum(&mut seeds.iter().cloned()), sum(&mut mutated(&seeds, 2_000)));
    let enough = |reached: Reached, least: u64| {
        let Reached { landed, said, ahead, copied_out, copied_in, unfinished, prolonged } = reached;
        let all = [landed, said, ahead, copied_out, copied_in, unfinished, prolonged];
        assert!(all.iter().all(|&times| times >= least), "{reached:?}");
    };
    enough(unchanged, 3);
    enough(after, 30);
}

#[test]
fn completions() {
    run(target("completions"));
}

/// Completions are delivered directly from cells, for honest and for hostile peers; hostile peers break their links.
#[test]
fn completion_seeds_reach_delivery_from_cells() {
    use motet_fuzz::completions::{Reached, honest_count, play, seeds};
    let seeds = seeds();
    let sum =
        |inputs: &mut dyn Iterator<Item = Vec<u8>>| inputs.fold(Reached::default(), |all, input| all.and(play(&input)));
    let (honest, hostile) = seeds.split_at(honest_count());
    let [honest, hostile] = [honest, hostile].map(|seeds| sum(&mut seeds.iter().cloned()));
    let after = sum(&mut mutated(&seeds, 500));
    let enough = |reached: Reached, delivered: u64| {
        assert!(reached.delivered >= delivered && reached.batches >= delivered / 4, "{reached:?}");
    };
    enough(honest, 40);
    assert!(honest.truncated >= 12 && honest.kept >= 3 && honest.broken == 0, "{honest:?}");
    assert!(honest.cancelled >= 6 && honest.claimed >= 3, "{honest:?}");
    assert!(hostile.broken >= 30 && hostile.interleaved >= 9, "{hostile:?}");
    enough(after, 100);
    assert!(after.kept >= 5 && after.broken >= 100 && after.interleaved >= 20, "{after:?}");
}

#[test]
fn message() {
    run(target("message"));
}

/// Otherwise mutations would stop at the first packet.
#[test]
fn message_seeds_keep_to_the_protocol() {
    for (at, seed) in motet_fuzz::message::seeds().iter().enumerate() {
        assert_eq!(motet_fuzz::message::play(seed), None, "seed {at}");
    }
    let taken = motet_fuzz::message::direct::MESSAGES_TAKEN.load(std::sync::atomic::Ordering::Relaxed);
    let kept = motet_fuzz::message::direct::MESSAGES_KEPT.load(std::sync::atomic::Ordering::Relaxed);
    assert!(taken > 0 && kept > 0, "some are messages that take the direct path: {taken}, {kept}");
}

#[test]
fn cells() {
    run(target("cells"));
}

/// Honest seeds use the direct path in both directions; hostile ones break the link.
#[test]
fn cell_seeds_reach_the_direct_path() {
    use motet_fuzz::message::{cells, direct};
    let before = direct::MESSAGES_TAKEN.load(std::sync::atomic::Ordering::Relaxed);
    for (at, seed) in cells::seeds().iter().enumerate() {
        assert_eq!(cells::play(seed).is_none(), at < cells::HONEST_SEEDS, "seed {at}");
    }
    let counts =
        [&direct::MESSAGES_TAKEN, &cells::MESSAGES_SENT].map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
    assert!(counts[0] >= before + 20 && counts[1] >= 20, "{counts:?}");
}

#[test]
fn payload_ring() {
    run(target("payload_ring"));
}

/// Honest seeds do not break the link; hostile ones do.
#[test]
fn payload_ring_seeds_reach_their_outcome() {
    let honest = motet_fuzz::message::seeds().len();
    for (at, seed) in motet_fuzz::payload_ring::seeds().iter().enumerate() {
        assert_eq!(motet_fuzz::payload_ring::play(seed).is_none(), at < honest, "seed {at}");
    }
}

#[test]
fn session() {
    run(target("session"));
}

#[test]
fn fifo() {
    run(target("fifo"));
}

#[test]
fn file_message() {
    run(target("file_message"));
}

#[test]
fn request() {
    run(target("request"));
}

#[test]
fn link_frame() {
    run(target("link_frame"));
}

#[test]
fn node_line() {
    run(target("node_line"));
}

/// cargo-fuzz has a file for every target of the table.
#[test]
fn cargo_fuzz_has_every_target() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/fuzz_targets");
    for target in TARGETS {
        let file = format!("{folder}/{}.rs", target.name);
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert!(text.contains("motet_fuzz::"), "{file} calls the target");
    }
}

#[test]
fn nbd() {
    run(target("nbd"));
}
