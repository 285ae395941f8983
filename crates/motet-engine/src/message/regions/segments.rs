//! Segments of the two nodes of a link: how they are announced to the other end, and what each end keeps of them.
//!
//! A node's pool consists of segments, each a memfd (`motet_sys::shm_pool`). Before a packet refers to a segment, its owner announces it on the link's
//! control connection and sends the descriptor along ([`SegmentMsg`]). A side that reads an unknown number in a packet reads the control connection. A
//! [`RemoteAddress`] in a segment is an address in its owner's process with the segment's number as its key. A peer that cannot map the segment copies from
//! that address, or has the bytes sent, as it does for any other memory.
//!
//! The modules [`crate::message::loans`] and [`crate::message::regions`] decide what a segment holds.

use motet_proto::message::packet::RemoteAddress;
use motet_proto::message::regions::{Key, Rights};
use motet_sys::private_fds;
use motet_sys::rustix::fd::OwnedFd;
use motet_sys::shm_pool::{MAX_SEGMENTS, PeerBytes, PeerMapping, PoolSegment};
use motet_sys::socket;
use motet_wire::shared_memory::SharedBytes;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

/// Length of a message on the control connection, bytes.
pub const SEGMENT_MSG_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"MtSg");
const VERSION: u16 = 1;
const KIND_ANNOUNCED: u16 = 1;
const KIND_WITHDRAWN: u16 = 2;
/// Messages read from a control connection by one call.
const MAX_MESSAGES_PER_READ: usize = 16;

/// A message on the control connection, little-endian: magic 4, version 2, kind 2, number 4, writable 4, address 8, length 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentMsg {
    /// Announces a segment. Its descriptor is attached.
    Announced {
        /// The number of the segment: not 0, and never used again by its node.
        number: u32,
        /// Whether the peer may write: it may for segments of regions with such rights, never for segments of loans.
        writable: bool,
        /// The address of the segment in its owner's process.
        address: u64,
        /// Length of the segment, bytes.
        length: u64,
    },
    /// Withdraws a segment: nothing refers to it any more.
    Withdrawn {
        /// The number of the segment.
        number: u32,
    },
}

impl SegmentMsg {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; SEGMENT_MSG_BYTES] {
        let (kind, number, writable, address, length) = match *self {
            Self::Announced { number, writable, address, length } => {
                (KIND_ANNOUNCED, number, writable, address, length)
            }
            Self::Withdrawn { number } => (KIND_WITHDRAWN, number, false, 0, 0),
        };
        let mut bytes = [0; SEGMENT_MSG_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&number.to_le_bytes());
        bytes[12] = u8::from(writable);
        bytes[16..24].copy_from_slice(&address.to_le_bytes());
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    /// Decodes a message; `None`: it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; SEGMENT_MSG_BYTES] = bytes.try_into().ok()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let number = word(8) as u32;
        let writable = (word(8) >> 32) as u32;
        if word(0) as u32 != MAGIC || half(4) != VERSION || number == 0 || writable > 1 {
            return None;
        }
        let (address, length) = (word(16), word(24));
        match half(6) {
            KIND_ANNOUNCED if address != 0 && length != 0 && address.checked_add(length).is_some() => {
                Some(Self::Announced { number, writable: writable == 1, address, length })
            }
            KIND_WITHDRAWN if (address, length, writable) == (0, 0, 0) => Some(Self::Withdrawn { number }),
            _ => None,
        }
    }
}

/// The result of reading the control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlResult {
    /// The messages that had arrived have been read.
    Drained,
    /// The peer has closed the connection, or has died.
    Closed,
    /// The peer has sent an invalid message.
    Broken,
}

/// A segment that the peer has announced.
#[derive(Debug)]
struct PeerSegment {
    number: u32,
    address: u64,
    /// The mapping. `None`: the system has refused it.
    mapping: Option<Arc<PeerMapping>>,
}

/// A region of the peer that this side accesses directly.
#[derive(Debug)]
pub struct MappedRegion {
    /// The peer's key.
    pub key: Key,
    /// The permitted accesses.
    pub rights: Rights,
    /// The bytes of the region.
    pub view: SharedBytes,
    /// The mapping that contains the bytes.
    pub mapping: Arc<PeerMapping>,
}

/// Numbers of receives in place on a link, by the way in which they have completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoanCounts {
    /// Receives that have completed with a loaned message.
    pub in_place: u64,
    /// Receives that have completed with a copy, because the message was short, was not in a segment, or could not be mapped.
    pub copied: u64,
}

/// The segments of both ends of a link.
#[derive(Debug, Default)]
pub struct Segments {
    /// The control connection; `None` on a link without shared memory.
    control: Option<RawFd>,
    /// Segments of this node that were announced to the peer.
    announced: Vec<(u32, Weak<PoolSegment>)>,
    peer_segments: Vec<PeerSegment>,
    /// Regions of the peer that this side accesses directly.
    pub mapped_regions: Vec<MappedRegion>,
    /// Regions for whose address the peer was asked; false: revoked meanwhile.
    pub open_queries: Vec<(Key, bool)>,
    /// How the receives in place have completed.
    pub counts: LoanCounts,
    /// The peer has sent an invalid message.
    pub broken: bool,
}

impl Segments {
    /// The segments of a link with this control connection, which stays open until [`Segments::reset`].
    pub fn over(control: RawFd) -> Self {
        Self { control: Some(control), ..Self::default() }
    }

    /// Forgets all segments, because the link is down. Loaned messages stay mapped for the program.
    pub fn reset(&mut self) {
        let counts = self.counts;
        *self = Self { counts, ..Self::default() };
    }

    // ---- ours -------------------------------------------------------------------------------------------------------

    /// The remote address of bytes in a segment of this node, which is announced to the peer first if necessary. `None`: it cannot be announced at present.
    pub fn address_for_peer(&mut self, segment: &Arc<PoolSegment>, address: u64) -> Option<RemoteAddress> {
        let number = segment.number();
        if !self.announced.iter().rev().any(|(known, _)| *known == number) && !self.announce(segment) {
            return None;
        }
        Some(RemoteAddress { address, key: u64::from(number) })
    }

    /// Whether a segment was announced to the peer, so that it may map it.
    pub fn is_announced(&self, segment: &Arc<PoolSegment>) -> bool {
        self.announced.iter().any(|(known, _)| *known == segment.number())
    }

    #[cold]
    fn announce(&mut self, segment: &Arc<PoolSegment>) -> bool {
        // Released segments are withdrawn first, so that the peer never has more segments than a pool can.
        let (true, Some(control), Some(file)) = (self.withdraw_released(), self.control, segment.file()) else {
            return false;
        };
        let (number, writable) = (segment.number(), segment.is_writable());
        let message =
            SegmentMsg::Announced { number, writable, address: segment.address(), length: segment.length() as u64 };
        let sent = socket::send_with_fd(private_fds::borrow(control), &message.encode(), file).is_ok();
        if sent {
            self.announced.push((number, Arc::downgrade(segment)));
        }
        sent
    }

    /// Withdraws the released segments at the peer. False: not all of them could be withdrawn.
    pub fn withdraw_released(&mut self) -> bool {
        let Some(control) = self.control else { return true };
        self.announced.retain(|(number, segment)| {
            let message = SegmentMsg::Withdrawn { number: *number };
            segment.strong_count() > 0 || socket::send_message(private_fds::borrow(control), &message.encode()).is_err()
        });
        self.announced.iter().all(|(_, segment)| segment.strong_count() > 0)
    }

    // ---- theirs -----------------------------------------------------------------------------------------------------

    /// The bytes at a remote address that the peer has given, if they are mapped here. The address is checked.
    pub fn find_mapped(&mut self, position: RemoteAddress, done: u64, length: usize) -> Option<PeerBytes> {
        let (mapping, at) = self.mapping_of(position)?;
        PeerBytes::of(&mapping, at.checked_add(done)?, length)
    }

    /// The bytes at a remote address, if their segment has been announced. Does not read the control connection.
    #[inline]
    pub fn find_known(&self, position: RemoteAddress, length: usize) -> Option<PeerBytes> {
        let known = self.known(u32::try_from(position.key).ok()?)?;
        PeerBytes::of(known.mapping.as_ref()?, position.address.checked_sub(known.address)?, length)
    }

    /// The mapping of the segment that contains a remote address, and the offset in it.
    pub fn mapping_of(&mut self, position: RemoteAddress) -> Option<(Arc<PeerMapping>, u64)> {
        let number = u32::try_from(position.key).ok().filter(|number| *number != 0)?;
        if self.known(number).is_none() {
            self.broken |= self.read_control() == ControlResult::Broken;
        }
        let known = self.known(number)?;
        let at = position.address.checked_sub(known.address)?;
        Some((known.mapping.clone()?, at))
    }

    fn known(&self, number: u32) -> Option<&PeerSegment> {
        self.peer_segments.iter().rev().find(|known| known.number == number)
    }

    /// Reads the messages on the control connection.
    #[cold]
    pub fn read_control(&mut self) -> ControlResult {
        const EAGAIN: i32 = 11;
        let Some(control) = self.control else { return ControlResult::Drained };
        for _ in 0..MAX_MESSAGES_PER_READ {
            let mut bytes = [0; SEGMENT_MSG_BYTES + 1];
            match socket::receive_with_fd(private_fds::borrow(control), &mut bytes) {
                Ok((0, _)) => return ControlResult::Closed,
                Ok((length, file)) => {
                    if !self.handle(&bytes[..length.min(bytes.len())], file) {
                        return ControlResult::Broken;
                    }
                }
                Err(EAGAIN) => break,
                Err(_) => return ControlResult::Closed,
            }
        }
        ControlResult::Drained
    }

    /// Handles one message of the peer. False: it is invalid.
    fn handle(&mut self, bytes: &[u8], file: Option<OwnedFd>) -> bool {
        const EINVAL: i32 = 22;
        match (SegmentMsg::decode(bytes), file) {
            (Some(SegmentMsg::Announced { number, writable, address, length }), Some(file)) => {
                if self.peer_segments.len() >= MAX_SEGMENTS || self.known(number).is_some() {
                    return false;
                }
                let mapping = match PeerMapping::map(&file, length, writable) {
                    Ok(mapping) => Some(Arc::new(mapping)),
                    Err(error) if error.raw_os_error() == EINVAL => return false, // the file is not as announced
                    Err(_) => None,
                };
                self.peer_segments.push(PeerSegment { number, address, mapping });
                true
            }
            (Some(SegmentMsg::Withdrawn { number }), None) => {
                let before = self.peer_segments.len();
                self.peer_segments.retain(|known| known.number != number);
                self.peer_segments.len() < before
            }
            _ => false,
        }
    }

    // ---- regions ----------------------------------------------------------------------------------------------------

    /// Ends the direct access to a region that the peer revokes.
    pub fn forget_region(&mut self, key: Key) {
        self.mapped_regions.retain(|mapped| mapped.key != key);
        self.open_queries.iter_mut().filter(|query| query.0 == key).for_each(|query| query.1 = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_sys::rustix::fd::{AsFd, AsRawFd};

    #[test]
    fn segment_message_encoded_decodes_to_the_same() {
        let shown = SegmentMsg::Announced { number: 7, writable: true, address: 1 << 46, length: 4096 };
        for message in [shown, SegmentMsg::Withdrawn { number: u32::MAX }] {
            let bytes = message.encode();
            assert_eq!(SegmentMsg::decode(&bytes), Some(message));
            assert_eq!(
                (SegmentMsg::decode(&bytes[1..]), SegmentMsg::decode(&[&bytes[..], &[0]].concat())),
                (None, None)
            );
        }
    }

    #[test]
    fn segment_message_invalid_is_rejected() {
        let good = SegmentMsg::Announced { number: 7, writable: false, address: 1 << 46, length: 4096 }.encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            SegmentMsg::decode(&bytes)
        };
        for (at, byte) in [(0, 0), (4, 2), (6, 0), (6, 2), (6, 3), (8, 0), (12, 2), (13, 1)] {
            assert_eq!(with(at, byte), None, "{at}");
        }
        for (address, length) in [(0, 1), (1, 0), (u64::MAX, 1), (2, u64::MAX)] {
            assert_eq!(
                SegmentMsg::decode(&SegmentMsg::Announced { number: 1, writable: false, address, length }.encode()),
                None
            );
        }
    }

    /// The two ends of a control connection.
    fn connection() -> [OwnedFd; 2] {
        use motet_sys::rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        [here, there]
    }

    #[test]
    fn unknown_segment_number_reads_the_control_connection() {
        let [here, there] = connection();
        let (mut ours, mut peer_segments) = (Segments::over(here.as_raw_fd()), Segments::over(there.as_raw_fd()));
        let pool = motet_sys::shm_pool::ShmPool::new(1 << 30);
        let mut loan = pool.take(5000).unwrap();
        loan.fill(7);
        let position = ours.address_for_peer(loan.segment(), loan.address()).unwrap();
        assert_eq!(ours.address_for_peer(loan.segment(), loan.address()), Some(position), "announced once");
        assert!(ours.is_announced(loan.segment()));
        let part = peer_segments.find_mapped(position, 0, 5000).unwrap();
        assert!(part.to_vec().iter().all(|&byte| byte == 7));
        assert!(
            peer_segments.find_mapped(RemoteAddress { key: position.key + 1, ..position }, 0, 1).is_none(),
            "the peer has not announced that segment"
        );
        assert!(peer_segments.find_mapped(RemoteAddress { key: 0, ..position }, 0, 1).is_none());
        for (address, done, length) in [(1, 0, 1), (position.address, u64::MAX, 1), (position.address, 0, 65 << 20)] {
            assert!(peer_segments.find_mapped(RemoteAddress { address, ..position }, done, length).is_none());
        }
        let long = pool.segment(100, true).unwrap();
        assert!(!ours.is_announced(&long));
        let region = ours.address_for_peer(&long, long.address()).unwrap();
        assert!(peer_segments.mapping_of(region).is_some());
        drop(long);
        assert!(ours.withdraw_released());
        assert_eq!(
            (peer_segments.read_control(), peer_segments.mapping_of(region).is_none()),
            (ControlResult::Drained, true),
            "gone"
        );
        drop(here);
        // Another test may fork meanwhile: its child holds the other end until it calls exec.
        let ended = (0..10_000).any(|_| {
            motet_sys::thread::sleep_ns(1_000_000);
            peer_segments.read_control() == ControlResult::Closed
        });
        assert_eq!((ended, peer_segments.broken, part.len()), (true, false, 5000));
    }

    #[test]
    fn control_messages_invalid_are_reported_broken() {
        let pool = motet_sys::shm_pool::ShmPool::new(1 << 30);
        let segment = pool.segment(4096, true).unwrap();
        let sealed = pool.take(100).unwrap();
        let file = || segment.file().unwrap();
        let shown =
            |number, length| SegmentMsg::Announced { number, writable: true, address: 1 << 46, length }.encode();
        let pipe = motet_sys::rustix::pipe::pipe().unwrap().0;
        type Said<'a> = Vec<(Vec<u8>, Option<motet_sys::rustix::fd::BorrowedFd<'a>>)>;
        let good: (Vec<u8>, _) = (shown(1, 4096).to_vec(), Some(file()));
        let cases: Vec<Said<'_>> = vec![
            vec![(shown(1, 4096).to_vec(), None)],
            vec![(shown(1, 8192).to_vec(), Some(file()))],
            vec![(shown(1, 4096).to_vec(), Some(pipe.as_fd()))],
            vec![good.clone(), good.clone()],
            vec![(SegmentMsg::Withdrawn { number: 1 }.encode().to_vec(), None)],
            vec![good.clone(), (SegmentMsg::Withdrawn { number: 1 }.encode().to_vec(), Some(file()))],
            vec![(vec![1], None)],
            vec![([&shown(1, 4096)[..], &[0]].concat(), Some(file()))],
            (1..=MAX_SEGMENTS as u32 + 1).map(|number| (shown(number, 4096).to_vec(), Some(file()))).collect(),
        ];
        for (case, said) in cases.into_iter().enumerate() {
            let [here, there] = connection();
            let mut peer_segments = Segments::over(there.as_raw_fd());
            let last = said.len() - 1;
            for (at, (bytes, file)) in said.into_iter().enumerate() {
                match file {
                    Some(file) => socket::send_with_fd(&here, &bytes, file).unwrap(),
                    None => socket::send_message(&here, &bytes).unwrap(),
                }
                let expected = if at == last { ControlResult::Broken } else { ControlResult::Drained };
                assert_eq!(peer_segments.read_control(), expected, "case {case}, message {at}");
            }
        }
        // A sealed segment that is announced as writable: the kernel refuses the mapping, and its bytes take another way.
        let [here, there] = connection();
        let mut peer_segments = Segments::over(there.as_raw_fd());
        let length = sealed.segment().length() as u64;
        socket::send_with_fd(&here, &shown(1, length), sealed.segment().file().unwrap()).unwrap();
        assert_eq!(peer_segments.read_control(), ControlResult::Drained);
        assert!(peer_segments.mapping_of(RemoteAddress { address: 1 << 46, key: 1 }).is_none());
    }
}
