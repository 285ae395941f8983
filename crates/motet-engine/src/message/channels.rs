//! What a program calls to open channels, send and receive.

use super::core::{Core, Guard};
use super::desk::{self, Phase, Place};
use super::operations::{DIRECT, Got, Kind, Notice, Operation};
use super::{Channel, Context, Error, LinkId, Mode, Node, OperationId, Serve};
use crate::reason::Reason;
use motet_proto::message::matching::{Posted, Receive, Selector, Source};
use motet_proto::message::packet;
use motet_proto::message::{Broken, Held, Outcome, Reception, Refusal, Send, Sent};
use motet_sys::span::{Memory, Span};

/// A body that most likely goes in one packet, bytes.
const SHORT: usize = 16 << 10;

/// Where a receive looks for its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// On one channel.
    Channel(Channel),
    /// On any channel of a context.
    Any(Context),
}

/// A message to send.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// On which channel.
    pub channel: Channel,
    /// For the matching.
    pub tag: u64,
    /// Headers, the outermost first, at most [`motet_proto::message::stack::MOST`] bytes.
    pub headers: &'a [u8],
    /// How it may go.
    pub mode: Mode,
}

/// What waits to be received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// On which channel.
    pub channel: Channel,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its body.
    pub length: u64,
    /// Its headers.
    pub headers: Vec<u8>,
}

impl Node {
    /// A channel to a service of the peer, whose messages are received as `serve` says. Waits until the peer has answered.
    pub fn open_channel(
        &self,
        link: LinkId,
        service: u64,
        serve: Serve,
        deadline: Option<u64>,
    ) -> Result<Channel, Error> {
        let opened = self.wait(self.core()?, deadline, |core| {
            let gone = core.gone(link);
            if core.link(link).is_ok_and(|(joined, _)| !joined.proto.is_met() && gone.is_none()) {
                return None; // the peer has not said yet how many it allows
            }
            Some(self.begin_channel(core, link, service, serve))
        })?;
        let channel = opened?;
        match self.wait(self.core()?, deadline, |core| core.answered(channel)) {
            Ok(Ok(())) => Ok(channel),
            Ok(Err(error)) | Err(error) => {
                let _ = self.close_channel(channel);
                Err(error)
            }
        }
    }

    fn begin_channel(&self, core: &mut Core, link: LinkId, service: u64, serve: Serve) -> Result<Channel, Error> {
        let gone = core.gone(link);
        core.link(link)?;
        let reception = core.reception(serve)?;
        let (joined, desk) = core.link(link)?;
        match joined.proto.open(service, reception) {
            Ok(id) => {
                let handler = if let Serve::Handler(number) = serve { number } else { u32::MAX };
                joined.back.put(id, Place { phase: Phase::Opening, reception, handler });
                core.settle(link);
                Ok(Channel { link, id })
            }
            Err(refusal) => {
                if let Reception::Matched(scope) = reception {
                    desk::abandon(desk, scope);
                }
                Err(if refusal == Refusal::WouldBlock { Error::Full } else { Error::of(refusal, gone) })
            }
        }
    }

    /// Sends no more on a channel; messages still come.
    pub fn finish(&self, channel: Channel) -> Result<(), Error> {
        let mut core = self.core()?;
        core.place(channel.link, channel.id).ok_or(Error::Unknown)?;
        let gone = core.gone(channel.link);
        let (joined, _) = core.link(channel.link)?;
        joined.proto.close(channel.id).map_err(|refusal| Error::of(refusal, gone))?;
        core.settle(channel.link);
        Ok(())
    }

    /// Ends a channel on this side: receives that wait on it end, messages that nobody has taken are discarded.
    pub fn close_channel(&self, channel: Channel) -> Result<(), Error> {
        let mut core = self.core()?;
        core.place(channel.link, channel.id).ok_or(Error::Unknown)?;
        let gone = core.gone(channel.link);
        let (joined, desk) = core.link(channel.link)?;
        let released = joined.with(channel.link, desk, |proto, _, view| proto.release(view, channel.id));
        released.map_err(|refusal| Error::of(refusal, gone))?;
        joined.back.forget(channel.id);
        core.settle(channel.link);
        core.alert();
        Ok(())
    }

    // ---- sending -----------------------------------------------------------------------------------------------------

    /// Sends a message whose body goes at once or not at all: `None`, it has gone.
    #[inline]
    fn try_send(
        &self,
        core: &mut Core,
        message: &Outgoing<'_>,
        body: &[&[u8]],
        operation: u64,
        place: packet::Place,
    ) -> Result<Sent, Error> {
        let &Outgoing { channel, tag, headers, mode } = message;
        let (joined, desk) = core.link(channel.link)?;
        let send = Send { channel: channel.id, tag, headers, body, mode, operation, place };
        let sent = joined.with(channel.link, desk, |proto, way, _| proto.send(way, &send));
        match sent {
            Ok(sent) => Ok(sent),
            Err(refusal) => Err(core.refused(channel, refusal)),
        }
    }

    /// Sends a message without headers, if there is room now and it goes in one packet: [`Error::WouldBlock`], [`Error::TooLong`].
    #[inline]
    pub fn send_short(&self, channel: Channel, tag: u64, body: &[u8]) -> Result<(), Error> {
        let mut core = self.core()?;
        let (joined, desk) = core.link(channel.link)?;
        match joined.send_short(channel.link, desk, channel.id, tag, body) {
            Ok(()) => Ok(()),
            Err(refusal) => Err(core.refused(channel, refusal)),
        }
    }

    /// Sends a short message, whose body is free again when this returns: eager in one packet. Waits until there is room.
    ///
    /// Errors: [`Error::TooLong`] when it does not fit a packet; [`Error::TimedOut`], and nothing was sent.
    #[inline]
    pub fn inject(&self, message: &Outgoing<'_>, body: &[&[u8]], deadline: Option<u64>) -> Result<(), Error> {
        let message = Outgoing { mode: Mode::Inject, ..*message };
        let mut core = self.core()?;
        match self.try_send(&mut core, &message, body, 0, packet::Place::default()) {
            Ok(_) => return Ok(()),
            Err(Error::WouldBlock) => {}
            Err(error) => return Err(error),
        }
        self.wait(core, deadline, |core| match self.try_send(core, &message, body, 0, packet::Place::default()) {
            Err(Error::WouldBlock) => None,
            sent => Some(sent.map(drop)),
        })?
    }

    /// The same, and does not wait: [`Error::WouldBlock`].
    #[inline]
    pub fn try_inject(&self, message: &Outgoing<'_>, body: &[&[u8]]) -> Result<(), Error> {
        let message = Outgoing { mode: Mode::Inject, ..*message };
        let mut core = self.core()?;
        self.try_send(&mut core, &message, body, 0, packet::Place::default()).map(drop)
    }

    /// Begins to send a message. `None`: it has gone, and its body is free; no end follows. Otherwise its memory stays in use until
    /// the operation has ended. [`Error::WouldBlock`], and nothing is done, when there is no room; the memory comes back then.
    pub fn start_send(
        &self,
        message: &Outgoing<'_>,
        memory: Memory,
        more: Vec<Memory>,
        notice: Notice,
    ) -> Result<Option<OperationId>, (Error, Memory, Vec<Memory>)> {
        match self.core() {
            Ok(mut core) => {
                if goes_at_once(&mut core, message, &memory, &more, notice) {
                    return Ok(None);
                }
                self.look_for_credit(&mut core, message, &memory, &more);
                self.start_send_here(&mut core, message, memory, more, notice)
            }
            Err(error) => Err((error, memory, more)),
        }
    }

    /// The same, and waits until there is room.
    pub fn send(
        &self,
        message: &Outgoing<'_>,
        memory: Memory,
        more: Vec<Memory>,
        notice: Notice,
        deadline: Option<u64>,
    ) -> Result<Option<OperationId>, Error> {
        let mut core = self.core()?;
        if goes_at_once(&mut core, message, &memory, &more, notice) {
            return Ok(None);
        }
        self.look_for_credit(&mut core, message, &memory, &more);
        let mut body = Some((memory, more));
        self.wait(core, deadline, |core| {
            let (memory, more) = body.take()?;
            match self.start_send_here(core, message, memory, more, notice) {
                Ok(operation) => Some(Ok(operation)),
                Err((Error::WouldBlock, memory, more)) => {
                    body = Some((memory, more));
                    None
                }
                Err((error, ..)) => Some(Err(error)),
            }
        })?
    }

    /// Credit may have come that nobody has looked at: better than to announce a short message for lack of it.
    #[inline]
    fn look_for_credit(&self, core: &mut Guard<'_>, message: &Outgoing<'_>, memory: &Memory, more: &[Memory]) {
        let length = more.iter().fold(memory.len(), |sum, part| sum.saturating_add(part.len())) as u64;
        let lacks = |core: &mut Core| {
            core.link(message.channel.link).is_ok_and(|(joined, _)| joined.proto.lacks_credit(length))
        };
        if !core.driving && lacks(core) {
            self.look_around(core);
        }
    }

    pub(super) fn start_send_here(
        &self,
        core: &mut Core,
        message: &Outgoing<'_>,
        memory: Memory,
        more: Vec<Memory>,
        notice: Notice,
    ) -> Result<Option<OperationId>, (Error, Memory, Vec<Memory>)> {
        let length = memory.len();
        if length <= SHORT && more.is_empty() && message.mode == Mode::Automatic && notice.group.is_none() {
            let short = Outgoing { mode: Mode::Inject, ..*message };
            let body = [memory.bytes(0, length)];
            match self.try_send(core, &short, &body, 0, packet::Place::default()) {
                Ok(_) => return Ok(None),
                Err(Error::WouldBlock | Error::TooLong) => {} // it may go otherwise
                Err(error) => return Err((error, memory, more)),
            }
        }
        let limits = core.limits.single_copy;
        let joined = core.link(message.channel.link);
        let shown = more.is_empty() && joined.is_ok_and(|(joined, _)| joined.lets_copy(length as u64, limits));
        let mut place = match shown {
            true => packet::Place { address: memory.address(), key: 0 },
            false => packet::Place::default(),
        };
        if let (Memory::Block(loan), true) = (&memory, more.is_empty()) {
            place = core.place_of_loan(message.channel.link, loan, place);
        }
        let mut operation = Operation::new(memory, Kind::Send(None), Some(message.channel), notice);
        operation.more = more;
        let name = match core.desk.operations.begin(operation) {
            Ok(name) => name,
            Err(error) => return Err((error, Memory::Owned(Vec::new()), Vec::new())),
        };
        let sent = self.send_begun(core, message, name, place);
        match sent {
            Ok(Sent::Pending(number)) => {
                if let Some(operation) = core.desk.operations.get(u64::from(name.0)) {
                    operation.kind = Kind::Send(Some(number));
                }
                core.settle(message.channel.link);
                Ok(Some(name))
            }
            Ok(Sent::Complete) => {
                if notice.group.is_some() {
                    let outcome = Outcome { status: super::Status::Done, length: length as u64 };
                    core.desk.operations.complete(u64::from(name.0), outcome);
                    core.alert();
                    return Ok(Some(name));
                }
                core.desk.operations.withdraw(name);
                Ok(None)
            }
            Err(error) => match core.desk.operations.withdraw(name) {
                Some(Operation { memory, more, .. }) => Err((error, memory, more)),
                None => Err((error, Memory::Owned(Vec::new()), Vec::new())),
            },
        }
    }

    /// The body is the operation's: it is shown to the protocol from there.
    fn send_begun(
        &self,
        core: &mut Core,
        message: &Outgoing<'_>,
        name: OperationId,
        place: packet::Place,
    ) -> Result<Sent, Error> {
        // The record lends its memory for the call: nothing that the protocol does in a send touches it.
        let Some(operation) = core.desk.operations.get(u64::from(name.0)) else { return Err(Error::Full) };
        let memory = std::mem::replace(&mut operation.memory, Memory::Owned(Vec::new()));
        let more = std::mem::take(&mut operation.more);
        let body: smallvec::SmallVec<[&[u8]; 8]> =
            std::iter::once(&memory).chain(&more).map(|memory| memory.bytes(0, usize::MAX)).collect();
        let sent = self.try_send(core, message, &body, u64::from(name.0), place);
        drop(body);
        if let Some(operation) = core.desk.operations.get(u64::from(name.0)) {
            (operation.memory, operation.more) = (memory, more);
        }
        sent
    }

    // ---- receiving ---------------------------------------------------------------------------------------------------

    /// Posts a receive: `memory` is filled with the body of the next message whose tag is `tag` but for the bits in `ignore`.
    pub fn post(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        memory: Memory,
        notice: Notice,
    ) -> Result<OperationId, Error> {
        let mut core = self.core()?;
        let capacity = memory.len() as u64;
        let operation = Operation::new(memory, Kind::Receive(None), None, notice);
        self.post_here(&mut core, from, tag, ignore, operation, capacity)
    }

    pub(super) fn post_here(
        &self,
        core: &mut Core,
        from: From,
        tag: u64,
        ignore: u64,
        operation: Operation,
        capacity: u64,
    ) -> Result<OperationId, Error> {
        let selector = core.selector(from, tag, ignore)?;
        let name = core.desk.operations.begin(operation)?;
        let receive = Receive { operation: u64::from(name.0), capacity };
        match core.desk.table.post(selector, receive) {
            Posted::Waiting(ticket) => {
                if let Some(operation) = core.desk.operations.get(u64::from(name.0)) {
                    operation.kind = Kind::Receive(Some(ticket));
                }
            }
            Posted::Found(held) => core.give(held, name, capacity),
            Posted::Ended(status) => {
                core.desk.operations.complete(u64::from(name.0), Outcome { status, length: 0 });
                core.alert();
            }
        }
        Ok(name)
    }

    /// Receives the next message whose tag is `tag` but for the bits in `ignore`, and waits for it. Of several threads that do so at
    /// a time, one needs no record for it.
    ///
    /// When this returns an error, the operation has not ended if it is [`DIRECT`] that is under way: [`Node::detach`] it, or
    /// [`Node::wait_direct`] again.
    #[inline(always)]
    pub fn receive(
        &self,
        from: From,
        tag: u64,
        ignore: u64,
        span: Span,
        headers: Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        let (mut core, mut headers) = (self.core()?, headers);
        let selector = core.selector(from, tag, ignore)?;
        if let Some(got) = self.expect(&mut core, selector, span, &mut headers) {
            return Ok(got);
        }
        self.receive_posted(core, selector, span, headers, deadline)
    }

    /// The same the long way.
    #[inline(never)]
    fn receive_posted(
        &self,
        mut core: Guard<'_>,
        selector: Selector,
        span: Span,
        mut headers: Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        let capacity = span.len() as u64;
        if !core.desk.operations.begin_direct(Memory::Span(span)) {
            return Err(Error::Full);
        }
        match core.desk.table.post(selector, Receive { operation: u64::from(DIRECT.0), capacity }) {
            Posted::Waiting(ticket) => {
                if let Some(operation) = core.desk.operations.get(u64::from(DIRECT.0)) {
                    operation.kind = Kind::Receive(Some(ticket));
                }
            }
            Posted::Found(held) => core.give(held, DIRECT, capacity),
            Posted::Ended(status) => {
                core.desk.operations.complete(u64::from(DIRECT.0), Outcome { status, length: 0 });
            }
        }
        self.wait(core, deadline, |core| core.desk.operations.take_direct(headers.as_deref_mut()))
    }

    /// Waits on for a receive whose first wait has ended with an error.
    pub fn wait_direct(&self, mut headers: Option<&mut Vec<u8>>, deadline: Option<u64>) -> Result<Got, Error> {
        self.wait(self.core()?, deadline, |core| core.desk.operations.take_direct(headers.as_deref_mut()))
    }

    /// What a receive would get now.
    pub fn peek(&self, from: From, tag: u64, ignore: u64) -> Result<Option<Seen>, Error> {
        let mut core = self.core()?;
        let selector = core.selector(from, tag, ignore)?;
        Ok(core.desk.table.peek(selector).map(|held| Seen {
            channel: Channel { link: LinkId(held.source), id: held.channel },
            tag: held.tag,
            length: held.length,
            headers: held.headers().to_vec(),
        }))
    }

    /// Takes what a receive would get now: no other receive gets it. It must be given memory ([`Node::accept_body`]) or be
    /// discarded ([`Node::discard_body`]).
    pub fn claim(&self, from: From, tag: u64, ignore: u64) -> Result<Option<Held>, Error> {
        let mut core = self.core()?;
        let selector = core.selector(from, tag, ignore)?;
        Ok(core.desk.table.claim(selector))
    }

    /// Gives memory to a message that was claimed, or that a handler has taken. With an error, the message comes back.
    pub fn accept_body(&self, held: Held, memory: Memory, notice: Notice) -> Result<OperationId, (Error, Held)> {
        let mut core = match self.core() {
            Ok(core) => core,
            Err(error) => return Err((error, held)),
        };
        let capacity = memory.len() as u64;
        let operation = Operation::new(memory, Kind::Receive(None), None, notice);
        match core.desk.operations.begin(operation) {
            Ok(name) => {
                core.give(held, name, capacity);
                Ok(name)
            }
            Err(error) => Err((error, held)),
        }
    }

    /// Throws away a message that was claimed, or that a handler has taken.
    pub fn discard_body(&self, held: Held) -> Result<(), Error> {
        let mut core = self.core()?;
        let link = LinkId(held.source);
        if let Ok((joined, _)) = core.link(link) {
            joined.proto.discard(held);
            core.settle(link);
        }
        Ok(())
    }

    /// Would like an operation not to happen any more. It ends in any case: as cancelled, or as it would have.
    ///
    /// Errors: [`Error::Unknown`] when its end has been taken note of, or told to its group.
    pub fn cancel(&self, operation: OperationId) -> Result<(), Error> {
        let mut core = self.core()?;
        let core = &mut *core;
        let Some(known) = core.desk.operations.get(u64::from(operation.0)) else { return Err(Error::Unknown) };
        match (known.kind, known.channel) {
            (Kind::Receive(Some(ticket)), _) if core.desk.table.cancel(ticket).is_some() => {
                let outcome = Outcome { status: super::Status::Cancelled, length: 0 };
                core.desk.operations.complete(u64::from(operation.0), outcome);
                core.alert();
            }
            (Kind::Send(Some(number)), Some(channel)) => {
                if let Ok((joined, desk)) = core.link(channel.link) {
                    joined.proto.cancel(number);
                    joined.flush(channel.link, desk);
                    core.attend_to(channel.link);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Takes the memory away from an operation that has not ended, which is forgotten when it does: what still comes for a receive
    /// goes nowhere; of a send that has begun nothing but the loss of its link is left.
    pub fn detach(&self, operation: OperationId) -> Result<(), Error> {
        let mut core = self.core()?;
        let Some(known) = core.desk.operations.get(u64::from(operation.0)) else { return Ok(()) };
        known.memory = Memory::Owned(Vec::new());
        known.more = Vec::new();
        known.detached = true;
        if let (Kind::Send(_), Some(channel)) = (known.kind, known.channel) {
            // Its peer may be about to fetch it.
            if let Ok((joined, desk)) = core.link(channel.link) {
                joined.lose(channel.link, desk, Reason::PEER_GONE, Broken("a body was taken away"));
            }
        }
        core.alert();
        drop(core);
        let _ = self.cancel(operation); // or it has just been forgotten
        Ok(())
    }
}

/// Sends what is short, has no headers and needs no record, if there is room. False: it goes the long way, or not at all.
#[inline(always)]
fn goes_at_once(core: &mut Core, message: &Outgoing<'_>, memory: &Memory, more: &[Memory], notice: Notice) -> bool {
    let &Outgoing { channel, tag, headers, mode } = message;
    let plain = mode == Mode::Automatic && headers.is_empty() && more.is_empty() && notice.group.is_none();
    plain
        && memory.len() <= SHORT
        && core.link(channel.link).is_ok_and(|(joined, desk)| {
            joined.send_short(channel.link, desk, channel.id, tag, memory.bytes(0, SHORT)).is_ok()
        })
}

impl Core {
    /// Why a send was refused.
    #[cold]
    fn refused(&mut self, channel: Channel, refusal: Refusal) -> Error {
        if refusal == Refusal::Closed && self.place(channel.link, channel.id).is_none() {
            return Error::Unknown;
        }
        self.refused_on(channel.link, refusal)
    }

    /// Why something was refused on a link; who waits for room is told when there is some.
    #[cold]
    pub(super) fn refused_on(&mut self, link: LinkId, refusal: Refusal) -> Error {
        let gone = self.gone(link);
        if refusal == Refusal::WouldBlock
            && let Ok((joined, desk)) = self.link(link)
        {
            joined.blocked = true;
            joined.flush(link, desk);
            self.warm(link);
        }
        Error::of(refusal, gone)
    }

    #[inline(always)]
    pub(super) fn selector(&mut self, from: From, tag: u64, ignore: u64) -> Result<Selector, Error> {
        let from = match from {
            From::Any(context) if self.desk.table.knows(context.0) => Source::Any(context.0),
            From::Any(_) => return Err(Error::Unknown),
            From::Channel(channel) => match self.place(channel.link, channel.id).map(|place| place.reception) {
                Some(Reception::Matched(scope)) => Source::One(scope),
                Some(Reception::Handler) => return Err(Error::Closed),
                None => return Err(Error::Unknown),
            },
        };
        Ok(Selector { from, tag, ignore })
    }

    /// Gives a message that nobody waited for to an operation.
    pub(super) fn give(&mut self, held: Held, name: OperationId, capacity: u64) {
        let link = LinkId(held.source);
        match self.link(link) {
            Ok((joined, desk)) => {
                joined.with(link, desk, |proto, _, view| proto.accept(view, held, u64::from(name.0), capacity));
                self.settle(link);
            }
            Err(_) => {
                let outcome = Outcome { status: super::Status::Broken, length: 0 };
                self.desk.operations.complete(u64::from(name.0), outcome);
            }
        }
        self.alert();
        // What must be copied is copied by whoever makes progress: it must look here.
        if self.links.named(motet_proto::message::pool::Number(link.0)).is_some_and(|joined| joined.back.copies_wait())
        {
            self.warm(link);
            self.attend_to(link);
        }
    }
}
