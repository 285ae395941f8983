//! Payload of an arriving message: in the packet, or in a payload ring.

use motet_wire::message::fifo::payload_ring::RingSpan;

/// Bytes of a packet, where they are.
pub enum Payload<'a> {
    /// In the packet.
    InPacket(&'a [u8]),
    /// In a ring that the peer writes.
    InRing(RingSpan),
}

impl Payload<'_> {
    /// Number of bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Payload::InPacket(bytes) => bytes.len(),
            Payload::InRing(run) => run.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes but the first `front`.
    #[inline(always)]
    pub fn behind(self, front: usize) -> Self {
        match self {
            Payload::InPacket(bytes) => Payload::InPacket(bytes.get(front..).unwrap_or(&[])),
            Payload::InRing(run) => Payload::InRing(run.skip(front)),
        }
    }

    /// A copy of the bytes.
    pub fn to_box(&self) -> Box<[u8]> {
        match self {
            Payload::InPacket(bytes) => Box::from(*bytes),
            Payload::InRing(run) => {
                let mut bytes = vec![0; run.len()].into_boxed_slice();
                run.read(&mut bytes);
                bytes
            }
        }
    }

    /// Appends a copy of the bytes to `store`.
    pub fn append_to(&self, store: &mut Vec<u8>) {
        match self {
            Payload::InPacket(bytes) => store.extend_from_slice(bytes),
            Payload::InRing(run) => {
                let start = store.len();
                store.resize(start + run.len(), 0);
                run.read(&mut store[start..]);
            }
        }
    }
}
