//! The gate of one direction of a stream: three cache lines that producer and consumer share, and the atomic steps on them.
//!
//! ```text
//!   GateLine      (tail << 2) | WIDE | RING · ack · inline position · 40 bytes of short payload      written by the producer
//!   MarkLine      TCP bytes that precede the ring · "producer ready"                          written by the producer
//!   ConsumerLine  (head << 1) | TAKEN · "consumer ready" · the CPU it was last seen on        written by the consumer
//! ```
//!
//! `tail` and `head` count every byte that ever went through the ring. Only the consumer raises RING, over an empty ring ([`GateLine::raise`]).
//! The consumer lowers it over an empty ring ([`GateLine::lower_empty`]), the producer at any time ([`GateLine::lower_by_producer`]). TAKEN is
//! the producer's claim on unread bytes ([`ConsumerLine::claim`]): while it is set, the consumer cannot advance.
//!
//! Every step takes the caller's private copy of the index that it owns. A word that does not match was written by a peer that breaks the
//! protocol; the step returns [`Broken`]. The numbered invariants are in `docs/sockets-internals.md`.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// RING: the consumer polls the ring, so the producer may put payload there.
pub const RING: u64 = 1;
/// WIDE: bytes of this epoch are put into the large ring. Only the consumer sets it, over an empty ring, while RING is set.
pub const WIDE: u64 = 2;
/// TAKEN: the producer, or the consumer in its place, is moving unread bytes back to TCP.
pub const TAKEN: u64 = 1;
/// Bytes of payload that fit the gate line itself.
pub const INLINE: usize = 40;

/// The peer wrote something that the protocol does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken;

/// What the producer found in the mode word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Payload goes to the ring.
    Ring,
    /// Payload goes to the large ring.
    Wide,
    /// Payload goes over TCP.
    Tcp,
}

/// Written by the producer, polled by the consumer.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct GateLine {
    word: AtomicU64,
    /// Bytes that this producer's process has consumed of the other direction: a hint that saves the peer the transfer of a cache line.
    pub ack: AtomicU64,
    inline_at: AtomicU64,
    inline: [AtomicU64; INLINE / 8],
}

/// Written by the producer, read by the consumer once in an epoch.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct MarkLine {
    /// TCP payload bytes, counted from the start of the connection, that precede the bytes in the ring.
    pub mark: AtomicU64,
    /// 1 once the producer has initialised its counters and looks at the gate.
    pub ready: AtomicU32,
    _reserved: [AtomicU32; 13],
}

/// Written by the consumer (and, under TAKEN, by the producer).
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ConsumerLine {
    head: AtomicU64,
    /// The CPU on which the consumer last waited, plus one; 0 when unknown.
    pub cpu: AtomicU32,
    /// Times that the consumer found TAKEN.
    met: AtomicU32,
    /// 1: programs without Motet may receive from the connection, so nothing may be left in the ring.
    pub handed_over: AtomicU32,
    /// Rate at which the last large blocks were received, MB/s. The producer reads it and resets it to 0.
    pub landed: AtomicU32,
    _reserved: [AtomicU32; 10],
}

impl GateLine {
    /// A gate that is lowered over an empty ring.
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            ack: AtomicU64::new(0),
            inline_at: AtomicU64::new(0),
            inline: [(); INLINE / 8].map(|()| AtomicU64::new(0)),
        }
    }

    /// Back to the state of [`GateLine::new`]; only while no peer is attached.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
        self.ack.store(0, Ordering::Relaxed);
        self.inline_at.store(0, Ordering::Relaxed);
    }

    // ---- producer -------------------------------------------------------------------------------------------------

    /// Where payload goes at present. `tail` is the producer's private index.
    #[inline(always)]
    pub fn mode(&self, tail: u64) -> Result<Mode, Broken> {
        let word = self.word.load(Ordering::Acquire); // edge: raise -> mode
        Self::mode_of(word, tail)
    }

    #[inline(always)]
    fn mode_of(word: u64, tail: u64) -> Result<Mode, Broken> {
        if word == tail << 2 | RING {
            Ok(Mode::Ring)
        } else if word == tail << 2 | RING | WIDE {
            Ok(Mode::Wide)
        } else if word == tail << 2 {
            Ok(Mode::Tcp)
        } else {
            Err(Broken)
        }
    }

    /// Publishes `n` bytes that were written to the ring. Any result but `Ring`: the gate has changed meanwhile, and nothing is published.
    #[inline(always)]
    pub fn publish(&self, tail: u64, n: u64) -> Result<Mode, Broken> {
        self.publish_as(tail, n, Mode::Ring)
    }

    /// Publishes `n` bytes that were written to the ring of `mode` (`Ring` or `Wide`). Any result but `mode`: the gate has changed meanwhile, and
    /// nothing is published.
    #[inline(always)]
    pub fn publish_as(&self, tail: u64, n: u64, mode: Mode) -> Result<Mode, Broken> {
        let flags = if mode == Mode::Wide { RING | WIDE } else { RING };
        let (from, to) = (tail << 2 | flags, (tail + n) << 2 | flags);
        // edge: publish -> tail (the payload and the mark)
        match self.word.compare_exchange(from, to, Ordering::Release, Ordering::Acquire) {
            Ok(_) => Ok(mode),
            Err(word) => {
                // Withdraw only what this put has written: a short payload before it may be unread.
                if self.inline_at.load(Ordering::Relaxed) >> 8 == tail {
                    self.inline_at.store(0, Ordering::Relaxed);
                }
                Self::mode_of(word, tail)
            }
        }
    }

    /// Closes the gate from the producer's side, even with bytes in the ring (invariant 3).
    pub fn lower_by_producer(&self, tail: u64) -> Result<(), Broken> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if Self::mode_of(word, tail)? == Mode::Tcp {
                return Ok(());
            }
            match self.word.compare_exchange(word, tail << 2, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Writes a short payload into the gate line. The ring must be known to be empty at `tail`.
    #[inline(always)]
    pub fn write_inline(&self, tail: u64, bytes: &[u8]) {
        debug_assert!(bytes.len() <= INLINE);
        let mut chunks = bytes.chunks_exact(8);
        let mut at = 0;
        for chunk in &mut chunks {
            self.inline[at].store(u64::from_ne_bytes(chunk.try_into().unwrap()), Ordering::Relaxed);
            at += 1;
        }
        let rest = chunks.remainder();
        if !rest.is_empty() {
            let mut last = [0u8; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.inline[at].store(u64::from_ne_bytes(last), Ordering::Relaxed);
        }
        self.inline_at.store(tail << 8 | bytes.len() as u64, Ordering::Relaxed);
    }

    // ---- consumer -------------------------------------------------------------------------------------------------

    /// The producer's tail, and whether RING is set. The tail is untrusted: the caller must compare it with its private head.
    #[inline(always)]
    pub fn tail(&self) -> (u64, bool) {
        let word = self.word.load(Ordering::Acquire); // edge: publish -> tail
        (word >> 2, word & RING != 0)
    }

    /// True while the gate is open over an empty ring at `head`. One load, for spinning.
    #[inline(always)]
    pub fn still_waiting(&self, head: u64) -> bool {
        self.word.load(Ordering::Relaxed) & !WIDE == head << 2 | RING
    }

    /// Opens the gate over an empty ring (invariant 1). False: the ring is not empty at `head`.
    pub fn raise(&self, head: u64) -> bool {
        // edge: raise -> mode. SeqCst: the thread that raises and the one that sleeps check each other (invariant 5).
        self.word.compare_exchange(head << 2, head << 2 | RING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Switches an open gate over an empty ring to the large ring. False: bytes are in the ring.
    pub fn widen(&self, head: u64) -> bool {
        let (from, to) = (head << 2 | RING, head << 2 | RING | WIDE);
        // edge: raise -> mode
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Closes the gate over an empty ring. False: bytes are in the ring, so the caller must not sleep.
    pub fn lower_empty(&self, head: u64) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while word & !WIDE == head << 2 | RING {
            match self.word.compare_exchange(word, head << 2, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        word & !WIDE == head << 2
    }

    /// Closes the gate from the consumer's side, even with bytes in the ring.
    pub fn lower(&self) {
        self.word.fetch_and(!(RING | WIDE), Ordering::SeqCst);
    }

    /// Copies the short payload in the gate line, if it contains stream position `head`: the range of `out` from that position on.
    #[inline(always)]
    pub fn read_inline(&self, head: u64, out: &mut [u8; INLINE]) -> Option<(usize, usize)> {
        let at = self.inline_at.load(Ordering::Relaxed);
        let (start, length) = (at >> 8, (at & 0xff) as usize);
        let offset = head.wrapping_sub(start);
        if length > INLINE || offset >= length as u64 {
            return None;
        }
        for (word, bytes) in self.inline[..length.div_ceil(8)].iter().zip(out.chunks_exact_mut(8)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        Some((offset as usize, length))
    }
}

/// Value of [`MarkLine::ready`]: the producer is ready.
pub const READY: u32 = 1;
/// Value of [`MarkLine::ready`]: the producer is ready and has mapped the large ring.
pub const READY_LARGE: u32 = 2;

impl MarkLine {
    /// A line with mark 0, producer not ready.
    pub fn new() -> Self {
        Self { mark: AtomicU64::new(0), ready: AtomicU32::new(0), _reserved: [(); 13].map(|()| AtomicU32::new(0)) }
    }

    /// Back to the state of [`MarkLine::new`].
    pub fn reset(&self) {
        self.mark.store(0, Ordering::Relaxed);
        self.ready.store(0, Ordering::Relaxed);
    }
}

/// What the consumer finds when it advances its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advance {
    /// The bytes are consumed.
    Done,
    /// TAKEN is set: try again soon.
    Taken,
    /// Bytes up to this position were moved back to TCP.
    Moved(u64),
}

impl ConsumerLine {
    /// A line with head 0.
    pub fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self {
            head: AtomicU64::new(0),
            cpu: zero(),
            met: zero(),
            handed_over: zero(),
            landed: zero(),
            _reserved: [(); 10].map(|()| zero()),
        }
    }

    /// Back to the state of [`ConsumerLine::new`].
    pub fn reset(&self) {
        self.head.store(0, Ordering::Relaxed);
        self.cpu.store(0, Ordering::Relaxed);
        self.handed_over.store(0, Ordering::Relaxed);
        self.landed.store(0, Ordering::Relaxed);
    }

    /// Consumer: advances the head from `head` by `n` bytes, unless the producer has claimed them (invariant 6).
    #[inline(always)]
    pub fn advance(&self, head: u64, n: u64) -> Advance {
        // edge: advance -> seen_head (the producer may overwrite what was copied out)
        match self.head.compare_exchange(head << 1, (head + n) << 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Advance::Done,
            Err(word) if word & TAKEN != 0 => Advance::Taken,
            Err(word) => Advance::Moved(word >> 1),
        }
    }

    /// Consumer: the shared head, which a producer moves that takes bytes back; `None` while TAKEN is set.
    #[inline(always)]
    pub fn settled(&self) -> Option<u64> {
        let word = self.head.load(Ordering::Acquire);
        (word & TAKEN == 0).then_some(word >> 1)
    }

    /// Consumer that is about to sleep: the shared head; `None` while TAKEN is set. In that case the consumer also counts that it found TAKEN
    /// ([`ConsumerLine::met`]), and a producer that leaves bytes in the ring checks again. One of the two sees the other.
    pub fn settle(&self) -> Option<u64> {
        self.settled().or_else(|| {
            self.met.fetch_add(1, Ordering::AcqRel);
            fence(Ordering::SeqCst); // edge: met <-> release
            self.settled()
        })
    }

    /// Producer: the consumer's head. Untrusted: the caller must compare it with its private copies.
    #[inline(always)]
    pub fn seen_head(&self) -> u64 {
        self.head.load(Ordering::Acquire) >> 1 // edge: advance -> seen_head
    }

    /// Claims all unread bytes, to return them to TCP, and returns the head at which they start. `None` while the other end has claimed them: the
    /// producer, or a consumer that hands its descriptor over.
    pub fn claim(&self) -> Option<u64> {
        let mut word = self.head.load(Ordering::Acquire);
        while word & TAKEN == 0 {
            match self.head.compare_exchange_weak(word, word | TAKEN, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(word >> 1),
                Err(now) => word = now,
            }
        }
        None
    }

    /// Releases the claim and sets the head.
    pub fn release(&self, head: u64) {
        self.head.store(head << 1, Ordering::Release);
        fence(Ordering::SeqCst); // edge: met <-> release
    }

    /// Producer: changes when the consumer has found TAKEN. The consumer may sleep since then, and may have emptied a full TCP buffer before, so
    /// no event would wake it for bytes that are left in the ring.
    pub fn met(&self) -> u32 {
        self.met.load(Ordering::Acquire)
    }
}

impl Default for GateLine {
    fn default() -> Self {
        Self::new()
    }
}
impl Default for MarkLine {
    fn default() -> Self {
        Self::new()
    }
}
impl Default for ConsumerLine {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_part_is_one_cache_line() {
        assert_eq!(size_of::<GateLine>(), 64);
        assert_eq!(size_of::<MarkLine>(), 64);
        assert_eq!(size_of::<ConsumerLine>(), 64);
    }

    #[test]
    fn invariant_1_gate_rises_only_over_an_empty_ring() {
        let gate = GateLine::new();
        assert!(gate.raise(0));
        assert_eq!(gate.publish(0, 5), Ok(Mode::Ring));
        assert!(!gate.raise(0), "five bytes are unread");
        assert!(!gate.lower_empty(0), "a consumer with unread bytes must not sleep");
        assert!(gate.lower_empty(5));
        assert!(gate.raise(5));
    }

    #[test]
    fn put_fails_after_the_gate_is_lowered() {
        let gate = GateLine::new();
        assert!(gate.raise(0));
        gate.write_inline(0, b"hello");
        assert!(gate.lower_empty(0));
        assert_eq!(gate.publish(0, 5), Ok(Mode::Tcp));
        assert_eq!(gate.read_inline(0, &mut [0; INLINE]), None, "a failed put leaves no payload");
    }

    #[test]
    fn failed_put_keeps_an_unread_short_payload() {
        let gate = GateLine::new();
        assert!(gate.raise(0));
        gate.write_inline(0, b"hello");
        assert_eq!(gate.publish(0, 5), Ok(Mode::Ring));
        gate.lower();
        assert_eq!(gate.publish(5, 1000), Ok(Mode::Tcp), "a long payload, in the ring");
        let mut out = [0; INLINE];
        assert_eq!(gate.read_inline(0, &mut out), Some((0, 5)));
        assert_eq!(&out[..5], b"hello");
    }

    #[test]
    fn foreign_mode_word_is_broken() {
        let gate = GateLine::new();
        assert!(gate.raise(0));
        assert_eq!(gate.mode(3), Err(Broken));
        assert_eq!(gate.publish(7, 1), Err(Broken));
        assert_eq!(gate.lower_by_producer(9), Err(Broken));
    }

    #[test]
    fn short_payload_is_read_from_any_offset() {
        let gate = GateLine::new();
        let bytes: Vec<u8> = (0..INLINE as u8).collect();
        for length in 1..=INLINE {
            gate.write_inline(100, &bytes[..length]);
            for offset in 0..length {
                let mut out = [0; INLINE];
                let (from, to) = gate.read_inline(100 + offset as u64, &mut out).unwrap();
                assert_eq!(&out[from..to], &bytes[offset..length]);
            }
            assert_eq!(gate.read_inline(100 + length as u64, &mut [0; INLINE]), None);
        }
    }

    #[test]
    fn invariant_6_claim_stops_the_consumer() {
        let line = ConsumerLine::new();
        assert_eq!(line.advance(0, 4), Advance::Done);
        assert_eq!(line.claim(), Some(4));
        assert_eq!(line.advance(4, 1), Advance::Taken);
        assert_eq!(line.settled(), None);
        line.release(10);
        assert_eq!(line.advance(4, 1), Advance::Moved(10));
        assert_eq!(line.settled(), Some(10));
    }
}
