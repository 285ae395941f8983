//! Packets on their way into a transport, and the buffer of a received packet.

use super::transport::PacketTransport;
use motet_proto::copy_mode::CopyModeSelector;
use motet_proto::message::packet::{self, Kind, Route};
use motet_proto::message::{FileRange, Packets, header_stack};
use motet_sys::{clock, memory};
use motet_wire::copy_mode::CopyMode;
use motet_wire::message::fifo::payload_ring::{BODY_IN_RING, PayloadTx};
use motet_wire::message::fifo::{Broken, Buffer, CELL_PAYLOAD, FifoTx, MAX_CONTINUATIONS, PutOutcome};
use std::ops::Range;

/// The sending half of a transport, as the protocol sees it. An enumeration, not a trait object: the shared-memory half is inlined.
pub enum PacketTx<'a> {
    /// The shared-memory transport.
    Fifo(ShmTx<'a>),
    /// A packet transport.
    Packet(&'a mut dyn PacketTransport),
    /// The transport is lost: nothing fits.
    Lost,
}

/// Longest piece in the payload ring, bytes. Several pieces fit, so that both ends copy at the same time.
const MAX_PIECE_BYTES: usize = 16 << 10;
/// Packets of at least so many bytes use the payload ring: a cell holds [`CELL_PAYLOAD`] bytes of a packet, and a word per cell costs more than the ring.
const RING_FROM_BYTES: usize = 2 * CELL_PAYLOAD + 1;

/// Most bytes of one packet in the payload ring: a body of the longest eager length, with any headers.
pub const MAX_RING_PACKET_BYTES: usize = (64 << 10) + header_stack::MAX_HEADERS_BYTES;

/// Longest message that is published as one part, bytes: a body of 2 KiB with headers.
pub const MAX_ONE_CHUNK_BYTES: usize = 2304;

/// Bytes of each part in which a message of `length` bytes is published, so that both ends copy at the same time. The parts have the same length; their
/// number is the one that was measured as fastest (docs/messages.md).
pub fn chunk_of(length: usize) -> usize {
    let parts = match length {
        0..=MAX_ONE_CHUNK_BYTES => 1,
        2305..=4607 => 2,
        4608..=16_384 => length / 4096,
        _ => (length / 8192).clamp(2, 1 + MAX_CONTINUATIONS as usize),
    };
    length.div_ceil(parts).next_multiple_of(64).max(64) // never 0: lengths that peers give are divided by it
}

/// The sending half of a shared-memory transport, for one call of the protocol.
pub struct ShmTx<'a> {
    fifo: &'a mut FifoTx,
    payload_ring: &'a mut PayloadTx,
    copy_mode: &'a CopyMode,
    /// The peer sleeps and must be woken.
    pub wake: bool,
    /// The peer has written invalid data into the FIFO or the payload ring.
    pub broken: bool,
}

impl<'a> ShmTx<'a> {
    /// The sending half over a FIFO and its payload ring. `copy_mode` is the state of the choice how bytes are copied.
    #[inline(always)]
    pub fn new(fifo: &'a mut FifoTx, payload_ring: &'a mut PayloadTx, copy_mode: &'a CopyMode) -> Self {
        Self { fifo, payload_ring, copy_mode, wake: false, broken: false }
    }
}

impl ShmTx<'_> {
    #[inline(always)]
    fn note_put(&mut self, put: Result<PutOutcome, Broken>) -> bool {
        match put {
            Ok(PutOutcome::Published) => true,
            Ok(PutOutcome::Wake) => {
                self.wake = true;
                true
            }
            Ok(PutOutcome::Full | PutOutcome::TooLong) => false,
            Err(_) => {
                self.broken = true;
                false
            }
        }
    }
}

impl ShmTx<'_> {
    /// Puts a long packet: its first bytes into a cell, the others into the payload ring.
    #[inline(never)]
    fn put_in_ring(&mut self, kind: u8, parts: &[&[u8]], length: usize) -> bool {
        let payload_length = length - packet::MESSAGE_HEAD_BYTES;
        let chunk = if kind == Kind::Message as u8 { chunk_of(payload_length) } else { payload_length };
        let more = payload_length.div_ceil(chunk) as u8 - 1;
        let ready = self.payload_ring.ensure_pages(payload_length, memory::populate_at);
        let fits = self.payload_ring.fits(payload_length);
        self.broken |= !ready || fits.is_err();
        if !ready || fits != Ok(true) || self.fifo.room(CELL_PAYLOAD * (1 + usize::from(more))) != Ok(true) {
            return false;
        }
        let (mut cell, mut filled) = ([0; packet::MESSAGE_HEAD_BYTES + 4], 0);
        cell[packet::MESSAGE_HEAD_BYTES..].copy_from_slice(&(payload_length as u32).to_le_bytes());
        let (mut left, mut begun) = (chunk, false);
        // Bypass the caches only if pieces have shown that the CPUs share none. A copy of a packet is too short to measure here what it costs the other end.
        let bypass = payload_length > MAX_PIECE_BYTES && CopyModeSelector(self.copy_mode).is_settled_non_temporal();
        for part in parts {
            let (first, mut rest) = part.split_at(part.len().min(packet::MESSAGE_HEAD_BYTES - filled));
            cell[filled..][..first.len()].copy_from_slice(first);
            filled += first.len();
            while !rest.is_empty() {
                if left == 0 {
                    self.publish_chunk(kind, &cell, more, &mut begun);
                    left = chunk;
                }
                let (now, later) = rest.split_at(rest.len().min(left));
                self.payload_ring.write(&[now], bypass);
                (left, rest) = (left - now.len(), later);
            }
        }
        self.publish_chunk(kind, &cell, more, &mut begun);
        !self.broken
    }

    /// Publishes the next part of a long packet. The FIFO has room for it.
    fn publish_chunk(&mut self, kind: u8, cell: &[u8], more: u8, begun: &mut bool) {
        let put = match std::mem::replace(begun, true) {
            false => self.fifo.try_put_open(kind, BODY_IN_RING, cell, more),
            true => Ok(self.fifo.put_continuation()),
        };
        self.note_put(put);
    }
}

impl Packets for ShmTx<'_> {
    #[inline(always)]
    fn largest(&self) -> usize {
        packet::MESSAGE_HEAD_BYTES + MAX_RING_PACKET_BYTES
    }

    fn longest_piece(&self) -> usize {
        MAX_PIECE_BYTES
    }

    fn has_piece_path(&self) -> bool {
        true
    }

    fn piece_fits(&mut self, length: usize, reserve: usize) -> bool {
        let ready = self.payload_ring.ensure_pages(length, memory::populate_at);
        let fits = self.payload_ring.fits(length);
        self.broken |= !ready || fits.is_err();
        ready && fits == Ok(true) && self.room() >= CELL_PAYLOAD + reserve.min(length)
    }

    fn put_piece(&mut self, head: &[u8; packet::MESSAGE_HEAD_BYTES], body: &[&[u8]], route: Route) -> bool {
        // Through the caches or around them: as the receiver asks, otherwise the way that has been faster lately, which depends on the CPUs that run the two
        // processes.
        let copy_mode = CopyModeSelector(self.copy_mode);
        copy_mode.start();
        match route {
            Route::Cached | Route::NonTemporal => copy_mode.set_mode(route == Route::NonTemporal),
            Route::Any | Route::MeasureCached | Route::MeasureNonTemporal => {}
        }
        let bypass = match route {
            Route::MeasureCached | Route::MeasureNonTemporal => route == Route::MeasureNonTemporal,
            _ => copy_mode.is_non_temporal(),
        };
        let start = clock::ticks();
        let written = self.payload_ring.write(body, bypass);
        if route == Route::Any {
            copy_mode.note_put(clock::ticks_per_1024ns, written, clock::ticks().wrapping_sub(start), || 0);
        }
        let put = self.fifo.try_put(Kind::Piece as u8, BODY_IN_RING, &[head, &(written as u32).to_le_bytes()]);
        let put = self.note_put(put);
        if !put {
            self.payload_ring.retract(written);
        }
        put
    }

    #[inline(always)]
    fn put_words(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> bool {
        let put = match body.len() {
            0..=CELL_BODY_BYTES => self.fifo.try_put_cell(kind, head, body),
            _ => {
                let [first, second] = head.map(u64::to_le_bytes);
                return self.put(kind, &[&first, &second, body]);
            }
        };
        self.note_put(put)
    }

    fn room(&mut self) -> usize {
        self.fifo.free().unwrap_or_else(|_| {
            self.broken = true;
            0
        })
    }

    #[inline(always)]
    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        let length = parts.iter().map(|part| part.len()).sum();
        if length >= RING_FROM_BYTES {
            return self.put_in_ring(kind, parts, length);
        }
        let put = self.fifo.try_put(kind, 0, parts);
        self.note_put(put)
    }
}

/// Most bytes of a body that fit a cell behind two words.
pub(super) const CELL_BODY_BYTES: usize = CELL_PAYLOAD - 16;

impl Packets for PacketTx<'_> {
    #[inline(always)]
    fn largest(&self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.largest(),
            Self::Packet(packet_transport) => packet_transport.largest(),
            Self::Lost => motet_proto::message::packet::MIN_PACKET_BYTES,
        }
    }

    #[inline(always)]
    fn room(&mut self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.room(),
            Self::Packet(packet_transport) => packet_transport.room(),
            Self::Lost => 0,
        }
    }

    fn longest_piece(&self) -> usize {
        match self {
            Self::Fifo(fifo) => fifo.longest_piece(),
            Self::Packet(packet_transport) => packet_transport.longest_piece(),
            Self::Lost => self.largest() - packet::MESSAGE_HEAD_BYTES,
        }
    }

    fn has_piece_path(&self) -> bool {
        matches!(self, Self::Fifo(_))
    }

    fn piece_fits(&mut self, length: usize, reserve: usize) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.piece_fits(length, reserve),
            Self::Packet(packet_transport) => packet_transport.piece_fits(length, reserve),
            Self::Lost => false,
        }
    }

    fn put_piece(&mut self, head: &[u8; packet::MESSAGE_HEAD_BYTES], body: &[&[u8]], route: Route) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.put_piece(head, body, route),
            Self::Packet(packet_transport) => packet_transport.put_piece(head, body, route),
            Self::Lost => false,
        }
    }

    fn takes_files(&self) -> bool {
        matches!(self, Self::Packet(packet_transport) if packet_transport.takes_files())
    }

    fn put_file_piece(&mut self, head: &[u8; packet::MESSAGE_HEAD_BYTES], body: FileRange) -> bool {
        match self {
            Self::Packet(packet_transport) => packet_transport.put_file_piece(head, body),
            Self::Fifo(_) | Self::Lost => false,
        }
    }

    #[inline(always)]
    fn put_words(&mut self, kind: u8, head: [u64; 2], body: &[u8]) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.put_words(kind, head, body),
            Self::Packet(packet_transport) => packet_transport.put_words(kind, head, body),
            Self::Lost => false,
        }
    }

    #[inline(always)]
    fn put(&mut self, kind: u8, parts: &[&[u8]]) -> bool {
        match self {
            Self::Fifo(fifo) => fifo.put(kind, parts),
            Self::Packet(packet_transport) => packet_transport.put(kind, parts),
            Self::Lost => false,
        }
    }
}

/// The buffer of a received packet while it is handled.
#[derive(Default)]
pub struct RxPacket {
    /// A packet that was in cells only.
    pub fifo: Box<Buffer>,
    /// A packet from a payload ring or a packet transport.
    pub long: Vec<u8>,
    /// The packet is in `long`, otherwise in `fifo`.
    pub is_long: bool,
}

impl RxPacket {
    /// Bytes of the packet. Empty if the range is not inside.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        let packet = if self.is_long { &self.long } else { self.fifo.as_bytes() };
        packet.get(range).unwrap_or(&[])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_is_published_in_few_equal_chunks() {
        for length in 0..=MAX_RING_PACKET_BYTES {
            let (chunk, parts) = (chunk_of(length), length.div_ceil(chunk_of(length)));
            assert!(chunk >= 64 && parts <= 1 + usize::from(MAX_CONTINUATIONS), "{length} in {parts} parts of {chunk}");
            assert!(parts < 2 || length - chunk * (parts - 1) > chunk / 2, "{length}: the last part is too short");
        }
    }
}
