//! What two gatekeepers send each other: frames of a message and a body.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the message, little endian |
//! | 4 | length of the body, little endian |
//! | | the message, JSON |
//! | | the body |

use serde::{Deserialize, Serialize};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest message, bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 << 10;
/// The longest body, bytes: that of a request which writes a view of the largest group.
pub const MAX_BODY_BYTES: usize = 8 << 20;
/// The longest part of an answer, bytes.
pub const PART_BYTES: usize = 64 << 10;

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

/// A message and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The message.
    pub message: Message,
    /// The body.
    pub body: Vec<u8>,
}

impl Frame {
    /// A frame without a body.
    pub fn of(message: Message) -> Self {
        Self { message, body: Vec::new() }
    }

    /// Reads the next frame.
    pub async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let message_bytes = reader.read_u32_le().await? as usize;
        let body_bytes = reader.read_u32_le().await? as usize;
        if message_bytes > MAX_MESSAGE_BYTES || body_bytes > MAX_BODY_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
        }
        let mut message = vec![0; message_bytes];
        reader.read_exact(&mut message).await?;
        let message = serde_json::from_slice(&message)?;
        let mut body = vec![0; body_bytes];
        reader.read_exact(&mut body).await?;
        Ok(Self { message, body })
    }

    /// Writes the frame.
    pub async fn write(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let message = serde_json::to_vec(&self.message)?;
        let too_long = || io::Error::new(io::ErrorKind::InvalidInput, "a frame is too long");
        let length = |bytes: &[u8], max: usize| (bytes.len() <= max).then_some(bytes.len() as u32).ok_or_else(too_long);
        let mut bytes = Vec::with_capacity(8 + message.len() + self.body.len());
        bytes.extend(length(&message, MAX_MESSAGE_BYTES)?.to_le_bytes());
        bytes.extend(length(&self.body, MAX_BODY_BYTES)?.to_le_bytes());
        bytes.extend(message);
        bytes.extend(&self.body);
        writer.write_all(&bytes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_are_read_as_they_were_written() {
        let frame = Frame {
            message: Message::Request { id: 7, method: "GET".to_owned(), path: "/v1/x".to_owned() },
            body: vec![0xff; 70_000],
        };
        let mut bytes = Vec::new();
        frame.write(&mut bytes).await.unwrap();
        Frame::of(Message::Alive).write(&mut bytes).await.unwrap();
        let mut reader = &bytes[..];
        assert_eq!(Frame::read(&mut reader).await.unwrap(), frame);
        assert_eq!(Frame::read(&mut reader).await.unwrap(), Frame::of(Message::Alive));
        assert!(Frame::read(&mut reader).await.is_err(), "the end");
    }

    #[tokio::test]
    async fn damaged_frames_are_errors_or_frames() {
        let frame = Frame {
            message: Message::Deliver { host: "h".into(), group: "g".into(), from: "f".into(), to: "t".into() },
            body: b"[1, 2]".to_vec(),
        };
        let mut bytes = Vec::new();
        frame.write(&mut bytes).await.unwrap();
        for at in 0..bytes.len() {
            for flip in [0x01, 0x20, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= flip;
                if let Ok(read) = Frame::read(&mut &damaged[..]).await {
                    assert!(read.body.len() <= bytes.len(), "no more than was sent");
                }
            }
            assert!(Frame::read(&mut &bytes[..at]).await.is_err(), "half a frame is none");
        }
    }

    #[tokio::test]
    async fn hostile_frames_are_errors() {
        let too_long = [&u32::MAX.to_le_bytes()[..], &[0; 4]].concat();
        let long_body = [&2u32.to_le_bytes()[..], &(16u32 << 20).to_le_bytes(), b"{}"].concat();
        let nonsense = [&2u32.to_le_bytes()[..], &[0; 4], b"{}"].concat();
        for bytes in [&too_long, &long_body, &nonsense] {
            assert!(Frame::read(&mut &bytes[..]).await.is_err());
        }
        let frame = Frame { message: Message::Alive, body: vec![0; MAX_BODY_BYTES + 1] };
        assert!(frame.write(&mut Vec::new()).await.is_err());
    }
}
