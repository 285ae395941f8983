//! The locks that clients have on the files of one tree, and the requests for locks that wait.
//!
//! A lock belongs to an owner of a client on a file, whichever open file it was asked for through: a POSIX lock to a process, a lock of `flock` or of an open
//! file description to one open file. The table knows the locks of all clients; [`Description`]s exclude the programs of this host.
//!
//! A request that waits is asked again by its client until it is granted or given up. The table keeps its place meanwhile: no later request that waits gets what
//! it could have had. A request of a process for a POSIX lock is refused if the process would wait for itself, as Linux does (fcntl(2), EDEADLK).

mod held;

pub use super::grants::FileId;
use super::grants::Grants;
use super::lock_calls::{Description, normal};
use super::quota::Quota;
use crate::Result;
use crate::protocol::{LockKind, LockRange, LockWait, OpenFlags};
use held::Held;
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Owners that have locks on one file.
const MAX_OWNERS: usize = 4096;
/// Requests of a client that wait, or of all clients of another user. Further ones are asked again, too, but have no place.
const MAX_WAITS: usize = 1024;
/// Requests, owners and ranges that are looked at to find a request that comes first, or an owner that would wait for itself. Clients could make a search among all of
/// them last long, and all other clients wait meanwhile.
const MAX_LOOKS: usize = 64 << 10;
/// Requests that are looked at as fast as a range.
const WAITS_IN_A_LOOK: usize = 8;
/// How long a request that is not asked again keeps its place. Clients ask each 20 ms.
const PLACE_LIMIT: Duration = Duration::from_secs(1);

/// Whose a lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Owner {
    /// The client.
    pub client: u64,
    /// What the client calls the owner.
    pub name: u64,
}

/// A client, for its locks.
#[derive(Debug, Clone, Copy)]
pub struct LockClient {
    /// Its number.
    pub number: u64,
    /// How many locks the server had granted when the client lost those that it had.
    pub since: u64,
}

/// The open file through which a lock is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Through<'a> {
    /// The file.
    pub file: FileId,
    /// A number that no other open file has.
    pub opened: u64,
    /// How it was opened.
    pub flags: OpenFlags,
    /// As in [`LockClient`].
    pub since: u64,
    /// The descriptors that its client may use.
    pub quota: &'a Arc<Quota>,
    /// The open file.
    pub descriptor: BorrowedFd<'a>,
}

/// The locks of all clients.
#[derive(Debug, Default)]
pub struct LockTable {
    table: Mutex<Table>,
    /// Those of other parts of the server, too.
    grants: Grants,
    /// Owners that have no locks any more, apart from those of the system.
    releasing: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<FileId, HashMap<Owner, Held>>,
    /// Which of these each client has.
    by_client: HashMap<u64, HashSet<(FileId, Owner)>>,
    waits: Vec<Wait>,
}

/// A request that waits. Earlier ones come first.
#[derive(Debug)]
struct Wait {
    owner: Owner,
    file: FileId,
    range: LockRange,
    /// The open file through which it is asked for.
    opened: u64,
    /// What its client may use, or all clients of its user.
    quota: Arc<Quota>,
    /// Whether its owner is a process, which may wait for itself.
    of_process: bool,
    /// A program of this host has what it waits for, or another server.
    outside: bool,
    asked: Instant,
}

impl LockTable {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A table whose grants are counted with others.
    pub fn with(grants: &Grants) -> Self {
        Self { grants: grants.clone(), ..Self::default() }
    }

    /// The grants.
    pub fn grants(&self) -> &Grants {
        &self.grants
    }

    /// Sets or releases a lock. EAGAIN: another owner has it, or waits for it and comes first. EDEADLK: the owner would wait for itself. ESTALE: the client has lost it, and
    /// another one may have had it since.
    pub fn set(&self, owner: Owner, through: &Through<'_>, range: &LockRange, wait: LockWait) -> Result<()> {
        let range = normal(range)?;
        let table = &mut *self.table();
        if range.kind == LockKind::Unlocked {
            return table.release(through.file, owner, &range);
        }
        if wait == LockWait::Again && self.grants.to_others(through.file, owner.client, through.since) {
            return Err(Errno::STALE.into());
        }
        let waits = matches!(wait, LockWait::OfProcess | LockWait::OfOpenFile);
        let place = table.place(owner, through.file, &range);
        let refused = table.is_held(through.file, owner, &range, &Search::whole())
            || waits && table.is_wanted_before(place, through.file, owner, &range);
        let taken = if refused { Err(Errno::AGAIN.into()) } else { table.take(owner, through, &range) };
        if taken.is_ok() && wait != LockWait::Again {
            self.grants.note(through.file, owner.client);
        }
        match taken {
            Err(error) if waits && error.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => {
                let of_process = wait == LockWait::OfProcess;
                if of_process && table.would_wait_for_itself(owner, through.file, &range) {
                    table.stop_waiting(owner, through.file, &range);
                    return Err(Errno::DEADLK.into());
                }
                let (asked, quota) = (Instant::now(), Arc::clone(through.quota));
                let Through { file, opened, .. } = *through;
                table.keep_place(
                    place,
                    Wait { owner, file, range, opened, quota, of_process, outside: !refused, asked },
                );
                Err(error)
            }
            done => {
                table.stop_waiting(owner, through.file, &range);
                done
            }
        }
    }

    /// The request for a lock is given up.
    pub fn stop_waiting(&self, owner: Owner, file: FileId, range: &LockRange) -> Result<()> {
        self.table().stop_waiting(owner, file, &normal(range)?);
        Ok(())
    }

    /// The lock that keeps an owner from this one, or an unlocked range.
    pub fn test(&self, owner: Owner, through: &Through<'_>, range: &LockRange) -> Result<LockRange> {
        let asked = normal(range)?;
        let (table, search) = (self.table(), Search::whole());
        let holders = table.holders(through.file, owner, &asked, &search);
        if let Some((_, found)) = holders.min_by_key(|(_, held)| held.start) {
            return Ok(*found);
        }
        if let Some(held) = table.held(through.file, owner) {
            return held.description.test(range);
        }
        Description::of(through.descriptor, OpenFlags::READ, LockKind::Shared)
            .or_else(|_| Description::of(through.descriptor, through.flags, LockKind::Exclusive))?
            .test(range)
    }

    /// An open file is closed: owners that have locked through it last have no locks on the file any more.
    pub fn closed(&self, client: u64, file: FileId, opened: u64) -> Released {
        let mut table = self.table();
        table.waits.retain(|wait| wait.opened != opened);
        let owners: Vec<_> = table.owners_through(client, file, opened).collect();
        self.released(owners.into_iter().filter_map(|owner| table.release_all(file, owner)).collect())
    }

    /// A client has closed all its files: its owners have no locks any more.
    pub fn ended(&self, client: u64) -> Released {
        let mut table = self.table();
        table.waits.retain(|wait| wait.owner.client != client);
        let owners = table.by_client.get(&client).cloned().unwrap_or_default();
        self.released(owners.into_iter().filter_map(|(file, owner)| table.release_all(file, owner)).collect())
    }

    /// How many owners have locked something through an open file last.
    pub fn owners_through(&self, client: u64, file: FileId, opened: u64) -> usize {
        self.table().owners_through(client, file, opened).count()
    }

    /// How many owners of a client have locks, on all files.
    pub fn owners(&self, client: u64) -> usize {
        self.table().by_client.get(&client).map_or(0, HashSet::len)
    }

    /// How many owners of all clients have locks, also if only those of the system are left.
    pub fn all_owners(&self) -> usize {
        let known: usize = self.table().files.values().map(HashMap::len).sum();
        known + self.releasing.load(Ordering::Acquire)
    }

    /// The caller has the table.
    fn released(&self, held: Vec<Held>) -> Released {
        self.releasing.fetch_add(held.len(), Ordering::AcqRel);
        Released { held, releasing: Arc::clone(&self.releasing) }
    }
}

/// Locks that owners have no more, as far as other clients are concerned. Those of the system go when this is dropped: by a call for each owner, during which no
/// client waits.
#[derive(Debug)]
#[must_use = "the locks of the system go when this is dropped"]
pub struct Released {
    held: Vec<Held>,
    releasing: Arc<AtomicUsize>,
}

impl Drop for Released {
    fn drop(&mut self) {
        for held in self.held.drain(..) {
            drop(held);
            self.releasing.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Table {
    /// What other owners have locked of a range, such that `owner` cannot lock it, as far as the search finds it.
    fn holders<'a>(
        &'a self,
        file: FileId,
        owner: Owner,
        range: &LockRange,
        search: &'a Search,
    ) -> impl Iterator<Item = (Owner, &'a LockRange)> + use<'a> {
        let all = self.files.get(&file).into_iter().flatten().take_while(|_| search.looks(1));
        let of_others = all.filter(move |(other, _)| **other != owner);
        let asked = *range;
        let ranges = of_others.flat_map(move |(other, held)| {
            held.ranges.overlapping(&asked).take_while(|_| search.looks(1)).map(move |range| (*other, range))
        });
        ranges.filter(move |(_, held)| excludes(held, &asked))
    }

    fn is_held(&self, file: FileId, owner: Owner, range: &LockRange, search: &Search) -> bool {
        self.holders(file, owner, range, search).next().is_some()
    }

    /// Whether a request before the one at `place` waits for a range, and could have it now: its client will ask soon. One that cannot have it is no reason to
    /// wait, as with Linux; waiting for it could be waiting for oneself.
    fn is_wanted_before(&self, place: Option<usize>, file: FileId, owner: Owner, range: &LockRange) -> bool {
        let before = &self.waits[..place.unwrap_or(self.waits.len())];
        let mut wanted = before.iter().filter(|wait| {
            wait.file == file
                && wait.owner != owner
                && !wait.outside
                && wait.asked.elapsed() < PLACE_LIMIT
                && excludes(&wait.range, range)
        });
        let search = Search::new(MAX_LOOKS);
        wanted.any(|wait| !self.is_held(file, wait.owner, &wait.range, &search) && search.looks(1))
    }

    /// Whether `owner` would wait for an owner who waits, over others perhaps, for it.
    fn would_wait_for_itself(&self, owner: Owner, file: FileId, range: &LockRange) -> bool {
        let search = Search::new(MAX_LOOKS);
        let mut reached: Vec<Owner> = self.holders(file, owner, range, &search).map(|(holder, _)| holder).collect();
        let mut seen = HashSet::new();
        while let Some(holder) = reached.pop() {
            if holder == owner {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            if !search.looks(1 + self.waits.len() / WAITS_IN_A_LOOK) {
                return false;
            }
            let waits = self.waits.iter().filter(|wait| wait.owner == holder && wait.of_process);
            for wait in waits.filter(|wait| wait.asked.elapsed() < PLACE_LIMIT) {
                reached.extend(self.holders(wait.file, holder, &wait.range, &search).map(|(next, _)| next));
            }
        }
        false
    }

    fn place(&self, owner: Owner, file: FileId, range: &LockRange) -> Option<usize> {
        self.waits.iter().position(|wait| (wait.owner, wait.file, &wait.range) == (owner, file, range))
    }

    fn keep_place(&mut self, place: Option<usize>, wait: Wait) {
        match place.and_then(|place| self.waits.get_mut(place)) {
            Some(present) => *present = wait,
            None => {
                self.waits.retain(|wait| wait.asked.elapsed() < PLACE_LIMIT);
                if self.waits.iter().filter(|other| Arc::ptr_eq(&other.quota, &wait.quota)).count() < MAX_WAITS {
                    self.waits.push(wait);
                }
            }
        }
    }

    fn stop_waiting(&mut self, owner: Owner, file: FileId, range: &LockRange) {
        if let Some(place) = self.place(owner, file, range) {
            self.waits.remove(place);
        }
    }

    fn owners_through(&self, client: u64, file: FileId, opened: u64) -> impl Iterator<Item = Owner> {
        let of_client = self.by_client.get(&client).into_iter().flatten();
        let through = move |owner| self.held(file, owner).is_some_and(|held| held.opened == opened);
        of_client.filter(move |(of, owner)| *of == file && through(*owner)).map(|(_, owner)| *owner)
    }

    fn held(&self, file: FileId, owner: Owner) -> Option<&Held> {
        self.files.get(&file)?.get(&owner)
    }

    fn held_mut(&mut self, file: FileId, owner: Owner) -> Option<&mut Held> {
        self.files.get_mut(&file)?.get_mut(&owner)
    }

    /// Takes a lock that no other client has.
    fn take(&mut self, owner: Owner, through: &Through<'_>, range: &LockRange) -> Result<()> {
        if let Some(held) = self.held_mut(through.file, owner) {
            return held.lock(through, range);
        }
        if self.files.get(&through.file).is_some_and(|owners| owners.len() >= MAX_OWNERS) {
            return Err(Errno::NOLCK.into());
        }
        let held = Held::new(through, range)?;
        self.files.entry(through.file).or_default().insert(owner, held);
        self.by_client.entry(owner.client).or_default().insert((through.file, owner));
        Ok(())
    }

    fn release(&mut self, file: FileId, owner: Owner, range: &LockRange) -> Result<()> {
        match self.held_mut(file, owner) {
            Some(held) if !held.ranges.is_within(range) => held.release(range),
            _ => {
                drop(self.release_all(file, owner));
                Ok(())
            }
        }
    }

    /// Takes out what an owner has locked in a file, and forgets a file that has no locks.
    fn release_all(&mut self, file: FileId, owner: Owner) -> Option<Held> {
        let owners = self.files.get_mut(&file)?;
        let held = owners.remove(&owner)?;
        if owners.is_empty() {
            self.files.remove(&file);
        }
        if let Some(of_client) = self.by_client.get_mut(&owner.client) {
            of_client.remove(&(file, owner));
            if of_client.is_empty() {
                self.by_client.remove(&owner.client);
            }
        }
        Some(held)
    }
}

/// How far a search still goes.
struct Search(Cell<usize>);

impl Search {
    fn new(most: usize) -> Self {
        Self(Cell::new(most))
    }

    /// One that finds everything. It is for one range.
    fn whole() -> Self {
        Self::new(usize::MAX)
    }

    /// Whether so many may be looked at.
    fn looks(&self, count: usize) -> bool {
        let left = self.0.get().checked_sub(count);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}

/// Whether two owners cannot have both locks.
fn excludes(one: &LockRange, other: &LockRange) -> bool {
    let overlap = one.start <= other.end && other.start <= one.end;
    overlap && (one.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
}

#[cfg(test)]
mod tests;
