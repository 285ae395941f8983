//! Threads that remove memory while others acquire.

use crate::support::{alone, assert_sees_memory, cache};
use motet_regcache::{Limits, watch::Watch};
use motet_sys::test_mappings::{PAGE_BYTES, TestMappings};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Each thread maps memory wherever the kernel puts it, often where another thread has just unmapped, then writes, acquires, checks and unmaps.
/// The threads do not synchronize: only the kernel passes addresses from one to another.
#[test]
fn addresses_reused_across_threads_are_seen() {
    let Some(cache) = cache(Limits { entries: 32, bytes: 1 << 20 }, 10_000) else { return };
    let round = |thread: u64, round: u64| {
        let mut mappings = TestMappings::new(4 + round % 3).unwrap();
        assert!((0..4).all(|page| mappings.write(page, thread << 32 | round << 4 | page)));
        assert_sees_memory(&cache, mappings.address(0), 4);
        if round.is_multiple_of(5) {
            assert!(mappings.discard(1, 1, false) && mappings.write(1, round));
            assert_sees_memory(&cache, mappings.address(0), 4);
        }
        assert!(mappings.unmap(0, 4));
    };
    std::thread::scope(|scope| {
        for thread in 1..5 {
            scope.spawn(move || (0..400).for_each(|n| round(thread, n)));
        }
    });
    let counts = cache.counts();
    assert!(counts.stale > 0, "{counts:?}");
    cache.tidy();
    assert_eq!((cache.size().0, cache.driver().size().0), (0, 0));
}

/// Threads whose memory stays mapped have hits, whatever the others unmap.
#[test]
fn threads_that_unmap_do_not_disturb_other_memory() {
    let Some(cache) = cache(Limits { entries: 512, bytes: 1 << 30 }, 10_000) else { return };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                let mappings = TestMappings::new(2).unwrap();
                drop(cache.acquire(mappings.address(0), PAGE_BYTES).unwrap());
            }
            done.store(true, Relaxed);
        });
        for thread in 0..2 {
            let (cache, done) = (&cache, &done);
            scope.spawn(move || {
                let mappings = TestMappings::new(16).unwrap();
                assert!((0..16).all(|page| mappings.write(page, thread << 8 | page)));
                let first = cache.acquire(mappings.address(0), 16 * PAGE_BYTES).unwrap().range();
                while !done.load(Relaxed) {
                    let lease = cache.acquire(mappings.address(3), 4 * PAGE_BYTES).unwrap();
                    assert_eq!(lease.range(), first);
                    assert_eq!(cache.driver().seen(&lease)[3], thread << 8 | 3);
                }
            });
        }
    });
}

/// More events happen than the ring holds: the cache gives up everything.
#[test]
fn cache_that_misses_events_gives_up_everything() {
    if !alone("threads::cache_that_misses_events_gives_up_everything") {
        return;
    }
    let Some(cache) = cache(Limits::default(), 10_000) else { return };
    let mappings = TestMappings::new(8).unwrap();
    drop(cache.acquire(mappings.address(0), 4 * PAGE_BYTES).unwrap());
    let other = TestMappings::new(1).unwrap();
    let watch = Watch::shared().unwrap();
    watch.watch(other.address(0), other.address(1)).unwrap();
    for _ in 0..1100 {
        assert!(other.discard(0, 1, false));
    }
    watch.unwatch(other.address(0), other.address(1));
    cache.tidy();
    assert_eq!((cache.counts().missed, cache.counts().stale, cache.driver().size().0), (1, 1, 0));
    assert_sees_memory(&cache, mappings.address(0), 4);
}
