//! Memory of an allocator that unmaps and discards pages on its own.

use crate::support::{assert_sees_memory, cache};
use motet_regcache::Limits;
use motet_sys::test_mappings::{PAGE_BYTES, TestMappings};

/// The first whole page in a block, and the number of whole pages.
fn inside(block: &[u64]) -> (u64, u64) {
    let start = (block.as_ptr().addr() as u64).next_multiple_of(PAGE_BYTES);
    let end = (block.as_ptr().addr() as u64 + 8 * block.len() as u64) / PAGE_BYTES * PAGE_BYTES;
    (start, (end - start) / PAGE_BYTES)
}

#[test]
fn blocks_freed_and_allocated_again_are_seen() {
    let Some(cache) = cache(Limits { entries: 64, bytes: 64 << 20 }, 100_000) else { return };
    let mut places = std::collections::BTreeSet::new();
    let mut again = 0;
    for round in 0..200u64 {
        let block = vec![round; 64 * 1024 / 8 * (1 + round as usize % 7)];
        let (start, pages) = inside(&block);
        again += u32::from(!places.insert(start));
        assert_sees_memory(&cache, start, pages);
    }
    assert!(again > 0, "addresses were reused, otherwise this test proves nothing");
}

#[test]
fn blocks_reallocated_are_seen() {
    let Some(cache) = cache(Limits { entries: 64, bytes: 64 << 20 }, 100_000) else { return };
    for round in 0..20u64 {
        let mut block = vec![round; 40_000];
        for step in 0..8 {
            let (start, pages) = inside(&block);
            assert_sees_memory(&cache, start, pages.min(200));
            if step % 3 == 2 {
                block.truncate(30_000);
                block.shrink_to_fit();
            } else {
                block.resize(block.len() * 3 / 2, round * 100 + step);
                block.fill(round * 1000 + step);
            }
        }
    }
}

/// The behaviour of jemalloc: it keeps extents, discards their pages after some time without use (lazily first, then at once), and writes to
/// them again.
#[test]
fn extents_purged_and_used_again_are_seen() {
    let Some(cache) = cache(Limits { entries: 16, bytes: 64 << 20 }, 100_000) else { return };
    let mappings = TestMappings::new(128).unwrap();
    for round in 0..300u64 {
        let (page, pages) = (round * 37 % 112, 1 + round * 13 % 16);
        assert!((page..page + pages).all(|page| mappings.write(page, round * 1000 + page)));
        assert_sees_memory(&cache, mappings.address(page), pages);
        assert!(mappings.discard(page, pages, round % 3 == 0));
        if round % 3 == 0 {
            assert!(mappings.discard(page, pages, false));
        }
    }
    assert!(cache.counts().stale > 0);
    cache.tidy();
    assert_eq!(cache.size().0, cache.driver().size().0);
}
