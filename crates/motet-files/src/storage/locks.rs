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
/// Ranges that all owners of a client have locked, or of all clients of another user. The system looks at each lock of a file for each call.
const MAX_RANGES: usize = 16 << 10;
/// Requests of a client that wait, or of all clients of another user. Further ones are asked again, too, but have no place.
const MAX_WAITS: usize = 1024;
/// Requests that are looked at to find one that comes first, or an owner that would wait for itself. Clients could make a search among all of them last long.
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
    waits: Vec<Wait>,
}

/// What an owner has locked in a file.
#[derive(Debug)]
struct Held {
    description: Description,
    taken: Taken,
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
        let asked = *range;
        let ranges =
            of_others.flat_map(move |(other, held)| held.ranges.overlapping(&asked).map(move |range| (*other, range)));
        ranges.filter(move |(_, held)| excludes(held, &asked))
    }

    fn is_held(&self, file: FileId, owner: Owner, range: &LockRange) -> bool {
        self.holders(file, owner, range).next().is_some()
    }

    /// Whether a request before the one at `place` waits for a range, and could have it now: its client will ask soon. One that cannot have it is no reason to
    /// wait, as with Linux; waiting for it could be waiting for oneself.
    fn is_wanted_before(&self, place: Option<usize>, file: FileId, owner: Owner, range: &LockRange) -> bool {
        let before = &self.waits[..place.unwrap_or(self.waits.len())];
        let wanted = before.iter().filter(|wait| {
            wait.file == file
                && wait.owner != owner
                && !wait.outside
                && wait.asked.elapsed() < PLACE_LIMIT
                && excludes(&wait.range, range)
        });
        wanted.take(MAX_SEARCHED).any(|wait| !self.is_held(file, wait.owner, &wait.range))
    }

    /// Whether `owner` would wait for an owner who waits, over others perhaps, for it.
    fn would_wait_for_itself(&self, owner: Owner, file: FileId, range: &LockRange) -> bool {
        let mut reached: Vec<Owner> = self.holders(file, owner, range).map(|(holder, _)| holder).collect();
        let (mut seen, mut searched) = (HashSet::new(), 0);
        while let Some(holder) = reached.pop() {
            if holder == owner {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            let waits = self.waits.iter().filter(|wait| wait.owner == holder && wait.of_process);
            for wait in waits.filter(|wait| wait.asked.elapsed() < PLACE_LIMIT) {
                searched += 1;
                if searched > MAX_SEARCHED {
                    return false;
                }
                reached.extend(self.holders(wait.file, holder, &wait.range).map(|(next, _)| next));
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

    fn owners_through(&self, client: u64, file: FileId, opened: u64) -> Vec<Owner> {
        let owners = self.files.get(&file).into_iter().flatten();
        owners
            .filter(|(owner, held)| owner.client == client && held.opened == opened)
            .map(|(owner, _)| *owner)
            .collect()
    }

    /// Takes a lock that no other client has.
    fn take(&mut self, owner: Owner, through: &Through<'_>, range: &LockRange) -> Result<()> {
        if through.quota.locked_ranges() >= MAX_RANGES {
            return Err(Errno::NOLCK.into());
        }
        if let Some(held) = self.files.get_mut(&through.file).and_then(|owners| owners.get_mut(&owner)) {
            return held.lock(through, range);
        }
        if self.files.get(&through.file).is_some_and(|owners| owners.len() >= MAX_OWNERS) {
            return Err(Errno::NOLCK.into());
        }
        let held = Held::new(through, range)?;
        self.files.entry(through.file).or_default().insert(owner, held);
        Ok(())
    }

    fn release(&mut self, file: FileId, owner: Owner, range: &LockRange) -> Result<()> {
        let Some(held) = self.files.get_mut(&file).and_then(|owners| owners.get_mut(&owner)) else { return Ok(()) };
        if held.ranges.is_within(range) {
            self.release_all(file, owner);
            return Ok(());
        }
        held.description.set(range)?;
        held.note(range);
        Ok(())
    }

    /// Releases what an owner has locked in a file, and forgets a file that has no locks.
    fn release_all(&mut self, file: FileId, owner: Owner) {
        let Some(owners) = self.files.get_mut(&file) else { return };
        owners.remove(&owner);
        if owners.is_empty() {
            self.files.remove(&file);
        }
    }
}

impl Held {
    fn new(through: &Through<'_>, range: &LockRange) -> Result<Self> {
        // As fcntl(2) says if there is no room for further locks.
        let taken = through.quota.take().map_err(|_| Errno::NOLCK)?;
        let description = Description::of(through.descriptor, through.flags, range.kind)?;
        description.set(range)?;
        let mut held = Self { description, taken, opened: through.opened, ranges: Ranges::default() };
        held.note(range);
        Ok(held)
    }

    /// The system has this lock, or has it no more.
    fn note(&mut self, range: &LockRange) {
        let before = self.ranges.len();
        self.ranges.lock(*range);
        self.taken.quota().count_ranges(before, self.ranges.len());
    }

    fn lock(&mut self, through: &Through<'_>, range: &LockRange) -> Result<()> {
        if !self.description.serves(range.kind, through.flags) {
            self.widen(through, range.kind)?;
        }
        self.description.set(range)?;
        self.opened = through.opened;
        self.note(range);
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

/// With its description the locks of the system go.
impl Drop for Held {
    fn drop(&mut self) {
        self.taken.quota().count_ranges(self.ranges.len(), 0);
    }
}

/// Whether two owners cannot have both locks.
fn excludes(one: &LockRange, other: &LockRange) -> bool {
    let overlap = one.start <= other.end && other.start <= one.end;
    overlap && (one.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
}

#[cfg(test)]
mod tests;
