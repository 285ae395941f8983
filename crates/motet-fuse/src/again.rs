//! Calls that the kernel makes again because the answer was ESTALE.
//!
//! A file that the kernel knows by a name may have lost that name by now: another client, or a program of the server's host, has removed or replaced it. The answer
//! ESTALE makes the kernel look the name up again, once in each call. The name may be lost again meanwhile. So what the thread looks up then is kept at the server,
//! and its request is about the file that it has just found, whatever became of its name.

use motet_files::client::File;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long after ESTALE a request of the same thread may belong to the same call.
const LIMIT: Duration = Duration::from_secs(5);
/// Threads that are remembered.
const MAX_THREADS: usize = 4096;
/// Files that are kept for one thread: the last that it has looked up.
const MAX_KEPT: usize = 8;

/// What a thread has found since it was answered ESTALE.
#[derive(Debug)]
pub struct Kept<T = File> {
    since: Instant,
    /// The number of the file that its request was about.
    refused: u64,
    files: Vec<(u64, Arc<T>)>,
}

impl<T> Clone for Kept<T> {
    fn clone(&self) -> Self {
        let Self { since, refused, ref files } = *self;
        Self { since, refused, files: files.clone() }
    }
}

impl<T> Kept<T> {
    /// The file of this number.
    pub fn file(&self, number: u64) -> Option<Arc<T>> {
        self.files.iter().rev().find(|(kept, _)| *kept == number).map(|(_, file)| Arc::clone(file))
    }

    /// Whether the thread asks again for the file of this number without having looked up a name: it has come to it by none (`/proc/self/fd`).
    pub fn came_by_no_name(&self, number: u64) -> bool {
        self.refused == number && self.files.is_empty()
    }

    fn is_old(&self) -> bool {
        self.since.elapsed() >= LIMIT
    }
}

/// The threads that were answered ESTALE.
#[derive(Debug)]
pub struct Again<T = File>(Mutex<HashMap<u32, Kept<T>>>);

impl<T> Default for Again<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Again<T> {
    fn threads(&self) -> MutexGuard<'_, HashMap<u32, Kept<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to a thread that asks for the file of this number is ESTALE.
    pub fn note(&self, thread: u32, number: u64) {
        let kept = Kept { since: Instant::now(), refused: number, files: Vec::new() };
        let mut threads = self.threads();
        let others = if threads.len() >= MAX_THREADS { std::mem::take(&mut *threads) } else { HashMap::new() };
        let before = threads.insert(thread, kept);
        // To close a file is a request.
        drop(threads);
        drop((others, before));
    }

    /// Whether what a thread looks up is to be kept.
    pub fn is_noted(&self, thread: u32) -> bool {
        let mut threads = self.threads();
        if threads.is_empty() {
            return false;
        }
        let old: Vec<_> = threads.extract_if(|_, kept| kept.is_old()).collect();
        let is_noted = threads.contains_key(&thread);
        drop(threads);
        drop(old);
        is_noted
    }

    /// A thread has looked up the file of this number.
    pub fn keep(&self, thread: u32, number: u64, file: Arc<T>) {
        let mut threads = self.threads();
        let mut ended = None;
        if let Some(kept) = threads.get_mut(&thread) {
            if kept.files.len() >= MAX_KEPT {
                ended = Some(kept.files.remove(0));
            }
            kept.files.push((number, file));
        }
        drop(threads);
        drop(ended);
    }

    /// What a thread has found, if its call is made again. With `ends` its next request is another call's.
    pub fn found(&self, thread: u32, ends: bool) -> Option<Kept<T>> {
        let mut threads = self.threads();
        let found = if ends { threads.remove(&thread) } else { threads.get(&thread).cloned() };
        drop(threads);
        found.filter(|kept| !kept.is_old())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_what_it_has_found_since_it_was_refused() {
        let again = Again::default();
        again.keep(1, 7, Arc::new("not asked for"));
        assert!(!again.is_noted(1) && again.found(1, true).is_none());
        again.note(1, 6);
        let found = again.found(1, false).expect("it was refused");
        assert!(found.came_by_no_name(6) && !found.came_by_no_name(7));
        for (number, file) in [(7, "before"), (8, "directory"), (7, "now")] {
            again.keep(1, number, Arc::new(file));
        }
        assert!(again.is_noted(1) && !again.is_noted(2));
        assert!(again.found(1, false).is_some(), "the call goes on");
        let kept = again.found(1, true).expect("it was refused");
        assert!(!kept.came_by_no_name(6));
        assert_eq!((kept.file(7).as_deref(), kept.file(9)), (Some(&"now"), None));
        assert!(again.found(1, true).is_none(), "once");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let again = Again::default();
        for thread in 0..2 * MAX_THREADS as u32 {
            again.note(thread, 1);
        }
        assert!(again.threads().len() <= MAX_THREADS);
        let last = 2 * MAX_THREADS as u32 - 1;
        for number in 0..100 {
            again.keep(last, number, Arc::new(()));
        }
        let kept = again.found(last, true).expect("it was noted");
        assert_eq!((kept.files.len(), kept.file(0), kept.file(99)), (MAX_KEPT, None, Some(Arc::new(()))));
    }
}
