//! Loans in Rust: what `motet_engine::message::loans` offers, with waits and failures as the other calls have them.

use super::{Channel, Completion, Error, From, Lent, Loan, Mode, Node, Notice, Outgoing, Status, deadline};
use std::time::Duration;

/// A message that was received in place.
#[derive(Debug)]
pub struct InPlace {
    /// The message's tag.
    pub tag: u64,
    /// Its headers, the outermost first.
    pub headers: Vec<u8>,
    /// On which channel it came.
    pub channel: Channel,
    /// Its body.
    pub body: Content,
}

/// The body of a message that was received in place.
#[derive(Debug)]
pub enum Content {
    /// It lies where the sender has put it: to be given back ([`super::Inner::give_back`]), or dropped.
    Lent(Lent),
    /// It was short, or no loan, or its sender's memory cannot be seen from here.
    Copied(Vec<u8>),
}

impl Content {
    /// Bytes of it.
    pub fn len(&self) -> usize {
        match self {
            Self::Lent(lent) => lent.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes out, as many as there are from `at` on; returns how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        match self {
            Self::Lent(lent) => lent.read(at, into),
            Self::Copied(bytes) => {
                let from = bytes.get(at..).unwrap_or(&[]);
                let fits = from.len().min(into.len());
                into[..fits].copy_from_slice(&from[..fits]);
                fits
            }
        }
    }

    /// All of it: a copy, if it is lent, which is given back then.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::Lent(lent) => lent.to_vec(),
            Self::Copied(bytes) => bytes,
        }
    }
}

impl Node {
    /// A block of the pool ([`super::Inner::alloc`]); waits until there is one.
    pub fn alloc_within(&self, length: usize, limit: Option<Duration>) -> Result<Loan, Error> {
        self.0.alloc_until(length, deadline(limit))
    }

    /// Sends a loan and forgets it: the block is the pool's again when the receiver has given it back. See
    /// [`super::Inner::send_loan`] for an end that is told.
    #[inline]
    pub fn lend(&self, channel: Channel, tag: u64, loan: Loan, limit: Option<Duration>) -> Result<(), Error> {
        let (message, length) = (Outgoing { channel, tag, headers: &[], mode: Mode::Automatic }, loan.len());
        self.0.send_loan(&message, loan, length, None, deadline(limit)).map(drop).map_err(|(error, _)| error)
    }

    /// Waits for the next message whose tag is `tag` but for the bits in `ignore`, and receives it where it is, or a copy of at most
    /// `most` bytes.
    pub fn receive_in_place(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        most: usize,
        limit: Option<Duration>,
    ) -> Result<InPlace, Error> {
        let operation = self.0.post_in_place(from, tag, ignore, most as u64, Notice::default())?;
        let mut waited = self.0.wait_for(operation, deadline(limit));
        if let Err(error) = waited {
            if error != Error::TimedOut {
                let _ = self.0.detach(operation);
                return Err(error);
            }
            // Without a message it ends at once; with one it ends when that is here.
            self.0.cancel(operation)?;
            waited = self.0.wait_for(operation, None);
        }
        let Completion { status, length, tag, headers, channel, memory, lent, .. } = waited?;
        match (status, channel, lent, memory) {
            (Status::Done, Some(channel), Some(lent), _) => {
                Ok(InPlace { tag, headers, channel, body: Content::Lent(lent) })
            }
            (Status::Done, Some(channel), None, Some(mut bytes)) => {
                bytes.truncate(length as usize);
                Ok(InPlace { tag, headers, channel, body: Content::Copied(bytes) })
            }
            (Status::Cancelled, ..) => Err(Error::TimedOut),
            _ => Err(self.failed(status, channel)),
        }
    }
}
