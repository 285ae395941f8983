//! Forked children, processes that may not watch memory, and other conditions of a whole process: each test runs in a process of its own.

use crate::support::{Pins, alone, assert_sees_memory, cache};
use motet_regcache::{Cache, CacheMode, Limits, Refused};
use motet_sys::test_mappings::{PAGE_BYTES, ProgramBreak, TestMappings, deny_userfaultfd, in_child};

#[test]
fn forked_child_has_no_registrations_and_parent_keeps_its() {
    if !alone("alone::forked_child_has_no_registrations_and_parent_keeps_its") {
        return;
    }
    let Some(cache) = cache(Limits::default(), 1000) else { return };
    let mut mappings = TestMappings::new(16).unwrap();
    let mut lease = Some(cache.acquire(mappings.address(0), 8 * PAGE_BYTES).unwrap());
    let child = in_child(|| {
        let refused = cache.acquire(mappings.address(0), PAGE_BYTES).map(drop) == Err(Refused::Forked);
        drop(lease.take());
        cache.tidy();
        cache.forget(mappings.address(0), PAGE_BYTES);
        // The child has no reader, and nothing waits for one.
        let free = mappings.unmap(2, 1) && mappings.discard(4, 1, false);
        // The child may have a cache of its own.
        let Some(own) = super::support::cache(Limits::default(), 1000) else { return false };
        assert_sees_memory(&own, mappings.address(5), 4);
        assert!(mappings.unmap(6, 1) && mappings.map(6, 1) && mappings.write(6, 9));
        assert_sees_memory(&own, mappings.address(5), 4);
        refused && free && cache.size() == (0, 0) && own.counts().stale == 1
    });
    assert_eq!(child, Ok(true));
    assert_eq!((cache.size().0, cache.counts().stale, cache.driver().size().0), (1, 0, 1));
    drop(cache.acquire(mappings.address(1), PAGE_BYTES).unwrap());
    assert_eq!(cache.counts().hits, 1);
    assert!(mappings.unmap(2, 1) && mappings.map(2, 1));
    drop(lease);
    cache.tidy();
    assert_eq!((cache.size().0, cache.counts().stale, cache.driver().size().0), (0, 1, 0));
}

#[test]
fn cache_without_userfaultfd_keeps_nothing_and_says_so() {
    if !alone("alone::cache_without_userfaultfd_keeps_nothing_and_says_so") {
        return;
    }
    deny_userfaultfd().unwrap();
    let cache = Cache::new(Pins::new(100), Limits::default(), true).unwrap();
    assert_eq!(cache.mode(), CacheMode::NotPermitted(1));
    assert!(cache.mode().to_string().contains("userfaultfd"));
    let mut mappings = TestMappings::new(8).unwrap();
    for number in 0..3 {
        assert!(mappings.unmap(1, 1) && mappings.map(1, 1) && mappings.write(1, number));
        assert_sees_memory(&cache, mappings.address(0), 8);
    }
    assert_eq!((cache.counts().not_keeping, cache.driver().size().0), (3, 0));
}

#[test]
fn cache_after_descriptors_closed_keeps_nothing() {
    if !alone("alone::cache_after_descriptors_closed_keeps_nothing") {
        return;
    }
    let Some(cache) = cache(Limits::default(), 1000) else { return };
    let mut mappings = TestMappings::new(8).unwrap();
    assert!((0..8).all(|page| mappings.write(page, page)));
    assert_sees_memory(&cache, mappings.address(0), 8);
    assert!(motet_sys::test_mappings::close_private() > 0);
    assert!(mappings.unmap(1, 1) && mappings.map(1, 1) && mappings.write(1, 77));
    assert_sees_memory(&cache, mappings.address(0), 8);
    assert_eq!((cache.mode(), cache.size().0, cache.driver().size().0), (CacheMode::Lost, 0, 0));
    assert_sees_memory(&cache, mappings.address(0), 8);
    assert_eq!(cache.counts().not_keeping, 2);
}

#[test]
fn heap_that_shrinks_drops_its_registration() {
    if !alone("alone::heap_that_shrinks_drops_its_registration") {
        return;
    }
    let Some(cache) = cache(Limits::default(), 10_000) else { return };
    let mut heap = ProgramBreak::grow(16).unwrap();
    assert!((0..16).all(|page| heap.write(page, page + 1)));
    let start = heap.start;
    assert_sees_memory(&cache, start, 16);
    if !heap.shrink(4) {
        return eprintln!("SKIPPED: another thread has moved the end of the heap");
    }
    cache.tidy();
    assert_eq!((cache.counts().stale, cache.driver().size().0), (1, 0));
    assert_sees_memory(&cache, start, 4);
    assert!(heap.shrink(0));
}
