//! Turns, sleepers, and what is said of the value.

use super::*;

/// Every sleeper is woken: one that is not would wait for ever once the others are done.
#[test]
fn no_sleeper_is_forgotten() {
    let lock = Lock::new(0);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let held = lock.lock();
            for _ in 0..4 {
                scope.spawn(|| *lock.lock() += 1);
            }
            std::thread::sleep(std::time::Duration::from_millis(5)); // so that they sleep, most likely
            drop(held);
        });
    }
    assert_eq!(*lock.lock(), 80);
}

#[test]
fn threads_take_turns() {
    let counter = Lock::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
        }
    });
    assert_eq!(*counter.lock(), 120_000);
}

#[test]
fn all_who_sleep_for_it_are_woken() {
    let value = Lock::new(0u32);
    for _ in 0..20 {
        let guard = value.lock();
        std::thread::scope(|scope| {
            (0..6).for_each(|_| drop(scope.spawn(|| *value.lock() += 1)));
            // Until all of them sleep, most likely; it does not matter when not.
            crate::thread::nap(3_000_000);
            drop(guard);
        });
    }
    assert_eq!(*value.lock(), 120);
}

#[test]
fn who_holds_it_long_lends_it() {
    let value = Lock::new(0u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = value.lock();
            while *guard < 1000 {
                if guard.is_wanted() {
                    guard.lend();
                }
            }
        });
        for _ in 0..2 {
            scope.spawn(|| (0..500).for_each(|_| *value.lock() += 1));
        }
    });
    assert_eq!(*value.lock(), 1000);
}

#[test]
fn a_panic_without_the_lock_leaves_it_held_by_nobody() {
    let value = Lock::new(1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guard = value.lock();
        guard.unlocked(|| panic!("as a handler might"));
    }));
    assert!(caught.is_err());
    assert_eq!(*value.lock(), 1);
}

#[test]
fn the_biased_user_and_others_take_turns() {
    let counter = Lock::new(0u64);
    let mut bias = counter.bias().expect("the first one, where there is a barrier");
    assert!(counter.bias().is_none(), "one at a time");
    std::thread::scope(|scope| {
        for pause in [0, 1, 20] {
            let counter = &counter;
            scope.spawn(move || {
                for _ in 0..2000 {
                    *counter.lock() += 1;
                    (0..pause * 100).for_each(|_| std::hint::spin_loop());
                }
            });
        }
        // Its way is opened and closed all the time: there are turns enough for that between those of the others.
        for turn in 0..3_000_000u32 {
            let mut guard = counter.lock_biased(&mut bias);
            *guard += 1;
            match turn % 100_000 {
                0 => guard.unlocked(|| *counter.lock() += 1),
                1 => drop(guard),
                _ => guard.release(),
            }
        }
    });
    assert_eq!(*counter.lock(), 3 * 2000 + 3_000_000 + 30);
    counter.end_bias(bias);
    assert_eq!(*counter.lock(), 3_006_030);
}

#[test]
fn a_way_is_open_after_so_many_turns_and_closed_by_anybody() {
    let value = Lock::new(0u32);
    let mut bias = value.bias().expect("the first one, where there is a barrier");
    let mut turn = |value: &Lock<u32>| value.lock_biased(&mut bias).biased;
    assert!((0..TURNS).all(|_| !turn(&value)));
    assert!(turn(&value) && turn(&value));
    drop(value.lock());
    assert!(!turn(&value));
    assert!((1..TURNS).all(|_| !turn(&value)) && turn(&value));
    let other = Lock::new(0u32);
    assert!(!turn(&other), "somebody else's lock is taken as by anybody");
    value.end_bias(bias);
    assert!(value.bias().is_some());
}

#[test]
fn one_thread_needs_no_exchange_and_nobody_else_gets_in() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let value = Lock::single(1);
    *value.lock() += 1;
    let other = std::thread::scope(|scope| scope.spawn(|| *value.lock()).join());
    assert!(other.is_err(), "another thread");
    let guard = value.lock();
    assert_eq!(*guard, 2);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(value.lock()))).is_err(), "from within");
}

#[test]
fn a_token_of_a_dropped_lock_gives_no_bias_on_the_next_one_at_its_address() {
    let mut value = Lock::new(0u32);
    let mut before = value.bias().expect("the first one, where there is a barrier");
    value = Lock::new(0);
    assert!((0..=TURNS).all(|_| !value.lock_biased(&mut before).biased), "a lock without a bias");
    let mut bias = value.bias().expect("the first one");
    assert!((0..=TURNS).all(|_| !value.lock_biased(&mut before).biased));
    value.end_bias(before);
    assert!((0..TURNS).all(|_| !value.lock_biased(&mut bias).biased));
    assert!(value.lock_biased(&mut bias).biased, "it still is");
}
