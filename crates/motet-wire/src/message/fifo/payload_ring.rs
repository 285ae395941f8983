//! Beside a lane, a ring of bytes for what is long: a packet on the lane says how many of them belong to it.
//!
//! What it is: payload in order, copied once by each end, without the words that lines have. What it is not: nothing here says when
//! there is something to read; the lane does, and its word is what makes the bytes visible.
//!
//! Positions count bytes since the ring was prepared and do not wrap. The consumer's is the only word that both ends know.

use super::Broken;
use super::chunk_claims::ChunkClaims;
use crate::mapping::Mapping;
use crate::stream::ring::Ring;
use crate::sync::{AtomicU64, Ordering};

/// Of a packet on the lane: its last bytes lie in the ring ([`PayloadRx::behind`]).
pub const BODY_IN_RING: u8 = 1;

/// How far the consumer is, on a control of its own; and behind it what both copy instead of using the ring.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Control {
    consumed: AtomicU64,
    claims: ChunkClaims,
}

/// Bytes of both lines.
pub const CONTROL_BYTES: usize = size_of::<Control>();
const _: () = assert!(CONTROL_BYTES == 128);

/// The ring, its control, and where its pages are.
#[derive(Debug, Clone, Copy)]
pub struct PayloadRing {
    control: &'static Control,
    ring: Ring,
    mapping: Mapping,
    offset: usize,
}

impl PayloadRing {
    /// The ring of `size` bytes at `offset` of a mapping, with its control at `control`. `None` when they do not fit, are not aligned, or
    /// the size is no power of two of at least a page.
    pub fn over(mapping: Mapping, control: usize, offset: usize, size: usize) -> Option<Self> {
        if !size.is_power_of_two()
            || size < 4096
            || !control.is_multiple_of(CONTROL_BYTES)
            || !offset.is_multiple_of(4096)
        {
            return None;
        }
        let (at, base) = (mapping.at(control, CONTROL_BYTES)?, mapping.at(offset, size)?);
        // SAFETY: both lie in a mapping that stays until the process ends; a Control is atomics, valid for any bytes.
        let (control, ring) = unsafe { (&*at.cast::<Control>(), Ring::new(base, size).with_memcpy()) };
        Some(Self { control, ring, mapping, offset })
    }

    /// Makes it as new. Only whoever offers it, before that.
    pub fn prepare(&self) {
        self.control.claims.prepare();
        self.control.consumed.store(0, Ordering::Release);
    }

    /// The sending end of a ring that nothing has gone through yet.
    pub fn tx(self) -> PayloadTx {
        PayloadTx { payload: self, tail: 0, consumed: 0, pages: [0; 2] }
    }

    /// The receiving end of a ring that nothing has gone through yet.
    pub fn rx(self) -> PayloadRx {
        PayloadRx { payload: self, head: 0 }
    }
}

/// The sending end.
#[derive(Debug)]
pub struct PayloadTx {
    payload: PayloadRing,
    tail: u64,
    consumed: u64,
    /// Positions for which there are pages: all of the ring, once they are as many as it has bytes.
    pages: [u64; 2],
}

/// Bytes whose pages are brought into being at a time.
const POPULATE_BYTES: usize = 256 << 10;

impl PayloadTx {
    /// Whether there are pages for so many more bytes. `make` brings some into being, of a mapping from an offset on: now, rather
    /// than by a fault that nobody can handle when there is no memory.
    #[inline]
    pub fn ensure_pages(&mut self, length: usize, make: impl Fn(Mapping, usize, usize) -> bool) -> bool {
        let (size, end) = (self.payload.ring.size(), self.tail + length as u64);
        let [from, mut until] = self.pages;
        while until < end && until - from < size {
            let some = (POPULATE_BYTES as u64).min(size);
            if !make(self.payload.mapping, self.payload.offset + (until & (size - 1)) as usize, some as usize) {
                return false;
            }
            until += some;
            self.pages[1] = until;
        }
        true
    }

    /// Whether it has pages.
    pub fn is_used(&self) -> bool {
        self.pages[0] != self.pages[1]
    }

    /// Gives the pages back, by `remove` of a mapping from an offset on, if everything written has been read. False: it has not.
    pub fn trim(&mut self, remove: impl Fn(Mapping, usize, usize)) -> bool {
        let size = self.payload.ring.size();
        let read = self.fits(size as usize) == Ok(true);
        if read && self.is_used() {
            remove(self.payload.mapping, self.payload.offset, size as usize);
            let front = self.tail / POPULATE_BYTES as u64 * POPULATE_BYTES as u64;
            self.pages = [front; 2];
        }
        read
    }

    /// Whether so many bytes can be written now.
    pub fn fits(&mut self, length: usize) -> Result<bool, Broken> {
        let size = self.payload.ring.size();
        let full = |consumed: u64| self.tail + length as u64 - consumed > size;
        if full(self.consumed) {
            // edge: released -> fits (what was read may be written over)
            let consumed = self.payload.control.consumed.load(Ordering::Acquire);
            if consumed < self.consumed || consumed > self.tail {
                return Err(Broken);
            }
            self.consumed = consumed;
        }
        Ok(!full(self.consumed))
    }

    /// Writes the parts one after the other: they fit ([`PayloadTx::fits`]). The lane's next word publishes them; what is not
    /// published in the end is taken back with [`PayloadTx::take_back`]. `bypass`: around the caches.
    pub fn write(&mut self, parts: &[&[u8]], bypass: bool) -> usize {
        let start = self.tail;
        let ring = self.payload.ring.bypassing(bypass);
        for part in parts {
            ring.write_one(self.tail, part);
            self.tail += part.len() as u64;
        }
        (self.tail - start) as usize
    }

    /// By which both ends share a copy of what would else go through the ring.
    pub fn claims(&self) -> &'static ChunkClaims {
        &self.payload.control.claims
    }

    /// Bytes written so far.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// The last bytes written were not published.
    pub fn retract(&mut self, length: usize) {
        self.tail -= length as u64;
    }
}

/// The receiving end.
#[derive(Debug)]
pub struct PayloadRx {
    payload: PayloadRing,
    head: u64,
}

impl PayloadRx {
    /// By which both ends share a copy of what would else come through the ring.
    pub fn claims(&self) -> &'static ChunkClaims {
        &self.payload.control.claims
    }

    /// Bytes read so far.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The next bytes, as many as a packet says.
    pub fn span(&self, length: usize) -> Result<RingSpan, Broken> {
        if length as u64 > self.payload.ring.size() {
            return Err(Broken);
        }
        Ok(RingSpan { ring: self.payload.ring, at: self.head, length })
    }

    /// A packet of the lane whose last bytes lie here: its own part, and those bytes. Its last word says how many they are.
    pub fn split_packet<'a>(&self, packet: &'a [u8]) -> Result<(&'a [u8], RingSpan), Broken> {
        let (head, length) = packet.split_last_chunk::<4>().ok_or(Broken)?;
        Ok((head, self.span(u32::from_le_bytes(*length) as usize)?))
    }

    /// They have been read: there is room for others.
    pub fn release(&mut self, length: usize) {
        self.head += length as u64;
        // edge: released -> fits
        self.payload.control.consumed.store(self.head, Ordering::Release);
    }
}

/// Some bytes of a ring, in the order in which they were written. The peer may change them while they are read.
#[derive(Debug, Clone, Copy)]
pub struct RingSpan {
    ring: Ring,
    at: u64,
    length: usize,
}

impl RingSpan {
    /// How many bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies its first bytes out.
    pub fn read(&self, into: &mut [u8]) {
        let fits = into.len().min(self.length);
        self.ring.read_one(self.at, &mut into[..fits]);
    }

    /// The same of its bytes from `from` on.
    #[inline]
    pub fn read_from(&self, from: usize, into: &mut [u8]) {
        let from = from.min(self.length);
        Self { at: self.at + from as u64, length: self.length - from, ..*self }.read(into);
    }

    /// Its bytes but for the first ones.
    pub fn skip(self, front: usize) -> Self {
        let front = front.min(self.length);
        Self { at: self.at + front as u64, length: self.length - front, ..self }
    }

    /// Its first bytes, at most so many.
    pub fn first(self, length: usize) -> Self {
        Self { length: self.length.min(length), ..self }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn memory() -> Mapping {
        let bytes = 2 * 4096 + 8192;
        let layout = std::alloc::Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: fresh zeroed memory of that size, page-aligned and never freed.
        unsafe { Mapping::new(std::alloc::alloc_zeroed(layout), bytes) }
    }

    #[test]
    fn bytes_come_out_as_they_went_in_around_the_end() {
        let payload = PayloadRing::over(memory(), 0, 4096, 8192).unwrap();
        payload.prepare();
        let (mut out, mut inward) = (payload.tx(), payload.rx());
        for round in 0..50u32 {
            let body: Vec<u8> = (0..3000u32).map(|n| (n * 3 + round) as u8).collect();
            let parts = [&body[..1000], &[], &body[1000..]];
            assert!(out.fits(3000).unwrap());
            assert_eq!(out.write(&parts, round % 2 == 1), 3000);
            let run = inward.span(3000).unwrap();
            let mut bytes = vec![0; 3000];
            run.read(&mut bytes);
            assert_eq!(bytes, body);
            let mut few = [0; 10];
            run.first(7).read(&mut few);
            assert_eq!((&few[..7], &few[7..]), (&body[..7], &[0; 3][..]));
            let mut rest = vec![0; 2990];
            run.skip(4).read_from(6, &mut rest);
            assert_eq!(rest, body[10..]);
            assert!(run.skip(3001).is_empty());
            inward.release(3000);
        }
    }

    #[test]
    fn pages_come_as_they_are_used_and_go_when_all_is_read() {
        use std::cell::RefCell;
        let size = 4 * POPULATE_BYTES;
        let layout = std::alloc::Layout::from_size_align(4096 + size, 4096).unwrap();
        // SAFETY: fresh zeroed memory of that size, page-aligned and never freed.
        let mapping = unsafe { Mapping::new(std::alloc::alloc_zeroed(layout), 4096 + size) };
        let payload = PayloadRing::over(mapping, 0, 4096, size).unwrap();
        payload.prepare();
        let (mut out, mut inward) = (payload.tx(), payload.rx());
        let made = RefCell::new(Vec::new());
        let make = |_: Mapping, offset: usize, length: usize| {
            made.borrow_mut().push((offset - 4096, length));
            true
        };
        let body = vec![1; POPULATE_BYTES / 2 + 1];
        let send = |out: &mut PayloadTx| {
            assert!(out.ensure_pages(body.len(), make) && out.fits(body.len()).unwrap());
            out.write(&[&body], false);
        };
        send(&mut out);
        assert_eq!(made.take(), [(0, POPULATE_BYTES)]);
        assert!(out.is_used() && !out.trim(|_, _, _| panic!("not all has been read")));
        inward.release(body.len());
        assert!(out.trim(|_, offset, length| assert_eq!((offset, length), (4096, size))) && !out.is_used());
        send(&mut out);
        assert_eq!(
            made.take(),
            [(0, POPULATE_BYTES), (POPULATE_BYTES, POPULATE_BYTES)],
            "those where the next bytes lie"
        );
        for _ in 0..20 {
            inward.release(body.len());
            send(&mut out);
        }
        assert_eq!(
            made.take(),
            [(2 * POPULATE_BYTES, POPULATE_BYTES), (3 * POPULATE_BYTES, POPULATE_BYTES)],
            "each once, then all are there"
        );
        assert!(!out.ensure_pages(1, |_, _, _| false) || out.pages[1] - out.pages[0] == size as u64);
    }

    #[test]
    fn a_full_ring_says_so_and_a_lying_consumer_is_noticed() {
        let payload = PayloadRing::over(memory(), 0, 4096, 8192).unwrap();
        payload.prepare();
        let mut out = payload.tx();
        out.write(&[&[1; 8000]], false);
        assert_eq!((out.fits(192), out.fits(193)), (Ok(true), Ok(false)));
        assert!(payload.rx().span(8193).is_err());
        let (inward, packet) = (payload.rx(), |length: u32| [&[7, 7][..], &length.to_le_bytes()].concat());
        let known = inward.split_packet(&packet(8192)).map(|(head, run)| (head.to_vec(), run.len()));
        assert_eq!(known, Ok((vec![7, 7], 8192)));
        assert!(inward.split_packet(&packet(8193)).is_err() && inward.split_packet(&[0; 3]).is_err());
        for lie in [8001, u64::MAX] {
            payload.control.consumed.store(lie, Ordering::Release);
            assert_eq!(out.fits(8192), Err(Broken));
        }
        assert!(
            PayloadRing::over(memory(), 0, 4096, 16384).is_none()
                && PayloadRing::over(memory(), 64, 4096, 8192).is_none()
        );
    }
}
