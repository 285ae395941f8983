//! What packets look like on a link.
//!
//! What it is: the fixed part of every kind of packet, written and read. All fields are little-endian and of fixed size; the
//! first eight bytes are the same in all of them: to whom (a channel or a long message, by the *receiver's* number where it
//! has one), 16 bits of the kind's own, and the credit that rides along. `docs/messages.md` has the tables.
//!
//! What it is not: reading checks lengths and what a field can say by itself, never whether it fits the state of the link.
//!
//! The medium carries the kind and the length of a packet, so neither is in it: a tagged message has 16 bytes of its own and
//! leaves 40 of a line's 56 for headers and body.

use super::ProtocolViolation;
use super::header_stack;
use super::slab::SlabId;

/// The first word of a link's first packet: "MtMs".
pub const MAGIC: u32 = 0x734d_744d;
/// Of this protocol.
pub const VERSION: u16 = 1;
/// Bytes that every packet begins with.
pub const HEAD: usize = 8;
/// Fixed bytes of a whole message, and of a piece of a long one.
pub const MESSAGE: usize = 16;
/// Fixed bytes of the first packet of a long eager message.
pub const FIRST: usize = 32;
/// Fixed bytes of an announcement.
pub const RTS: usize = 48;
/// Every link carries packets of this size.
pub const MIN_PACKET_BYTES: usize = RTS + header_stack::MAX_HEADERS_BYTES;

/// What a packet is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The limits of a side: the first packet.
    Hello = 1,
    /// A whole eager message.
    Message = 2,
    /// The first packet of an eager message that is longer than a packet.
    First = 3,
    /// A rendezvous message announces itself.
    Rts = 4,
    /// Payload of a long message: unasked for after FIRST, asked for after RTS.
    Piece = 5,
    /// The receiver asks for payload of an announced message.
    Cts = 6,
    /// The receiver is done with an announced message.
    Fin = 7,
    /// The sender would like an announced message back.
    Cancel = 8,
    /// The sender lacks credit.
    Ask = 9,
    /// Credit.
    Grant = 10,
    /// A side would like a channel.
    Open = 11,
    /// The other takes it.
    Accept = 12,
    /// The other does not.
    Refuse = 13,
    /// A side will not send, or not receive, on a channel any more.
    Close = 14,
    /// A short run of bytes for a region, as the following up to [`Kind::Revoked`] are about regions: see [`super::rma`].
    Put = 15,
    /// A short run of bytes of a region is wanted.
    Get = 16,
    /// An atomic.
    Atomic = 17,
    /// So many of these are done.
    Ack = 18,
    /// The value that one gives, or why it was not done.
    FetchReply = 19,
    /// A long run of bytes for a region.
    PutLong = 20,
    /// A long run of bytes of a region is wanted.
    GetLong = 21,
    /// Bytes of a long put are wanted.
    PutCts = 22,
    /// Bytes of a long put or get.
    Bytes = 23,
    /// Where the bytes of a long get are.
    GetAddr = 24,
    /// They have been copied from there, or cannot be.
    GetFin = 25,
    /// A long put has ended, or a long get has failed.
    PutFin = 26,
    /// Direct access to a region must end.
    Revoke = 27,
    /// It has.
    Revoked = 28,
    /// The receiver copies an announced message itself, and says where to: who has time may copy some of it.
    CopyAssist = 29,
}

impl Kind {
    /// The kind of a packet that a peer wrote.
    #[inline(always)]
    pub fn read(kind: u8) -> Result<Self, ProtocolViolation> {
        const KINDS: [Kind; 29] = [
            Kind::Hello,
            Kind::Message,
            Kind::First,
            Kind::Rts,
            Kind::Piece,
            Kind::Cts,
            Kind::Fin,
            Kind::Cancel,
            Kind::Ask,
            Kind::Grant,
            Kind::Open,
            Kind::Accept,
            Kind::Refuse,
            Kind::Close,
            Kind::Put,
            Kind::Get,
            Kind::Atomic,
            Kind::Ack,
            Kind::FetchReply,
            Kind::PutLong,
            Kind::GetLong,
            Kind::PutCts,
            Kind::Bytes,
            Kind::GetAddr,
            Kind::GetFin,
            Kind::PutFin,
            Kind::Revoke,
            Kind::Revoked,
            Kind::CopyAssist,
        ];
        KINDS.get(usize::from(kind).wrapping_sub(1)).copied().ok_or(ProtocolViolation("a packet of no known kind"))
    }
}

/// The bytes that every packet begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// To whom: a number of the receiver's or, for long messages, of the sender's.
    pub to: SlabId,
    /// The kind's own: length of the headers, status, flags.
    pub own: u16,
    /// Credit, units.
    pub grant: u16,
}

impl Head {
    /// Reads it, with what follows.
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (head, rest) = packet.split_first_chunk::<HEAD>().ok_or(SHORT)?;
        Ok((Self { to: SlabId(u32_at(head, 0)), own: u16_at(head, 4), grant: u16_at(head, 6) }, rest))
    }

    /// A packet of `N` bytes that begins with it, the rest zero.
    #[inline(always)]
    pub(super) fn begin<const N: usize>(self) -> [u8; N] {
        let mut packet = [0; N];
        packet[0..4].copy_from_slice(&self.to.0.to_le_bytes());
        packet[4..6].copy_from_slice(&self.own.to_le_bytes());
        packet[6..8].copy_from_slice(&self.grant.to_le_bytes());
        packet
    }

    /// A packet that is nothing else.
    pub fn write(self) -> [u8; HEAD] {
        self.begin()
    }

    /// The same as words, with one behind it.
    #[inline(always)]
    pub fn words(self, word: u64) -> [u64; 2] {
        [u64::from(self.to.0) | u64::from(self.own) << 32 | u64::from(self.grant) << 48, word]
    }

    /// Reads the first of such words.
    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        Self { to: SlabId(word as u32), own: (word >> 32) as u16, grant: (word >> 48) as u16 }
    }

    /// A packet with one word behind it: MESSAGE (tag), PIECE (offset), CTS (end), OPEN (service), ACCEPT (number), and
    /// of those about regions PUT_CTS (end), BYTES (offset), REVOKE and REVOKED (key).
    #[inline(always)]
    pub fn write_word(self, word: u64) -> [u8; MESSAGE] {
        let mut packet = self.begin();
        packet[8..16].copy_from_slice(&word.to_le_bytes());
        packet
    }
}

/// The word behind the head, with what follows.
#[inline(always)]
pub fn read_word(rest: &[u8]) -> Result<(u64, &[u8]), ProtocolViolation> {
    let (word, rest) = rest.split_first_chunk::<8>().ok_or(SHORT)?;
    Ok((u64::from_le_bytes(*word), rest))
}

/// Headers and what follows them.
#[inline(always)]
pub fn read_headers(rest: &[u8], length: u16) -> Result<(&[u8], &[u8]), ProtocolViolation> {
    rest.split_at_checked(headers_length(length, rest.len())?).ok_or(SHORT)
}

/// So many bytes of headers, of all the bytes behind a packet's fixed ones.
#[inline(always)]
pub fn headers_length(length: u16, all: usize) -> Result<usize, ProtocolViolation> {
    match usize::from(length) {
        length if length > header_stack::MAX_HEADERS_BYTES => Err(ProtocolViolation("headers longer than allowed")),
        length if length > all => Err(SHORT),
        length => Ok(length),
    }
}

/// Nothing may follow.
pub fn expect_end(rest: &[u8]) -> Result<(), ProtocolViolation> {
    if rest.is_empty() { Ok(()) } else { Err(ProtocolViolation("bytes behind a packet")) }
}

/// What FIRST and RTS say of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongHeader {
    /// For the matching.
    pub tag: u64,
    /// Bytes of the body.
    pub length: u64,
    /// The sender's number for it.
    pub number: SlabId,
}

impl LongHeader {
    /// Reads it behind the head.
    pub fn read(rest: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ FIRST - HEAD }>().ok_or(SHORT)?;
        let number = SlabId(u32_at(fixed, 16));
        Ok((Self { tag: u64_at(fixed, 0), length: u64_at(fixed, 8), number }, rest))
    }

    fn write_into(&self, packet: &mut [u8]) {
        packet[8..16].copy_from_slice(&self.tag.to_le_bytes());
        packet[16..24].copy_from_slice(&self.length.to_le_bytes());
        packet[24..28].copy_from_slice(&self.number.0.to_le_bytes());
    }

    /// FIRST.
    pub fn write(&self, head: Head) -> [u8; FIRST] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet
    }

    /// RTS.
    pub fn write_at(&self, head: Head, place: RemoteAddress) -> [u8; RTS] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet[32..40].copy_from_slice(&place.address.to_le_bytes());
        packet[40..48].copy_from_slice(&place.key.to_le_bytes());
        packet
    }
}

/// Where the body of an announced message lies in the sender's process. Opaque here; the address 0 is nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAddress {
    /// Of the first byte.
    pub address: u64,
    /// What proves that it may be read, or how.
    pub key: u64,
}

impl RemoteAddress {
    /// Whether it is somewhere in the sender's private memory.
    pub fn is_plain(&self) -> bool {
        self.address != 0 && self.key == 0
    }

    /// Reads it.
    pub fn read(rest: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ RTS - FIRST }>().ok_or(SHORT)?;
        Ok((Self { address: u64_at(fixed, 0), key: u64_at(fixed, 8) }, rest))
    }
}

/// How the bytes of an announced message come, in CTS's own word: the receiver sees what a whole message takes, the sender only its half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum Route {
    /// As the sender likes.
    #[default]
    Any = 0,
    /// Through the caches.
    Through = 1,
    /// Around them.
    Around = 2,
    /// The same, to see what it takes.
    TryThrough = 3,
    /// The same.
    TryAround = 4,
}

impl Route {
    /// Reads it.
    pub fn read(own: u16) -> Result<Self, ProtocolViolation> {
        const ROUTES: [Route; 5] = [Route::Any, Route::Through, Route::Around, Route::TryThrough, Route::TryAround];
        ROUTES.get(usize::from(own)).copied().ok_or(ProtocolViolation("a pull of no known kind"))
    }
}

/// COPY_ASSIST: where a receive wants the first bytes of a message that is copied by both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyAssist {
    /// In the receiver's process.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Which copy it is, for the words beside the ring.
    pub copy_id: u32,
}

impl CopyAssist {
    /// Bytes of the packet.
    pub const BYTES: usize = 32;

    /// The packet.
    pub fn write(&self, head: Head) -> [u8; Self::BYTES] {
        let mut packet = head.begin();
        packet[8..16].copy_from_slice(&self.address.to_le_bytes());
        packet[16..24].copy_from_slice(&self.length.to_le_bytes());
        packet[24..28].copy_from_slice(&self.copy_id.to_le_bytes());
        packet
    }

    /// Reads it behind the head.
    pub fn read(rest: &[u8]) -> Result<Self, ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ Self::BYTES - HEAD }>().ok_or(SHORT)?;
        expect_end(rest)?;
        Ok(Self { address: u64_at(fixed, 0), length: u64_at(fixed, 8), copy_id: u32_at(fixed, 16) })
    }
}

/// What a side lets the other do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello {
    /// Units of eager payload.
    pub window: u32,
    /// LongHeader messages at a time.
    pub max_rendezvous: u32,
    /// Channels opened by the other at a time.
    pub channels: u32,
    /// Operations of the other on regions at a time.
    pub requests: u32,
}

impl Hello {
    /// Bytes of the packet.
    pub const BYTES: usize = 24;

    /// The packet.
    pub fn write(&self) -> [u8; Self::BYTES] {
        let mut packet = Head { to: SlabId(MAGIC), own: VERSION, grant: 0 }.begin();
        packet[8..12].copy_from_slice(&self.window.to_le_bytes());
        packet[12..16].copy_from_slice(&self.max_rendezvous.to_le_bytes());
        packet[16..20].copy_from_slice(&self.channels.to_le_bytes());
        packet[20..24].copy_from_slice(&self.requests.to_le_bytes());
        packet
    }

    /// Reads it behind its head.
    pub fn read(head: Head, rest: &[u8]) -> Result<Self, ProtocolViolation> {
        if head.to.0 != MAGIC || head.own != VERSION || head.grant != 0 {
            return Err(ProtocolViolation("another protocol or version"));
        }
        let (fixed, rest) = rest.split_first_chunk::<{ Self::BYTES - HEAD }>().ok_or(SHORT)?;
        expect_end(rest)?;
        let [window, max_rendezvous, channels, requests] = [0, 4, 8, 12].map(|at| u32_at(fixed, at));
        Ok(Self { window, max_rendezvous, channels, requests })
    }
}

pub(super) const SHORT: ProtocolViolation = ProtocolViolation("a packet shorter than its kind");

#[inline(always)]
fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Head = Head { to: SlabId(0x8765_4321), own: 0x1234, grant: 0xfedc };

    #[test]
    fn a_message_begins_with_sixteen_bytes() {
        let packet = HEADER.write_word(0x1122_3344_5566_7788);
        assert_eq!(packet.to_vec(), HEADER.words(0x1122_3344_5566_7788).map(u64::to_le_bytes).concat());
        assert_eq!(packet, *b"\x21\x43\x65\x87\x34\x12\xdc\xfe\x88\x77\x66\x55\x44\x33\x22\x11");
        let (head, rest) = Head::read(&packet).unwrap();
        assert_eq!(head, HEADER);
        assert_eq!(read_word(rest).unwrap(), (0x1122_3344_5566_7788, &[][..]));
    }

    #[test]
    fn long_messages_round_trip() {
        let long = LongHeader { tag: 1 << 63 | 5, length: u64::MAX - 1, number: SlabId(77) };
        let place = RemoteAddress { address: 3 << 40, key: !0 };
        let first = long.write(HEADER);
        assert_eq!(LongHeader::read(&first[HEAD..]).unwrap(), (long, &[][..]));
        let announce = long.write_at(HEADER, place);
        let (same, rest) = LongHeader::read(&announce[HEAD..]).unwrap();
        assert_eq!((same, RemoteAddress::read(rest).unwrap().0), (long, place));
    }

    #[test]
    fn what_both_copy_round_trips() {
        let shared = CopyAssist { address: 5 << 40, length: 1 << 30, copy_id: 0x8000_0001 };
        let packet = shared.write(HEADER);
        assert_eq!((Head::read(&packet).unwrap().0, CopyAssist::read(&packet[HEAD..])), (HEADER, Ok(shared)));
        assert!((0..CopyAssist::BYTES - HEAD).all(|length| CopyAssist::read(&packet[HEAD..][..length]).is_err()));
        assert!(CopyAssist::read(&[&packet[HEAD..], &[0]].concat()).is_err());
        assert!((0..6).all(|own| Route::read(own).map(|route| route as u16)
            == if own < 5 { Ok(own) } else { Route::read(9).map(|_| 0) }));
    }

    #[test]
    fn hello_names_the_protocol() {
        let hello = Hello { window: 1, max_rendezvous: 2, channels: 3, requests: 4 };
        let packet = hello.write();
        let read = |packet: &[u8]| Head::read(packet).and_then(|(head, rest)| Hello::read(head, rest));
        assert_eq!(read(&packet).unwrap(), hello);
        for byte in 0..HEAD {
            let mut other = packet;
            other[byte] ^= 1;
            assert!(read(&other).is_err());
        }
        assert!(read(&packet[..23]).is_err() && read(&[&packet[..], &[0]].concat()).is_err());
    }

    #[test]
    fn every_kind_is_its_number() {
        let known: Vec<u8> = (0..=255).filter(|&k| Kind::read(k).is_ok_and(|kind| kind as u8 == k)).collect();
        assert_eq!(known, (1..=29).collect::<Vec<u8>>());
    }

    #[test]
    fn short_packets_are_noticed() {
        for length in 0..FIRST - HEAD {
            assert!(LongHeader::read(&[0; FIRST][..length]).is_err());
        }
        assert!(Head::read(&[0; 7]).is_err() && read_word(&[0; 7]).is_err() && RemoteAddress::read(&[0; 15]).is_err());
        assert!(read_headers(&[0; 600], 257).is_err() && read_headers(&[0; 5], 6).is_err());
    }
}
