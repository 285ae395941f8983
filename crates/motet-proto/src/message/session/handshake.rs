//! The handshake: the first message of each side of a connection.
//!
//! Sixty-four bytes each way, the caller's first: the node, the session that the connection belongs to, and the position from which the
//! other side is to send. In a new session, which has no positions yet, a secret is in place of the position: the caller sends the
//! secret that the address of the other node has for callers, and the other node sends the one for answers. Decoding checks single
//! fields; whether the session exists and the secret is right is checked by the caller of [`Handshake::decode`].

/// Bytes of a handshake.
pub const HANDSHAKE_BYTES: usize = 64;
/// The first bytes of each handshake.
pub const MAGIC: [u8; 8] = *b"MotetTCP";
/// The version of handshake and frames.
pub const VERSION: u16 = 2;

/// The request of the caller, or the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum HandshakeOp {
    /// Request: a new session.
    New = 1,
    /// Request: the session continues over this connection; all others are void.
    Resume = 2,
    /// Request: one more rail for the session.
    Rail = 3,
    /// Request: is the session known? The connection ends after the answer.
    Probe = 4,
    /// Answer to the requests for a known session: yes.
    Welcome = 5,
    /// Answer: no such session.
    Unknown = 6,
    /// Answer: another version of the protocol.
    Version = 7,
    /// Answer: refused.
    Refused = 8,
    /// Answer to the request for a new session: yes.
    Admitted = 9,
    /// Answer: the secret is not that of the address, or the caller is another user of this host.
    NotPermitted = 10,
}

/// A handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake {
    /// The request or the answer.
    pub op: HandshakeOp,
    /// The epoch of the session: it grows with each attempt to resume.
    pub epoch: u32,
    /// The id of the sending node.
    pub node: [u8; 16],
    /// The id of the session: random, known to its two ends only.
    pub session: [u8; 16],
    /// The position up to which everything has been received: where the other side is to continue. 0 in a new session.
    pub expected: u64,
    /// The secret of the called node's address, in [`HandshakeOp::New`] and [`HandshakeOp::Admitted`]; else 0.
    pub secret: u64,
    /// Longest packet that the sender accepts.
    pub largest: u32,
    /// The port on which the sender listens, on the address of the connection; 0: none.
    pub port: u16,
}

/// Why bytes are not a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeError {
    /// They belong to another protocol.
    Foreign,
    /// This protocol, in another version.
    Version,
}

impl HandshakeOp {
    /// Whether the handshake has a secret in place of a position.
    fn has_secret(self) -> bool {
        matches!(self, Self::New | Self::Admitted)
    }
}

impl Handshake {
    /// Encodes the handshake.
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

    /// Decodes a handshake.
    pub fn decode(bytes: &[u8; HANDSHAKE_BYTES]) -> Result<Self, HandshakeError> {
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|i| bytes[at + i]) };
        if bytes[..8] != MAGIC {
            return Err(HandshakeError::Foreign);
        }
        // First of all: another version may use the other bytes differently.
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

    /// Whether the bytes received so far can be the beginning of a handshake.
    pub fn may_begin(bytes: &[u8]) -> bool {
        bytes.iter().zip(MAGIC).all(|(a, b)| *a == b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshake_round_trips() {
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
