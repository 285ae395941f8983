//! The interval structure against a list.

use super::*;
use proptest::prelude::*;

fn pages(start: u64, length: u64) -> Range {
    Range { start: start * PAGE, end: (start + length) * PAGE }
}

#[test]
fn ranges_are_whole_pages() {
    assert_eq!(Range::of_pages(PAGE + 1, 1), Some(pages(1, 1)));
    assert_eq!(Range::of_pages(PAGE - 1, 2), Some(pages(0, 2)));
    assert_eq!(Range::of_pages(PAGE, 0), None);
    assert_eq!(Range::of_pages(u64::MAX, 1), None);
    assert_eq!(Range::of_pages(u64::MAX - 1, 3), None);
}

#[test]
fn a_window_that_slides_does_not_register_everything_each_time() {
    let (mut entries, mut graves, mut registered) = (Entries::default(), Vec::new(), 0);
    for at in 0..1000 {
        let range = pages(at * 8, 16);
        if entries.take(&range).is_none() {
            let plan = entries.plan(range);
            registered += plan.length();
            let at = entries.put(plan, (), &mut graves);
            entries.leave(at, &mut graves);
        }
    }
    assert!(registered < 20 * 8000 * PAGE, "{} pages", registered / PAGE);
}

#[test]
fn a_small_one_at_the_edge_of_a_large_one_leaves_it_alone() {
    let (mut entries, mut graves) = (Entries::default(), Vec::new());
    let large = entries.put(pages(0, 1000), 1, &mut graves);
    let small = pages(999, 2);
    assert_eq!(entries.plan(small), small);
    entries.put(small, 2, &mut graves);
    assert_eq!(entries.take(&small).map(|found| found.2), Some(2));
    assert_eq!(entries.take(&pages(3, 900)).map(|found| found.0), Some(large));
    assert!(graves.is_empty());
}

#[test]
fn the_least_recently_used_goes_first_and_never_one_in_use() {
    let (mut entries, mut graves) = (Entries::default(), Vec::new());
    let all: Vec<u32> = (0..4).map(|n| entries.put(pages(n * 10, 1), n, &mut graves)).collect();
    assert!(!entries.evict(&mut graves), "all are in use");
    for at in [2, 0, 1] {
        entries.leave(all[at], &mut graves);
    }
    assert!(entries.take(&pages(20, 1)).is_some());
    entries.leave(all[2], &mut graves);
    while entries.evict(&mut graves) {}
    assert_eq!(graves.iter().map(|grave| grave.1).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(entries.size(), (1, PAGE));
}

#[derive(Debug, Clone)]
enum Step {
    Acquire(u64, u64),
    Release(prop::sample::Index),
    Take(u64, u64),
    Evict,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..100, 1u64..40).prop_map(|(at, length)| Step::Acquire(at, length)),
        4 => any::<prop::sample::Index>().prop_map(Step::Release),
        2 => (0u64..100, 1u64..10).prop_map(|(at, length)| Step::Take(at, length)),
        1 => Just(Step::Evict),
    ]
}

proptest! {
    /// Every registration is buried once, after its last user; nothing whose pages went is found; what is kept is found.
    #[test]
    fn as_a_list(steps in prop::collection::vec(step(), 1..200)) {
        let mut entries = Entries::<usize>::default();
        // By token: its range, its users, whether its pages are there, whether it is buried.
        let mut model: Vec<(Range, u32, bool, bool)> = Vec::new();
        let mut held: Vec<(u32, usize)> = Vec::new();
        for step in steps {
            let mut graves = Vec::new();
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
                            prop_assert!(plan.covers(&range) && plan.length() < 200 * PAGE);
                            model.push((plan, 0, true, false));
                            (entries.put(plan, model.len() - 1, &mut graves), model.len() - 1)
                        }
                    };
                    model[token].1 += 1;
                    held.push((at, token));
                    let again = entries.take(&range).map(|(at, ..)| at);
                    prop_assert!(again.is_some(), "what was just put is found");
                    entries.leave(again.unwrap_or(0), &mut graves);
                }
                Step::Release(which) if !held.is_empty() => {
                    let (at, token) = held.swap_remove(which.index(held.len()));
                    model[token].1 -= 1;
                    entries.leave(at, &mut graves);
                }
                Step::Release(_) => {}
                Step::Take(at, length) => {
                    let range = pages(at, length);
                    entries.take_away(&range, &mut graves);
                    model.iter_mut().filter(|entry| entry.0.overlaps(&range)).for_each(|entry| entry.2 = false);
                }
                Step::Evict => {
                    entries.evict(&mut graves);
                }
            }
            for (range, token) in graves {
                prop_assert_eq!(range, model[token].0);
                prop_assert!(model[token].1 == 0 && !model[token].3);
                model[token].3 = true;
            }
        }
        let mut graves = Vec::new();
        entries.take_all_away(&mut graves);
        held.into_iter().for_each(|(at, _)| entries.leave(at, &mut graves));
        graves.into_iter().for_each(|(_, token)| model[token].3 = true);
        prop_assert!(model.iter().all(|entry| entry.3));
        prop_assert_eq!(entries.size(), (0, 0));
        prop_assert!(entries.oldest == NOWHERE && entries.newest == NOWHERE);
    }
}
