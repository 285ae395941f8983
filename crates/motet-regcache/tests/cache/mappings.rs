//! Each way in which pages are removed, by its system call; and what a cache keeps.

use crate::support::{Pins, alone, assert_sees_memory, cache};
use motet_regcache::{Cache, CacheMode, Limits, Range, Refused, Register};
use motet_sys::test_mappings::{PAGE_BYTES, TestMappings};

/// Mapped pages with their numbers in them, of which eight are registered and kept. It runs in a process of its own: in a shared one, other
/// threads might map the addresses that a test unmaps for a moment.
fn prepared(test: &str) -> Option<(Cache<Pins>, TestMappings)> {
    if !alone(&format!("mappings::{test}")) {
        return None;
    }
    let cache = cache(Limits::default(), 10_000)?;
    let mappings = TestMappings::new(32).unwrap();
    assert!((0..32).all(|page| mappings.write(page, 100 + page)));
    assert_sees_memory(&cache, mappings.address(4), 8);
    assert_eq!((cache.counts().kept, cache.counts().hits), (1, 0));
    assert_sees_memory(&cache, mappings.address(5), 2);
    assert_eq!((cache.counts().kept, cache.counts().hits), (1, 1), "part of what is registered");
    Some((cache, mappings))
}

/// Asserts, after pages from `page` on were replaced, that a lease sees the new ones and that the old registration is gone.
fn assert_new_pages_seen(cache: &Cache<Pins>, mappings: &TestMappings, page: u64) {
    assert!((4..12).all(|page| mappings.write(page, 200 + page)));
    assert_sees_memory(cache, mappings.address(page), 1);
    assert_eq!((cache.counts().stale, cache.counts().kept), (1, 2));
    assert_sees_memory(cache, mappings.address(4), 8);
    assert_eq!(cache.driver().size().0, cache.size().0, "no registration is left over");
}

#[test]
fn munmap_of_all_drops_registration() {
    let Some((cache, mut mappings)) = prepared("munmap_of_all_drops_registration") else { return };
    assert!(mappings.unmap(4, 8) && mappings.map(4, 8));
    assert_new_pages_seen(&cache, &mappings, 4);
}

#[test]
fn munmap_of_a_part_drops_registration() {
    let Some((cache, mut mappings)) = prepared("munmap_of_a_part_drops_registration") else { return };
    assert!(mappings.unmap(11, 1) && mappings.map(11, 1));
    assert_new_pages_seen(&cache, &mappings, 4);
}

#[test]
fn munmap_beside_it_keeps_registration() {
    let Some((cache, mut mappings)) = prepared("munmap_beside_it_keeps_registration") else { return };
    assert!(mappings.unmap(3, 1) && mappings.unmap(12, 1) && mappings.discard(13, 4, false));
    assert_sees_memory(&cache, mappings.address(4), 8);
    assert_eq!((cache.counts().stale, cache.counts().hits), (0, 2));
}

#[test]
fn madvise_dontneed_drops_registration() {
    let Some((cache, mappings)) = prepared("madvise_dontneed_drops_registration") else { return };
    assert!(mappings.discard(6, 1, false));
    assert_new_pages_seen(&cache, &mappings, 6);
}

#[test]
fn madvise_free_drops_registration() {
    let Some((cache, mappings)) = prepared("madvise_free_drops_registration") else { return };
    assert!(mappings.discard(6, 1, true));
    assert_new_pages_seen(&cache, &mappings, 6);
}

#[test]
fn map_fixed_over_a_part_drops_registration() {
    let Some((cache, mut mappings)) = prepared("map_fixed_over_a_part_drops_registration") else { return };
    assert!(mappings.replace(9, 1));
    assert_new_pages_seen(&cache, &mappings, 9);
}

#[test]
fn mremap_that_shrinks_drops_registration() {
    let Some((cache, mut mappings)) = prepared("mremap_that_shrinks_drops_registration") else { return };
    assert!(mappings.unmap(12, 20) && mappings.resize(4, 8, 5) && mappings.map(9, 3));
    assert_new_pages_seen(&cache, &mappings, 9);
}

#[test]
fn mremap_that_grows_in_place_keeps_registration() {
    let Some((cache, mut mappings)) = prepared("mremap_that_grows_in_place_keeps_registration") else { return };
    assert!(mappings.unmap(12, 20));
    if !mappings.resize(4, 8, 12) {
        return eprintln!("SKIPPED: another thread has mapped memory there");
    }
    assert_sees_memory(&cache, mappings.address(4), 8);
    assert_eq!((cache.counts().stale, cache.counts().hits), (0, 2));
    assert!((12..16).all(|page| mappings.write(page, 300 + page)));
    assert_sees_memory(&cache, mappings.address(4), 12);
}

#[test]
fn mremap_that_moves_drops_registration() {
    let Some((cache, mut mappings)) = prepared("mremap_that_moves_drops_registration") else { return };
    assert!(mappings.move_pages(4, 8, 20) && mappings.map(4, 8));
    assert_new_pages_seen(&cache, &mappings, 4);
    assert_eq!(mappings.read(20), Some(104));
    assert_sees_memory(&cache, mappings.address(20), 8);
}

#[test]
fn mremap_onto_it_drops_registration() {
    let Some((cache, mut mappings)) = prepared("mremap_onto_it_drops_registration") else { return };
    assert!(mappings.move_pages(20, 4, 6) && mappings.map(20, 4));
    assert_sees_memory(&cache, mappings.address(4), 8);
    assert_eq!(cache.counts().stale, 1);
}

#[test]
fn lease_whose_pages_are_removed_keeps_its_token() {
    let Some((cache, mut mappings)) = prepared("lease_whose_pages_are_removed_keeps_its_token") else { return };
    let lease = cache.acquire(mappings.address(4), 8 * PAGE_BYTES).unwrap();
    assert!(mappings.unmap(4, 8) && mappings.map(4, 8) && mappings.write(4, 7));
    cache.tidy();
    assert_eq!((cache.size().0, cache.driver().size().0), (0, 1));
    let new = cache.acquire(mappings.address(4), PAGE_BYTES).unwrap();
    assert_eq!(cache.driver().seen(&lease)[0], 104, "the old page");
    assert_eq!(cache.driver().seen(&new), [7]);
    drop(lease);
    assert_eq!((cache.size().0, cache.driver().size().0), (1, 1));
}

#[test]
fn pages_of_two_caches_stay_watched_until_both_drop() {
    let Some((first, mut mappings)) = prepared("pages_of_two_caches_stay_watched_until_both_drop") else {
        return;
    };
    let Some(second) = cache(Limits::default(), 1000) else { return };
    assert_sees_memory(&second, mappings.address(6), 10);
    drop(first);
    assert!(mappings.unmap(8, 1) && mappings.map(8, 1) && mappings.write(8, 5));
    assert_sees_memory(&second, mappings.address(6), 10);
    assert_eq!(second.counts().stale, 1);
}

#[test]
fn ranges_that_overlap_become_one() {
    let Some((cache, mappings)) = prepared("ranges_that_overlap_become_one") else { return };
    assert_sees_memory(&cache, mappings.address(8), 8);
    assert_eq!((cache.size(), cache.driver().size()), ((1, 12 * PAGE_BYTES), (1, 12)));
    assert_sees_memory(&cache, mappings.address(4), 12);
    assert_eq!(cache.counts().hits, 2);
}

#[test]
fn range_with_hole_is_not_kept() {
    let Some((cache, mut mappings)) = prepared("range_with_hole_is_not_kept") else { return };
    assert!(mappings.unmap(21, 1));
    assert_eq!(cache.acquire(mappings.address(20), 3 * PAGE_BYTES).map(drop), Err(Refused::Driver(14)));
    assert_eq!(cache.size().0, 1);
}

/// A driver that registers any address.
#[derive(Debug)]
struct AcceptAll;

impl Register for AcceptAll {
    type Token = ();
    fn register(&self, _: Range) -> Result<(), i32> {
        Ok(())
    }
    fn deregister(&self, _: Range, _: ()) {}
}

#[test]
fn file_pages_are_not_kept() {
    static CONSTANTS: [u64; 4096] = [7; 4096];
    let cache = Cache::new(AcceptAll, Limits::default(), true).unwrap();
    if cache.mode() != CacheMode::Keeps {
        return eprintln!("SKIPPED: {}", cache.mode());
    }
    for _ in 0..2 {
        let lease = cache.acquire(CONSTANTS.as_ptr().addr() as u64, 3 * PAGE_BYTES).unwrap();
        assert!(!lease.is_kept());
    }
    assert_eq!((cache.counts().unwatchable, cache.size().0), (2, 0), "the program's own file");
}

#[test]
fn forget_drops_registration() {
    let Some((cache, mappings)) = prepared("forget_drops_registration") else { return };
    cache.forget(mappings.address(5), 1);
    assert_eq!((cache.size().0, cache.driver().size().0, cache.counts().stale), (0, 0, 1));
    assert_eq!(cache.acquire(0, 0).map(drop), Err(Refused::Range));
}

#[test]
fn cache_at_its_limits_evicts_least_recently_used() {
    let limits = Limits { entries: 3, bytes: 8 * PAGE_BYTES };
    let Some(cache) = cache(limits, 1000) else { return };
    let mappings = TestMappings::new(64).unwrap();
    for page in [0, 2, 4, 0, 6] {
        drop(cache.acquire(mappings.address(page), PAGE_BYTES).unwrap());
    }
    assert_eq!((cache.counts().evicted, cache.size().0), (1, 3));
    for page in [0, 4, 6] {
        drop(cache.acquire(mappings.address(page), PAGE_BYTES).unwrap());
    }
    assert_eq!(cache.counts().hits, 4, "page 2 was evicted");
    let held: Vec<_> = (0..4).map(|n| cache.acquire(mappings.address(20 + 4 * n), 2 * PAGE_BYTES).unwrap()).collect();
    assert_eq!(cache.counts().full, 1, "the fourth finds all in use");
    assert!(!held[3].is_kept() && cache.driver().size().0 == 4);
    drop(held);
    assert_eq!(cache.driver().size().0, 3);
    assert!(!cache.acquire(mappings.address(40), 9 * PAGE_BYTES).unwrap().is_kept(), "larger than the limit");
    assert_eq!(cache.driver().size().0, 3);
}

#[test]
fn driver_without_room_gets_room_by_eviction() {
    let Some(cache) = cache(Limits::default(), 10) else { return };
    let mappings = TestMappings::new(64).unwrap();
    for page in 0..20 {
        drop(cache.acquire(mappings.address(3 * page), 2 * PAGE_BYTES).unwrap());
    }
    assert_eq!((cache.counts().evicted, cache.driver().size()), (15, (5, 10)));
    let held = cache.acquire(mappings.address(0), 8 * PAGE_BYTES).unwrap();
    assert_eq!(
        cache.acquire(mappings.address(20), 3 * PAGE_BYTES).map(drop),
        Err(Refused::Driver(12)),
        "in use, so not given up"
    );
    drop(held);
    drop(cache.acquire(mappings.address(20), 3 * PAGE_BYTES).unwrap());
}

#[test]
fn cache_switched_off_registers_each_time() {
    let cache = Cache::new(Pins::new(100), Limits::default(), false).unwrap();
    let mappings = TestMappings::new(8).unwrap();
    for _ in 0..3 {
        assert_sees_memory(&cache, mappings.address(0), 8);
    }
    assert_eq!((cache.counts().not_keeping, cache.size().0, cache.driver().size().0), (3, 0, 0));
    assert_eq!(cache.mode(), CacheMode::Off);
    assert!(cache.mode().to_string().contains("registration_cache"));
}
