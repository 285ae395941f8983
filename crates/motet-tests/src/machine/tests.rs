//! The judgement on recorded samples, and what follows from it.

use super::*;
use std::cell::Cell;

impl Words for usize {
    fn words(&self) -> String {
        format!("try {self}")
    }
}

/// Recorded: ms, ticks of all CPUs, ticks that the host gave to others.
fn verdict(recorded: &[(u64, u64, u64)]) -> Option<String> {
    let sample = |&(ms, all, stolen)| Sample { at: Duration::from_millis(ms), all, stolen };
    judged(&recorded.iter().map(sample).collect::<Vec<_>>())
}

#[test]
fn a_machine_that_has_its_cpus_was_not_robbed() {
    let idle = [(0, 0, 0), (100, 20, 0), (201, 40, 0), (301, 60, 0), (401, 80, 0), (502, 101, 0), (602, 120, 0)];
    assert_eq!(verdict(&idle), None);
    // The host takes a little here and there, as hosts do: 28 parts of a hundred at most.
    let busy = [
        (15190, 3039, 7),
        (15291, 3059, 7),
        (15392, 3081, 8),
        (15494, 3102, 14),
        (15595, 3122, 14),
        (15696, 3142, 14),
        (15796, 3162, 14),
        (15897, 3182, 14),
        (15997, 3202, 15),
    ];
    assert_eq!(verdict(&busy), None);
    let again = [
        (50208, 10126, 114),
        (50312, 10147, 115),
        (50414, 10168, 115),
        (50516, 10188, 115),
        (50617, 10210, 117),
        (50722, 10231, 117),
        (50823, 10259, 125),
        (50923, 10279, 125),
    ];
    assert_eq!(verdict(&again), None);
}

#[test]
fn a_host_that_takes_cpus_for_one_period_has_robbed_it() {
    let mut taken = vec![(137017, 27438, 145), (137119, 27462, 148), (137221, 27484, 156), (137323, 27507, 162)];
    let why = verdict(&taken);
    assert_eq!(why.as_deref(), Some("the host took 36 % of this machine's CPUs for 102ms (8 ticks)"));
    // As surely in a long time in which it takes nothing else.
    taken.extend((1..1000).map(|n| (137323 + n * 100, 27507 + n * 20, 162)));
    assert_eq!(verdict(&taken), why);
}

#[test]
fn a_host_that_takes_a_little_all_the_time_has_robbed_it() {
    let always = [(137017, 27438, 145), (137119, 27462, 148)];
    assert_eq!(verdict(&always).as_deref(), Some("the host took 12 % of this machine's CPUs (3 ticks)"));
    let once = [(15190, 3039, 7), (15291, 3059, 7), (15392, 3081, 8)];
    assert_eq!(verdict(&once), None);
}

/// Recorded by a process that was stopped for 400 ms: what it sees is that its time is gone.
#[test]
fn a_machine_that_stands_still_was_robbed() {
    let stopped = [(503, 100, 0), (604, 121, 0), (1039, 207, 0), (1139, 227, 0), (1239, 248, 0)];
    assert_eq!(verdict(&stopped).as_deref(), Some("this machine stood still for 435ms"));
    assert_eq!(verdict(&stopped[2..]), None);
}

#[test]
fn nothing_is_said_of_no_samples_and_of_one_tick() {
    assert_eq!((verdict(&[]), verdict(&[(0, 0, 0)])), (None, None));
    assert_eq!(verdict(&[(0, 100, 0), (10, 102, 1)]), None);
}

#[test]
fn the_times_of_guests_are_not_counted_twice() {
    let stat = "cpu  4661648 1359436 1477643 2731095 65907 0 94846 833691 12 34\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
    assert_eq!(ticks(stat), (11_224_266, 833_691));
    assert_eq!(ticks(""), (0, 0));
}

#[test]
fn a_watch_tells_of_the_time_since_its_start() {
    let watch = Watch::start();
    let before = sampler().samples.lock().unwrap().len();
    // Robbed or not: there is a sample behind the question.
    let _ = watch.robbed();
    let samples = sampler().samples.lock().unwrap();
    assert!(samples.len() > before && samples.iter().is_sorted_by_key(|sample| sample.at));
    assert!(samples.iter().any(|sample| sample.at <= watch.0) && samples.last().unwrap().at > watch.0);
    assert!(samples.last().unwrap().all > 0, "/proc/stat is read");
}

/// Attempts that fail so many times, each with this excuse or none; how many there were, and the result.
fn attempts(fail: usize, excuse: impl Fn(usize) -> bool) -> (usize, Result<(), usize>) {
    let made = Cell::new(0);
    let result = tried("this", &[Duration::ZERO; 4], || {
        made.update(|made| made + 1);
        let number = made.get();
        if number > fail { Ok(()) } else { Err((number, excuse(number).then(|| "robbed".to_owned()))) }
    });
    (made.get(), result)
}

#[test]
fn a_failure_is_tried_again_only_where_there_is_an_excuse() {
    assert_eq!(attempts(0, |_| false), (1, Ok(())));
    assert_eq!(attempts(1, |_| false), (1, Err(1)), "a fault, at once");
    assert_eq!(attempts(2, |_| true), (3, Ok(())));
    assert_eq!(attempts(9, |number| number < 3), (3, Err(3)), "the machine had its CPUs the third time");
    assert_eq!(attempts(9, |_| true), (5, Err(5)), "a fault on a machine that is robbed for ever");
}

/// Attempts of which the one with this number succeeds; how many there were, and whether one did.
fn at_times(succeeding: usize, robbed: bool) -> (usize, bool) {
    let made = Cell::new(0);
    let robbed = || robbed.then(|| "robbed".to_owned());
    let succeeded = succeeds(&[Duration::ZERO; 3], &[Duration::ZERO; 2], robbed, || {
        made.update(|made| made + 1);
        made.get() == succeeding
    });
    (made.get(), succeeded)
}

#[test]
fn some_attempts_are_always_made_and_more_on_a_robbed_machine() {
    assert_eq!(at_times(1, false), (1, true));
    assert_eq!(at_times(3, false), (3, true));
    assert_eq!(at_times(4, false), (3, false), "a fault, as soon as ever");
    assert_eq!(at_times(4, true), (4, true));
    assert_eq!(at_times(9, true), (5, false), "a fault on a robbed machine");
}
