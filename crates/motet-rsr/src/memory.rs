//! Memory of requests: what long ones may take together and by link, and buffers that are used again.

use crate::options::MAX_ONE_PACKET;
use crate::wire::MAX_HEAD;
use motet::node::LinkId;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of a buffer for first packets.
pub const FIRST: usize = MAX_ONE_PACKET + MAX_HEAD;
/// Most buffers that are kept, of those for first packets and of those for long data.
const KEPT: [usize; 2] = [64, 4];
/// Longest buffer that is kept, bytes.
const LONGEST_KEPT: usize = 16 << 20;
/// Leases of more than this part of the memory leave a quarter of it to shorter ones.
const LONG_PART: usize = 16;
/// Data arrive at this rate at least while they hold others up, bytes/s.
const MIN_RATE: u64 = 1 << 20;
/// The most that counts of the time between two looks at data that arrive. More passes where this process is stopped, or does not receive: that is not the
/// peers' doing.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_millis(40);

/// Buffers for first packets that no thread keeps.
static FIRST_BUFFERS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

thread_local! {
    /// The buffer for first packets that this thread has given back last: the next one that it takes. Empty: none.
    static FIRST_HERE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A buffer for a first packet. All of a process have one length.
#[inline]
pub fn first_buffer() -> Vec<u8> {
    let kept = FIRST_HERE.try_with(Cell::take).unwrap_or_default();
    if kept.is_empty() { other_first_buffer() } else { kept }
}

#[cold]
fn other_first_buffer() -> Vec<u8> {
    lock(&FIRST_BUFFERS).pop().unwrap_or_else(|| vec![0; FIRST])
}

/// Takes a buffer for first packets back.
#[inline]
pub fn give_back_first(buffer: Vec<u8>) {
    if buffer.is_empty() {
        return;
    }
    // A thread that ends keeps none.
    let other = FIRST_HERE.try_with(|kept| kept.replace(buffer)).unwrap_or_default();
    if !other.is_empty() {
        keep_first_buffer(other);
    }
}

#[cold]
fn keep_first_buffer(buffer: Vec<u8>) {
    let mut kept = lock(&FIRST_BUFFERS);
    if kept.len() < KEPT[0] {
        kept.push(buffer);
    }
}

/// The memory.
#[derive(Debug)]
pub struct Memory {
    /// Most bytes of requests together; a link gets a quarter.
    most: usize,
    used: Mutex<Used>,
    long: Mutex<Vec<Vec<u8>>>,
}

/// What is held.
#[derive(Debug, Default)]
struct Used {
    all: usize,
    /// Of it by long leases.
    long: usize,
    /// By link and not by channel: a peer may open as many channels as it likes.
    by_link: HashMap<LinkId, usize>,
    /// Leases whose data have not arrived, by number.
    arriving: HashMap<u64, Arriving>,
    last: u64,
}

/// A lease whose data have not arrived.
#[derive(Debug)]
struct Arriving {
    link: LinkId,
    bytes: usize,
    /// For how long they have held others up, and could have been received.
    age: Duration,
    last_look: Option<Instant>,
    /// Whether the thread that receives the data does something else.
    is_busy: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leave to hold so many bytes for a request of a link. Given back when dropped.
#[derive(Debug)]
pub struct Lease {
    memory: Arc<Memory>,
    link: LinkId,
    bytes: usize,
    number: u64,
}

impl Memory {
    pub fn new(most: usize) -> Self {
        Self { most, used: Mutex::default(), long: Mutex::default() }
    }

    /// Leave to hold `bytes` for data that arrive now, unless too many are held. A link that holds none always gets it if all together have room.
    /// `is_busy`: whether the thread that receives the data does something else.
    pub fn lease(self: &Arc<Self>, link: LinkId, bytes: usize, is_busy: &Arc<AtomicBool>) -> Option<Lease> {
        let used = &mut *lock(&self.used);
        let own = used.by_link.get(&link).copied().unwrap_or(0);
        let is_long = self.is_long(bytes);
        let exceeds = |held: usize, most: usize| held > 0 && held.saturating_add(bytes) > most;
        if exceeds(used.all, self.most)
            || exceeds(own, self.most / 4)
            || is_long && exceeds(used.long, self.most - self.most / 4)
        {
            return None;
        }
        used.all += bytes;
        used.long += if is_long { bytes } else { 0 };
        *used.by_link.entry(link).or_default() += bytes;
        used.last += 1;
        let arriving = Arriving { link, bytes, age: Duration::ZERO, last_look: None, is_busy: is_busy.clone() };
        used.arriving.insert(used.last, arriving);
        Some(Lease { memory: self.clone(), link, bytes, number: used.last })
    }

    fn is_long(&self, bytes: usize) -> bool {
        bytes > self.most / LONG_PART
    }

    /// Bytes that are held.
    pub fn held(&self) -> usize {
        lock(&self.used).all
    }

    /// The links that hold others up with data that should be here: they have done so for longer than `limit` and the time that the data take at the lowest
    /// rate. `holds_up`: whether a link does. Called again and again while one does.
    pub fn overdue(&self, limit: Duration, holds_up: impl Fn(LinkId) -> bool) -> Vec<LinkId> {
        let (mut used, now) = (lock(&self.used), Instant::now());
        let mut overdue = Vec::new();
        for arriving in used.arriving.values_mut().filter(|arriving| holds_up(arriving.link)) {
            let since = arriving.last_look.replace(now).map_or(Duration::ZERO, |last| now.duration_since(last));
            if !arriving.is_busy.load(Ordering::Relaxed) {
                arriving.age += since.min(MOST_BETWEEN_LOOKS);
            }
            if arriving.age > limit.saturating_add(Duration::from_secs(arriving.bytes as u64 / MIN_RATE)) {
                overdue.push(arriving.link);
            }
        }
        overdue
    }

    /// A buffer of at least `length` bytes for data.
    pub fn long(&self, length: usize) -> Vec<u8> {
        let mut kept = lock(&self.long);
        let fits = |buffer: &Vec<u8>| buffer.len() >= length && buffer.len() / 4 <= length;
        match kept.iter().rposition(fits) {
            Some(at) => kept.remove(at), // the one used last: it is in the caches
            None => {
                drop(kept);
                vec![0; length]
            }
        }
    }

    /// Takes a buffer for data back.
    pub fn give_back(&self, buffer: Vec<u8>) {
        if buffer.is_empty() || buffer.len() > LONGEST_KEPT {
            return;
        }
        let mut kept = lock(&self.long);
        if kept.len() >= KEPT[1] {
            kept.remove(0); // the lengths of today replace those of yesterday
        }
        kept.push(buffer);
    }
}

impl Lease {
    /// The data are here.
    pub fn arrived(&self) {
        lock(&self.memory.used).arriving.remove(&self.number);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let used = &mut *lock(&self.memory.used);
        used.arriving.remove(&self.number);
        used.all = used.all.saturating_sub(self.bytes);
        if self.memory.is_long(self.bytes) {
            used.long = used.long.saturating_sub(self.bytes);
        }
        if let Some(own) = used.by_link.get_mut(&self.link) {
            *own = own.saturating_sub(self.bytes);
            if *own == 0 {
                used.by_link.remove(&self.link);
            }
        }
    }
}
