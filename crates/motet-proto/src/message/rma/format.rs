//! Formats of RMA packets behind the common head (`docs/messages.md`). Decoding checks lengths, not whether a key or a number is known.

use crate::message::atomic::{Atomic, Datatype, Operation};
use crate::message::packet::{HEAD_BYTES, Head, RemoteAddress, u64_at};
use crate::message::regions::{Key, Rights};
use crate::message::slab::SlabId;
use crate::message::{ProtocolViolation, Status, packet};

/// Fixed bytes of PUT, GET and ATOMIC.
pub const ACCESS_HEAD_BYTES: usize = HEAD_BYTES + 16;
/// Bytes of GET LONG.
pub const GET_LONG_BYTES: usize = ACCESS_HEAD_BYTES + 8;
/// Bytes of PUT LONG.
pub const PUT_LONG_BYTES: usize = GET_LONG_BYTES + 16;
/// Longest value in a FETCH_REPLY. It bounds the answers that a side keeps until there is room for them, and every transport supports
/// packets of this size.
pub const MAX_REPLY_BYTES: usize = 256;
const _: () = assert!(HEAD_BYTES + MAX_REPLY_BYTES <= packet::MIN_PACKET_BYTES);

/// `own` of GET: the bytes are wanted.
pub const VALUE: u16 = 0;
/// `own` of GET: the address of the region is wanted ([`RegionInfo`]).
pub const QUERY_REGION: u16 = 1;
/// `own` of BYTES: from the initiator of a put.
pub const OF_PUT: u16 = 0;
/// `own` of BYTES: from the target of a get.
pub const OF_GET: u16 = 1;
/// `own` of GET_FIN: the initiator has copied the bytes.
pub const COPIED: u16 = 0;
/// `own` of GET_FIN: the initiator could not copy the bytes and needs pieces.
pub const NOT_COPIED: u16 = 1;

/// Encodes the fixed part of PUT, GET or ATOMIC.
#[inline]
pub fn write_at(head: Head, key: Key, offset: u64) -> [u8; ACCESS_HEAD_BYTES] {
    let mut packet = head.begin();
    packet[8..16].copy_from_slice(&key.0.to_le_bytes());
    packet[16..24].copy_from_slice(&offset.to_le_bytes());
    packet
}

/// Decodes key and offset behind the head; also returns the bytes that follow.
#[inline]
pub fn read_at(rest: &[u8]) -> Result<(Key, u64, &[u8]), ProtocolViolation> {
    let (key, rest) = packet::read_word(rest)?;
    let (offset, rest) = packet::read_word(rest)?;
    Ok((Key(key), offset, rest))
}

/// The target of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The region.
    pub key: Key,
    /// The offset in the region.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Range {
    /// Encodes GET LONG.
    pub fn write(&self, head: Head) -> [u8; GET_LONG_BYTES] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet
    }

    /// Encodes PUT LONG.
    pub fn write_at(&self, head: Head, place: RemoteAddress) -> [u8; PUT_LONG_BYTES] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet[32..40].copy_from_slice(&place.address.to_le_bytes());
        packet[40..48].copy_from_slice(&place.key.to_le_bytes());
        packet
    }

    fn write_into(&self, packet: &mut [u8]) {
        packet[8..16].copy_from_slice(&self.key.0.to_le_bytes());
        packet[16..24].copy_from_slice(&self.offset.to_le_bytes());
        packet[24..32].copy_from_slice(&self.length.to_le_bytes());
    }

    /// Decodes the range behind the head; also returns the bytes that follow.
    pub fn read(rest: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ GET_LONG_BYTES - HEAD_BYTES }>().ok_or(packet::TOO_SHORT)?;
        Ok((Self { key: Key(u64_at(fixed, 0)), offset: u64_at(fixed, 8), length: u64_at(fixed, 16) }, rest))
    }
}

/// The answer to a GET with [`QUERY_REGION`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionInfo {
    /// The address of the region, as in RTS; address 0: not in memory that the peer could map.
    pub place: RemoteAddress,
    /// Bytes of the region.
    pub length: u64,
    /// The rights of the region.
    pub rights: Rights,
}

/// Bytes of a [`RegionInfo`].
pub const REGION_INFO_BYTES: usize = 32;
const _: () = assert!(REGION_INFO_BYTES <= MAX_REPLY_BYTES);

impl RegionInfo {
    /// Encodes the value of a FETCH_REPLY.
    pub fn write(&self) -> [u8; REGION_INFO_BYTES] {
        let words = [self.place.address, self.place.key, self.length, u64::from(self.rights.0)];
        let mut bytes = [0; REGION_INFO_BYTES];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Decodes a value. `None`: unknown rights, or another length.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REGION_INFO_BYTES] = bytes.try_into().ok()?;
        let rights = u8::try_from(u64_at(bytes, 24)).ok().filter(|rights| *rights <= Rights::ALL.0)?;
        let place = RemoteAddress { address: u64_at(bytes, 0), key: u64_at(bytes, 8) };
        Some(Self { place, length: u64_at(bytes, 16), rights: Rights(rights) })
    }
}

/// Encodes GET_ADDR.
pub fn write_place(head: Head, place: RemoteAddress) -> [u8; ACCESS_HEAD_BYTES] {
    write_at(head, Key(place.address), place.key)
}

/// The head of ATOMIC: operation and type, number of elements, whether the previous values are to be fetched.
#[inline]
pub fn atomic_head(atomic: &Atomic<'_>, fetch: bool) -> Head {
    let own = u16::from(atomic.operation as u8) | u16::from(atomic.datatype as u8) << 8;
    Head { to: SlabId(atomic.count << 1 | u32::from(fetch)), own, grant: 0 }
}

/// Decodes an atomic from the head and the values behind key and offset. `None`: unknown operation or type.
#[inline]
pub fn read_atomic(head: Head, values: &[u8]) -> Option<(Atomic<'_>, bool)> {
    let [operation, datatype] = head.own.to_le_bytes();
    let operation = *Operation::ALL.get(usize::from(operation))?;
    let datatype = *Datatype::ALL.get(usize::from(datatype))?;
    let cut = if operation.compares() { values.len() / 2 } else { values.len() };
    let (operand, compare) = values.split_at(cut);
    let (count, fetch) = (head.to.0 >> 1, head.to.0 & 1 != 0);
    Some((Atomic { operation, datatype, count, operand, compare }, fetch))
}

/// The status code on the wire.
pub fn code(status: Status) -> u16 {
    match status {
        Status::Done => 0,
        Status::OutOfBounds => 2,
        Status::InvalidAtomic => 3,
        _ => 1,
    }
}

/// Decodes a status code.
pub fn status(code: u16) -> Result<Status, ProtocolViolation> {
    match code {
        0 => Ok(Status::Done),
        1 => Ok(Status::AccessDenied),
        2 => Ok(Status::OutOfBounds),
        3 => Ok(Status::InvalidAtomic),
        _ => Err(ProtocolViolation("FETCH_REPLY or PUT_FIN with an unknown status")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Head = Head { to: SlabId(0x8765_4321), own: 0x1234, grant: 0xfedc };

    #[test]
    fn ranges_and_addresses_round_trip() {
        let range = Range { key: Key(1 << 63 | 5), offset: u64::MAX - 1, length: 77 };
        let place = RemoteAddress { address: 3 << 40, key: !0 };
        let (head, rest) = Head::read(&range.write(HEADER)).map(|(head, rest)| (head, rest.to_vec())).unwrap();
        assert_eq!((head, Range::read(&rest).unwrap()), (HEADER, (range, &[][..])));
        let long = range.write_at(HEADER, place);
        let (same, rest) = Range::read(&long[HEAD_BYTES..]).unwrap();
        assert_eq!((same, RemoteAddress::read(rest).unwrap()), (range, (place, &[][..])));
        assert_eq!(RemoteAddress::read(&write_place(HEADER, place)[HEAD_BYTES..]).unwrap(), (place, &[][..]));
        let at = write_at(HEADER, range.key, range.offset);
        assert_eq!(read_at(&at[HEAD_BYTES..]).unwrap(), (range.key, range.offset, &[][..]));
        for length in 0..GET_LONG_BYTES - HEAD_BYTES {
            assert!(Range::read(&[0; GET_LONG_BYTES][..length]).is_err());
        }
        assert!(read_at(&[0; 15]).is_err());
    }

    #[test]
    fn region_info_round_trips_and_rejects_unknown_rights() {
        let sight = RegionInfo { place: RemoteAddress { address: 1 << 47, key: 3 }, length: 4096, rights: Rights::GET };
        let mut bytes = sight.write();
        assert_eq!(
            (RegionInfo::read(&bytes), RegionInfo::read(&bytes[1..]), RegionInfo::read(&[0; 33])),
            (Some(sight), None, None)
        );
        for rights in [8, 255] {
            bytes[24] = rights;
            assert_eq!(RegionInfo::read(&bytes), None);
        }
        (bytes[24], bytes[31]) = (7, 1);
        assert_eq!(RegionInfo::read(&bytes), None);
    }

    #[test]
    fn atomics_round_trip() {
        for operation in Operation::ALL {
            for datatype in Datatype::ALL {
                let values = [7; 16];
                let (operand, compare) = values.split_at(if operation.compares() { 8 } else { 16 });
                let atomic = Atomic { operation, datatype, count: 3, operand, compare };
                for fetch in [false, true] {
                    assert_eq!(read_atomic(atomic_head(&atomic, fetch), &values), Some((atomic, fetch)));
                }
            }
        }
        let head = |own| Head { to: SlabId(2), own, grant: 0 };
        assert!(read_atomic(head(19), &[]).is_none() && read_atomic(head(10 << 8), &[]).is_none());
    }

    #[test]
    fn status_codes_round_trip() {
        for ended in [Status::Done, Status::AccessDenied, Status::OutOfBounds, Status::InvalidAtomic] {
            assert_eq!(status(code(ended)), Ok(ended));
        }
        assert!(status(4).is_err());
    }
}
