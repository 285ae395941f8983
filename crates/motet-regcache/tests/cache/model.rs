//! Random operations on real mappings: every lease sees the pages that are mapped at the time.

use crate::support::{alone, assert_sees_memory, cache};
use motet_regcache::Limits;
use motet_sys::test_mappings::TestMappings;
use proptest::prelude::*;

const PAGES: u64 = 48;

#[derive(Debug, Clone)]
enum Step {
    Acquire(u64, u64),
    Hold(u64, u64),
    Release(prop::sample::Index),
    Write(u64, u64),
    Unmap(u64, u64),
    Map(u64, u64),
    Replace(u64, u64),
    Discard(u64, u64, bool),
    Shift(u64, u64, u64),
    Resize(u64, u64, u64),
    Tidy,
}

fn step() -> impl Strategy<Value = Step> {
    let part = (0..PAGES - 12, 1u64..12);
    prop_oneof![
        8 => part.clone().prop_map(|(page, pages)| Step::Acquire(page, pages)),
        2 => part.clone().prop_map(|(page, pages)| Step::Hold(page, pages)),
        2 => any::<prop::sample::Index>().prop_map(Step::Release),
        3 => part.clone().prop_map(|(page, pages)| Step::Write(page, pages)),
        2 => part.clone().prop_map(|(page, pages)| Step::Unmap(page, pages)),
        4 => part.clone().prop_map(|(page, pages)| Step::Map(page, pages)),
        2 => part.clone().prop_map(|(page, pages)| Step::Replace(page, pages)),
        2 => (part.clone(), any::<bool>()).prop_map(|((page, pages), later)| Step::Discard(page, pages, later)),
        2 => (part.clone(), 0..PAGES - 12).prop_map(|((page, pages), to)| Step::Shift(page, pages, to)),
        1 => (part, 1u64..12).prop_map(|((page, pages), now)| Step::Resize(page, pages, now)),
        1 => Just(Step::Tidy),
    ]
}

#[test]
fn leases_under_random_steps_see_mapped_pages() {
    if alone("model::leases_under_random_steps_see_mapped_pages") {
        let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(steps in prop::collection::vec(step(), 1..80))| run(steps)?);
    }
}

fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let Some(cache) = cache(Limits { entries: 6, bytes: 40 * 4096 }, 200) else { return Ok(()) };
    let mut mappings = TestMappings::new(PAGES).unwrap();
    let mut held = Vec::new();
    for (number, step) in steps.into_iter().enumerate() {
        let number = number as u64 + 1;
        match step {
            Step::Acquire(page, pages) if mappings.has(page, pages) => {
                assert_sees_memory(&cache, mappings.address(page), pages);
            }
            Step::Hold(page, pages) if mappings.has(page, pages) && held.len() < 5 => {
                held.push(cache.acquire(mappings.address(page), pages * 4096).unwrap());
            }
            Step::Release(which) if !held.is_empty() => drop(held.swap_remove(which.index(held.len()))),
            Step::Write(page, pages) if mappings.has(page, pages) => {
                prop_assert!((page..page + pages).all(|page| mappings.write(page, number * 100 + page)));
            }
            Step::Unmap(page, pages) => drop(mappings.unmap(page, pages)),
            Step::Map(page, pages) => drop(mappings.map(page, pages)),
            Step::Replace(page, pages) => drop(mappings.replace(page, pages)),
            Step::Discard(page, pages, later) => drop(mappings.discard(page, pages, later)),
            Step::Shift(page, pages, to) => drop(mappings.move_pages(page, pages, to)),
            Step::Resize(page, pages, now) => drop(mappings.resize(page, pages, now)),
            Step::Tidy => cache.tidy(),
            _ => {}
        }
    }
    drop(held);
    drop(mappings);
    cache.tidy();
    prop_assert_eq!((cache.size().0, cache.driver().size().0), (0, 0), "no registration is left");
    Ok(())
}
