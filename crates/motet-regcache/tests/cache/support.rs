//! A driver whose registrations hold pages as those of a network card do, so that tests can compare them with the mapped pages.

use motet_regcache::{Cache, CacheMode, Lease, Limits, Range, Register};
use motet_sys::test_mappings::HeldPages;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A driver that holds the registered pages.
#[derive(Debug)]
pub struct Pins {
    held: Mutex<BTreeMap<u64, (Range, Arc<HeldPages>)>>,
    next: AtomicU64,
    /// Most pages that may be held.
    most: u64,
}

impl Pins {
    pub fn new(most: u64) -> Self {
        Self { held: Mutex::default(), next: AtomicU64::new(0), most }
    }

    /// The number of registrations, and of their pages.
    pub fn size(&self) -> (usize, u64) {
        let held = self.held.lock().unwrap();
        (held.len(), held.values().map(|(range, _)| range.length() / 4096).sum())
    }

    /// The number at the start of each page that the registration of a lease holds.
    pub fn seen(&self, lease: &Lease<Pins>) -> Vec<u64> {
        let held = self.held.lock().unwrap().get(&lease.token()).expect("registered while it is leased").1.clone();
        held.peek()
    }
}

impl Register for Pins {
    type Token = u64;

    fn register(&self, range: Range) -> Result<u64, i32> {
        if self.size().1 + range.length() / 4096 > self.most {
            return Err(12);
        }
        let held = HeldPages::new(range.start, range.end).map_err(|_| 14)?;
        let token = self.next.fetch_add(1, Relaxed);
        self.held.lock().unwrap().insert(token, (range, Arc::new(held)));
        Ok(token)
    }

    fn deregister(&self, range: Range, token: u64) {
        let (was, _) = self.held.lock().unwrap().remove(&token).expect("deregistered once");
        assert_eq!(was, range);
    }
}

/// Set in the process of a test that runs [`alone`].
const ALONE: &str = "MOTET_TEST_ALONE";

/// A cache that keeps registrations; `None`, with a message, where the kernel does not permit that.
pub fn cache(limits: Limits, most: u64) -> Option<Cache<Pins>> {
    let cache = Cache::new(Pins::new(most), limits, true).unwrap();
    match cache.mode() {
        CacheMode::Keeps => {
            if std::env::var(ALONE).is_ok() {
                wait_until_others_sleep();
            }
            Some(cache)
        }
        mode => {
            eprintln!("SKIPPED: {mode}");
            None
        }
    }
}

/// Waits until other threads sleep: a thread that starts maps memory, which the kernel may put where a test has just unmapped pages.
fn wait_until_others_sleep() {
    let own = std::fs::read_link("/proc/thread-self").unwrap();
    let runs = |thread: &std::fs::DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        !own.ends_with(thread.file_name()) && stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
    };
    let until = std::time::Instant::now() + std::time::Duration::from_secs(5);
    while std::fs::read_dir("/proc/self/task").unwrap().any(|thread| thread.is_ok_and(|thread| runs(&thread)))
        && std::time::Instant::now() < until
    {
        std::thread::yield_now();
    }
}

/// Asserts that a lease on these pages sees the mapped pages.
pub fn assert_sees_memory(cache: &Cache<Pins>, address: u64, pages: u64) {
    let lease = cache.acquire(address, pages * 4096).unwrap();
    let seen = cache.driver().seen(&lease);
    let skip = (address - lease.range().start) / 4096;
    for page in 0..pages {
        let there = motet_sys::test_mappings::peek(address + page * 4096);
        assert_eq!(seen.get((skip + page) as usize).copied(), there, "page {page} of {:x?}", lease.range());
    }
}

/// Runs the calling test, by its full name, in a process of its own, where no other test maps or forks. Returns true in that process.
pub fn alone(test: &str) -> bool {
    if std::env::var(ALONE).is_ok() {
        return true;
    }
    let run = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stderr);
    eprint!("{said}");
    assert!(run.status.success() && String::from_utf8_lossy(&run.stdout).contains("1 passed"), "{said}");
    false
}
