//! The payload ring: a ring of bytes beside a FIFO, for the bodies of longer packets.
//!
//! What it is: payload in order, copied once by each end, without the words that cells have. A packet in the FIFO says how many of the next
//! bytes belong to it. What it is not: nothing here tells when there is something to read; the word of the packet's cell publishes the bytes.
//!
//! Positions count bytes since the ring was prepared and do not wrap. The consumer's position is the only word that both ends share.

use super::Broken;
use super::chunk_claims::ChunkClaims;
use crate::mapping::Mapping;
use crate::stream::ring::Ring;
use crate::sync::{AtomicU64, Ordering};

/// Flag of a packet in the FIFO: its last bytes are in the payload ring ([`PayloadRx::split_packet`]).
pub const BODY_IN_RING: u8 = 1;

/// Control words of a payload ring: the consumer's position, and the claims of a copy that both ends share instead of using the ring.
#[repr(C, align(128))]
#[derive(Debug)]
pub struct Control {
    consumed: AtomicU64,
    claims: ChunkClaims,
}

/// Bytes of the control words.
pub const CONTROL_BYTES: usize = size_of::<Control>();
const _: () = assert!(CONTROL_BYTES == 128);

/// A payload ring in memory that stays mapped.
#[derive(Debug, Clone, Copy)]
pub struct PayloadRing {
    control: &'static Control,
    ring: Ring,
    mapping: Mapping,
    offset: usize,
}

impl PayloadRing {
    /// The ring of `size` bytes at `offset` of a mapping, with its control words at offset `control`. `None` if they do not fit, are not aligned,
    /// or the size is no power of two of at least a page.
    pub fn over(mapping: Mapping, control: usize, offset: usize, size: usize) -> Option<Self> {
        if !size.is_power_of_two()
            || size < 4096
            || !control.is_multiple_of(CONTROL_BYTES)
            || !offset.is_multiple_of(4096)
        {
            return None;
        }
        let (at, base) = (mapping.at(control, CONTROL_BYTES)?, mapping.at(offset, size)?);
        // SAFETY: `at` checked that both are in a mapping that stays until the process ends; Control is made of atomics, valid for any bytes.
        let (control, ring) = unsafe { (&*at.cast::<Control>(), Ring::new(base, size).with_memcpy()) };
        Some(Self { control, ring, mapping, offset })
    }

    /// Resets the ring. Only the process that offers it may call this, and only before it does.
    pub fn prepare(&self) {
        self.control.claims.prepare();
        self.control.consumed.store(0, Ordering::Release);
    }

    /// The sending end of an unused ring. There may be one at a time.
    pub fn tx(self) -> PayloadTx {
        PayloadTx { payload: self, tail: 0, consumed: 0, pages: [0; 2] }
    }

    /// The receiving end of an unused ring. There may be one at a time.
    pub fn rx(self) -> PayloadRx {
        PayloadRx { payload: self, head: 0 }
    }
}

/// The sending end of a payload ring.
#[derive(Debug)]
pub struct PayloadTx {
    payload: PayloadRing,
    /// Bytes written.
    tail: u64,
    /// Bytes consumed, as last read from the control words.
    consumed: u64,
    /// First and last position with populated pages. They cover all of the ring once their distance is its size.
    pages: [u64; 2],
}

/// Bytes whose pages are populated at a time.
const POPULATE_BYTES: usize = 256 << 10;

impl PayloadTx {
    /// Populates the pages of the next `length` bytes. `make` populates a range of a mapping (offset, bytes). False: it failed. A page fault
    /// without memory left would kill the process instead.
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

    /// Whether pages of the ring are populated.
    pub fn is_used(&self) -> bool {
        self.pages[0] != self.pages[1]
    }

    /// Releases the pages, by `remove` of a range of a mapping (offset, bytes), if everything written has been read. False: it has not.
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

    /// Whether `length` bytes can be written now.
    pub fn fits(&mut self, length: usize) -> Result<bool, Broken> {
        let size = self.payload.ring.size();
        let full = |consumed: u64| self.tail + length as u64 - consumed > size;
        if full(self.consumed) {
            // edge: released -> fits (bytes that were read may be overwritten)
            let consumed = self.payload.control.consumed.load(Ordering::Acquire);
            if consumed < self.consumed || consumed > self.tail {
                return Err(Broken);
            }
            self.consumed = consumed;
        }
        Ok(!full(self.consumed))
    }

    /// Writes the parts in order and returns their bytes. They must fit ([`PayloadTx::fits`]). The next word of the FIFO publishes them; bytes that
    /// are not published must be withdrawn with [`PayloadTx::retract`]. `bypass`: with stores that bypass the caches.
    pub fn write(&mut self, parts: &[&[u8]], bypass: bool) -> usize {
        let start = self.tail;
        let ring = self.payload.ring.bypassing(bypass);
        for part in parts {
            ring.write_one(self.tail, part);
            self.tail += part.len() as u64;
        }
        (self.tail - start) as usize
    }

    /// The claims of copies that both ends share instead of sending through the ring.
    pub fn claims(&self) -> &'static ChunkClaims {
        &self.payload.control.claims
    }

    /// Bytes written so far.
    pub fn tail(&self) -> u64 {
        self.tail
    }

    /// Withdraws the last `length` bytes written, which were not published.
    pub fn retract(&mut self, length: usize) {
        self.tail -= length as u64;
    }
}

/// The receiving end of a payload ring.
#[derive(Debug)]
pub struct PayloadRx {
    payload: PayloadRing,
    /// Bytes read.
    head: u64,
}

impl PayloadRx {
    /// The claims of copies that both ends share instead of receiving through the ring.
    pub fn claims(&self) -> &'static ChunkClaims {
        &self.payload.control.claims
    }

    /// Bytes read so far.
    pub fn head(&self) -> u64 {
        self.head
    }

    /// The next `length` bytes, a number that a packet contained.
    pub fn span(&self, length: usize) -> Result<RingSpan, Broken> {
        if length as u64 > self.payload.ring.size() {
            return Err(Broken);
        }
        Ok(RingSpan { ring: self.payload.ring, at: self.head, length })
    }

    /// Splits a packet with [`BODY_IN_RING`] into the bytes in its cells and those in the ring. Its last four bytes are the number of the latter.
    pub fn split_packet<'a>(&self, packet: &'a [u8]) -> Result<(&'a [u8], RingSpan), Broken> {
        let (head, length) = packet.split_last_chunk::<4>().ok_or(Broken)?;
        Ok((head, self.span(u32::from_le_bytes(*length) as usize)?))
    }

    /// Releases the next `length` bytes, which have been read.
    pub fn release(&mut self, length: usize) {
        self.head += length as u64;
        // edge: released -> fits
        self.payload.control.consumed.store(self.head, Ordering::Release);
    }
}

/// A range of bytes in a ring, in the order in which they were written. The peer may change them while they are read.
#[derive(Debug, Clone, Copy)]
pub struct RingSpan {
    ring: Ring,
    at: u64,
    length: usize,
}

impl RingSpan {
    /// Bytes of the range.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Copies the first bytes out, as many as `into` has room for.
    pub fn read(&self, into: &mut [u8]) {
        let fits = into.len().min(self.length);
        self.ring.read_one(self.at, &mut into[..fits]);
    }

    /// Copies the bytes from `from` on out, as many as `into` has room for.
    #[inline]
    pub fn read_from(&self, from: usize, into: &mut [u8]) {
        let from = from.min(self.length);
        Self { at: self.at + from as u64, length: self.length - from, ..*self }.read(into);
    }

    /// The range without its first `bytes` bytes.
    pub fn skip(self, bytes: usize) -> Self {
        let bytes = bytes.min(self.length);
        Self { at: self.at + bytes as u64, length: self.length - bytes, ..self }
    }

    /// The first `length` bytes of the range, or all of it.
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
    fn bytes_survive_wraparound() {
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
    fn pages_are_populated_on_use_and_released_when_read() {
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
        assert_eq!(made.take(), [(0, POPULATE_BYTES), (POPULATE_BYTES, POPULATE_BYTES)], "the pages of the next bytes");
        for _ in 0..20 {
            inward.release(body.len());
            send(&mut out);
        }
        assert_eq!(
            made.take(),
            [(2 * POPULATE_BYTES, POPULATE_BYTES), (3 * POPULATE_BYTES, POPULATE_BYTES)],
            "each once, then all are populated"
        );
        assert!(!out.ensure_pages(1, |_, _, _| false) || out.pages[1] - out.pages[0] == size as u64);
    }

    #[test]
    fn full_ring_is_reported_and_invalid_position_is_broken() {
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
