//! What a program image leaves to its successor when the process executes another program: its streams.
//!
//! What it is: a list, in a memfd that the new image inherits, of descriptors, of the records and wires behind them, and of the
//! descriptors of the memory that these lie in. The new image maps the same node file, so it stays the member of the family that it was
//! ([`crate::family`]: a record lock outlives exec), and goes on with head, tail and counts where the old image left them.
//!
//! What it is not: a hand-over to another process. The list names the process that wrote it and is worth nothing to any other.
//!
//! Until the new image has taken its streams up they are plain TCP: nothing of ours is left unread in a ring as far as TCP accepts it,
//! the gates are closed, and the old image has waited a moment for the peers to take back what it has not read.

use crate::driver::Bequest;
use crate::engine::{Engine, Handle, Local, Options};
use crate::reason::Reason;
use motet_proto::{gate, transfer, tx};
use motet_sys::fds::{own, set_cloexec};
use motet_sys::{clock, memory, socket, thread};
use motet_wire::node::{self, Node};
use motet_wire::record::{Record, State};
use motet_wire::segment;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const MAGIC: u64 = u64::from_le_bytes(*b"MOTETexe");
const LAYOUT: u64 = (node::VERSION as u64) << 32 | segment::VERSION as u64;
const NAME: &str = "motet-heritage";
/// Words before the entries, words of an entry, and entries at most.
const HEAD: usize = 7;
const ENTRY: usize = 9;
const MOST: usize = 256;
/// How long the old image waits (ns) for peers to take back what it has not read.
const PATIENCE: u64 = 100_000_000;

// The preload object reads the list before it loads the engine: adapters/sockets/heritage.c knows this layout.

/// The list that this image was started with.
static INHERITED: Mutex<Option<OwnedFd>> = Mutex::new(None);

/// A descriptor and its stream.
pub(crate) struct Entry {
    fd: i32,
    handle: Handle,
    driver: usize,
    bequest: Bequest,
}

/// Before the engine starts: the descriptor of a list. An error when it is none of this process's.
pub fn inherit(list: i32) -> Result<(), i32> {
    let list = own(list);
    let words = read(&list).ok_or(22)?;
    if words[0] != MAGIC || words[1] != LAYOUT || words[2] != u64::from(thread::pid()) {
        return Err(22);
    }
    *crate::engine::lock(&INHERITED) = Some(list);
    Ok(())
}

fn read(list: impl AsFd) -> Option<Vec<u64>> {
    let (size, _, sealed) = memory::inspect(&list).ok()?;
    let words = usize::try_from(size).ok()? / 8;
    if !sealed || !(HEAD..=HEAD + MOST * ENTRY).contains(&words) {
        return None;
    }
    let mut bytes = vec![0; words * 8];
    memory::read(&list, &mut bytes).ok()?;
    Some(bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect())
}

/// The node file that the list names, and this process's number in the family.
pub(crate) struct Found {
    pub(crate) file: OwnedFd,
    pub(crate) node: Node,
    pub(crate) number: u32,
    pub(crate) entries: Vec<Entry>,
}

/// Takes up what `inherit` was told of.
pub(crate) fn find(options: &Options) -> Option<Found> {
    let list = crate::engine::lock(&INHERITED).take()?;
    let words = read(&list)?;
    let file = own(words[3] as i32);
    let streams = usize::try_from(words[4]).ok()?;
    let (size, ..) = memory::inspect(&file).ok()?;
    let number = u32::try_from(words[5]).ok().filter(|&number| (number as usize) < node::MEMBERS)?;
    if !(words.len() - HEAD).is_multiple_of(ENTRY) || size != node::bytes(streams) as u64 {
        return None;
    }
    let node = Node::over(memory::map(&file, node::bytes(streams)).ok()?, streams)?;
    let entry = |w: &[u64]| {
        let bequest = Bequest { file: w[3] as i32, slot: w[4], peer: w[5..9].try_into().ok()? };
        let driver = usize::try_from(w[2]).ok().filter(|&at| at < options.drivers.len())?;
        Some(Entry { fd: w[0] as i32, handle: w[1], driver, bequest })
    };
    let entries = words[HEAD..].chunks_exact(ENTRY).filter_map(entry).collect();
    Some(Found { file, node, number, entries })
}

impl Engine {
    /// Before exec: makes streams ready to be left behind, and a list of those that can be taken up. All others stay plain for good.
    /// The list, and what it names, close on exec only after [`Engine::exec_failed`].
    pub fn before_exec(&self, streams: &[(i32, Handle)]) -> Option<OwnedFd> {
        let entries: Vec<Entry> =
            streams.iter().take(MOST).filter_map(|&(fd, handle)| self.bequeath(fd, handle)).collect();
        for &(_, handle) in streams {
            if !entries.iter().any(|entry| entry.handle == handle) {
                self.plain(handle, Reason::EXEC);
            }
        }
        if entries.is_empty() {
            return None;
        }
        let file = self.node_file.as_fd().as_raw_fd();
        let head = [MAGIC, LAYOUT, u64::from(thread::pid()), file as u64, self.node.capacity() as u64];
        let mut words = head.to_vec();
        words.extend([u64::from(self.number()), entries.len() as u64]);
        for Entry { fd, handle, driver, bequest } in &entries {
            words.extend([*fd as u64, *handle, *driver as u64, bequest.file as u64, bequest.slot]);
            words.extend(bequest.peer);
        }
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let list = memory::make(NAME, bytes.len(), &bytes, 0).ok();
        if list.is_none() {
            for &(_, handle) in streams {
                self.plain(handle, Reason::EXEC);
            }
        }
        let list = list?;
        self.each_file(&list, |fd| set_cloexec(fd, false));
        Some(list)
    }

    /// Exec has failed: everything is as before.
    pub fn exec_failed(&self, list: OwnedFd) {
        self.each_file(&list, |fd| set_cloexec(fd, true));
    }

    fn each_file(&self, list: &OwnedFd, each: impl Fn(i32)) {
        each(list.as_raw_fd());
        let Some(words) = read(list) else { return };
        each(words[3] as i32);
        words[HEAD..].chunks_exact(ENTRY).for_each(|entry| each(entry[3] as i32));
    }

    fn bequeath(&self, fd: i32, handle: Handle) -> Option<Entry> {
        let up = self.attached(handle)?;
        if up.record.state() != State::Attached || up.record.life.plain.load(Relaxed) != 0 || !self.is_member() {
            return None;
        }
        let driver = (up.local.driver.load(Relaxed) as usize).checked_sub(1)?;
        let bequest = self.options.drivers.get(driver)?.bequeath(&up.slot)?;
        let mut base = up.base();
        tx::take_back(up.record, &up.slot, &mut base);
        transfer::withdraw(&up.slot);
        let start = clock::nanoseconds();
        while !gate::close_gate_over_bytes(up.record, &up.slot, &mut base) && clock::nanoseconds() - start < PATIENCE {
            thread::nap(50_000);
        }
        Some(Entry { fd, handle, driver, bequest })
    }

    /// In the new image, with the engine's start: the streams of the list are this process's again, and no others.
    pub(crate) fn take_up(&self, entries: Vec<Entry>) {
        let taken: Vec<Handle> = entries.into_iter().filter_map(|entry| self.take_up_one(entry)).collect();
        let used = self.node.head().used.load(Acquire) as usize;
        for index in 0..used {
            let Some(record) = self.node.record(index) else { continue };
            let handle = (index as u64 + 1) << 32 | u64::from(record.life.generation.load(Relaxed));
            let had = record.life.users.load(Acquire) & self.own_bit() != 0;
            if had && !taken.contains(&handle) && self.lets_go(record) {
                self.free(handle);
            }
        }
    }

    fn take_up_one(&self, Entry { fd, handle, driver, bequest }: Entry) -> Option<Handle> {
        let (record, local) = self.room(handle)?;
        let cookie = socket::cookie(fd).ok()?;
        if cookie != record.who.cookies[0].load(Relaxed) {
            return None;
        }
        if local.handle.load(Relaxed) == handle {
            return Some(handle); // a duplicate
        }
        let slot = self.options.drivers[driver].inherit(bequest)?;
        local.driver.store(driver as u32 + 1, Relaxed);
        local.fd.store(fd, Relaxed);
        local.cookie.store(cookie, Relaxed);
        local.connected.store(record.who.role.load(Relaxed) == 1, Relaxed);
        local.slot.set(Some(slot));
        self.settle(record, local);
        local.handle.store(handle, Release);
        self.owners().insert(cookie, handle);
        slot.outward().transfer.proof.store(transfer::proof(record), Release);
        Some(handle)
    }

    /// Threads of the old image ended wherever they were; and before the new one took the stream up, it may have used TCP.
    fn settle(&self, record: &Record, local: &Local) {
        for lock in [&record.tx.lock, &record.rx.lock] {
            let holder = lock.load(Acquire);
            if (holder >> 32) as u32 == thread::pid() && lock.compare_exchange(holder, 0, Acquire, Relaxed).is_ok() {
                record.life.state.store(State::Broken as u32, Release);
            }
        }
        if !self.has_alone(record) {
            return;
        }
        record.tx.busy.store(0, Relaxed);
        record.rx.busy.store(0, Relaxed);
        let fd = local.fd.load(Relaxed);
        let connected = record.who.role.load(Relaxed) == 1;
        let (sent, received) = (socket::sent_position(fd, connected), socket::received_position(fd));
        if let (Ok(Some(sent)), Ok(Some(received))) = (sent, received) {
            record.tx.tcp.store(sent, Relaxed);
            record.rx.tcp.store(received, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::IntoRawFd;

    fn list(words: &[u64]) -> OwnedFd {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        memory::make(NAME, bytes.len(), &bytes, 0).unwrap()
    }

    #[test]
    fn a_list_is_taken_only_from_this_process_and_this_layout() {
        let own = u64::from(thread::pid());
        let good = [MAGIC, LAYOUT, own, 0, 0, 0, 0];
        for (at, wrong) in [(0, 1), (1, LAYOUT + 1), (2, own + 1)] {
            let mut words = good;
            words[at] = wrong;
            assert_eq!(inherit(list(&words).into_raw_fd()), Err(22));
        }
        assert_eq!(inherit(list(&good[..6]).into_raw_fd()), Err(22), "too short");
        let unsealed = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(inherit(OwnedFd::from(unsealed).into_raw_fd()), Err(22));
        assert!(crate::engine::lock(&INHERITED).is_none());
    }
}
