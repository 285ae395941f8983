//! Sends: what a program calls to send messages.
//!
//! There are two forms. An inject goes in one packet, and the body is free when the call returns. A started send keeps its body until it completes. Each of
//! them exists as a call that waits for room and as one that does not.

use super::node_state::{NodeGuard, NodeState};
use super::operations::{CompletionOptions, Operation, OperationKind};
use super::{Bias, Channel, CqId, Error, LinkId, Mode, Node, OperationId};
use motet_proto::message::packet;
use motet_proto::message::{Outcome, Rejected, Send, Sent};
use motet_sys::user_memory::OperationMemory;

/// Longest body that most likely goes in one packet, bytes.
const MAX_SHORT_BODY_BYTES: usize = 16 << 10;
/// Most bytes of headers and body together, about two cells, that are gathered into one buffer before they are sent.
const MAX_GATHERED_BYTES: usize = 96;

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// The channel to send on.
    pub channel: Channel,
    /// The tag by which receives are matched.
    pub tag: u64,
    /// Headers, the outermost first, at most [`motet_proto::message::header_stack::MAX_HEADERS_BYTES`] bytes.
    pub headers: &'a [u8],
    /// How the message may be sent.
    pub mode: Mode,
}

impl Node {
    /// Gives a message to the protocol, if there is room. An inject of one piece takes a shorter path.
    #[inline]
    fn try_send(
        &self,
        node: &mut NodeState,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        operation: u64,
        address: packet::RemoteAddress,
    ) -> Result<Sent, Error> {
        let &Outgoing { channel, tag, headers, mode } = message;
        let (link_state, messages) = node.link(channel.link)?;
        if let (Mode::Inject, [body]) = (mode, body) {
            let sent = match headers.len() + body.len() {
                _ if headers.is_empty() => link_state.send_short(channel.link, messages, channel.id, tag, 0, body),
                length @ ..=MAX_GATHERED_BYTES => {
                    let mut all = [0; MAX_GATHERED_BYTES];
                    all[..headers.len()].copy_from_slice(headers);
                    all[headers.len()..length].copy_from_slice(body);
                    let headers = headers.len() as u16;
                    link_state.send_short(channel.link, messages, channel.id, tag, headers, &all[..length])
                }
                _ => return Self::send_parts(node, message, &[body], operation, address),
            };
            return match sent {
                Ok(()) => Ok(Sent::Complete),
                Err(rejection) => Err(node.send_error(channel, rejection)),
            };
        }
        Self::send_parts(node, message, body, operation, address)
    }

    /// Gives a message with a body of any number of pieces to the protocol, if there is room.
    fn send_parts(
        node: &mut NodeState,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        operation: u64,
        address: packet::RemoteAddress,
    ) -> Result<Sent, Error> {
        let &Outgoing { channel, tag, headers, mode } = message;
        let (link_state, messages) = node.link(channel.link)?;
        let send = Send { channel: channel.id, tag, headers, body, mode, operation, place: address };
        let sent = link_state.with(channel.link, messages, |proto, packets, _| proto.send(packets, &send));
        match sent {
            Ok(sent) => Ok(sent),
            Err(rejection) => Err(node.send_error(channel, rejection)),
        }
    }

    /// Sends a message without headers in one packet. [`Error::WouldBlock`]: there is no room. [`Error::TooLong`]: it does not fit a packet.
    #[inline(always)]
    pub fn send_short(&self, channel: Channel, tag: u64, body: &[u8]) -> Result<(), Error> {
        self.try_inject_with(channel, tag, &[], body, None)
    }

    /// Sends a short message in one eager packet, so that its body is free when this returns. Waits until there is room.
    ///
    /// Errors: [`Error::TooLong`] if it does not fit a packet; [`Error::TimedOut`]: nothing was sent.
    #[inline(always)]
    pub fn inject(&self, message: &Outgoing<'_>, body: &[&[u8]], deadline: Option<u64>) -> Result<(), Error> {
        let &Outgoing { channel, tag, headers, .. } = message;
        let (mut node, quiet) = self.lock_with(None)?;
        match body {
            &[body] if node.inject_fast(channel, tag, headers, body) => {
                node.quiet = quiet;
                node.release();
                Ok(())
            }
            _ => self.inject_slow(node, message, body, deadline),
        }
    }

    #[inline(never)]
    fn inject_slow(
        &self,
        mut node: NodeGuard<'_>,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        deadline: Option<u64>,
    ) -> Result<(), Error> {
        let message = Outgoing { mode: Mode::Inject, ..*message };
        match self.try_send(&mut node, &message, body, 0, packet::RemoteAddress::default()) {
            Ok(_) => return Ok(()),
            Err(Error::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        self.wait(node, deadline, |node| {
            match self.try_send(node, &message, body, 0, packet::RemoteAddress::default()) {
                Err(Error::WouldBlock) => None,
                sent => Some(sent.map(drop)),
            }
        })?
    }

    /// Sends a short message in one eager packet, so that its body is free when this returns. [`Error::WouldBlock`]: there is no room.
    #[inline]
    pub fn try_inject(&self, message: &Outgoing<'_>, body: &[&[u8]]) -> Result<(), Error> {
        self.try_inject_parts_with(message, body, None)
    }

    /// Sends a short message like [`Node::try_inject`], with the caller's bias if it has one.
    pub fn try_inject_parts_with(
        &self,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        bias: Option<&mut Bias>,
    ) -> Result<(), Error> {
        let &Outgoing { channel, tag, headers, .. } = message;
        match body {
            &[body] => self.try_inject_with(channel, tag, headers, body, bias),
            _ => {
                let (mut node, _) = self.lock_with(bias)?;
                self.try_inject_general(&mut node, message, body)
            }
        }
    }

    /// Sends a short message with a body of one piece like [`Node::try_inject`], with the caller's bias if it has one.
    #[inline(always)]
    pub fn try_inject_with(
        &self,
        channel: Channel,
        tag: u64,
        headers: &[u8],
        body: &[u8],
        bias: Option<&mut Bias>,
    ) -> Result<(), Error> {
        let (mut node, quiet) = self.lock_with(bias)?;
        if !node.inject_fast(channel, tag, headers, body) {
            return self.try_inject_slow(node, quiet, channel, tag, headers, body);
        }
        node.quiet = quiet;
        node.release();
        Ok(())
    }

    /// The slow path of [`Node::try_inject_with`], out of line so that the fast path builds no argument struct.
    #[inline(never)]
    fn try_inject_slow(
        &self,
        mut node: NodeGuard<'_>,
        quiet: CqId,
        channel: Channel,
        tag: u64,
        headers: &[u8],
        body: &[u8],
    ) -> Result<(), Error> {
        let sent = self.try_inject_general(&mut node, &Outgoing { channel, tag, headers, mode: Mode::Inject }, &[body]);
        if sent.is_ok() {
            node.quiet = quiet;
        }
        sent
    }

    fn try_inject_general(&self, node: &mut NodeState, message: &Outgoing<'_>, body: &[&[u8]]) -> Result<(), Error> {
        let message = Outgoing { mode: Mode::Inject, ..*message };
        self.try_send(node, &message, body, 0, packet::RemoteAddress::default()).map(drop)
    }

    /// Begins to send a message. `None`: it has been sent, its body is free, and there is no completion. Otherwise its memory stays in use until the
    /// operation has completed. [`Error::WouldBlock`]: there is no room, nothing is done, and the memory is returned.
    pub fn start_send(
        &self,
        message: &Outgoing<'_>,
        memory: OperationMemory,
        more: Vec<OperationMemory>,
        options: CompletionOptions,
    ) -> Result<Option<OperationId>, (Error, OperationMemory, Vec<OperationMemory>)> {
        match self.lock() {
            Ok(mut node) => {
                if try_send_fast(&mut node, message, &memory, &more, options) {
                    return Ok(None);
                }
                self.poll_for_credit(&mut node, message, &memory, &more);
                self.start_send_locked(&mut node, message, memory, more, options)
            }
            Err(error) => Err((error, memory, more)),
        }
    }

    /// Begins to send a message like [`Node::start_send`], and waits until there is room.
    pub fn send(
        &self,
        message: &Outgoing<'_>,
        memory: OperationMemory,
        more: Vec<OperationMemory>,
        options: CompletionOptions,
        deadline: Option<u64>,
    ) -> Result<Option<OperationId>, Error> {
        let mut node = self.lock()?;
        if try_send_fast(&mut node, message, &memory, &more, options) {
            return Ok(None);
        }
        self.poll_for_credit(&mut node, message, &memory, &more);
        let mut body = Some((memory, more));
        self.wait(node, deadline, |node| {
            let (memory, more) = body.take()?;
            match self.start_send_locked(node, message, memory, more, options) {
                Ok(operation) => Some(Ok(operation)),
                Err((Error::WouldBlock, memory, more)) => {
                    body = Some((memory, more));
                    None
                }
                Err((error, ..)) => Some(Err(error)),
            }
        })?
    }

    /// Polls the links once if the message lacks credit, because credit may have arrived: a short message is better sent at once than with an RTS.
    #[inline]
    fn poll_for_credit(
        &self,
        node: &mut NodeGuard<'_>,
        message: &Outgoing<'_>,
        memory: &OperationMemory,
        more: &[OperationMemory],
    ) {
        let length = more.iter().fold(memory.len(), |sum, part| sum.saturating_add(part.len())) as u64;
        let lacks = |node: &mut NodeState| {
            node.link(message.channel.link).is_ok_and(|(link_state, _)| link_state.proto.lacks_credit(length))
        };
        if !node.progress.is_running() && lacks(node) {
            self.poll_all(node);
        }
    }

    pub(super) fn start_send_locked(
        &self,
        node: &mut NodeState,
        message: &Outgoing<'_>,
        memory: OperationMemory,
        more: Vec<OperationMemory>,
        options: CompletionOptions,
    ) -> Result<Option<OperationId>, (Error, OperationMemory, Vec<OperationMemory>)> {
        let length = memory.len();
        if length <= MAX_SHORT_BODY_BYTES && more.is_empty() && message.mode == Mode::Automatic && options.cq.is_none()
        {
            let short = Outgoing { mode: Mode::Inject, ..*message };
            let body = [memory.bytes(0, length)];
            match self.try_send(node, &short, &body, 0, packet::RemoteAddress::default()) {
                Ok(_) => return Ok(None),
                Err(Error::WouldBlock | Error::TooLong) => {} // it may go as a started send
                Err(error) => return Err((error, memory, more)),
            }
        }
        let may = more.is_empty() && length as u64 >= node.limits.single_copy;
        let has_address =
            may && node.link(message.channel.link).is_ok_and(|(link_state, _)| link_state.shm().is_some());
        let mut address = match has_address {
            true => packet::RemoteAddress { address: memory.address(), key: 0 },
            false => packet::RemoteAddress::default(),
        };
        if let (OperationMemory::Loan(loan), true) = (&memory, more.is_empty()) {
            address = node.address_of_loan(message.channel.link, loan, address);
        }
        let mut operation = Operation::new(memory, OperationKind::Send(None), Some(message.channel), options);
        operation.exchange_rest(more);
        let name = match node.messages.operations.begin(operation) {
            Ok(name) => name,
            Err(error) => return Err((error, OperationMemory::Owned(Vec::new()), Vec::new())),
        };
        let sent = self.send_recorded(node, message, name, address);
        match sent {
            Ok(Sent::Pending(number)) => {
                if let Some(operation) = node.messages.operations.get(u64::from(name.0)) {
                    operation.kind = OperationKind::Send(Some(number));
                }
                node.flush_link(message.channel.link);
                Ok(Some(name))
            }
            Ok(Sent::Complete) => {
                if options.cq.is_some() {
                    let outcome = Outcome { status: super::Status::Done, length: length as u64 };
                    node.messages.operations.complete(u64::from(name.0), outcome);
                    node.notify();
                    return Ok(Some(name));
                }
                node.messages.operations.withdraw(name);
                Ok(None)
            }
            Err(error) => match node.messages.operations.withdraw(name) {
                Some(mut operation) => {
                    let more = operation.exchange_rest(Vec::new());
                    Err((error, operation.memory, more))
                }
                None => Err((error, OperationMemory::Owned(Vec::new()), Vec::new())),
            },
        }
    }

    /// Gives a message to the protocol whose body is in the record of its operation.
    fn send_recorded(
        &self,
        node: &mut NodeState,
        message: &Outgoing<'_>,
        name: OperationId,
        address: packet::RemoteAddress,
    ) -> Result<Sent, Error> {
        // The memory is taken out of the record for the call: the protocol does not touch the record during a send.
        let Some(operation) = node.messages.operations.get(u64::from(name.0)) else { return Err(Error::Full) };
        let memory = std::mem::replace(&mut operation.memory, OperationMemory::Owned(Vec::new()));
        let more = operation.exchange_rest(Vec::new());
        let body: smallvec::SmallVec<[&[u8]; 8]> =
            std::iter::once(&memory).chain(&more).map(|memory| memory.bytes(0, usize::MAX)).collect();
        let sent = self.try_send(node, message, &body, u64::from(name.0), address);
        drop(body);
        if let Some(operation) = node.messages.operations.get(u64::from(name.0)) {
            operation.memory = memory;
            operation.exchange_rest(more);
        }
        sent
    }
}

/// Sends a short message that needs no record, if there is room. False: it takes the longer path, or cannot be sent.
#[inline(always)]
fn try_send_fast(
    node: &mut NodeState,
    message: &Outgoing<'_>,
    memory: &OperationMemory,
    more: &[OperationMemory],
    options: CompletionOptions,
) -> bool {
    let &Outgoing { channel, tag, headers, mode } = message;
    let short =
        mode == Mode::Automatic && more.is_empty() && options.cq.is_none() && memory.len() <= MAX_SHORT_BODY_BYTES;
    if !short {
        return false;
    }
    let body = memory.bytes(0, MAX_SHORT_BODY_BYTES);
    node.inject_fast(channel, tag, headers, body)
        || headers.is_empty()
            && node.link(channel.link).is_ok_and(|(link_state, messages)| {
                link_state.send_short(channel.link, messages, channel.id, tag, 0, body).is_ok()
            })
}

impl NodeState {
    /// The error for a send that was refused on a channel.
    #[cold]
    pub(super) fn send_error(&mut self, channel: Channel, rejection: Rejected) -> Error {
        if rejection == Rejected::Closed && self.channel_state(channel.link, channel.id).is_none() {
            return Error::Unknown;
        }
        self.link_error(channel.link, rejection)
    }

    /// The error for a send that was refused on a link. A sender that waits for room is woken when there is some.
    #[cold]
    pub(super) fn link_error(&mut self, link: LinkId, rejection: Rejected) -> Error {
        let gone = self.gone(link);
        if rejection == Rejected::WouldBlock
            && let Ok((link_state, messages)) = self.link(link)
        {
            link_state.tx_blocked = true;
            link_state.flush(link, messages);
            self.links.activate(link);
        }
        Error::of(rejection, gone)
    }
}
