//! Segments of the two nodes of a link: how they are announced to the other end, and what each end keeps of them.
//!
//! A node's pool consists of segments, each a memfd (`motet_sys::shm_pool`). Before a packet refers to a segment, its owner announces it on the link's
//! control connection and sends the descriptor along ([`SegmentMsg`]). A side that reads an unknown number in a packet reads the control connection. A
//! [`RemoteAddress`] in a segment is an address in its owner's process with the segment's number as its key. A peer that cannot map the segment copies from
//! that address, or has the bytes sent, as it does for any other memory.
//!
//! Which message or region is in a segment is decided in [`crate::message::loans`] and [`crate::message::regions`].

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
pub const NEWS: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"MtSg");
const VERSION: u16 = 1;
const SHOWN: u16 = 1;
const GONE: u16 = 2;
/// Messages read from a control connection by one call.
const TURN: usize = 16;

/// A message on the control connection, little-endian: magic 4, version 2, kind 2, number 4, writable 4, address 8, length 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentMsg {
    /// Announces a segment. Its descriptor is attached.
    Shown {
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
    Gone {
        /// The number of the segment.
        number: u32,
    },
}

impl SegmentMsg {
    /// Encodes the message.
    pub fn encode(&self) -> [u8; NEWS] {
        let (kind, number, writable, address, length) = match *self {
            Self::Shown { number, writable, address, length } => (SHOWN, number, writable, address, length),
            Self::Gone { number } => (GONE, number, false, 0, 0),
        };
        let mut bytes = [0; NEWS];
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
        let bytes: &[u8; NEWS] = bytes.try_into().ok()?;
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let number = word(8) as u32;
        let writable = (word(8) >> 32) as u32;
        if word(0) as u32 != MAGIC || half(4) != VERSION || number == 0 || writable > 1 {
            return None;
        }
        let (address, length) = (word(16), word(24));
        match half(6) {
            SHOWN if address != 0 && length != 0 && address.checked_add(length).is_some() => {
                Some(Self::Shown { number, writable: writable == 1, address, length })
            }
            GONE if (address, length, writable) == (0, 0, 0) => Some(Self::Gone { number }),
            _ => None,
        }
    }
}

/// The result of reading the control connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlResult {
    /// The messages that had arrived have been read.
    All,
    /// The peer has closed the connection, or has died.
    End,
    /// The peer has sent an invalid message.
    Broken,
}

/// A segment that the peer has announced.
#[derive(Debug)]
struct PeerSegment {
    number: u32,
    address: u64,
    /// The mapping. `None`: the system has refused it.
    window: Option<Arc<PeerMapping>>,
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
    pub window: Arc<PeerMapping>,
}

/// Numbers of receives in place on a link, by the way in which they have completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LoanCounts {
    /// Receives that have completed with a loaned message.
    pub lent: u64,
    /// Receives that have completed with a copy, because the message was short, was not in a segment, or could not be mapped.
    pub copied: u64,
}

/// The segments of both ends of a link.
#[derive(Debug, Default)]
pub struct Segments {
    /// The control connection; `None` on a link without shared memory.
    control: Option<RawFd>,
    /// Segments of this node that were announced to the peer.
    told: Vec<(u32, Weak<PoolSegment>)>,
    theirs: Vec<PeerSegment>,
    /// Regions of the peer that this side accesses directly.
    pub mapped_regions: Vec<MappedRegion>,
    /// Regions for whose address the peer was asked; false: revoked meanwhile.
    pub looks: Vec<(Key, bool)>,
    /// How the receives in place have completed.
    pub counts: LoanCounts,
    /// The peer has sent an invalid message.
    pub broken: bool,
}

impl Segments {
    /// The segments of a link with this control connection, which stays open until [`Segments::leave`].
    pub fn over(control: RawFd) -> Self {
        Self { control: Some(control), ..Self::default() }
    }

    /// Forgets all segments, because the link is down. Loaned messages stay mapped for the program.
    pub fn leave(&mut self) {
        let counts = self.counts;
        *self = Self { counts, ..Self::default() };
    }

    // ---- ours -------------------------------------------------------------------------------------------------------

    /// The remote address of bytes in a segment of this node, which is announced to the peer first if necessary. `None`: it cannot be announced at present.
    pub fn show(&mut self, segment: &Arc<PoolSegment>, address: u64) -> Option<RemoteAddress> {
        let number = segment.number();
        if !self.told.iter().rev().any(|(told, _)| *told == number) && !self.report(segment) {
            return None;
        }
        Some(RemoteAddress { address, key: u64::from(number) })
    }

    /// Whether a segment was announced to the peer, so that it may map it.
    pub fn has_shown(&self, segment: &Arc<PoolSegment>) -> bool {
        self.told.iter().any(|(told, _)| *told == segment.number())
    }

    #[cold]
    fn report(&mut self, segment: &Arc<PoolSegment>) -> bool {
        // Released segments are withdrawn first, so that the peer never has more segments than a pool can.
        let (true, Some(control), Some(file)) = (self.withdraw(), self.control, segment.file()) else { return false };
        let (number, writable) = (segment.number(), segment.is_writable());
        let news = SegmentMsg::Shown { number, writable, address: segment.address(), length: segment.length() as u64 };
        let sent = socket::send_with_fd(private_fds::borrow(control), &news.encode(), file).is_ok();
        if sent {
            self.told.push((number, Arc::downgrade(segment)));
        }
        sent
    }

    /// Withdraws the released segments at the peer. False: not all of them could be withdrawn.
    pub fn withdraw(&mut self) -> bool {
        let Some(control) = self.control else { return true };
        self.told.retain(|(number, segment)| {
            let news = SegmentMsg::Gone { number: *number };
            segment.strong_count() > 0 || socket::send_message(private_fds::borrow(control), &news.encode()).is_err()
        });
        self.told.iter().all(|(_, segment)| segment.strong_count() > 0)
    }

    // ---- theirs -----------------------------------------------------------------------------------------------------

    /// The bytes at a remote address that the peer has given, if they are mapped here. The address is checked.
    pub fn find(&mut self, place: RemoteAddress, done: u64, length: usize) -> Option<PeerBytes> {
        let (window, at) = self.window(place)?;
        PeerBytes::of(&window, at.checked_add(done)?, length)
    }

    /// The bytes at a remote address, if their segment has been announced. Does not read the control connection.
    #[inline]
    pub fn find_known(&self, place: RemoteAddress, length: usize) -> Option<PeerBytes> {
        let known = self.known(u32::try_from(place.key).ok()?)?;
        PeerBytes::of(known.window.as_ref()?, place.address.checked_sub(known.address)?, length)
    }

    /// The mapping of the segment that contains a remote address, and the offset in it.
    pub fn window(&mut self, place: RemoteAddress) -> Option<(Arc<PeerMapping>, u64)> {
        let number = u32::try_from(place.key).ok().filter(|number| *number != 0)?;
        if self.known(number).is_none() {
            self.broken |= self.hear() == ControlResult::Broken;
        }
        let known = self.known(number)?;
        let at = place.address.checked_sub(known.address)?;
        Some((known.window.clone()?, at))
    }

    fn known(&self, number: u32) -> Option<&PeerSegment> {
        self.theirs.iter().rev().find(|known| known.number == number)
    }

    /// Reads the messages on the control connection.
    #[cold]
    pub fn hear(&mut self) -> ControlResult {
        const EAGAIN: i32 = 11;
        let Some(control) = self.control else { return ControlResult::All };
        for _ in 0..TURN {
            let mut bytes = [0; NEWS + 1];
            match socket::receive_with_fd(private_fds::borrow(control), &mut bytes) {
                Ok((0, _)) => return ControlResult::End,
                Ok((length, file)) => {
                    if !self.note(&bytes[..length.min(bytes.len())], file) {
                        return ControlResult::Broken;
                    }
                }
                Err(EAGAIN) => break,
                Err(_) => return ControlResult::End,
            }
        }
        ControlResult::All
    }

    /// Handles one message of the peer. False: it is invalid.
    fn note(&mut self, bytes: &[u8], file: Option<OwnedFd>) -> bool {
        const EINVAL: i32 = 22;
        match (SegmentMsg::decode(bytes), file) {
            (Some(SegmentMsg::Shown { number, writable, address, length }), Some(file)) => {
                if self.theirs.len() >= MAX_SEGMENTS || self.known(number).is_some() {
                    return false;
                }
                let window = match PeerMapping::map(&file, length, writable) {
                    Ok(window) => Some(Arc::new(window)),
                    Err(error) if error.raw_os_error() == EINVAL => return false, // the file is not as announced
                    Err(_) => None,
                };
                self.theirs.push(PeerSegment { number, address, window });
                true
            }
            (Some(SegmentMsg::Gone { number }), None) => {
                let before = self.theirs.len();
                self.theirs.retain(|known| known.number != number);
                self.theirs.len() < before
            }
            _ => false,
        }
    }

    // ---- regions ----------------------------------------------------------------------------------------------------

    /// Ends the direct access to a region that the peer revokes.
    pub fn forget(&mut self, key: Key) {
        self.mapped_regions.retain(|direct| direct.key != key);
        self.looks.iter_mut().filter(|look| look.0 == key).for_each(|look| look.1 = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_sys::rustix::fd::{AsFd, AsRawFd};

    #[test]
    fn news_round_trip() {
        let shown = SegmentMsg::Shown { number: 7, writable: true, address: 1 << 46, length: 4096 };
        for news in [shown, SegmentMsg::Gone { number: u32::MAX }] {
            let bytes = news.encode();
            assert_eq!(SegmentMsg::decode(&bytes), Some(news));
            assert_eq!(
                (SegmentMsg::decode(&bytes[1..]), SegmentMsg::decode(&[&bytes[..], &[0]].concat())),
                (None, None)
            );
        }
    }

    #[test]
    fn what_cannot_be_is_no_news() {
        let good = SegmentMsg::Shown { number: 7, writable: false, address: 1 << 46, length: 4096 }.encode();
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
                SegmentMsg::decode(&SegmentMsg::Shown { number: 1, writable: false, address, length }.encode()),
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
    fn who_meets_an_unknown_number_learns_where_that_is() {
        let [here, there] = connection();
        let (mut ours, mut theirs) = (Segments::over(here.as_raw_fd()), Segments::over(there.as_raw_fd()));
        let pool = motet_sys::shm_pool::ShmPool::new(1 << 30);
        let mut loan = pool.take(5000).unwrap();
        loan.fill(7);
        let place = ours.show(loan.segment(), loan.address()).unwrap();
        assert_eq!(ours.show(loan.segment(), loan.address()), Some(place), "announced once");
        assert!(ours.has_shown(loan.segment()));
        let part = theirs.find(place, 0, 5000).unwrap();
        assert!(part.to_vec().iter().all(|&byte| byte == 7));
        assert!(
            theirs.find(RemoteAddress { key: place.key + 1, ..place }, 0, 1).is_none(),
            "the peer has not announced that segment"
        );
        assert!(theirs.find(RemoteAddress { key: 0, ..place }, 0, 1).is_none());
        for (address, done, length) in [(1, 0, 1), (place.address, u64::MAX, 1), (place.address, 0, 65 << 20)] {
            assert!(theirs.find(RemoteAddress { address, ..place }, done, length).is_none());
        }
        let long = pool.segment(100, true).unwrap();
        assert!(!ours.has_shown(&long));
        let region = ours.show(&long, long.address()).unwrap();
        assert!(theirs.window(region).is_some());
        drop(long);
        assert!(ours.withdraw());
        assert_eq!((theirs.hear(), theirs.window(region).is_none()), (ControlResult::All, true), "gone");
        drop(here);
        // Another test may fork meanwhile: its child holds the other end until it calls exec.
        let ended = (0..10_000).any(|_| {
            motet_sys::thread::sleep_ns(1_000_000);
            theirs.hear() == ControlResult::End
        });
        assert_eq!((ended, theirs.broken, part.len()), (true, false, 5000));
    }

    #[test]
    fn a_peer_that_says_what_cannot_be_is_found_out() {
        let pool = motet_sys::shm_pool::ShmPool::new(1 << 30);
        let segment = pool.segment(4096, true).unwrap();
        let sealed = pool.take(100).unwrap();
        let file = || segment.file().unwrap();
        let shown = |number, length| SegmentMsg::Shown { number, writable: true, address: 1 << 46, length }.encode();
        let pipe = motet_sys::rustix::pipe::pipe().unwrap().0;
        type Said<'a> = Vec<(Vec<u8>, Option<motet_sys::rustix::fd::BorrowedFd<'a>>)>;
        let good: (Vec<u8>, _) = (shown(1, 4096).to_vec(), Some(file()));
        let cases: Vec<Said<'_>> = vec![
            vec![(shown(1, 4096).to_vec(), None)],
            vec![(shown(1, 8192).to_vec(), Some(file()))],
            vec![(shown(1, 4096).to_vec(), Some(pipe.as_fd()))],
            vec![good.clone(), good.clone()],
            vec![(SegmentMsg::Gone { number: 1 }.encode().to_vec(), None)],
            vec![good.clone(), (SegmentMsg::Gone { number: 1 }.encode().to_vec(), Some(file()))],
            vec![(vec![1], None)],
            vec![([&shown(1, 4096)[..], &[0]].concat(), Some(file()))],
            (1..=MAX_SEGMENTS as u32 + 1).map(|number| (shown(number, 4096).to_vec(), Some(file()))).collect(),
        ];
        for (case, said) in cases.into_iter().enumerate() {
            let [here, there] = connection();
            let mut theirs = Segments::over(there.as_raw_fd());
            let last = said.len() - 1;
            for (at, (bytes, file)) in said.into_iter().enumerate() {
                match file {
                    Some(file) => socket::send_with_fd(&here, &bytes, file).unwrap(),
                    None => socket::send_message(&here, &bytes).unwrap(),
                }
                let expected = if at == last { ControlResult::Broken } else { ControlResult::All };
                assert_eq!(theirs.hear(), expected, "case {case}, message {at}");
            }
        }
        // A sealed segment that is announced as writable: the kernel refuses the mapping, and its bytes take another way.
        let [here, there] = connection();
        let mut theirs = Segments::over(there.as_raw_fd());
        let length = sealed.segment().length() as u64;
        socket::send_with_fd(&here, &shown(1, length), sealed.segment().file().unwrap()).unwrap();
        assert_eq!(theirs.hear(), ControlResult::All);
        assert!(theirs.window(RemoteAddress { address: 1 << 46, key: 1 }).is_none());
    }
}
