//! What both ends of a connection say first.
//!
//! What it is: sixty-four bytes each way, the caller's first: who one is, which session the connection belongs to, and from
//! where on the other is to send. Of a new session, which has no positions yet, either says a secret instead: the caller the one that
//! the other's address has for callers, the other the one that it has for answers. What it is not: reading checks what a handshake can
//! say by itself; whether there is such a session, and whether a secret is right, is its reader's matter.

/// Bytes of a handshake.
pub const HANDSHAKE_BYTES: usize = 64;
/// How each handshake begins.
pub const MAGIC: [u8; 8] = *b"MotetTCP";
/// Of handshake and frames.
pub const VERSION: u16 = 2;

/// What is wanted, or answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeOp {
    /// A session that has not been.
    New = 1,
    /// All connections of the session are void; it goes on over this one.
    Resume = 2,
    /// One more rail for the session as it is.
    Rail = 3,
    /// Whether the session is known; the connection ends after the answer.
    Probe = 4,
    /// Yes.
    Welcome = 5,
    /// No such session: the peer is another one than before.
    Unknown = 6,
    /// No: another version of this protocol.
    Version = 7,
    /// Not now.
    Refused = 8,
    /// Yes, to a new session.
    Admitted = 9,
    /// No: the secret is not the one of the address, or the caller is another user of this host.
    NotPermitted = 10,
}

/// A handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// What for.
    pub op: HandshakeOp,
    /// Which of the session's incarnations: grows with each attempt to resume it.
    pub epoch: u32,
    /// Who says this.
    pub node: [u8; 16],
    /// The session: a random number, which its two ends alone know.
    pub session: [u8; 16],
    /// The position up to which everything has been received: what follows is to be sent. 0 in a new session.
    pub expected: u64,
    /// Of [`HandshakeOp::New`] and [`HandshakeOp::Admitted`] alone, else 0: what the address of the called node has for either.
    pub secret: u64,
    /// Longest packet that one takes.
    pub largest: u32,
    /// Where one listens, on the address of the connection; 0: nowhere.
    pub port: u16,
}

/// Why a handshake is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeError {
    /// Something else speaks.
    Foreign,
    /// This protocol, but of a version that is not ours.
    Version,
}

impl HandshakeOp {
    /// Whether such a handshake has a secret where others have a position.
    fn has_secret(self) -> bool {
        matches!(self, Self::New | Self::Admitted)
    }
}

impl Handshake {
    /// As it travels.
    pub fn encode(&self) -> [u8; HANDSHAKE_BYTES] {
        let mut bytes = [0; HANDSHAKE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.op as u8;
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.node);
        bytes[32..48].copy_from_slice(&self.session);
        let word = if self.op.has_secret() { self.secret } else { self.expected };
        bytes[48..56].copy_from_slice(&word.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.largest.to_le_bytes());
        bytes[60..62].copy_from_slice(&self.port.to_le_bytes());
        bytes
    }

    /// As a peer wrote it.
    pub fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Result<Self, HandshakeError> {
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|i| bytes[at + i]) };
        if bytes[..8] != MAGIC {
            return Err(HandshakeError::Foreign);
        }
        // Before anything else: another version may use the other bytes in other ways.
        if bytes[8..10] != VERSION.to_le_bytes() {
            return Err(HandshakeError::Version);
        }
        let op = match bytes[10] {
            1 => HandshakeOp::New,
            2 => HandshakeOp::Resume,
            3 => HandshakeOp::Rail,
            4 => HandshakeOp::Probe,
            5 => HandshakeOp::Welcome,
            6 => HandshakeOp::Unknown,
            7 => HandshakeOp::Version,
            8 => HandshakeOp::Refused,
            9 => HandshakeOp::Admitted,
            10 => HandshakeOp::NotPermitted,
            _ => return Err(HandshakeError::Foreign),
        };
        if bytes[11] != 0 || bytes[62] != 0 || bytes[63] != 0 {
            return Err(HandshakeError::Foreign);
        }
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (long, secret) = (u64::from(word(48)) | u64::from(word(52)) << 32, op.has_secret());
        Ok(Self {
            op,
            epoch: word(12),
            node: part(16),
            session: part(32),
            expected: if secret { 0 } else { long },
            secret: if secret { long } else { 0 },
            largest: word(56),
            port: u16::from_le_bytes([bytes[60], bytes[61]]),
        })
    }

    /// Whether bytes that have come so far can still become a handshake.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(a, b)| *a == b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let handshake = Handshake {
            op: HandshakeOp::Resume,
            epoch: 0x0102_0304,
            node: [1; 16],
            session: [2; 16],
            expected: 0x0a0b_0c0d_0e0f_1011,
            secret: 0,
            largest: 65536,
            port: 4711,
        };
        assert_eq!(Handshake::decode(&handshake.encode()), Ok(handshake));
        for op in [HandshakeOp::New, HandshakeOp::Admitted] {
            let new = Handshake { op, expected: 0, secret: 0x1122_3344_5566_7788, ..handshake };
            assert_eq!(Handshake::decode(&new.encode()), Ok(new));
        }
        let with = |at: usize, value: u8| {
            let mut bytes = handshake.encode();
            bytes[at] = value;
            Handshake::decode(&bytes)
        };
        assert_eq!(with(0, b'X'), Err(HandshakeError::Foreign));
        assert_eq!(with(8, 1), Err(HandshakeError::Version));
        assert_eq!(with(10, 11), Err(HandshakeError::Foreign));
        assert_eq!(with(11, 1), Err(HandshakeError::Foreign));
        assert_eq!(with(63, 1), Err(HandshakeError::Foreign));
        assert!(Handshake::may_begin(b"Mote") && !Handshake::may_begin(b"GET /"));
    }
}
