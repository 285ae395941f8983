//! The choice of the copy mode of large puts, on simulated machines whose two modes have given rates.

use motet_proto::copy_mode::CopyModeSelector;
use motet_wire::copy_mode::CopyMode;

/// Ticks in 1024 ns: one in a nanosecond.
const RATE: u64 = 1024;

/// Makes `count` puts of 1 MiB; returns how many went through the caches and how many around them. `rates`: MB/s of the two modes.
fn puts(state: &CopyMode, count: usize, rates: [u64; 2]) -> [usize; 2] {
    let copying = CopyModeSelector(state);
    let mut moved = [0; 2];
    for _ in 0..count {
        copying.start();
        let way = usize::from(copying.is_non_temporal());
        moved[way] += 1;
        copying.note_put(|| RATE, 1 << 20, (1 << 20) * 1000 / rates[way], || 0);
    }
    moved
}

#[test]
fn fast_cached_mode_is_never_left() {
    assert_eq!(puts(&CopyMode::default(), 10_000, [40_000, 60_000]), [10_000, 0]);
}

#[test]
fn faster_non_temporal_mode_is_found_and_kept() {
    let state = CopyMode::default();
    puts(&state, 64, [3_000, 17_000]);
    let [through, around] = puts(&state, 10_000, [3_000, 17_000]);
    assert!(through * 50 < around, "{through} {around}");
    // The machine changes.
    puts(&state, 2_100, [40_000, 6_000]);
    assert_eq!(puts(&state, 1_000, [40_000, 6_000]), [1_000, 0]);
}

#[test]
fn changed_machine_is_noticed_at_once() {
    let state = CopyMode::default();
    puts(&state, 5_000, [3_000, 17_000]);
    let [through, around] = puts(&state, 1_000, [40_000, 6_000]);
    assert!(around < 10, "{through} {around}");
    let [through, around] = puts(&state, 1_000, [3_000, 17_000]);
    assert!(through < 60, "{through} {around}");
}

#[test]
fn window_without_time_slice_changes_nothing() {
    let state = CopyMode::default();
    puts(&state, 5_000, [3_000, 17_000]);
    let tries: usize = (0..100).map(|_| puts(&state, 1, [3_000, 800])[0] + puts(&state, 5, [3_000, 17_000])[0]).sum();
    assert!(tries <= 2, "{tries}: more than the one trial that is due");
}

#[test]
fn slow_reader_costs_few_trials() {
    let [through, around] = puts(&CopyMode::default(), 10_000, [2_000, 2_000]);
    assert!(around * 50 < through, "{through} {around}");
}

/// Sends `bytes` in messages of 1 MiB to a receiver that always waits, on a machine with these rates. The puts are pieces of 64 KiB; between far CPUs a
/// message goes by single copy. Returns bytes put through the caches, bytes put around them, and bytes of single copies.
fn messages(state: &CopyMode, bytes: u64, rates: [u64; 2]) -> [u64; 3] {
    const MESSAGE_BYTES: usize = 1 << 20;
    const PIECE_BYTES: usize = 64 << 10;
    let copying = CopyModeSelector(state);
    let mut moved = [0; 3];
    while moved.iter().sum::<u64>() < bytes {
        if copying.cpus_are_far() {
            moved[2] += MESSAGE_BYTES as u64;
            copying.note_single_copy(MESSAGE_BYTES);
            continue;
        }
        for _ in 0..MESSAGE_BYTES / PIECE_BYTES {
            copying.start();
            let way = usize::from(copying.is_non_temporal());
            moved[way] += PIECE_BYTES as u64;
            copying.note_put(|| RATE, PIECE_BYTES, PIECE_BYTES as u64 * 1000 / rates[way], || 0);
        }
    }
    moved
}

/// Rates between CPUs that share a cache, MB/s: through the caches, around them.
const NEAR_RATES: [u64; 2] = [40_000, 15_000];
/// Rates between CPUs that share no cache, MB/s: through the caches, around them.
const FAR_RATES: [u64; 2] = [5_000, 16_000];
/// Most bytes between two trials, plus the bytes of a trial.
const REVIEW_BYTES: u64 = (1 << 30) + (5 << 20);

#[test]
fn single_copies_between_far_cpus_cost_few_trials() {
    let state = CopyMode::default();
    let [through, around, _] = messages(&state, 16 << 20, FAR_RATES);
    assert!(
        CopyModeSelector(&state).cpus_are_far() && through + around <= 7 << 20,
        "found out within 7 MiB: {through} {around}"
    );
    for rates in [FAR_RATES, [9_000, 16_000], [11_000, 10_000]] {
        let state = CopyMode::default();
        messages(&state, 16 << 20, FAR_RATES);
        let [through, around, copied] = messages(&state, 4 << 30, rates);
        assert!((through + around) * 100 < copied * 3, "{through} {around} {copied} {rates:?}");
    }
}

#[test]
fn stream_of_single_copies_notices_near_cpus() {
    for before in [64 << 20, 1 << 30, 20 << 30] {
        let state = CopyMode::default();
        messages(&state, before, FAR_RATES);
        let [_, around, copied] = messages(&state, REVIEW_BYTES, NEAR_RATES);
        assert!(copied < REVIEW_BYTES && around == 0, "{around} {copied}");
        assert_eq!(messages(&state, 1 << 30, NEAR_RATES), [1 << 30, 0, 0], "back in the ring, without further trials");
        let [through, around, copied] = messages(&state, 1 << 30, FAR_RATES);
        assert!(copied > (1 << 30) * 9 / 10, "single copies again: {through} {around} {copied}");
    }
}

#[test]
fn near_cpus_are_never_taken_for_far_cpus() {
    assert_eq!(messages(&CopyMode::default(), 4 << 30, NEAR_RATES), [4 << 30, 0, 0]);
    assert_eq!(messages(&CopyMode::default(), 4 << 30, [12_500, 6_000])[2], 0);
}

#[test]
fn large_messages_use_single_copy_if_no_mode_is_fast() {
    for rates in [[8_000, 6_000], [6_000, 8_000]] {
        let [through, around, copied] = messages(&CopyMode::default(), 4 << 30, rates);
        assert!((through + around) * 50 < copied, "{through} {around} {copied} {rates:?}");
    }
}

#[test]
fn mode_that_writes_fast_but_lands_slowly_is_rejected() {
    let state = CopyMode::default();
    let copying = CopyModeSelector(&state);
    let mut ways = Vec::new();
    for _ in 0..2_000 {
        copying.start();
        let way = usize::from(copying.is_non_temporal());
        ways.push(way);
        copying.note_put(|| RATE, 1 << 20, (1 << 20) * 1000 / [9_000, 17_000][way], || [9_000, 5_000][way]);
    }
    let around: usize = ways[200..].iter().sum();
    assert!(around < 30, "{around} of 1800 around the caches");
    assert!(ways.contains(&1), "it was tried");
    assert!(!copying.is_settled_non_temporal() && copying.cpus_are_far(), "neither way is fast");
}

#[test]
fn block_is_timed_from_first_to_last_byte() {
    const PART: usize = 64 << 10;
    let arriving = motet_proto::stream::bulk::ArrivalTimer::default();
    let (mut now, mut rates) = (0, Vec::new());
    for _ in 0..16 {
        now += 1_000_000; // the sender's time between two blocks
        for part in 0..4 {
            let began = now + if part > 0 { 10_000 } else { 0 };
            now = began + 10_000;
            let at = (4096 + part * PART) as u64;
            rates.extend(arriving.note_take((at, PART, (4 - part) * PART), (began, now), 1024));
        }
    }
    // Four times 10 us of copying, three times 10 us between.
    let expected = (4 * PART * 1000 / 70_000) as u32;
    assert_eq!(rates, [expected; 4], "every MiB");
}

/// Whether a stream counts as bulk by its large takes, and by its parts, after `messages` messages that are read in these takes.
fn read_in(takes: &[usize], messages: usize) -> (bool, bool) {
    let record = motet_wire::stream::record::StreamRecord::default();
    for _ in 0..messages {
        takes.iter().for_each(|&n| motet_proto::stream::bulk::note_take(&record, n));
    }
    (motet_proto::stream::bulk::is_bulk(&record), motet_proto::stream::bulk::is_read_in_parts(&record))
}

#[test]
fn messages_read_in_parts_are_bulk_from_some_kib_on() {
    assert_eq!(read_in(&[12, 1_700, 6_000, 8_700], 200), (false, true), "16 KiB as omniORB reads them");
    assert_eq!(read_in(&[12, 1_700, 6_000, 8_700], 20), (false, false), "a few of them");
    assert_eq!(read_in(&[12, 4_100], 10_000), (false, false), "4 KiB");
    assert_eq!(read_in(&[4_104], 10_000), (false, false));
    assert_eq!(read_in(&[64], 10_000), (false, false));
    assert!(read_in(&[64 << 10], 100).0, "large takes");
}
