//! The locks that clients have on the files of one tree, and the requests for locks that wait.
//!
//! A lock belongs to an owner of a client on a file, whichever open file it was asked for through: a POSIX lock to a process, a lock of `flock` or of an open
//! file description to one open file. The table knows the locks of all clients; [`Description`]s exclude the programs of this host.
//!
//! A request that waits is asked again by its client until it is granted or given up. The table keeps its place meanwhile: no later request that waits gets what
//! it could have had. A request of a process for a POSIX lock is refused if the process would wait for itself, as Linux does (fcntl(2), EDEADLK).

pub use super::grants::FileId;
use super::grants::Grants;
use super::lock_calls::{Description, normal};
use super::quota::{Quota, Taken};
use crate::Result;
use crate::locked_ranges::Ranges;
use crate::protocol::{LockKind, LockRange, LockWait, OpenFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Owners that have locks on one file.
const MAX_OWNERS: usize = 4096;
/// Ranges that all owners of a client have locked.
const MAX_RANGES: usize = 64 << 10;
/// Requests of a client that wait. Further ones are asked again, too, but have no place.
const MAX_WAITS: usize = 1024;
/// Owners that are looked at to find one that would wait for itself. Clients could make a search among all of them last long.
const MAX_SEARCHED: usize = 256;
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
}

#[derive(Debug, Default)]
struct Table {
    files: HashMap<FileId, HashMap<Owner, Held>>,
    /// How many ranges each client has locked.
    ranges: HashMap<u64, usize>,
    waits: Vec<Wait>,
}

/// What an owner has locked in a file.
#[derive(Debug)]
struct Held {
    description: Description,
    _taken: Taken,
    /// The open file through which it has last locked something.
    opened: u64,
    ranges: Ranges,
}

/// A request that waits. Earlier ones come first.
#[derive(Debug)]
struct Wait {
    owner: Owner,
    file: FileId,
    range: LockRange,
    /// The open file through which it is asked for.
    opened: u64,
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
        Self { table: Mutex::default(), grants: grants.clone() }
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
        let refused = table.is_held(through.file, owner, &range)
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
                let (asked, Through { file, opened, .. }) = (Instant::now(), *through);
                table.keep_place(place, Wait { owner, file, range, opened, of_process, outside: !refused, asked });
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
        let table = self.table();
        let holders = table.holders(through.file, owner, &asked);
        if let Some((_, found)) = holders.min_by_key(|(_, held)| held.start) {
            return Ok(*found);
        }
        if let Some(held) = table.files.get(&through.file).and_then(|owners| owners.get(&owner)) {
            return held.description.test(range);
        }
        Description::of(through.descriptor, OpenFlags::READ, LockKind::Shared)
            .or_else(|_| Description::of(through.descriptor, through.flags, LockKind::Exclusive))?
            .test(range)
    }

    /// An open file is closed: owners that have locked through it last have no locks on the file any more.
    pub fn closed(&self, client: u64, file: FileId, opened: u64) {
        let mut table = self.table();
        table.waits.retain(|wait| wait.opened != opened);
        for owner in table.owners_through(client, file, opened) {
            table.release_all(file, owner);
        }
    }

    /// How many owners have locked something through an open file.
    pub fn owners(&self, client: u64, file: FileId, opened: u64) -> usize {
        self.table().owners_through(client, file, opened).len()
    }
}

impl Table {
    /// What other owners have locked of a range, such that `owner` cannot lock it.
    fn holders(&self, file: FileId, owner: Owner, range: &LockRange) -> impl Iterator<Item = (Owner, &LockRange)> {
        let of_others = self.files.get(&file).into_iter().flatten().filter(move |(other, _)| **other != owner);
        let ranges = of_others.flat_map(|(other, held)| held.ranges.iter().map(move |range| (*other, range)));
        let asked = *range;
        ranges.filter(move |(_, held)| excludes(held, &asked))
    }

    fn is_held(&self, file: FileId, owner: Owner, range: &LockRange) -> bool {
        self.holders(file, owner, range).next().is_some()
    }

    /// Whether a request before the one at `place` waits for a range, and could have it now: its client will ask soon. One that cannot have it is no reason to
    /// wait, as with Linux; waiting for it could be waiting for oneself.
    fn is_wanted_before(&self, place: Option<usize>, file: FileId, owner: Owner, range: &LockRange) -> bool {
        let before = &self.waits[..place.unwrap_or(self.waits.len())];
        before.iter().any(|wait| {
            wait.file == file
                && wait.owner != owner
                && !wait.outside
                && wait.asked.elapsed() < PLACE_LIMIT
                && excludes(&wait.range, range)
                && !self.is_held(file, wait.owner, &wait.range)
        })
    }

    /// Whether `owner` would wait for an owner who waits, over others perhaps, for it.
    fn would_wait_for_itself(&self, owner: Owner, file: FileId, range: &LockRange) -> bool {
        let mut reached: Vec<Owner> = self.holders(file, owner, range).map(|(holder, _)| holder).collect();
        let mut seen = HashSet::new();
        while let Some(holder) = reached.pop() {
            if holder == owner {
                return true;
            }
            if seen.len() >= MAX_SEARCHED {
                return false;
            }
            if seen.insert(holder) {
                let waits = self.waits.iter().filter(|wait| wait.owner == holder && wait.of_process);
                for wait in waits.filter(|wait| wait.asked.elapsed() < PLACE_LIMIT) {
                    reached.extend(self.holders(wait.file, holder, &wait.range).map(|(next, _)| next));
                }
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
                if self.waits.iter().filter(|other| other.owner.client == wait.owner.client).count() < MAX_WAITS {
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

    fn owners_through(&self, client: u64, file: FileId, opened: u64) -> Vec<Owner> {
        let owners = self.files.get(&file).into_iter().flatten();
        owners
            .filter(|(owner, held)| owner.client == client && held.opened == opened)
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Takes a lock that no other client has.
    fn take(&mut self, owner: Owner, through: &Through<'_>, range: &LockRange) -> Result<()> {
        let locked = self.ranges.get(&owner.client).copied().unwrap_or(0);
        let owners = self.files.entry(through.file).or_default();
        let before = owners.get(&owner).map_or(0, |held| held.ranges.len());
        let taken = if locked >= MAX_RANGES || owners.len() >= MAX_OWNERS && before == 0 {
            Err(Errno::NOLCK.into())
        } else if let Some(held) = owners.get_mut(&owner) {
            held.lock(through, range)
        } else {
            Held::new(through, range).map(|held| drop(owners.insert(owner, held)))
        };
        self.count(owner, through.file, before);
        taken
    }

    fn release(&mut self, file: FileId, owner: Owner, range: &LockRange) -> Result<()> {
        let Some(held) = self.files.get_mut(&file).and_then(|owners| owners.get_mut(&owner)) else { return Ok(()) };
        let (before, rest) = (held.ranges.len(), held.ranges.outside(range));
        if rest.is_empty() {
            self.release_all(file, owner);
            return Ok(());
        }
        held.description.set(range)?;
        held.ranges = rest;
        self.count(owner, file, before);
        Ok(())
    }

    /// Releases what an owner has locked in a file. With the description the locks of the system go.
    fn release_all(&mut self, file: FileId, owner: Owner) {
        let removed = self.files.get_mut(&file).and_then(|owners| owners.remove(&owner));
        self.count(owner, file, removed.map_or(0, |held| held.ranges.len()));
    }

    /// Counts the ranges of a client, of which `before` were in this file for this owner, and forgets a file that has no locks.
    fn count(&mut self, owner: Owner, file: FileId, before: usize) {
        let owners = self.files.get(&file);
        let now = owners.and_then(|owners| owners.get(&owner)).map_or(0, |held| held.ranges.len());
        if owners.is_some_and(HashMap::is_empty) {
            self.files.remove(&file);
        }
        let ranges = self.ranges.entry(owner.client).or_default();
        *ranges = *ranges + now - before;
        if *ranges == 0 {
            self.ranges.remove(&owner.client);
        }
    }
}

impl Held {
    fn new(through: &Through<'_>, range: &LockRange) -> Result<Self> {
        // As fcntl(2) says if there is no room for further locks.
        let _taken = through.quota.take().map_err(|_| Errno::NOLCK)?;
        let description = Description::of(through.descriptor, through.flags, range.kind)?;
        description.set(range)?;
        Ok(Self { description, _taken, opened: through.opened, ranges: Ranges::of(*range) })
    }

    fn lock(&mut self, through: &Through<'_>, range: &LockRange) -> Result<()> {
        if !self.description.serves(range.kind, through.flags) {
            self.widen(through, range.kind)?;
        }
        self.description.set(range)?;
        self.opened = through.opened;
        self.ranges.lock(*range);
        Ok(())
    }

    /// Goes over to a description that can have locks of each kind. Both have the shared locks for a moment, so that they are never free.
    fn widen(&mut self, through: &Through<'_>, kind: LockKind) -> Result<()> {
        let has_exclusive = self.ranges.iter().any(|range| range.kind == LockKind::Exclusive);
        if has_exclusive && kind == LockKind::Exclusive {
            // It has one already through a file that is open for reading alone, and keeps the description of that.
            return Ok(());
        }
        let wider = Description::of(through.descriptor, through.flags, kind)?;
        if !wider.serves_all() || has_exclusive {
            return Err(Errno::NOLCK.into());
        }
        self.ranges.iter().try_for_each(|range| wider.set(range))?;
        self.description = wider;
        Ok(())
    }
}

/// Whether two owners cannot have both locks.
fn excludes(one: &LockRange, other: &LockRange) -> bool {
    let overlap = one.start <= other.end && other.start <= one.end;
    overlap && (one.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
}

#[cfg(test)]
mod tests;
