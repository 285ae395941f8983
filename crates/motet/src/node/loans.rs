//! Loans: messages that are sent and received without a copy.

use super::{
    Channel, Completion, CompletionOptions, Error, LinkId, Loan, LoanCounts, LoanedMessage, Mode, Node, OperationId,
    Outgoing, RecvFrom, Status, deadline,
};
use std::time::Duration;

/// A message that was received in place.
#[derive(Debug)]
pub struct InPlace {
    /// The message's tag.
    pub tag: u64,
    /// Its headers, outermost first.
    pub headers: Vec<u8>,
    /// The channel on which it arrived.
    pub channel: Channel,
    /// Its body.
    pub body: Content,
}

/// The body of a message that was received in place.
#[derive(Debug)]
pub enum Content {
    /// It is in the sender's memory. Release it ([`Node::release`]), or drop it.
    LoanedMessage(LoanedMessage),
    /// A copy: the message was short, or no loan, or its sender's memory cannot be mapped here.
    Copied(Vec<u8>),
}

impl Content {
    /// Bytes of the body.
    pub fn len(&self) -> usize {
        match self {
            Self::LoanedMessage(loaned) => loaned.len(),
            Self::Copied(bytes) => bytes.len(),
        }
    }

    /// Whether the body is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the bytes from `at` on to `into`, as many as both have; returns how many.
    pub fn read(&self, at: usize, into: &mut [u8]) -> usize {
        match self {
            Self::LoanedMessage(loaned) => loaned.read(at, into),
            Self::Copied(bytes) => {
                let from = bytes.get(at..).unwrap_or(&[]);
                let fits = from.len().min(into.len());
                into[..fits].copy_from_slice(&from[..fits]);
                fits
            }
        }
    }

    /// The whole body; a loaned one is copied and released.
    pub fn into_vec(self) -> Vec<u8> {
        match self {
            Self::LoanedMessage(loaned) => loaned.to_vec(),
            Self::Copied(bytes) => bytes,
        }
    }
}

impl Node {
    /// Allocates memory of the pool, to be filled and sent. It holds zeros, or bytes of an earlier loan. [`Error::Full`]: the pool is used up.
    #[inline]
    pub fn alloc(&self, length: usize) -> Result<Loan, Error> {
        self.0.alloc(length)
    }

    /// Allocates memory of the pool, and waits until there is some.
    #[inline]
    pub fn alloc_within(&self, length: usize, limit: Option<Duration>) -> Result<Loan, Error> {
        self.0.alloc_until(length, deadline(limit))
    }

    /// Sends a loan without a completion: the memory returns to the pool when the receiver has released it. [`Node::send_loan`] reports that.
    #[inline]
    pub fn lend(&self, channel: Channel, tag: u64, loan: Loan, limit: Option<Duration>) -> Result<(), Error> {
        let (message, length) = (Outgoing { channel, tag, headers: &[], mode: Mode::Automatic }, loan.len());
        self.0.send_loan(&message, loan, length, None, deadline(limit)).map(drop).map_err(|(error, _)| error)
    }

    /// Sends the first `length` bytes of a loan, and waits until there is room for it. The memory returns to the pool when the receiver has
    /// released or copied it, or the link is lost; with `options` an operation completes then. After an error the loan is returned if it is whole.
    #[inline]
    pub fn send_loan(
        &self,
        message: &Outgoing<'_>,
        loan: Loan,
        length: usize,
        options: Option<CompletionOptions>,
        deadline: Option<u64>,
    ) -> Result<Option<OperationId>, (Error, Option<Loan>)> {
        self.0.send_loan(message, loan, length, options, deadline)
    }

    /// Posts a receive in place. It completes with a loaned message ([`Completion::loaned`]), or with a copy of at most `max` bytes.
    #[inline]
    pub fn post_in_place(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        max: u64,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.0.post_in_place(from, tag, ignore, max, options)
    }

    /// Waits for a message whose tag is `tag`, except for the bits in `ignore`, and receives it in place, or a copy of at most `max` bytes.
    pub fn receive_in_place(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        max: usize,
        limit: Option<Duration>,
    ) -> Result<InPlace, Error> {
        let operation = self.0.post_in_place(from, tag, ignore, max as u64, CompletionOptions::default())?;
        let mut waited = self.0.wait_for(operation, deadline(limit));
        if let Err(error) = waited {
            if error != Error::TimedOut {
                let _ = self.0.detach(operation);
                return Err(error);
            }
            // Without a message the receive completes at once; with one, when the message is here.
            self.0.cancel(operation)?;
            waited = self.0.wait_for(operation, None);
        }
        let Completion { status, length, tag, headers, channel, memory, loaned, .. } = waited?;
        match (status, channel, loaned, memory) {
            (Status::Done, Some(channel), Some(loaned), _) => {
                Ok(InPlace { tag, headers, channel, body: Content::LoanedMessage(loaned) })
            }
            (Status::Done, Some(channel), None, Some(mut bytes)) => {
                bytes.truncate(length as usize);
                Ok(InPlace { tag, headers, channel, body: Content::Copied(bytes) })
            }
            (Status::Cancelled, ..) => Err(Error::TimedOut),
            _ => Err(self.failed(status, channel)),
        }
    }
    /// Releases a loaned message: its memory returns to the sender at once.
    #[inline]
    pub fn release(&self, message: LoanedMessage) -> Result<(), Error> {
        self.0.release_loan(message)
    }

    /// How many receives in place on a link were loaned and copied.
    #[inline]
    pub fn loan_counts(&self, link: LinkId) -> Result<LoanCounts, Error> {
        self.0.loan_counts(link)
    }

    /// Segments of the pool, their bytes, and the bytes of them that are in use: loaned, or in the program's hands.
    #[inline]
    pub fn pool_size(&self) -> Result<[usize; 3], Error> {
        self.0.pool_size()
    }
}
