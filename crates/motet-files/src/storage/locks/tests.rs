use super::held::{MAX_RANGES, MAX_WIDENED};
use super::*;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;

const FILES: [FileId; 2] = [(1, 10), (1, 11)];

fn range(kind: LockKind, start: u64, end: u64) -> LockRange {
    LockRange { kind, start, end, process: 0 }
}

fn exclusive(start: u64, end: u64) -> LockRange {
    range(LockKind::Exclusive, start, end)
}

fn shared(start: u64, end: u64) -> LockRange {
    range(LockKind::Shared, start, end)
}

fn owner(name: u64) -> Owner {
    Owner { client: name % 3, name }
}

fn errno(result: Result<()>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).unwrap_or(0)
}

const EAGAIN: i32 = 11;
const EDEADLK: i32 = 35;
const ESTALE: i32 = 116;
const ENOLCK: i32 = 37;

/// Two files with a table of locks.
struct Scene {
    _folder: tempfile::TempDir,
    files: [File; 2],
    table: LockTable,
    quota: Arc<Quota>,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |name: &str| {
            let path: &Path = &folder.path().join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).expect("a file")
        };
        Self {
            files: [open("one"), open("two")],
            _folder: folder,
            table: LockTable::default(),
            quota: Quota::new(100, None),
        }
    }

    fn through(&self, file: usize, opened: u64) -> Through<'_> {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        Through { file: FILES[file], opened, flags, since: 0, quota: &self.quota, descriptor: self.files[file].as_fd() }
    }

    fn set(&self, name: u64, file: usize, range: LockRange, wait: LockWait) -> i32 {
        errno(self.table.set(owner(name), &self.through(file, name), &range, wait))
    }

    /// A client takes a lock again that it has lost when there were so many grants.
    fn again(&self, name: u64, since: u64, range: LockRange) -> i32 {
        let through = Through { since, ..self.through(0, name) };
        errno(self.table.set(owner(name), &through, &range, LockWait::Again))
    }

    fn take(&self, name: u64, file: usize, range: LockRange) {
        assert_eq!(self.set(name, file, range, LockWait::No), 0);
    }
}

#[test]
fn owners_exclude_each_other_and_never_themselves() {
    let scene = Scene::new();
    scene.take(1, 0, exclusive(0, 9));
    assert_eq!(errno(scene.table.set(owner(1), &scene.through(0, 100), &shared(5, 20), LockWait::No)), 0);
    assert_eq!(scene.set(2, 0, shared(0, 0), LockWait::No), EAGAIN);
    scene.take(2, 0, shared(5, 5));
    scene.take(2, 1, exclusive(0, u64::MAX));
    let found = scene.table.test(owner(2), &scene.through(0, 2), &exclusive(3, 30)).expect("a lock");
    assert_eq!((found.kind, found.start, found.end), (LockKind::Exclusive, 0, 4));
    drop(scene.table.closed(1, FILES[0], 1));
    assert_eq!(scene.set(2, 0, exclusive(0, 0), LockWait::No), EAGAIN, "it has locked through another open file since");
    drop(scene.table.closed(1, FILES[0], 100));
    scene.take(2, 0, exclusive(0, u64::MAX));
    scene.take(2, 0, range(LockKind::Unlocked, 0, u64::MAX));
    scene.take(2, 1, range(LockKind::Unlocked, 0, u64::MAX));
    let table = scene.table.table();
    assert!(
        table.files.is_empty()
            && table.by_client.is_empty()
            && scene.quota.locked_ranges() == 0
            && table.waits.is_empty()
    );
}

#[test]
fn a_process_that_would_wait_for_itself_is_refused() {
    let scene = Scene::new();
    for name in [1, 2, 3] {
        scene.take(name, 0, exclusive(name * 10, name * 10));
    }
    assert_eq!(scene.set(1, 0, exclusive(20, 20), LockWait::OfProcess), EAGAIN);
    assert_eq!(scene.set(2, 0, exclusive(30, 30), LockWait::OfProcess), EAGAIN);
    assert_eq!(scene.set(3, 0, exclusive(10, 10), LockWait::OfProcess), EDEADLK);
    assert_eq!(
        scene.set(3, 0, exclusive(10, 10), LockWait::OfOpenFile),
        EAGAIN,
        "that of an open file cannot be known"
    );
    assert_eq!(scene.set(3, 0, exclusive(10, 10), LockWait::No), EAGAIN);
    // The first one gives up, and nothing is in a circle any more.
    scene.table.stop_waiting(owner(1), FILES[0], &exclusive(20, 20)).expect("a range");
    assert_eq!(scene.set(3, 0, exclusive(10, 10), LockWait::OfProcess), EAGAIN);
}

#[test]
fn two_that_share_a_lock_and_both_want_it_alone_do_not_wait_for_each_other() {
    let scene = Scene::new();
    for name in [1, 2] {
        scene.take(name, 0, shared(0, 9));
    }
    assert_eq!(scene.set(1, 0, exclusive(0, 9), LockWait::OfProcess), EAGAIN);
    assert_eq!(scene.set(2, 0, exclusive(0, 9), LockWait::OfProcess), EDEADLK);
    // Over two files.
    let scene = Scene::new();
    scene.take(1, 0, exclusive(0, 0));
    scene.take(2, 1, exclusive(0, 0));
    assert_eq!(scene.set(1, 1, shared(0, 0), LockWait::OfProcess), EAGAIN);
    assert_eq!(scene.set(2, 0, shared(0, 0), LockWait::OfProcess), EDEADLK);
}

#[test]
fn who_waits_first_gets_the_lock_first() {
    let scene = Scene::new();
    scene.take(1, 0, exclusive(0, 9));
    assert_eq!(scene.set(2, 0, exclusive(0, 9), LockWait::OfProcess), EAGAIN);
    assert_eq!(scene.set(3, 0, exclusive(5, 5), LockWait::OfProcess), EAGAIN);
    scene.take(1, 0, range(LockKind::Unlocked, 0, 9));
    assert_eq!(scene.set(1, 0, exclusive(0, 9), LockWait::OfProcess), EAGAIN, "others have waited");
    assert_eq!(scene.set(3, 0, exclusive(5, 5), LockWait::OfProcess), EAGAIN, "another one has waited longer");
    assert_eq!(scene.set(2, 0, exclusive(0, 9), LockWait::OfProcess), 0);
    assert_eq!(scene.set(2, 0, range(LockKind::Unlocked, 0, 9), LockWait::No), 0);
    assert_eq!(scene.set(1, 0, exclusive(0, 9), LockWait::OfProcess), EAGAIN, "one has waited longer");
    // One that does not wait does not look at those that do.
    scene.take(2, 0, exclusive(0, 3));
    assert_eq!(scene.set(3, 0, exclusive(5, 5), LockWait::OfProcess), 0);
}

#[test]
fn one_that_waits_for_a_holder_is_not_waited_for() {
    let scene = Scene::new();
    scene.take(1, 0, shared(0, 9));
    assert_eq!(scene.set(2, 0, exclusive(0, 9), LockWait::OfProcess), EAGAIN);
    // Otherwise the holder could wait for one that waits for it.
    assert_eq!(scene.set(1, 0, shared(5, 20), LockWait::OfProcess), 0);
    assert_eq!(scene.set(3, 0, shared(0, 9), LockWait::OfProcess), 0);
}

#[test]
fn an_open_file_that_is_closed_takes_its_requests_and_locks_along() {
    let scene = Scene::new();
    scene.take(1, 0, exclusive(0, 9));
    assert_eq!(scene.set(2, 0, exclusive(0, 9), LockWait::OfOpenFile), EAGAIN);
    drop(scene.table.closed(owner(2).client, FILES[0], 2));
    drop(scene.table.closed(owner(1).client, FILES[0], 1));
    assert_eq!(scene.set(3, 0, exclusive(0, 9), LockWait::OfProcess), 0);
}

#[test]
fn a_description_of_a_reader_becomes_one_of_a_writer_with_its_locks() {
    let scene = Scene::new();
    let reader = Through { flags: OpenFlags::READ, ..scene.through(0, 1) };
    scene.table.set(owner(1), &reader, &shared(0, 9), LockWait::No).expect("a lock");
    scene.take(1, 0, exclusive(20, 29));
    for (asked, expected) in [(exclusive(0, 9), EAGAIN), (exclusive(20, 29), EAGAIN), (exclusive(10, 19), 0)] {
        let other =
            Description::of(scene.files[0].as_fd(), OpenFlags::WRITE, LockKind::Exclusive).expect("another one");
        assert_eq!(errno(other.set(&asked)), expected, "{asked:?}");
    }
}

#[test]
fn a_lock_that_another_client_may_have_had_is_not_taken_again() {
    let scene = Scene::new();
    let (one, two) = (1, 2);
    scene.take(one, 0, exclusive(0, 9));
    let since = scene.table.grants().count();
    drop(scene.table.closed(owner(one).client, FILES[0], one));
    assert_eq!(scene.again(one, since, exclusive(0, 9)), 0, "no other client has had it");
    drop(scene.table.closed(owner(one).client, FILES[0], one));
    scene.take(two, 1, exclusive(0, 9));
    assert_eq!(scene.again(one, since, exclusive(0, 9)), 0, "of another file");
    drop(scene.table.closed(owner(one).client, FILES[0], one));
    scene.take(two, 0, exclusive(0, 9));
    drop(scene.table.closed(owner(two).client, FILES[0], two));
    assert_eq!(scene.again(one, since, exclusive(0, 9)), ESTALE, "it was counted meanwhile");
    // A server that was restarted knows of no lock before its start.
    let restarted = Scene::new();
    assert_eq!(restarted.again(one, 0, exclusive(0, 9)), 0);
    assert_eq!(restarted.again(two, 0, exclusive(20, 29)), 0, "locks that are taken again are no new ones");
    restarted.take(4, 0, exclusive(40, 49));
    assert_eq!(restarted.again(5, 0, exclusive(60, 69)), ESTALE);
    assert_eq!(restarted.again(one, Grants::LOST, exclusive(80, 89)), ESTALE);
}

/// What one user locks, over all of its sessions, makes calls of others last only so long.
#[test]
fn ranges_and_waits_of_one_user_are_bounded() {
    let scene = Scene::new();
    let odd = |at: usize| exclusive(2 * at as u64, 2 * at as u64);
    let taken = (0..).take_while(|&at| scene.set(at as u64 % 3, at % 2, odd(at), LockWait::No) == 0).count();
    assert_eq!((taken, scene.quota.locked_ranges()), (MAX_RANGES, MAX_RANGES));
    assert_eq!(scene.set(0, 0, odd(taken), LockWait::No), ENOLCK);
    let another = Quota::new(1, None);
    let through = Through { quota: &another, ..scene.through(0, 4) };
    scene.table.set(owner(4), &through, &odd(taken + 2), LockWait::No).expect("another user");
    for at in 0..=MAX_WAITS {
        let through = Through { opened: 100 + at as u64 % 2, ..scene.through(0, 0) };
        let asked = owner(5 + at as u64);
        assert_eq!(errno(scene.table.set(asked, &through, &odd(0), LockWait::OfProcess)), EAGAIN);
    }
    assert_eq!(scene.table.table().waits.len(), MAX_WAITS);
    scene.take(1, 0, range(LockKind::Unlocked, 0, u64::MAX));
    assert!(scene.quota.locked_ranges() < MAX_RANGES);
}

#[test]
fn an_unlock_that_splits_a_range_is_counted() {
    let scene = Scene::new();
    let whole = exclusive(0, u64::MAX);
    let odd = |at: u64| range(LockKind::Unlocked, 2 * at + 1, 2 * at + 1);
    scene.take(1, 0, whole);
    // From the end, so that each call finds its place soon.
    let last = 2 * MAX_RANGES as u64;
    let split = (0..last).rev().take_while(|&at| scene.set(1, 0, odd(at), LockWait::No) == 0).count();
    assert_eq!((split, scene.quota.locked_ranges()), (MAX_RANGES - 1, MAX_RANGES));
    assert_eq!(scene.set(1, 0, odd(0), LockWait::No), ENOLCK);
    assert_eq!(scene.set(1, 0, shared(0, 0), LockWait::No), ENOLCK, "a part of another kind is a range, too");
    // What makes them no more is done.
    assert_eq!(scene.set(1, 0, range(LockKind::Unlocked, 0, 1), LockWait::No), 0);
    assert_eq!(scene.set(1, 0, exclusive(0, 1), LockWait::No), 0);
    assert_eq!(scene.set(1, 0, range(LockKind::Unlocked, 2 * last - 3, u64::MAX), LockWait::No), 0);
    assert_eq!(scene.set(1, 0, odd(0), LockWait::No), 0, "there is room again");
    assert_eq!(scene.set(1, 0, whole, LockWait::No), 0);
    assert_eq!(scene.quota.locked_ranges(), 1);
}

/// All clients wait while the locks of an owner go over to another description.
#[test]
fn only_some_ranges_of_a_reader_become_those_of_a_writer() {
    for (count, expected) in [(MAX_WIDENED, 0), (MAX_WIDENED + 1, ENOLCK)] {
        let scene = Scene::new();
        let reader = Through { flags: OpenFlags::READ, ..scene.through(0, 1) };
        for at in 0..count as u64 {
            scene.table.set(owner(1), &reader, &shared(2 * at, 2 * at), LockWait::No).expect("a lock");
        }
        assert_eq!(scene.set(1, 0, exclusive(5000, 5000), LockWait::No), expected, "{count}");
        scene.take(1, 0, shared(6000, 6000));
        scene.take(1, 0, range(LockKind::Unlocked, 0, 1000));
        scene.take(1, 0, exclusive(5000, 5000));
    }
}

/// The system's locks of many owners are released by as many calls, and no client waits for that.
#[test]
fn no_client_waits_until_the_locks_of_many_owners_are_released() {
    let scene = Scene::new();
    let names = (0..60).map(|at| 3 * at);
    for by_end in [false, true] {
        for name in names.clone() {
            let through = scene.through(name as usize % 2, 1);
            scene.table.set(owner(name), &through, &exclusive(name, name), LockWait::No).expect("a lock");
        }
        assert_eq!((scene.table.owners(0), scene.table.owners_through(0, FILES[0], 1)), (60, 30));
        let released = if by_end {
            vec![scene.table.ended(0)]
        } else {
            FILES.map(|file| scene.table.closed(0, file, 1)).into_iter().collect()
        };
        assert_eq!((scene.table.owners(0), scene.table.owners_through(0, FILES[0], 1)), (0, 0));
        assert_eq!(scene.table.all_owners(), 60, "the system has their locks");
        assert!(scene.table.table.try_lock().is_ok());
        let other = || scene.set(1, 0, exclusive(0, 100), LockWait::No);
        assert_eq!(other(), EAGAIN, "the system has not released them");
        drop(released);
        assert_eq!((other(), scene.quota.locked_ranges(), scene.table.all_owners()), (0, 1, 1));
        scene.take(1, 0, range(LockKind::Unlocked, 0, 100));
    }
}

/// Each request that waits is tried again among all ranges. The one behind them that could have its lock has no place for so long.
#[test]
fn a_search_among_many_ranges_ends() {
    const RANGES: u64 = 8 << 10;
    let scene = Scene::new();
    for at in 0..RANGES {
        scene.take(1, 0, shared(2 * at, 2 * at));
    }
    scene.take(1, 0, exclusive(2 * RANGES, 2 * RANGES));
    let wanted = exclusive(3 * RANGES, 3 * RANGES);
    for (waits, expected) in [(2, EAGAIN), (MAX_LOOKS as u64 / RANGES, 0)] {
        scene.take(2, 0, wanted);
        for name in 10..10 + waits {
            assert_eq!(scene.set(name, 0, shared(0, 3 * RANGES), LockWait::OfOpenFile), EAGAIN);
        }
        assert_eq!(scene.set(3, 0, wanted, LockWait::OfOpenFile), EAGAIN);
        scene.take(2, 0, range(LockKind::Unlocked, 3 * RANGES, 3 * RANGES));
        scene.table.table().waits.iter_mut().for_each(|wait| wait.asked = Instant::now());
        assert_eq!(scene.set(4, 0, wanted, LockWait::OfOpenFile), expected, "{waits} others");
        scene.table.table().waits.clear();
        scene.take(4, 0, range(LockKind::Unlocked, 0, u64::MAX));
    }
}
