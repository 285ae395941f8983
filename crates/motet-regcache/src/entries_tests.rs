//! The set of registrations against a list as its model.

use super::*;
use proptest::prelude::*;

fn pages(start: u64, length: u64) -> Range {
    Range { start: start * PAGE_BYTES, end: (start + length) * PAGE_BYTES }
}

#[test]
fn range_of_bytes_is_whole_pages() {
    assert_eq!(Range::of_pages(PAGE_BYTES + 1, 1), Some(pages(1, 1)));
    assert_eq!(Range::of_pages(PAGE_BYTES - 1, 2), Some(pages(0, 2)));
    assert_eq!(Range::of_pages(PAGE_BYTES, 0), None);
    assert_eq!(Range::of_pages(u64::MAX, 1), None);
    assert_eq!(Range::of_pages(u64::MAX - 1, 3), None);
}

#[test]
fn window_that_slides_registers_few_pages() {
    let (mut entries, mut given_up, mut registered) = (Entries::default(), Vec::new(), 0);
    for at in 0..1000 {
        let range = pages(at * 8, 16);
        if entries.take(&range).is_none() {
            let plan = entries.plan(range);
            registered += plan.length();
            let at = entries.put(plan, (), &mut given_up);
            entries.end_lease(at, &mut given_up);
        }
    }
    assert!(registered < 20 * 8000 * PAGE_BYTES, "{} pages", registered / PAGE_BYTES);
}

#[test]
fn small_range_at_edge_of_large_one_stays_separate() {
    let (mut entries, mut given_up) = (Entries::default(), Vec::new());
    let large = entries.put(pages(0, 1000), 1, &mut given_up);
    let small = pages(999, 2);
    assert_eq!(entries.plan(small), small);
    entries.put(small, 2, &mut given_up);
    assert_eq!(entries.take(&small).map(|found| found.2), Some(2));
    assert_eq!(entries.take(&pages(3, 900)).map(|found| found.0), Some(large));
    assert!(given_up.is_empty());
}

#[test]
fn eviction_takes_least_recently_used_without_lease() {
    let (mut entries, mut given_up) = (Entries::default(), Vec::new());
    let all: Vec<u32> = (0..4).map(|n| entries.put(pages(n * 10, 1), n, &mut given_up)).collect();
    assert!(!entries.evict(&mut given_up), "all are in use");
    for at in [2, 0, 1] {
        entries.end_lease(all[at], &mut given_up);
    }
    assert!(entries.take(&pages(20, 1)).is_some());
    entries.end_lease(all[2], &mut given_up);
    while entries.evict(&mut given_up) {}
    assert_eq!(given_up.iter().map(|entry| entry.1).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(entries.size(), (1, PAGE_BYTES));
}

#[derive(Debug, Clone)]
enum Step {
    Acquire(u64, u64),
    Release(prop::sample::Index),
    Invalidate(u64, u64),
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..100, 1u64..40).prop_map(|(at, length)| Step::Acquire(at, length)),
        4 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => (0u64..100, 1u64..10).prop_map(|(at, length)| Step::Invalidate(at, length)),
        1 => Just(Step::Evict),
    ]
}

proptest! {
    /// Every registration is given up once, after its last lease; none with removed pages is found; every kept one is found.
    #[test]
    fn entries_under_random_steps_equal_a_list(steps in prop::collection::vec(step(), 1..200)) {
        let mut entries = Entries::<usize>::default();
        // By token: its range, its leases, whether its pages exist, whether it was given up.
        let mut model: Vec<(Range, u32, bool, bool)> = Vec::new();
        let mut held: Vec<(u32, usize)> = Vec::new();
        for step in steps {
            let mut given_up = Vec::new();
            match step {
                Step::Acquire(at, length) => {
                    let range = pages(at, length);
                    let (at, token) = match entries.take(&range) {
                        Some((at, covers, token)) => {
                            prop_assert!(covers.covers(&range) && model[token].2 && !model[token].3);
                            prop_assert_eq!(covers, model[token].0);
                            (at, token)
                        }
                        None => {
                            let plan = entries.plan(range);
                            prop_assert!(plan.covers(&range) && plan.length() < 200 * PAGE_BYTES);
                            model.push((plan, 0, true, false));
                            (entries.put(plan, model.len() - 1, &mut given_up), model.len() - 1)
                        }
                    };
                    model[token].1 += 1;
                    held.push((at, token));
                    let again = entries.take(&range).map(|(at, ..)| at);
                    prop_assert!(again.is_some(), "the range that was just added is found");
                    entries.end_lease(again.unwrap_or(0), &mut given_up);
                }
                Step::Release(which) if !held.is_empty() => {
                    let (at, token) = held.swap_remove(which.index(held.len()));
                    model[token].1 -= 1;
                    entries.end_lease(at, &mut given_up);
                }
                Step::Release(_) => {}
                Step::Invalidate(at, length) => {
                    let range = pages(at, length);
                    entries.invalidate(&range, &mut given_up);
                    model.iter_mut().filter(|entry| entry.0.overlaps(&range)).for_each(|entry| entry.2 = false);
                }
                Step::Evict => {
                    entries.evict(&mut given_up);
                }
            }
            for (range, token) in given_up {
                prop_assert_eq!(range, model[token].0);
                prop_assert!(model[token].1 == 0 && !model[token].3);
                model[token].3 = true;
            }
        }
        let mut given_up = Vec::new();
        entries.invalidate_all(&mut given_up);
        held.into_iter().for_each(|(at, _)| entries.end_lease(at, &mut given_up));
        given_up.into_iter().for_each(|(_, token)| model[token].3 = true);
        prop_assert!(model.iter().all(|entry| entry.3));
        prop_assert_eq!(entries.size(), (0, 0));
        prop_assert!(entries.oldest == NO_ENTRY && entries.newest == NO_ENTRY);
    }
}
