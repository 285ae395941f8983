//! Tests of the biased lock: sleepers, hand-over to waiters, the bias and its revocation, the single-threaded mode.

use super::*;

/// A sleeper that is not woken waits for ever once the others are done.
#[test]
fn sleepers_of_a_held_lock_are_all_woken() {
    let lock = BiasedLock::new(0);
    for _ in 0..20 {
        std::thread::scope(|scope| {
            let held = lock.lock();
            for _ in 0..4 {
                scope.spawn(|| *lock.lock() += 1);
            }
            std::thread::sleep(std::time::Duration::from_millis(5)); // until they sleep, most likely
            drop(held);
        });
    }
    assert_eq!(*lock.lock(), 80);
}

#[test]
fn locks_by_many_threads_are_exclusive() {
    let counter = BiasedLock::new(0u64);
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..20_000).for_each(|_| *counter.lock() += 1));
        }
    });
    assert_eq!(*counter.lock(), 120_000);
}

#[test]
fn sleepers_started_under_the_lock_are_all_woken() {
    let value = BiasedLock::new(0u32);
    for _ in 0..20 {
        let guard = value.lock();
        std::thread::scope(|scope| {
            (0..6).for_each(|_| drop(scope.spawn(|| *value.lock() += 1)));
            // Until all of them sleep, most likely. The test holds also if not.
            crate::thread::sleep_ns(3_000_000);
            drop(guard);
        });
    }
    assert_eq!(*value.lock(), 120);
}

#[test]
fn long_holder_yields_to_waiters() {
    let value = BiasedLock::new(0u32);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut guard = value.lock();
            while *guard < 1000 {
                if guard.has_waiters() {
                    guard.yield_to_waiters();
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
fn panic_in_unlocked_leaves_the_lock_free() {
    let value = BiasedLock::new(1);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut guard = value.lock();
        guard.unlocked(|| panic!("as a handler might"));
    }));
    assert!(caught.is_err());
    assert_eq!(*value.lock(), 1);
}

#[test]
fn biased_and_other_users_are_exclusive() {
    let counter = BiasedLock::new(0u64);
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
        // The bias is restored and revoked all the time: between two locks of the others are turns enough.
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
fn bias_is_restored_after_turns_and_revoked_by_a_lock() {
    let value = BiasedLock::new(0u32);
    let mut bias = value.bias().expect("the first one, where there is a barrier");
    let mut is_biased = |value: &BiasedLock<u32>| value.lock_biased(&mut bias).biased;
    assert!((0..TURNS_TO_RESTORE_BIAS).all(|_| !is_biased(&value)));
    assert!(is_biased(&value) && is_biased(&value));
    drop(value.lock());
    assert!(!is_biased(&value));
    assert!((1..TURNS_TO_RESTORE_BIAS).all(|_| !is_biased(&value)) && is_biased(&value));
    let other = BiasedLock::new(0u32);
    assert!(!is_biased(&other), "the token of another lock gives no bias");
    value.end_bias(bias);
    assert!(value.bias().is_some());
}

#[test]
fn single_threaded_lock_refuses_threads_and_nesting() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let value = BiasedLock::single_threaded(1);
    *value.lock() += 1;
    let other = std::thread::scope(|scope| scope.spawn(|| *value.lock()).join());
    assert!(other.is_err(), "another thread");
    let guard = value.lock();
    assert_eq!(*guard, 2);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(value.lock()))).is_err(), "locked twice");
}

#[test]
fn token_of_a_dropped_lock_gives_no_bias_on_its_successor() {
    let mut value = BiasedLock::new(0u32);
    let mut stale = value.bias().expect("the first one, where there is a barrier");
    value = BiasedLock::new(0);
    assert!((0..=TURNS_TO_RESTORE_BIAS).all(|_| !value.lock_biased(&mut stale).biased), "a lock without a bias");
    let mut bias = value.bias().expect("the first one");
    assert!((0..=TURNS_TO_RESTORE_BIAS).all(|_| !value.lock_biased(&mut stale).biased));
    value.end_bias(stale);
    assert!((0..TURNS_TO_RESTORE_BIAS).all(|_| !value.lock_biased(&mut bias).biased));
    assert!(value.lock_biased(&mut bias).biased, "still biased");
}
