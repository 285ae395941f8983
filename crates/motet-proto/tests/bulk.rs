//! Which way large puts are copied, against machines whose two ways move so many MB/s.

use motet_driver_loopback::clock::Clock;
use motet_driver_loopback::end::End;
use motet_driver_loopback::pipe::Connection;
use motet_driver_loopback::plan::Plan;
use motet_proto::bulk::Copying;
use motet_wire::record::Tx;

/// So many puts of 1 MiB; returns how many went through the caches and around them.
fn puts(tx: &Tx, count: usize, rates: [u64; 2]) -> [usize; 2] {
    let clock = Clock::new(0);
    let [mut base, _] = End::pair(Connection::new(clock.clone(), 8, Plan::new()), &clock);
    let copying = Copying(tx);
    let mut moved = [0; 2];
    for _ in 0..count {
        copying.begin(None, &mut base);
        let way = usize::from(copying.bypass());
        moved[way] += 1;
        copying.note(&base, 1 << 20, (1 << 20) * 1000 / rates[way]);
    }
    moved
}

#[test]
fn a_fast_way_through_the_caches_is_never_left() {
    assert_eq!(puts(&Tx::default(), 10_000, [40_000, 60_000]), [10_000, 0]);
}

#[test]
fn the_way_around_is_found_and_kept_where_it_is_faster() {
    let tx = Tx::default();
    puts(&tx, 64, [3_000, 17_000]);
    let [through, around] = puts(&tx, 10_000, [3_000, 17_000]);
    assert!(through * 50 < around, "{through} {around}");
    // The machine changes.
    puts(&tx, 2_100, [40_000, 6_000]);
    assert_eq!(puts(&tx, 1_000, [40_000, 6_000]), [1_000, 0]);
}

#[test]
fn a_machine_that_changes_is_noticed_at_once() {
    let tx = Tx::default();
    puts(&tx, 5_000, [3_000, 17_000]);
    let [through, around] = puts(&tx, 1_000, [40_000, 6_000]);
    assert!(around < 10, "{through} {around}");
    let [through, around] = puts(&tx, 1_000, [3_000, 17_000]);
    assert!(through < 60, "{through} {around}");
}

#[test]
fn a_window_that_lost_its_time_slice_changes_nothing() {
    let tx = Tx::default();
    puts(&tx, 5_000, [3_000, 17_000]);
    let tries: usize = (0..100).map(|_| puts(&tx, 1, [3_000, 800])[0] + puts(&tx, 5, [3_000, 17_000])[0]).sum();
    assert!(tries <= 2, "{tries}: more than the one review that is due");
}

#[test]
fn a_slow_reader_costs_few_tries() {
    let [through, around] = puts(&Tx::default(), 10_000, [2_000, 2_000]);
    assert!(around * 50 < through, "{through} {around}");
}
