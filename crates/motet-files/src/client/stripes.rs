//! Files whose content is striped over several exports ([`Layout`]).
//!
//! The file itself has the first unit, the length, the times, the locks. Each other export has a file, its *part*, named by the layout's number. Parts are made
//! when the file is made, so a part that is not there is lost, and reading it is an error.

use super::export_file::{ExportFile, Transfer};
use super::waits::{Waits, call_for, caller};
use super::{Client, Shared};
use crate::Result;
use crate::protocol::{Attributes, Change, Layout, OpenFlags};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::io::Error;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Permissions of a part: its export is used by the clients of the striped one alone.
const PART_MODE: u32 = 0o600;

/// The clients of the exports that have parts of striped files.
#[derive(Debug, Default)]
pub struct PartClients {
    limit: Option<Duration>,
    clients: Mutex<HashMap<String, Client>>,
    waits: OnceLock<Arc<Waits>>,
}

/// The parts of an open striped file.
#[derive(Debug)]
pub struct Stripes {
    layout: Layout,
    access: OpenFlags,
    appends: bool,
    /// The open parts, in the order of the layout's exports.
    parts: Vec<Mutex<Option<Arc<ExportFile>>>>,
}

/// A read or write of several units.
struct Planned {
    /// The lengths of its pieces.
    lengths: Vec<usize>,
    /// One more piece gives the file its length.
    has_end: bool,
}

/// A read or write within one unit. Part 0 is the file itself.
struct Piece<'a> {
    part: usize,
    transfer: Transfer<'a>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartClients {
    /// `limit`: how long a call waits for a server that is away.
    pub fn new(limit: Option<Duration>) -> Self {
        Self { limit, clients: Mutex::default(), waits: OnceLock::new() }
    }

    /// The client of an export, which connects at first use.
    fn client(&self, export: &str) -> Result<Client> {
        if let Some(client) = locked(&self.clients).get(export) {
            return Ok(client.clone());
        }
        // Without the lock, so that a server that is away delays nothing of the others.
        let client = Client::of_parts(export, self.limit)?;
        if let Some(waits) = self.waits.get() {
            client.share_waits(waits)?;
        }
        Ok(locked(&self.clients).entry(export.to_owned()).or_insert(client).clone())
    }

    /// Calls of the clients wait as those of another one do.
    pub fn share_waits(&self, waits: &Arc<Waits>) {
        let _ = self.waits.set(Arc::clone(waits));
    }

    /// Removes the parts of a file that has no name any more. What cannot be removed stays behind, without a file that it belongs to.
    pub fn remove(&self, layout: &Layout) {
        for export in &layout.others {
            let _ = self.client(export).and_then(|client| client.unlink(name(layout).as_bytes(), false));
        }
    }

    /// Ends the sessions.
    pub fn close(&self) {
        locked(&self.clients).values().for_each(Client::close);
    }
}

/// The path of the parts of a file.
fn name(layout: &Layout) -> String {
    layout.id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn of_export(error: Error, export: &str) -> Error {
    Error::other(format!("export {export}, which has a part of the file: {error}"))
}

/// An error of an export of parts. Those that say nothing about the file itself name the export.
fn named(error: Error, export: &str) -> Error {
    match error.raw_os_error() {
        Some(code) if [Errno::IO, Errno::NOENT].map(Errno::raw_os_error).contains(&code) => of_export(error, export),
        _ => error,
    }
}

impl Stripes {
    /// The parts of a file that is opened with these flags.
    pub fn new(layout: Layout, flags: OpenFlags) -> Self {
        let parts = layout.others.iter().map(|_| Mutex::default()).collect();
        let access = flags & (OpenFlags::READ | OpenFlags::WRITE | OpenFlags::SYNC | OpenFlags::DIRECT);
        Self { layout, access, appends: flags.contains(OpenFlags::APPEND), parts }
    }

    /// Makes the parts of a new file.
    pub fn make(&self, file: &ExportFile) -> Result<()> {
        self.each_part(|at| {
            let part = self.open(file, at, OpenFlags::CREATE).map_err(|error| named(error, &self.layout.others[at]))?;
            *locked(&self.parts[at]) = Some(part);
            Ok(())
        })
    }

    /// Reads into `buffer` from `offset` on; returns how many bytes, fewer only at the end of the file.
    pub fn read(&self, file: &ExportFile, buffer: &mut [u8], offset: u64) -> Result<usize> {
        self.alone(file, &mut Transfer::Read(offset, buffer))
    }

    /// Writes `data` at `offset`, or at the end of a file that is open for appending; returns how many bytes.
    pub fn write(&self, file: &ExportFile, data: &[u8], offset: u64) -> Result<usize> {
        self.alone(file, &mut Transfer::Write(offset, data))
    }

    /// Writes `data` at `offset`, also into a file that is open for appending; returns how many bytes.
    pub fn write_back(&self, file: &ExportFile, data: &[u8], offset: u64) -> Result<usize> {
        let mut results = self.transfer_as(file, &mut [Transfer::Write(offset, data)], false);
        results.pop().unwrap_or_else(|| Err(Errno::IO.into()))
    }

    fn alone(&self, file: &ExportFile, transfer: &mut Transfer<'_>) -> Result<usize> {
        let mut results = self.transfer(file, std::slice::from_mut(transfer));
        results.pop().unwrap_or_else(|| Err(Errno::IO.into()))
    }

    /// Makes several reads and writes at once, in any order, in all exports at the same time; returns how many bytes of each.
    pub fn transfer(&self, file: &ExportFile, transfers: &mut [Transfer<'_>]) -> Vec<Result<usize>> {
        self.transfer_as(file, transfers, self.appends)
    }

    fn transfer_as(&self, file: &ExportFile, transfers: &mut [Transfer<'_>], appends: bool) -> Vec<Result<usize>> {
        let mut pieces = Vec::new();
        let planned: Vec<Result<Planned>> =
            transfers.iter_mut().map(|transfer| self.plan(file, transfer, appends, &mut pieces)).collect();
        let mut results = self.execute(file, pieces).into_iter();
        let mut finished = Vec::with_capacity(planned.len());
        for (planned, transfer) in planned.into_iter().zip(transfers) {
            finished.push(planned.and_then(|planned| {
                let mut own: Vec<_> = results.by_ref().take(planned.lengths.len()).collect();
                if planned.has_end {
                    results.next().unwrap_or_else(|| Err(Errno::IO.into()))?;
                }
                if let Transfer::Read(offset, buffer) = transfer {
                    fill_holes(file, (buffer, *offset), &planned.lengths, &mut own)?;
                }
                prefix(&planned.lengths, own)
            }));
        }
        finished
    }

    /// Divides a transfer into the units that its bytes belong to.
    fn plan<'a>(
        &self,
        file: &ExportFile,
        transfer: &'a mut Transfer<'_>,
        appends: bool,
        pieces: &mut Vec<Piece<'a>>,
    ) -> Result<Planned> {
        match transfer {
            Transfer::Read(offset, buffer) => {
                let ranges: Vec<_> = self.ranges(buffer.len(), *offset).collect();
                let mut rest = &mut buffer[..];
                for &(part, at, length) in &ranges {
                    let (piece, behind) = std::mem::take(&mut rest).split_at_mut(length);
                    rest = behind;
                    pieces.push(Piece { part, transfer: Transfer::Read(at, piece) });
                }
                Ok(Planned { lengths: ranges.iter().map(|&(_, _, length)| length).collect(), has_end: false })
            }
            Transfer::Write(_, []) => Ok(Planned { lengths: Vec::new(), has_end: false }),
            Transfer::Write(offset, data) => {
                let length = data.len() as u64;
                let offset = if appends { file.reserve(length)? } else { *offset };
                let last = offset.checked_add(length - 1).filter(|last| *last < i64::MAX as u64).ok_or(Errno::FBIG)?;
                let ranges: Vec<_> = self.ranges(data.len(), offset).collect();
                let mut rest = *data;
                for &(part, at, length) in &ranges {
                    let (piece, behind) = rest.split_at(length);
                    rest = behind;
                    pieces.push(Piece { part, transfer: Transfer::Write(at, piece) });
                }
                let has_end = self.part_of(last) != 0;
                if has_end {
                    // The file itself gets its length and times by a byte in a unit that another export has.
                    pieces.push(Piece { part: 0, transfer: Transfer::Write(last, &[0]) });
                }
                Ok(Planned { lengths: ranges.iter().map(|&(_, _, length)| length).collect(), has_end })
            }
        }
    }

    /// Waits until what was written is on the disks of all exports.
    pub fn sync(&self, file: &ExportFile, data_only: bool) -> Result<()> {
        self.each_part(|at| self.part(file, at)?.sync(data_only).map_err(|error| named(error, &self.layout.others[at])))
    }

    /// Makes the parts as long as the file is about to be.
    pub fn truncate(&self, file: &ExportFile, size: u64) -> Result<()> {
        let change = Change { size: Some(size), ..Change::default() };
        self.each_part(|at| {
            let changed = self.part(file, at)?.set_attributes(&change);
            changed.map(drop).map_err(|error| named(error, &self.layout.others[at]))
        })
    }

    /// Frees the space of a range in all parts (the mode of fallocate(2)).
    pub fn punch_hole(&self, file: &ExportFile, mode: u32, offset: u64, length: u64) -> Result<()> {
        self.each_part(|at| {
            let punched = self.part(file, at)?.fallocate(mode, offset, length);
            punched.map_err(|error| named(error, &self.layout.others[at]))
        })
    }

    /// Calls `with` with the number of each part, at once.
    fn each_part(&self, with: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
        thread::scope(|scope| {
            let (with, caller) = (&with, caller());
            let as_caller = move |at| {
                call_for(caller);
                with(at)
            };
            let others: Vec<_> = (1..self.parts.len()).map(|at| scope.spawn(move || as_caller(at))).collect();
            let first = with(0);
            let join = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|_| Err(Errno::IO.into()))
            };
            others.into_iter().map(join).fold(first, Result::and)
        })
    }

    /// An open part; `at` is its place in the layout.
    fn part(&self, file: &ExportFile, at: usize) -> Result<Arc<ExportFile>> {
        let mut part = locked(&self.parts[at]);
        if let Some(part) = &*part {
            return Ok(Arc::clone(part));
        }
        let opened = match self.open(file, at, OpenFlags::empty()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => self.open_absent(file, at)?,
            opened => opened.map_err(|error| named(error, &self.layout.others[at]))?,
        };
        *part = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// Opens a part that was not found: of a removed file, of one that another client is making, or lost.
    fn open_absent(&self, file: &ExportFile, at: usize) -> Result<Arc<ExportFile>> {
        let Attributes { links, size, .. } = file.attributes()?;
        if links == 0 {
            return Err(Errno::STALE.into());
        }
        if size > 0 {
            return Err(of_export(Error::other("it is lost there"), &self.layout.others[at]));
        }
        self.open(file, at, OpenFlags::CREATE)
    }

    fn open(&self, file: &ExportFile, at: usize, more: OpenFlags) -> Result<Arc<ExportFile>> {
        let export = &self.layout.others[at];
        let clients = file.client().parts.as_ref().ok_or(Errno::PROTO)?;
        let client = clients.client(export).map_err(|error| of_export(error, export))?;
        match client.open_in_export(name(&self.layout).as_bytes(), self.access | more, PART_MODE)? {
            (part, _, None) => Ok(Arc::new(part)),
            (_, _, Some(_)) => {
                Err(Error::other(format!("export {export} has parts of striped files, and is striped itself")))
            }
        }
    }

    /// The part that has the byte at `offset`; 0: the file itself.
    fn part_of(&self, offset: u64) -> usize {
        let unit = offset / u64::from(self.layout.unit);
        (unit % (self.parts.len() as u64 + 1)) as usize
    }

    /// The units of a range: part, offset, and length.
    fn ranges(&self, length: usize, offset: u64) -> impl Iterator<Item = (usize, u64, usize)> + '_ {
        let unit = u64::from(self.layout.unit);
        let mut done = 0;
        std::iter::from_fn(move || {
            let at = offset.checked_add(done as u64)?;
            let left = length - done;
            let within = usize::try_from(unit - at % unit).unwrap_or(usize::MAX).min(left);
            done += within;
            (within > 0).then(|| (self.part_of(at), at, within))
        })
    }

    /// Makes the transfers in all exports at once; returns the results in the order of the pieces.
    fn execute(&self, file: &ExportFile, pieces: Vec<Piece<'_>>) -> Vec<Result<usize>> {
        let mut results: Vec<Result<usize>> = pieces.iter().map(|_| Ok(0)).collect();
        let mut by_part: BTreeMap<usize, (Vec<usize>, Vec<Transfer<'_>>)> = BTreeMap::new();
        for (at, piece) in pieces.into_iter().enumerate() {
            let (places, transfers) = by_part.entry(piece.part).or_default();
            places.push(at);
            transfers.push(piece.transfer);
        }
        let run = |part: usize, transfers: &mut [Transfer<'_>]| match part {
            0 => file.transfer(transfers),
            _ => self.transfer_part(file, part - 1, transfers),
        };
        let (run, caller) = (&run, caller());
        let finished = thread::scope(|scope| {
            let mut groups = by_part.into_iter();
            let own = groups.next();
            let others: Vec<_> = groups
                .map(|(part, (places, mut transfers))| {
                    let count = places.len();
                    let as_caller = move || {
                        call_for(caller);
                        run(part, &mut transfers)
                    };
                    (places, count, scope.spawn(as_caller))
                })
                .collect();
            let mut finished = Vec::new();
            if let Some((part, (places, mut transfers))) = own {
                finished.push((places, run(part, &mut transfers)));
            }
            for (places, count, thread) in others {
                let broken = |_| (0..count).map(|_| Err(Errno::IO.into())).collect();
                finished.push((places, thread.join().unwrap_or_else(broken)));
            }
            finished
        });
        for (places, group) in finished {
            for (place, result) in places.into_iter().zip(group) {
                results[place] = result;
            }
        }
        results
    }

    fn transfer_part(&self, file: &ExportFile, at: usize, transfers: &mut [Transfer<'_>]) -> Vec<Result<usize>> {
        let export = &self.layout.others[at];
        match self.part(file, at) {
            Ok(part) => {
                let results = part.transfer(transfers).into_iter();
                results.map(|result| result.map_err(|error| named(error, export))).collect()
            }
            Err(error) => {
                let copy = || match error.raw_os_error() {
                    Some(code) => Error::from_raw_os_error(code),
                    None => Error::other(error.to_string()),
                };
                transfers.iter().map(|_| Err(copy())).collect()
            }
        }
    }
}

/// Completes a read in which pieces are short. A part ends where its last unit ends, and nothing is where nothing was written: the length of the file decides.
fn fill_holes(
    file: &ExportFile,
    (buffer, offset): (&mut [u8], u64),
    lengths: &[usize],
    results: &mut [Result<usize>],
) -> Result<()> {
    let is_short = |(asked, read): (&usize, &Result<usize>)| read.as_ref().is_ok_and(|read| read < asked);
    if !lengths.iter().zip(&*results).any(is_short) {
        return Ok(());
    }
    let size = file.attributes()?.size;
    let mut start = 0;
    for (&asked, read) in lengths.iter().zip(results) {
        if let Ok(read) = read {
            let left = size.saturating_sub(offset + start as u64);
            let within = usize::try_from(left).unwrap_or(usize::MAX).min(asked);
            buffer[start..start + within].get_mut(*read..).unwrap_or_default().fill(0);
            *read = within;
        }
        start += asked;
    }
    Ok(())
}

/// How many bytes were transferred, up to the first piece that is not complete.
fn prefix(lengths: &[usize], results: Vec<Result<usize>>) -> Result<usize> {
    let mut done = 0;
    for (length, result) in lengths.iter().zip(results) {
        match result {
            Ok(count) if count == *length => done += count,
            Ok(count) => return Ok(done + count),
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl Client {
    /// The client of an export that has parts of striped files. It uses the directory itself where it can.
    fn of_parts(export: &str, limit: Option<Duration>) -> Result<Self> {
        let client = Self::named(export, limit)?;
        let Some(Shared { transport, files, .. }) = Arc::into_inner(client.shared) else {
            return Err(Errno::IO.into());
        };
        Ok(Self::with(transport, files, None))
    }
}
