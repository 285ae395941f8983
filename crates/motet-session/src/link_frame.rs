//! The frames that two gatekeepers send each other: a message and a body. Bytes only, without I/O.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the message, little endian |
//! | 4 | length of the body, little endian |
//! | | the message, JSON |
//! | | the body |

use serde::{Deserialize, Serialize};
use std::fmt;

/// The bytes before the message.
pub const HEAD_BYTES: usize = 8;
/// The longest message, bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// The longest body, bytes: that of a request which writes a view of the largest group.
pub const MAX_BODY_BYTES: usize = 8 << 20;

/// A message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A request of HTTP; its body is the frame's.
    Request {
        /// The number of the request, which the answer repeats.
        id: u64,
        /// The method.
        method: String,
        /// The path, with a query.
        path: String,
    },
    /// The head of an answer.
    Answer {
        /// The number of the request.
        id: u64,
        /// The status.
        status: u16,
        /// The type of its body.
        content_type: Option<String>,
    },
    /// A part of an answer's body.
    Part {
        /// The number of the request.
        id: u64,
    },
    /// The end of an answer.
    End {
        /// The number of the request.
        id: u64,
        /// Whether the body is whole.
        complete: bool,
    },
    /// The answer is not wanted any more.
    Cancel {
        /// The number of the request.
        id: u64,
    },
    /// A message of one node to another one. The body is the message.
    Deliver {
        /// The receiver's host.
        host: String,
        /// The group that both are in.
        group: String,
        /// The sender's identity.
        from: String,
        /// The receiver's identity.
        to: String,
    },
    /// The sender is alive.
    Alive,
}

/// Why bytes are no frame, or a message and a body make none. The link ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The message or the body is longer than its limit.
    TooLong,
    /// The message is none of [`Message`].
    NoMessage,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLong => "a frame is too long",
            Self::NoMessage => "a frame's message is not understood",
        })
    }
}

impl std::error::Error for FrameError {}

/// The lengths of a frame's parts, bytes. Both are within their limits, so they can be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    message: usize,
    body: usize,
}

impl Head {
    /// Parses the first bytes of a frame.
    pub fn parse(bytes: [u8; HEAD_BYTES]) -> Result<Self, FrameError> {
        let [a, b, c, d, e, f, g, h] = bytes;
        Self::of(u32::from_le_bytes([a, b, c, d]) as usize, u32::from_le_bytes([e, f, g, h]) as usize)
    }

    fn of(message: usize, body: usize) -> Result<Self, FrameError> {
        let fits = message <= MAX_MESSAGE_BYTES && body <= MAX_BODY_BYTES;
        fits.then_some(Self { message, body }).ok_or(FrameError::TooLong)
    }

    /// The length of the message, at most [`MAX_MESSAGE_BYTES`].
    pub fn message_bytes(self) -> usize {
        self.message
    }

    /// The length of the body, at most [`MAX_BODY_BYTES`].
    pub fn body_bytes(self) -> usize {
        self.body
    }
}

impl Message {
    /// Parses the message of a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, FrameError> {
        serde_json::from_slice(bytes).map_err(|_| FrameError::NoMessage)
    }

    /// The whole frame of this message and a body.
    pub fn frame(&self, body: &[u8]) -> Result<Vec<u8>, FrameError> {
        let message = serde_json::to_vec(self).map_err(|_| FrameError::NoMessage)?;
        let head = Head::of(message.len(), body.len())?;
        let mut bytes = Vec::with_capacity(HEAD_BYTES + head.message + head.body);
        bytes.extend((head.message as u32).to_le_bytes());
        bytes.extend((head.body as u32).to_le_bytes());
        bytes.extend(message);
        bytes.extend(body);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_limits() {
        let head = |message: usize, body: usize| {
            let bytes = [(message as u32).to_le_bytes(), (body as u32).to_le_bytes()].concat();
            Head::parse(bytes.try_into().unwrap())
        };
        let most = head(MAX_MESSAGE_BYTES, MAX_BODY_BYTES).unwrap();
        assert_eq!((most.message_bytes(), most.body_bytes()), (MAX_MESSAGE_BYTES, MAX_BODY_BYTES));
        for (message, body) in [(MAX_MESSAGE_BYTES + 1, 0), (0, MAX_BODY_BYTES + 1), (u32::MAX as usize, 1)] {
            assert_eq!(head(message, body), Err(FrameError::TooLong));
        }
        let long = Message::Request { id: 1, method: "GET".to_owned(), path: "x".repeat(MAX_MESSAGE_BYTES) };
        assert_eq!(long.frame(&[]), Err(FrameError::TooLong));
    }

    #[test]
    fn frame_has_both_parts_in_order() {
        let bytes = Message::Part { id: 7 }.frame(b"body").unwrap();
        assert_eq!(bytes, [&[17, 0, 0, 0, 4, 0, 0, 0][..], br#"{"part":{"id":7}}"#, b"body"].concat());
        assert_eq!(Message::parse(&bytes[8..25]), Ok(Message::Part { id: 7 }));
        assert_eq!(Message::parse(&bytes[8..24]), Err(FrameError::NoMessage));
    }
}
