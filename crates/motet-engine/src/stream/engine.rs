//! The process's one engine: streams by handle, the stats file, and the process's private state of each stream.
//!
//! There are two kinds of memory. *Records* are in the stats file, shared with forked children and readable by `motet ps`. [`Local`] is private to the
//! process (a forked child has its own copy).

mod fork;
mod totals;
mod unread;

pub use super::local::Local;
pub use super::options::Options;
pub use crate::Handle;
pub use fork::ForkGuard;
pub use totals::Totals;

use crate::lock;
use crate::log::Log;
use crate::stream::fork_group::member::MemberSlot;
use crate::stream::kernel_tcp::KernelTcp;
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::{limits, memory, thread};
use motet_wire::copy_mode::CopyMode;
use motet_wire::stats_table::StatsFormat;
use motet_wire::stream::record::{ConnectionInfo, Events, GateMisses, Lifecycle, Rx, State, StreamRecord, Tx};
use motet_wire::stream::slot::Slot;
use motet_wire::stream::stats::{StatsFile, StreamFormat};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

/// A stream of this process whose wire is up.
pub struct UpgradedStream<'e> {
    /// Its handle.
    pub handle: Handle,
    /// Its record, shared in the fork group.
    pub record: &'e StreamRecord,
    /// The private state of this process.
    pub local: &'e Local,
    /// Its wire.
    pub slot: Slot,
}

impl<'e> UpgradedStream<'e> {
    /// The kernel's TCP under it.
    #[inline(always)]
    pub fn kernel_tcp(&self) -> KernelTcp<'e> {
        KernelTcp::new(self.local, self.handle)
    }

    /// Whether the peer last waited on this CPU.
    pub fn peer_on_this_cpu(&self) -> bool {
        motet_proto::stream::spin::peer_on_this_cpu(&self.slot, &self.kernel_tcp())
    }
}

const STREAMS_PER_CHUNK: usize = 64;

/// The engine.
pub struct Engine {
    /// The settings.
    pub options: Options,
    /// The log file.
    pub log: Log,
    pub(crate) stats_file: StatsFile,
    pub(crate) stats_descriptor: PrivateFd,
    pub(crate) member: MemberSlot,
    locals: Box<[OnceLock<Box<[Local; STREAMS_PER_CHUNK]>>]>,
    free: Mutex<VecDeque<u32>>,
    owners: Mutex<HashMap<u64, Handle>>,
    /// One bit for each stream with bytes that the peer may not have read (label UNREAD).
    unread: Box<[AtomicU64]>,
    /// One bit for each word of `unread` that may have set bits, so that few of many streams are found quickly (label UNREAD).
    unread_words: Box<[AtomicU64]>,
    /// The number of bits set in `unread`.
    any_unread: AtomicU64,
    /// The sum over streams that have ended.
    ended: Mutex<Totals>,
    /// The counts of links that are in the stats file.
    reported_links: [AtomicU64; 2],
}

static ENGINE: OnceLock<Option<Engine>> = OnceLock::new();
/// Held while the engine starts, so that no child is forked meanwhile.
static START_LOCK: Mutex<()> = Mutex::new(());

impl Engine {
    /// The engine, started with `options` on the first call. `None`: the stats file cannot be created.
    pub fn start(options: impl FnOnce() -> Options) -> Option<&'static Engine> {
        let _start = lock(&START_LOCK);
        ENGINE.get_or_init(|| Engine::new(options()).ok()).as_ref()
    }

    /// The engine, if it runs.
    #[inline(always)]
    pub fn running() -> Option<&'static Engine> {
        ENGINE.get().and_then(Option::as_ref)
    }

    fn new(mut options: Options) -> Result<Self, i32> {
        let (file, stats_file) = new_stats_file(fit_streams(options.streams).next_multiple_of(STREAMS_PER_CHUNK))?;
        options.streams = stats_file.capacity();
        motet_sys::process_root::remember();
        motet_sys::clock::ticks_per_1024ns();
        crate::stream::kernel_tcp::keep_gates_open(options.patience);
        let log = Log::new(options.log.clone());
        log.start(&options);
        let engine = Self {
            stats_file,
            stats_descriptor: PrivateFd::new(file),
            member: MemberSlot::default(),
            log,
            locals: (0..options.streams / STREAMS_PER_CHUNK).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
            owners: Mutex::default(),
            unread: (0..options.streams / STREAMS_PER_CHUNK).map(|_| AtomicU64::new(0)).collect(),
            unread_words: (0..(options.streams / STREAMS_PER_CHUNK).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            any_unread: AtomicU64::new(0),
            ended: Mutex::default(),
            reported_links: Default::default(),
            options,
        };
        engine.join_fork_group(0);
        Ok(engine)
    }

    /// The record and the private state of a stream; `None` if the handle is stale.
    #[inline(always)]
    pub fn look_up(&self, handle: Handle) -> Option<(&StreamRecord, &Local)> {
        let index = ((handle >> 32) as usize).wrapping_sub(1);
        let local = self.local(index)?;
        if local.handle.load(Ordering::Acquire) != handle {
            return None;
        }
        Some((self.stats_file.row(index)?, local))
    }

    /// The stream of a handle, if its wire is up.
    #[inline(always)]
    pub fn attached(&self, handle: Handle) -> Option<UpgradedStream<'_>> {
        let (record, local) = self.look_up(handle)?;
        Some(UpgradedStream { handle, record, local, slot: local.slot.slot()? })
    }

    /// Records of which this process has ever held a stream, with their private state.
    pub(crate) fn each_local(&self) -> impl Iterator<Item = (&StreamRecord, &Local)> {
        let used = self.stats_file.table().used.load(Ordering::Acquire) as usize;
        (0..used).filter_map(|index| Some((self.stats_file.row(index)?, self.local(index)?)))
    }

    /// Every record that has ever been used.
    pub(crate) fn each_record(&self, each: impl FnMut(&StreamRecord)) {
        let used = self.stats_file.table().used.load(Ordering::Acquire) as usize;
        (0..used).filter_map(|index| self.stats_file.row(index)).for_each(each);
    }

    fn make_local(&self, index: usize) {
        // By way of a vector: the program's thread may have too small a stack for the array.
        let made = || (0..STREAMS_PER_CHUNK).map(|_| Local::default()).collect::<Box<[Local]>>();
        self.locals[index / STREAMS_PER_CHUNK]
            .get_or_init(|| made().try_into().unwrap_or_else(|_| unreachable!("of this length")));
    }

    #[inline(always)]
    fn local(&self, index: usize) -> Option<&Local> {
        Some(&self.locals.get(index / STREAMS_PER_CHUNK)?.get()?[index % STREAMS_PER_CHUNK])
    }

    /// A new record, owned by this process, in state `Candidate`.
    pub fn allocate(&self) -> Option<(Handle, &StreamRecord, &Local)> {
        if !self.ensure_member() {
            return None;
        }
        let recycled = {
            let mut free = lock(&self.free);
            // The oldest one, and only if there are many: a thread that holds a stale handle should find it stale.
            if free.len() >= STREAMS_PER_CHUNK { free.pop_front() } else { None }
        };
        let index = match recycled.or_else(|| self.unused()).or_else(|| lock(&self.free).pop_front()) {
            Some(index) => index as usize,
            None => {
                self.stats_file.table().not_listed.fetch_add(1, Ordering::Relaxed);
                return None;
            }
        };
        self.make_local(index);
        let record = self.stats_file.row(index)?;
        let generation = record.lifecycle.generation.load(Ordering::Relaxed);
        reset(record);
        record.lifecycle.owner.store(thread::pid(), Ordering::Relaxed);
        record.lifecycle.members.store(self.own_member_bit(), Ordering::Relaxed);
        record.lifecycle.state.store(State::Candidate as u32, Ordering::Release);
        let handle = (index as u64 + 1) << 32 | u64::from(generation);
        let local = self.local(index)?;
        local.hot.store(false, Ordering::Relaxed);
        local.adapters.store(1, Ordering::Relaxed);
        local.handle.store(handle, Ordering::Release);
        Some((handle, record, local))
    }

    fn unused(&self) -> Option<u32> {
        let index = self.stats_file.table().used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| {
            ((used as usize) < self.stats_file.capacity()).then_some(used + 1)
        });
        let index = index.ok()?;
        if (index as usize).is_multiple_of(STREAMS_PER_CHUNK) {
            let size = (STREAMS_PER_CHUNK * StatsFile::ROW) as u64;
            // Allocate the pages now, rather than get SIGBUS later.
            memory::allocate(&self.stats_descriptor, StatsFile::bytes(index as usize) as u64, size).ok()?;
        }
        Some(index)
    }

    /// The record of a handle that may be stale.
    pub(crate) fn any(&self, handle: Handle) -> Option<(&StreamRecord, &Local)> {
        let index = ((handle >> 32) as usize).wrapping_sub(1);
        Some((self.stats_file.row(index)?, self.local(index)?))
    }

    /// Makes a handle stale in this process: later look-ups fail. False: another thread did it.
    pub fn retire(&self, handle: Handle) -> bool {
        let stale = |(_, local): (&StreamRecord, &Local)| {
            local.handle.compare_exchange(handle, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        handle != 0 && self.any(handle).is_some_and(stale)
    }

    /// Frees the record of a retired handle. No process of the fork group has the stream.
    pub fn free(&self, handle: Handle) {
        let index = (handle >> 32) as usize - 1;
        if let Some(record) = self.stats_file.row(index) {
            record.lifecycle.generation.fetch_add(1, Ordering::AcqRel);
            record.lifecycle.state.store(State::Free as u32, Ordering::Release);
            record.lifecycle.owner.store(0, Ordering::Release);
            lock(&self.free).push_back(index as u32);
        }
    }

    /// Streams by SO_COOKIE: a descriptor has one owner, whichever adapter asks first.
    pub fn owners(&self) -> MutexGuard<'_, HashMap<u64, Handle>> {
        lock(&self.owners)
    }
}

/// The number of records of the stats file: `wanted`, or as many as the limits of the process allow.
fn fit_streams(wanted: usize) -> usize {
    let size =
        limits::address_space_share(usize::MAX).min(usize::try_from(limits::max_file_size()).unwrap_or(usize::MAX));
    let fit = size.saturating_sub(StatsFile::bytes(0)) / (StatsFile::bytes(STREAMS_PER_CHUNK) - StatsFile::bytes(0))
        * STREAMS_PER_CHUNK;
    wanted.min(fit.max(STREAMS_PER_CHUNK)) // if not even these fit, the file cannot be created
}

fn new_stats_file(streams: usize) -> Result<(OwnedFd, StatsFile), i32> {
    let raw = |e: motet_sys::rustix::io::Errno| e.raw_os_error();
    let (file, mapping) =
        memory::create_mapped(StreamFormat::NAME, StatsFile::bytes(streams), &[], StreamFormat::HEAD).map_err(raw)?;
    let stats_file = StatsFile::over(mapping, streams).ok_or(22)?;
    stats_file.begin(thread::pid());
    Ok((file, stats_file))
}

/// Resets a record, except for the generation, the state, the owners and the locks (closing left them free). It is taken apart field by field, so that
/// a new field cannot be forgotten.
fn reset(record: &StreamRecord) {
    let StreamRecord { tx, rx, lifecycle, events, connection } = record;
    let Tx {
        lock: _,
        tail,
        head_seen,
        tcp_bytes,
        mark,
        kernel_calls,
        ready,
        peer_alive_at,
        returned_bytes,
        single_copy_bytes,
        single_copy_skips,
        may_copy,
        wide,
        last_put,
        unread_limit,
        head_at_wait,
        copy_mode: CopyMode { mode, window_bytes, rates: [through, around], window_ticks, bytes_until_retry },
    } = tx;
    mark.store(u64::MAX, Ordering::Relaxed); // unlike any count: the first put writes the mark
    for word in
        [tail, head_seen, tcp_bytes, peer_alive_at, returned_bytes, single_copy_bytes, window_ticks, bytes_until_retry]
    {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        kernel_calls,
        ready,
        single_copy_skips,
        may_copy,
        wide,
        mode,
        window_bytes,
        through,
        around,
        last_put,
        unread_limit,
        head_at_wait,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    let Rx {
        lock: _,
        head,
        tcp_bytes,
        mark,
        kernel_calls,
        ready,
        mark_known,
        spin_skips,
        failed_spins,
        evidence_left,
        returned_bytes,
        single_copy_bytes,
        wide,
        bulk_scores,
        large_ring_state,
        same_cpu,
        kernel_wait_since,
        head_at_tcp_empty,
        head_at_tcp_probe,
        tcp_past_open_gate,
        yield_returned,
        tx_tail_at_wait,
        tx_waits_paid,
    } = rx;
    for word in [
        head,
        tcp_bytes,
        mark,
        returned_bytes,
        single_copy_bytes,
        kernel_wait_since,
        head_at_tcp_empty,
        head_at_tcp_probe,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        kernel_calls,
        ready,
        mark_known,
        spin_skips,
        failed_spins,
        evidence_left,
        wide,
        bulk_scores,
        large_ring_state,
        same_cpu,
        tcp_past_open_gate,
        yield_returned,
        tx_tail_at_wait,
        tx_waits_paid,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    let Lifecycle {
        generation: _,
        state: _,
        owner: _,
        members: _,
        fd,
        reason,
        tcp_only,
        woken,
        slot_end,
        deadline_ns,
        pending_messages,
        nonblocking,
        nodelay,
        error,
    } = lifecycle;
    let Events { raised, spin_misses, spilled, downgraded, single_copy, lost_puts, gate_misses } = events;
    let GateMisses { in_a_row, gate_kept_closed, sent_at_miss, received_at_miss } = gate_misses;
    let ConnectionInfo {
        cookies: [own, others],
        pid,
        uid,
        gid,
        producer_stalled,
        role: _,
        family: _,
        ports: _,
        addresses: _,
        began: _,
    } = connection; // `init_connection_info`
    for word in [deadline_ns, raised, spin_misses, spilled, downgraded, single_copy, lost_puts, own, others] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        fd,
        reason,
        tcp_only,
        woken,
        slot_end,
        pending_messages,
        nonblocking,
        nodelay,
        error,
        in_a_row,
        gate_kept_closed,
        sent_at_miss,
        received_at_miss,
        producer_stalled,
    ] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [pid, uid, gid] {
        word.store(u32::MAX, Ordering::Relaxed);
    }
}
