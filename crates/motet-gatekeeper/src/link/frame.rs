//! Reads and writes the frames of a link between two gatekeepers. [`motet_session::link_frame`] says what they are.

use motet_session::link_frame::{HEAD_BYTES, Head};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub use motet_session::link_frame::{MAX_BODY_BYTES, Message};

/// The longest part of an answer, bytes.
pub const PART_BYTES: usize = 64 << 10;

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
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let mut head = [0; HEAD_BYTES];
        reader.read_exact(&mut head).await?;
        let head = Head::parse(head).map_err(invalid)?;
        let mut message = vec![0; head.message_bytes()];
        reader.read_exact(&mut message).await?;
        let message = Message::parse(&message).map_err(invalid)?;
        let mut body = vec![0; head.body_bytes()];
        reader.read_exact(&mut body).await?;
        Ok(Self { message, body })
    }

    /// Writes the frame.
    pub async fn write(&self, writer: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let bytes =
            self.message.frame(&self.body).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
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
