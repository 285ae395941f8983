//! Packet formats: the fixed part of every kind of packet, encoded and decoded.
//!
//! All fields are little-endian and of fixed size. Every packet begins with the same eight bytes ([`Head`]): the destination (a channel
//! or a long message, by the receiver's number where it has one), 16 bits that depend on the kind, and credit. `docs/messages.md` has
//! the tables.
//!
//! Decoding checks lengths and the values of single fields, never whether a packet fits the state of the link.
//!
//! The transport carries the kind and the length of a packet, so neither is part of it. A tagged message has 16 fixed bytes and leaves
//! 40 of the 56 bytes of a cell for headers and body.

use super::ProtocolViolation;
use super::header_stack;
use super::slab::SlabId;

/// The first word of the first packet of a link: "MtMs".
pub const MAGIC: u32 = 0x734d_744d;
/// The version of this protocol.
pub const VERSION: u16 = 1;
/// Bytes of [`Head`].
pub const HEAD_BYTES: usize = 8;
/// Fixed bytes of MESSAGE and PIECE.
pub const MESSAGE_HEAD_BYTES: usize = 16;
/// Fixed bytes of FIRST.
pub const FIRST_HEAD_BYTES: usize = 32;
/// Fixed bytes of RTS.
pub const RTS_HEAD_BYTES: usize = 48;
/// Packet size that every transport must support.
pub const MIN_PACKET_BYTES: usize = RTS_HEAD_BYTES + header_stack::MAX_HEADERS_BYTES;

/// The kind of a packet. The discriminant is the number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The limits of a side; the first packet.
    Hello = 1,
    /// A whole eager message.
    Message = 2,
    /// The first packet of an eager message that is longer than a packet.
    First = 3,
    /// A rendezvous message: ready to send.
    Rts = 4,
    /// Payload of a long message: unrequested after FIRST, requested by CTS after RTS.
    Piece = 5,
    /// The receiver asks for payload of a rendezvous message: clear to send.
    Cts = 6,
    /// The receiver has finished with a rendezvous message.
    Fin = 7,
    /// The sender asks to cancel a rendezvous message.
    Cancel = 8,
    /// The sender lacks credit.
    Ask = 9,
    /// Credit alone.
    Grant = 10,
    /// Opens a channel.
    Open = 11,
    /// Accepts a channel.
    Accept = 12,
    /// Refuses a channel.
    Refuse = 13,
    /// The sender of the packet will not send, or not receive, on a channel any more.
    Close = 14,
    /// A put that fits one packet. This kind up to [`Kind::Revoked`] are about remote memory: see [`super::rma`].
    Put = 15,
    /// A get of a few bytes.
    Get = 16,
    /// An atomic.
    Atomic = 17,
    /// A number of PUTs, GETs and ATOMICs without a value have been done.
    Ack = 18,
    /// The value of a GET or ATOMIC, or the reason of its failure.
    FetchReply = 19,
    /// A long put.
    PutLong = 20,
    /// A long get.
    GetLong = 21,
    /// Asks for bytes of a long put.
    PutCts = 22,
    /// Bytes of a long put or get.
    Bytes = 23,
    /// The address of the bytes of a long get.
    GetAddr = 24,
    /// The initiator has copied the bytes of a long get, or could not.
    GetFin = 25,
    /// A long put has ended, or a long get has failed.
    PutFin = 26,
    /// Direct access to a region must end.
    Revoke = 27,
    /// Direct access to a region has ended.
    Revoked = 28,
    /// The receiver copies a rendezvous message and says where to; the sender may copy a part.
    CopyAssist = 29,
}

impl Kind {
    /// Decodes the kind of a packet.
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
        KINDS.get(usize::from(kind).wrapping_sub(1)).copied().ok_or(ProtocolViolation("packet of unknown kind"))
    }
}

/// The bytes that every packet begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Head {
    /// The destination: a number of the receiver or, for long messages, of the sender.
    pub to: SlabId,
    /// Depends on the kind: length of the headers, status, flags.
    pub own: u16,
    /// Credit, in units.
    pub grant: u16,
}

impl Head {
    /// Decodes the head; also returns the bytes that follow.
    #[inline(always)]
    pub fn read(packet: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (head, rest) = packet.split_first_chunk::<HEAD_BYTES>().ok_or(TOO_SHORT)?;
        Ok((Self { to: SlabId(u32_at(head, 0)), own: u16_at(head, 4), grant: u16_at(head, 6) }, rest))
    }

    /// A packet of `N` bytes that begins with this head; the rest is zero.
    #[inline(always)]
    pub(super) fn begin<const N: usize>(self) -> [u8; N] {
        let mut packet = [0; N];
        packet[0..4].copy_from_slice(&self.to.0.to_le_bytes());
        packet[4..6].copy_from_slice(&self.own.to_le_bytes());
        packet[6..8].copy_from_slice(&self.grant.to_le_bytes());
        packet
    }

    /// A packet of a head alone.
    pub fn write(self) -> [u8; HEAD_BYTES] {
        self.begin()
    }

    /// The head and the word behind it, as two words.
    #[inline(always)]
    pub fn words(self, word: u64) -> [u64; 2] {
        [u64::from(self.to.0) | u64::from(self.own) << 32 | u64::from(self.grant) << 48, word]
    }

    /// Decodes a head from the first word of a packet.
    #[inline(always)]
    pub fn from_word(word: u64) -> Self {
        Self { to: SlabId(word as u32), own: (word >> 32) as u16, grant: (word >> 48) as u16 }
    }

    /// A packet of a head and one word: MESSAGE (tag), PIECE (offset), CTS (end), OPEN (service), ACCEPT (number), PUT_CTS (end),
    /// BYTES (offset), REVOKE and REVOKED (key).
    #[inline(always)]
    pub fn write_word(self, word: u64) -> [u8; MESSAGE_HEAD_BYTES] {
        let mut packet = self.begin();
        packet[8..16].copy_from_slice(&word.to_le_bytes());
        packet
    }
}

/// Decodes the word behind the head; also returns the bytes that follow.
#[inline(always)]
pub fn read_word(rest: &[u8]) -> Result<(u64, &[u8]), ProtocolViolation> {
    let (word, rest) = rest.split_first_chunk::<8>().ok_or(TOO_SHORT)?;
    Ok((u64::from_le_bytes(*word), rest))
}

/// Splits the headers from the bytes that follow them.
#[inline(always)]
pub fn read_headers(rest: &[u8], length: u16) -> Result<(&[u8], &[u8]), ProtocolViolation> {
    rest.split_at_checked(headers_length(length, rest.len())?).ok_or(TOO_SHORT)
}

/// Checks the length of the headers against the limit and against `all`, the bytes behind the fixed part of the packet.
#[inline(always)]
pub fn headers_length(length: u16, all: usize) -> Result<usize, ProtocolViolation> {
    match usize::from(length) {
        length if length > header_stack::MAX_HEADERS_BYTES => {
            Err(ProtocolViolation("message headers longer than 256 bytes"))
        }
        length if length > all => Err(TOO_SHORT),
        length => Ok(length),
    }
}

/// Checks that nothing follows.
pub fn expect_end(rest: &[u8]) -> Result<(), ProtocolViolation> {
    if rest.is_empty() { Ok(()) } else { Err(ProtocolViolation("packet longer than its kind")) }
}

/// The description of a message in FIRST and RTS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LongHeader {
    /// The tag, for matching.
    pub tag: u64,
    /// Bytes of the body.
    pub length: u64,
    /// The sender's number for the message.
    pub number: SlabId,
}

impl LongHeader {
    /// Decodes the description behind the head; also returns the bytes that follow.
    pub fn read(rest: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ FIRST_HEAD_BYTES - HEAD_BYTES }>().ok_or(TOO_SHORT)?;
        let number = SlabId(u32_at(fixed, 16));
        Ok((Self { tag: u64_at(fixed, 0), length: u64_at(fixed, 8), number }, rest))
    }

    fn write_into(&self, packet: &mut [u8]) {
        packet[8..16].copy_from_slice(&self.tag.to_le_bytes());
        packet[16..24].copy_from_slice(&self.length.to_le_bytes());
        packet[24..28].copy_from_slice(&self.number.0.to_le_bytes());
    }

    /// Encodes FIRST.
    pub fn write(&self, head: Head) -> [u8; FIRST_HEAD_BYTES] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet
    }

    /// Encodes RTS.
    pub fn write_at(&self, head: Head, place: RemoteAddress) -> [u8; RTS_HEAD_BYTES] {
        let mut packet = head.begin();
        self.write_into(&mut packet);
        packet[32..40].copy_from_slice(&place.address.to_le_bytes());
        packet[40..48].copy_from_slice(&place.key.to_le_bytes());
        packet
    }
}

/// Address and key of memory in the peer's process. Opaque to the protocol; address 0 means that there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteAddress {
    /// The address of the first byte.
    pub address: u64,
    /// What gives access to the address; 0 for private memory of the process.
    pub key: u64,
}

impl RemoteAddress {
    /// Whether the address is in the private memory of the process.
    pub fn is_plain(&self) -> bool {
        self.address != 0 && self.key == 0
    }

    /// Decodes an address; also returns the bytes that follow.
    pub fn read(rest: &[u8]) -> Result<(Self, &[u8]), ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ RTS_HEAD_BYTES - FIRST_HEAD_BYTES }>().ok_or(TOO_SHORT)?;
        Ok((Self { address: u64_at(fixed, 0), key: u64_at(fixed, 8) }, rest))
    }
}

/// How pieces of a rendezvous message are to be sent, in `own` of CTS. The receiver chooses, because it sees how long a whole message
/// takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u16)]
pub enum Route {
    /// The sender chooses.
    #[default]
    Any = 0,
    /// Through the caches of the sender.
    Cached = 1,
    /// With stores around the caches of the sender.
    NonTemporal = 2,
    /// As [`Route::Cached`], to measure it.
    MeasureCached = 3,
    /// As [`Route::NonTemporal`], to measure it.
    MeasureNonTemporal = 4,
}

impl Route {
    /// Decodes a route.
    pub fn read(own: u16) -> Result<Self, ProtocolViolation> {
        const ROUTES: [Route; 5] =
            [Route::Any, Route::Cached, Route::NonTemporal, Route::MeasureCached, Route::MeasureNonTemporal];
        ROUTES.get(usize::from(own)).copied().ok_or(ProtocolViolation("CTS with an unknown route"))
    }
}

/// COPY_ASSIST: the destination of a message that both sides copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyAssist {
    /// The destination in the receiver's process.
    pub address: u64,
    /// Bytes to copy.
    pub length: u64,
    /// The number of the copy, for the claim words beside the ring.
    pub copy_id: u32,
}

impl CopyAssist {
    /// Size of the packet.
    pub const BYTES: usize = 32;

    /// Encodes the packet.
    pub fn write(&self, head: Head) -> [u8; Self::BYTES] {
        let mut packet = head.begin();
        packet[8..16].copy_from_slice(&self.address.to_le_bytes());
        packet[16..24].copy_from_slice(&self.length.to_le_bytes());
        packet[24..28].copy_from_slice(&self.copy_id.to_le_bytes());
        packet
    }

    /// Decodes the packet behind its head.
    pub fn read(rest: &[u8]) -> Result<Self, ProtocolViolation> {
        let (fixed, rest) = rest.split_first_chunk::<{ Self::BYTES - HEAD_BYTES }>().ok_or(TOO_SHORT)?;
        expect_end(rest)?;
        Ok(Self { address: u64_at(fixed, 0), length: u64_at(fixed, 8), copy_id: u32_at(fixed, 16) })
    }
}

/// HELLO: the limits of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hello {
    /// Credit window, in units.
    pub window: u32,
    /// Rendezvous and long eager messages at a time.
    pub max_rendezvous: u32,
    /// Channels that the other side may have open at a time.
    pub channels: u32,
    /// Operations of the other side on regions at a time.
    pub requests: u32,
}

impl Hello {
    /// Size of the packet.
    pub const BYTES: usize = 24;

    /// Encodes the packet.
    pub fn write(&self) -> [u8; Self::BYTES] {
        let mut packet = Head { to: SlabId(MAGIC), own: VERSION, grant: 0 }.begin();
        packet[8..12].copy_from_slice(&self.window.to_le_bytes());
        packet[12..16].copy_from_slice(&self.max_rendezvous.to_le_bytes());
        packet[16..20].copy_from_slice(&self.channels.to_le_bytes());
        packet[20..24].copy_from_slice(&self.requests.to_le_bytes());
        packet
    }

    /// Decodes the packet behind its head.
    pub fn read(head: Head, rest: &[u8]) -> Result<Self, ProtocolViolation> {
        if head.to.0 != MAGIC || head.own != VERSION || head.grant != 0 {
            return Err(ProtocolViolation("HELLO of another protocol or version"));
        }
        let (fixed, rest) = rest.split_first_chunk::<{ Self::BYTES - HEAD_BYTES }>().ok_or(TOO_SHORT)?;
        expect_end(rest)?;
        let [window, max_rendezvous, channels, requests] = [0, 4, 8, 12].map(|at| u32_at(fixed, at));
        Ok(Self { window, max_rendezvous, channels, requests })
    }
}

pub(super) const TOO_SHORT: ProtocolViolation = ProtocolViolation("packet shorter than its kind");

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
    fn message_head_has_sixteen_bytes() {
        let packet = HEADER.write_word(0x1122_3344_5566_7788);
        assert_eq!(packet.to_vec(), HEADER.words(0x1122_3344_5566_7788).map(u64::to_le_bytes).concat());
        assert_eq!(packet, *b"\x21\x43\x65\x87\x34\x12\xdc\xfe\x88\x77\x66\x55\x44\x33\x22\x11");
        let (head, rest) = Head::read(&packet).unwrap();
        assert_eq!(head, HEADER);
        assert_eq!(read_word(rest).unwrap(), (0x1122_3344_5566_7788, &[][..]));
    }

    #[test]
    fn first_and_rts_round_trip() {
        let long = LongHeader { tag: 1 << 63 | 5, length: u64::MAX - 1, number: SlabId(77) };
        let place = RemoteAddress { address: 3 << 40, key: !0 };
        let first = long.write(HEADER);
        assert_eq!(LongHeader::read(&first[HEAD_BYTES..]).unwrap(), (long, &[][..]));
        let announce = long.write_at(HEADER, place);
        let (same, rest) = LongHeader::read(&announce[HEAD_BYTES..]).unwrap();
        assert_eq!((same, RemoteAddress::read(rest).unwrap().0), (long, place));
    }

    #[test]
    fn copy_assist_round_trips() {
        let shared = CopyAssist { address: 5 << 40, length: 1 << 30, copy_id: 0x8000_0001 };
        let packet = shared.write(HEADER);
        assert_eq!((Head::read(&packet).unwrap().0, CopyAssist::read(&packet[HEAD_BYTES..])), (HEADER, Ok(shared)));
        assert!(
            (0..CopyAssist::BYTES - HEAD_BYTES)
                .all(|length| CopyAssist::read(&packet[HEAD_BYTES..][..length]).is_err())
        );
        assert!(CopyAssist::read(&[&packet[HEAD_BYTES..], &[0]].concat()).is_err());
        assert!((0..6).all(|own| Route::read(own).map(|route| route as u16)
            == if own < 5 { Ok(own) } else { Route::read(9).map(|_| 0) }));
    }

    #[test]
    fn hello_of_another_protocol_is_rejected() {
        let hello = Hello { window: 1, max_rendezvous: 2, channels: 3, requests: 4 };
        let packet = hello.write();
        let read = |packet: &[u8]| Head::read(packet).and_then(|(head, rest)| Hello::read(head, rest));
        assert_eq!(read(&packet).unwrap(), hello);
        for byte in 0..HEAD_BYTES {
            let mut other = packet;
            other[byte] ^= 1;
            assert!(read(&other).is_err());
        }
        assert!(read(&packet[..23]).is_err() && read(&[&packet[..], &[0]].concat()).is_err());
    }

    #[test]
    fn kinds_round_trip() {
        let known: Vec<u8> = (0..=255).filter(|&k| Kind::read(k).is_ok_and(|kind| kind as u8 == k)).collect();
        assert_eq!(known, (1..=29).collect::<Vec<u8>>());
    }

    #[test]
    fn short_packets_are_rejected() {
        for length in 0..FIRST_HEAD_BYTES - HEAD_BYTES {
            assert!(LongHeader::read(&[0; FIRST_HEAD_BYTES][..length]).is_err());
        }
        assert!(Head::read(&[0; 7]).is_err() && read_word(&[0; 7]).is_err() && RemoteAddress::read(&[0; 15]).is_err());
        assert!(read_headers(&[0; 600], 257).is_err() && read_headers(&[0; 5], 6).is_err());
    }
}
