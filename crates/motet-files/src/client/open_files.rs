//! The files that a client has open, so that they can be opened again at a server that was restarted.

use super::failure::Failure;
use super::lock_notes::LockNotes;
use crate::Result;
use crate::identity::Identity;
use crate::protocol::{Attributes, LockRange, LockWait, OpenFlags, Operation, Reply};
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// An open file, as the client knows it.
#[derive(Debug)]
pub struct OpenState {
    number: AtomicU32,
    /// The file that was open is not there any more, or a lock on it could not be had again.
    stale: AtomicBool,
    /// It is closed, and must not be opened again.
    forgotten: AtomicBool,
    flags: OpenFlags,
    /// As whom it was opened. `None`: as the client itself.
    identity: Option<Arc<Identity>>,
    device: u64,
    inode: u64,
    path: Mutex<Vec<u8>>,
    /// Changes that were begun, and as many of them as are known to be on the disk.
    changes: AtomicU64,
    synced: AtomicU64,
    /// Its number among the client's open files, for its locks.
    opened: u64,
    locks: Arc<LockNotes>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenState {
    /// A file that the server has opened for a user. `number`: its number at the server. `locks`: those on this file.
    pub fn new(
        number: u32,
        path: &[u8],
        flags: OpenFlags,
        identity: Option<Arc<Identity>>,
        attributes: &Attributes,
        locks: Arc<LockNotes>,
    ) -> Arc<Self> {
        static OPENED: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            number: AtomicU32::new(number),
            stale: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            flags,
            identity,
            device: attributes.device,
            inode: attributes.inode,
            path: Mutex::new(path.to_vec()),
            changes: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            opened: OPENED.fetch_add(1, Ordering::Relaxed),
            locks,
        })
    }

    /// Its number at the server. ESTALE: the file is lost.
    pub fn number(&self) -> Result<u32> {
        if self.stale.load(Ordering::Acquire) {
            Err(Errno::STALE.into())
        } else {
            Ok(self.number.load(Ordering::Acquire))
        }
    }

    /// Whether each write goes to the end of the file.
    pub fn appends(&self) -> bool {
        self.flags.contains(OpenFlags::APPEND)
    }

    /// A write at `offset`, or at the end if each write goes there. `file`: its number at the server.
    pub fn write(&self, file: u32, offset: u64) -> Operation<'static> {
        if self.appends() { Operation::Append { file } } else { Operation::Write { file, offset } }
    }

    /// As whom it was opened.
    pub fn identity(&self) -> Option<&Identity> {
        self.identity.as_deref()
    }

    /// The path by which it would be opened again.
    pub fn path(&self) -> Vec<u8> {
        locked(&self.path).clone()
    }

    /// The file has another path now.
    pub fn renamed(&self, path: &[u8]) {
        *locked(&self.path) = path.to_vec();
    }

    /// A change of the content is made until what this returns is dropped. A synchronisation that began before its end does not cover it.
    pub fn changing(&self) -> Changing<'_> {
        self.note_change();
        Changing(self)
    }

    /// A change of the content begins or ends.
    pub fn note_change(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The changes so far, for [`OpenState::synced`].
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The first `changes` changes are on the server's disk.
    pub fn synced(&self, changes: u64) {
        self.synced.fetch_max(changes, Ordering::AcqRel);
    }

    /// Whether an owner has locks on the file, through this open file or another one of the client.
    pub fn has_locks(&self, owner: u64) -> bool {
        self.locks.has(owner)
    }

    /// The owners that have locked through this open file last.
    pub fn lock_owners(&self) -> Vec<u64> {
        self.locks.through(self.opened).into_iter().map(|(owner, _)| owner).collect()
    }

    /// Notes a lock that the server has granted or released.
    pub fn note_lock(&self, owner: u64, range: &LockRange) {
        self.locks.note(self.opened, owner, range);
    }

    /// From now on it is not opened again: it is about to be closed.
    pub fn forget(&self) {
        self.forgotten.store(true, Ordering::SeqCst);
    }

    /// It is closed.
    pub fn closed(&self) {
        self.locks.closed(self.opened);
    }

    /// Opens the file again. `restarted_host`: changes that were not synchronised may be lost, and no server knows who has had locks. An error: the connection is lost
    /// again.
    fn reopen(
        &self,
        restarted_host: bool,
        call: &mut impl FnMut(Option<&Identity>, &Operation<'_>) -> Answered,
    ) -> Result<()> {
        let mut call = |operation: &Operation<'_>| call(self.identity(), operation);
        let path = locked(&self.path).clone();
        let flags = again(self.flags);
        let stale = || {
            self.stale.store(true, Ordering::Release);
            Ok(())
        };
        let unsynced = self.changes() != self.synced.load(Ordering::Acquire);
        let has_locks = !self.lock_owners().is_empty();
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        if forgotten || flags.contains(OpenFlags::TMPFILE) || restarted_host && (unsynced || has_locks) {
            return stale();
        }
        match call(&Operation::Open { path: &path, flags, mode: 0 }) {
            Ok(Reply::Opened { file, attributes, .. }) => {
                if (attributes.device, attributes.inode) != (self.device, self.inode) {
                    finish(call(&Operation::Close { file }))?;
                    return stale();
                }
                for (owner, ranges) in self.locks.through(self.opened) {
                    for &range in ranges.iter() {
                        if !finish(call(&Operation::Lock { file, owner, range, wait: LockWait::Again }))? {
                            finish(call(&Operation::Close { file }))?;
                            return stale();
                        }
                    }
                }
                self.number.store(file, Ordering::Release);
                Ok(())
            }
            Ok(_) | Err(Failure::Final(_)) => stale(),
            Err(failure) => Err(failure.into_error()),
        }
    }
}

/// A change of the content that is under way.
#[must_use = "the change ends when this is dropped"]
pub struct Changing<'a>(&'a OpenState);

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.note_change();
    }
}

/// The flags with which a file that was opened with `flags` is opened again.
pub fn again(flags: OpenFlags) -> OpenFlags {
    (flags - OpenFlags::CREATE - OpenFlags::EXCLUSIVE - OpenFlags::TRUNCATE) | OpenFlags::AGAIN
}

/// What an attempt has answered.
pub type Answered = std::result::Result<Reply, Failure>;

/// Whether a request has succeeded. An error: the connection is lost.
fn finish(answered: Answered) -> Result<bool> {
    match answered {
        Ok(_) => Ok(true),
        Err(Failure::Final(_)) => Ok(false),
        Err(failure) => Err(failure.into_error()),
    }
}

/// The open files of a client.
#[derive(Debug, Default)]
pub struct OpenFiles(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    /// How often all files were opened again: the numbers of files at the server are those of one generation.
    generation: u64,
    files: Vec<Weak<OpenState>>,
    /// The locks on each file that is open, by its device and number.
    locks: HashMap<(u64, u64), Weak<LockNotes>>,
}

impl OpenFiles {
    /// The present generation. A request to open a file asks for it before it is sent.
    pub fn generation(&self) -> u64 {
        locked(&self.0).generation
    }

    /// The locks on a file with these attributes.
    pub fn locks(&self, attributes: &Attributes) -> Arc<LockNotes> {
        let table = &mut *locked(&self.0);
        if table.locks.len() == table.locks.capacity() {
            table.locks.retain(|_, locks| locks.strong_count() > 0);
        }
        let known = table.locks.entry((attributes.device, attributes.inode)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let locks = Arc::default();
            *known = Arc::downgrade(&locks);
            locks
        })
    }

    /// Takes a file in whose number is of this generation. False: all others have been opened again since then, and this one has to be, too.
    pub fn add(&self, state: &Arc<OpenState>, generation: u64) -> bool {
        let table = &mut *locked(&self.0);
        if table.generation != generation {
            return false;
        }
        // Entries of closed files are removed when the table would grow.
        if table.files.len() == table.files.capacity() {
            table.files.retain(|file| file.strong_count() > 0);
        }
        table.files.push(Arc::downgrade(state));
        true
    }

    /// How many files are open, and how many owners have locks on them.
    pub fn counts(&self) -> (usize, usize) {
        let open: Vec<_> = locked(&self.0).files.iter().filter_map(Weak::upgrade).collect();
        (open.len(), open.iter().map(|state| state.lock_owners().len()).sum())
    }

    /// Opens all files again at a server that does not know them, each as who has opened it. `restarted_host`: its host has been started again, too; a file with
    /// changes that were not synchronised is stale then. An error: the connection is lost again.
    pub fn reclaim(
        &self,
        restarted_host: bool,
        mut call: impl FnMut(Option<&Identity>, &Operation<'_>) -> Answered,
    ) -> Result<()> {
        let open: Vec<_> = {
            let mut table = locked(&self.0);
            table.generation += 1;
            table.files.iter().filter_map(Weak::upgrade).collect()
        };
        open.iter()
            .filter(|state| !state.stale.load(Ordering::Acquire))
            .try_for_each(|state| state.reopen(restarted_host, &mut call))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::LockKind;

    fn range(kind: LockKind, start: u64, end: u64) -> LockRange {
        LockRange { kind, start, end, process: 0 }
    }

    fn state() -> Arc<OpenState> {
        OpenState::new(1, b"file", OpenFlags::READ, None, &Attributes::default(), Arc::default())
    }

    #[test]
    fn a_lock_belongs_to_its_owner_through_whichever_open_file_it_was_set() {
        let files = OpenFiles::default();
        let attributes = Attributes { device: 1, inode: 2, ..Attributes::default() };
        let open = |attributes| OpenState::new(1, b"file", OpenFlags::READ, None, attributes, files.locks(attributes));
        let (one, two, other) = (open(&attributes), open(&attributes), open(&Attributes { inode: 3, ..attributes }));
        one.note_lock(7, &range(LockKind::Exclusive, 0, 9));
        assert!(two.has_locks(7) && !two.has_locks(8) && !other.has_locks(7));
        two.note_lock(7, &range(LockKind::Unlocked, 0, 4));
        assert_eq!((one.lock_owners(), two.lock_owners()), (vec![7], vec![]));
        two.note_lock(7, &range(LockKind::Shared, 20, 29));
        one.closed();
        assert_eq!(
            (one.lock_owners(), two.lock_owners()),
            (vec![], vec![7]),
            "it has locked through another one since"
        );
        two.closed();
        assert!(!one.has_locks(7));
    }

    #[test]
    fn a_file_that_was_replaced_is_stale() {
        let files = OpenFiles::default();
        let user = Some(Arc::new(Identity { user: 7, group: 8, groups: vec![9] }));
        let attributes = Attributes { device: 1, inode: 2, ..Attributes::default() };
        let (kept, replaced) = (
            OpenState::new(1, b"kept", OpenFlags::READ, None, &attributes, Arc::default()),
            OpenState::new(
                2,
                b"replaced",
                OpenFlags::READ | OpenFlags::CREATE,
                user.clone(),
                &attributes,
                Arc::default(),
            ),
        );
        assert!(files.add(&kept, 0) && files.add(&replaced, 0));
        files
            .reclaim(false, |identity, operation| match operation {
                Operation::Open { path, flags, .. } => {
                    assert!(flags.contains(OpenFlags::AGAIN) && !flags.contains(OpenFlags::CREATE));
                    assert_eq!(identity, (*path != b"kept").then_some(user.as_deref()).flatten());
                    let inode = if *path == b"kept" { 2 } else { 3 };
                    Ok(Reply::Opened { file: 7, attributes: Attributes { inode, ..attributes }, cached: None })
                }
                _ => Ok(Reply::Done),
            })
            .expect("the connection");
        assert_eq!(kept.number().expect("a number"), 7);
        assert_eq!(replaced.number().expect_err("stale").raw_os_error(), Some(Errno::STALE.raw_os_error()));
    }

    #[test]
    fn a_file_whose_number_is_of_a_server_before_is_not_taken_in() {
        let files = OpenFiles::default();
        let asked = files.generation();
        files.reclaim(false, |_, _| Ok(Reply::Done)).expect("the connection");
        assert!(!files.add(&state(), asked), "its number is another file's now, or none's");
        assert!(files.add(&state(), files.generation()));
    }

    #[test]
    fn unsynchronised_changes_make_a_file_stale_after_a_restart_of_the_host() {
        let files = OpenFiles::default();
        let open = || {
            let state = OpenState::new(1, b"file", OpenFlags::WRITE, None, &Attributes::default(), Arc::default());
            assert!(files.add(&state, files.generation()));
            state
        };
        let (unchanged, synced, unsynced) = (open(), open(), open());
        for state in [&synced, &unsynced] {
            drop(state.changing());
        }
        synced.synced(synced.changes());
        let opened = |_: Option<&Identity>, operation: &Operation<'_>| match operation {
            Operation::Open { .. } => Ok(Reply::Opened { file: 2, attributes: Attributes::default(), cached: None }),
            _ => Ok(Reply::Done),
        };
        files.reclaim(false, opened).expect("the connection");
        assert!(
            [&unchanged, &synced, &unsynced].iter().all(|state| state.number().is_ok()),
            "only the server was restarted"
        );
        files.reclaim(true, opened).expect("the connection");
        assert!(unchanged.number().is_ok() && synced.number().is_ok());
        assert_eq!(unsynced.number().expect_err("stale").raw_os_error(), Some(Errno::STALE.raw_os_error()));
    }
}
