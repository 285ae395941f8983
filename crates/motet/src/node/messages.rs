//! Sending and receiving messages.

use super::{
    Buffer, Channel, CompletionOptions, CqId, Error, FileRange, Mode, Node, OperationId, OperationMemory, Outgoing,
    PeekedMessage, ReceiveResult, RecvFrom, Status, UnexpectedMessage, UserMemory, blocking, borrowed_memory, deadline,
};
use std::time::Duration;

/// What a receive has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// The message's tag.
    pub tag: u64,
    /// Bytes of its body, all in the buffer.
    pub length: usize,
    /// The channel on which it arrived.
    pub channel: Channel,
}

impl Node {
    /// Sends a message and waits until its body is free: a short one has left, a long one is in the receiver's memory.
    ///
    /// After the limit: [`Error::TimedOut`], and the receiver does not get the message. A receiver that knows of a long message and makes no
    /// progress cannot release it; three seconds after the limit the link goes down with everything on it: [`Error::Lost`] with
    /// `Reason::UNANSWERED`. A receiver that has room for the whole message gets it all the same, and the send succeeds.
    #[inline]
    pub fn send(&self, channel: Channel, tag: u64, body: &[u8], limit: Option<Duration>) -> Result<(), Error> {
        match self.0.send_short(channel, tag, body) {
            Ok(()) => Ok(()),
            Err(Error::WouldBlock | Error::TooLong) => {
                self.send_with(&Outgoing { channel, tag, headers: &[], mode: Mode::Automatic }, &[body], limit)
            }
            Err(error) => Err(error),
        }
    }

    /// Sends a message with headers, a mode, and a body in several pieces, and waits as [`Node::send`] does.
    #[inline]
    pub fn send_with(&self, message: &Outgoing<'_>, body: &[&[u8]], limit: Option<Duration>) -> Result<(), Error> {
        blocking::send_until(&self.0, message, body, deadline(limit))
    }

    /// Sends a short message, and waits until there is room. [`Error::TooLong`]: it does not fit a packet, or the peer's window.
    #[inline]
    pub fn inject(&self, message: &Outgoing<'_>, body: &[&[u8]], deadline: Option<u64>) -> Result<(), Error> {
        self.0.inject(message, body, deadline)
    }

    /// Sends a short message at once, without waiting. [`Error::WouldBlock`]: there is no room; [`Error::TooLong`]: it does not fit a packet, or the peer's window.
    #[inline]
    pub fn try_inject(&self, message: &Outgoing<'_>, body: &[&[u8]]) -> Result<(), Error> {
        self.0.try_inject(message, body)
    }

    /// Starts a send whose body lives as long as the process; waits only until there is room. `None`: the message has left, and there is no
    /// completion.
    #[inline]
    pub fn begin_send(
        &self,
        message: &Outgoing<'_>,
        body: &'static [u8],
        options: CompletionOptions,
        limit: Option<Duration>,
    ) -> Result<Option<OperationId>, Error> {
        self.0.send(message, borrowed_memory::forever(body), Vec::new(), options, deadline(limit))
    }

    /// Starts a send, without waiting. `None`: the message has left, its body is free, and there is no completion. [`Error::WouldBlock`]: there is
    /// no room, nothing is sent, and the memory is returned.
    #[inline]
    pub fn start_send(
        &self,
        message: &Outgoing<'_>,
        memory: OperationMemory,
        more: Vec<OperationMemory>,
        options: CompletionOptions,
    ) -> Result<Option<OperationId>, (Error, OperationMemory, Vec<OperationMemory>)> {
        self.0.start_send(message, memory, more, options)
    }

    /// Whether [`Node::start_send_file`] sends from the file on the link of this channel, and not from memory.
    pub fn sends_files(&self, channel: Channel) -> bool {
        self.0.sends_files(channel)
    }

    /// Starts a send whose body is a range of a file, without waiting; its completion says that a receive has it. Where the link's driver can, the file is
    /// sent from the kernel's cache, by a thread that makes progress: it waits for what is not there ([`super::is_cached`]). Bytes that the file has no
    /// more by then are zeros. A file that cannot be read by then takes the link down.
    ///
    /// Errors: [`Error::WouldBlock`]: there is no room, nothing is sent. [`Error::Closed`]: the file cannot be read.
    pub fn start_send_file(
        &self,
        message: &Outgoing<'_>,
        file: FileRange,
        options: CompletionOptions,
    ) -> Result<Option<OperationId>, Error> {
        self.0.start_send_file(message, file, options)
    }

    /// Waits for the next message on a channel that is received as a queue or by tags (any tag), and receives it without its headers;
    /// [`Node::receive_with`] returns those.
    ///
    /// Errors: [`Error::Truncated`] when it is longer than `buffer`, which is full then. The limit is for the message to arrive; the rest of a long
    /// one may take longer.
    #[inline]
    pub fn receive(&self, channel: Channel, buffer: &mut [u8], limit: Option<Duration>) -> Result<Received, Error> {
        borrowed_memory::lent(buffer, |span| {
            self.receive_into((RecvFrom::Channel(channel), 0, u64::MAX), None, span, limit)
        })
    }

    /// Receives a message whose tag is `tag`, except for the bits in `ignore`, on one channel or any of a context; otherwise as
    /// [`Node::receive`] does.
    #[inline]
    pub fn receive_tagged(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        borrowed_memory::lent(buffer, |span| self.receive_into((from, tag, ignore), None, span, limit))
    }

    /// Receives as [`Node::receive_tagged`] does, and writes the message's headers, outermost first ([`super::pop`]), to `headers`, whose
    /// allocation is reused.
    #[inline]
    pub fn receive_with(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        headers: &mut Vec<u8>,
        buffer: &mut [u8],
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        headers.clear();
        borrowed_memory::lent(buffer, |span| self.receive_into((from, tag, ignore), Some(headers), span, limit))
    }

    /// Receives as [`Node::receive_tagged`] does. [`Error::TimedOut`] also when the completion queue `cq` has a completion or was signalled: take
    /// what it has ([`Node::test_cq`]). Where several threads receive at a time, only one notices the queue; give the others a deadline.
    #[inline]
    pub fn receive_or_complete(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        cq: CqId,
        buffer: &mut [u8],
        deadline: Option<u64>,
    ) -> Result<Received, Error> {
        let got = borrowed_memory::lent(buffer, |span| {
            borrowed_memory::receive_or(&self.0, (from, tag, ignore), span, None, (cq, deadline))
        })?;
        self.received(from, got)
    }

    /// Posts a receive: the next message whose tag is `tag`, except for the bits in `ignore`, goes to `memory`.
    #[inline]
    pub fn post(
        &self,
        from: RecvFrom,
        tag: u64,
        ignore: u64,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, Error> {
        self.0.post(from, tag, ignore, memory, options)
    }

    /// Posts a receive without an operation: the queue reports it under `buffer.context`.
    #[inline]
    pub fn post_unnamed(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        buffer: Buffer,
        cq: CqId,
    ) -> Result<(), Error> {
        self.0.post_unrecorded((from, tag, ignore), buffer, cq, None)
    }

    /// Describes the message that a receive would get. Makes no progress.
    #[inline]
    pub fn peek(&self, from: RecvFrom, tag: u64, ignore: u64) -> Result<Option<PeekedMessage>, Error> {
        self.0.peek(from, tag, ignore)
    }

    /// Takes the message that a receive would get out of matching. [`Node::accept_body`] receives it, [`Node::discard_body`] drops it.
    #[inline]
    pub fn claim(&self, from: RecvFrom, tag: u64, ignore: u64) -> Result<Option<UnexpectedMessage>, Error> {
        self.0.claim(from, tag, ignore)
    }

    /// Receives a message that was claimed, or that a handler has taken, into `memory`. After an error the message is returned.
    #[inline]
    pub fn accept_body(
        &self,
        held: UnexpectedMessage,
        memory: OperationMemory,
        options: CompletionOptions,
    ) -> Result<OperationId, (Error, UnexpectedMessage)> {
        self.0.accept_body(held, memory, options)
    }

    /// Drops a message that was claimed, or that a handler has taken.
    #[inline]
    pub fn discard_body(&self, held: UnexpectedMessage) -> Result<(), Error> {
        self.0.discard_body(held)
    }

    #[inline(always)]
    fn receive_into(
        &self,
        selector: (RecvFrom, u64, u64),
        headers: Option<&mut Vec<u8>>,
        span: UserMemory,
        limit: Option<Duration>,
    ) -> Result<Received, Error> {
        self.received(selector.0, borrowed_memory::receive(&self.0, selector, span, headers, deadline(limit))?)
    }

    #[inline(always)]
    fn received(&self, from: RecvFrom, got: ReceiveResult) -> Result<Received, Error> {
        match got {
            ReceiveResult { status: Status::Done, length, tag, channel: Some(channel), .. } => {
                Ok(Received { tag, length: length as usize, channel })
            }
            ReceiveResult { status, channel, .. } => {
                // After the loss of a link no message names the channel.
                let asked = if let RecvFrom::Channel(channel) = from { Some(channel) } else { None };
                Err(self.failed(status, channel.or(asked)))
            }
        }
    }

    /// The error of an operation with this status: of a link that is down, the reason.
    #[cold]
    pub(super) fn failed(&self, status: Status, channel: Option<Channel>) -> Error {
        let gone = channel.and_then(|channel| self.0.link_info(channel.link).ok()?.gone);
        Error::of_status(status, gone).unwrap_or(Error::Closed)
    }
}
