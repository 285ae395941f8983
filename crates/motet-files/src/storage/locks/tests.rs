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
    scene.table.closed(1, FILES[0], 1);
    assert_eq!(scene.set(2, 0, exclusive(0, 0), LockWait::No), EAGAIN, "it has locked through another open file since");
    scene.table.closed(1, FILES[0], 100);
    scene.take(2, 0, exclusive(0, u64::MAX));
    scene.take(2, 0, range(LockKind::Unlocked, 0, u64::MAX));
    scene.take(2, 1, range(LockKind::Unlocked, 0, u64::MAX));
    let table = scene.table.table();
    assert!(table.files.is_empty() && scene.quota.locked_ranges() == 0 && table.waits.is_empty());
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
    scene.table.closed(owner(2).client, FILES[0], 2);
    scene.table.closed(owner(1).client, FILES[0], 1);
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
    scene.table.closed(owner(one).client, FILES[0], one);
    assert_eq!(scene.again(one, since, exclusive(0, 9)), 0, "no other client has had it");
    scene.table.closed(owner(one).client, FILES[0], one);
    scene.take(two, 1, exclusive(0, 9));
    assert_eq!(scene.again(one, since, exclusive(0, 9)), 0, "of another file");
    scene.table.closed(owner(one).client, FILES[0], one);
    scene.take(two, 0, exclusive(0, 9));
    scene.table.closed(owner(two).client, FILES[0], two);
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
    const ENOLCK: i32 = 37;
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
