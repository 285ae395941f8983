//! Sending requests: the route, one packet or two, and another attempt where the link was found to be gone.

use crate::buffer::Buffer;
use crate::counters::Counters;
use crate::deadline::Deadline;
use crate::delayed::{self, Delayed};
use crate::error::Error;
use crate::options::{Options, Reception};
use crate::routes::{Route, Routes};
use crate::startpoint::{NodeAddress, Startpoint, Target};
use crate::wire::{DATA_TAG, ENDPOINT_BITS, Handler, Head, MAX_HEAD, REPLY_TAG, ReplyPlace, ReplyStatus, SMALL_HEAD};
use motet::node::{Channel, Context, Error as NodeError, Mode, Node, Outgoing, Serve};
use std::cell::Cell;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

/// How often a request that has not left is sent again, by another link.
const MAX_ATTEMPTS: usize = 2;
/// Data of up to so many bytes are copied behind their head, so that the message is one piece, bytes.
const MAX_GATHERED: usize = 512;

/// Where the reply to a call goes.
#[derive(Debug)]
pub enum ReplyTo {
    /// To a startpoint.
    Startpoint(Startpoint),
    /// Back by the channel of the request, with this tag.
    Back(Channel, u64),
}

thread_local! {
    /// The sender for which this thread has prepared a number, and the number of the next reply. 0: none.
    static NEXT_NUMBER: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// What sends need.
pub struct Sender {
    pub node: Arc<Node>,
    /// Where all requests, data and replies are received.
    pub context: Context,
    pub options: Options,
    pub routes: Routes,
    pub counters: Counters,
    /// Replies that cannot leave at once.
    pub delayed: Arc<Delayed>,
    /// This sender, for threads that open routes.
    pub own_self: OnceLock<Weak<Sender>>,
    /// Learns of the channels that are opened here.
    pub opened: OnceLock<Box<dyn Fn(Channel) + Send + Sync>>,
    own: RwLock<Arc<NodeAddress>>,
    /// Counts the addresses of this node, from 1.
    own_version: AtomicU64,
    /// No other sender of this process has it. Not 0.
    number: u64,
    /// Numbers that peers cannot guess: SipHash, with keys of the system's random source, of a count.
    keys: RandomState,
    count: AtomicU64,
}

impl Sender {
    pub fn new(node: Arc<Node>, options: Options) -> Result<Self, Error> {
        let own = RwLock::new(Arc::new(NodeAddress { id: node.id()?, address: node.address()?.into() }));
        let context = node.context()?;
        static LAST: AtomicU64 = AtomicU64::new(0);
        Ok(Self {
            node,
            context,
            options,
            routes: Routes::default(),
            counters: Counters::default(),
            delayed: Arc::default(),
            own_self: OnceLock::new(),
            opened: OnceLock::new(),
            own,
            own_version: AtomicU64::new(1),
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            keys: RandomState::new(),
            count: AtomicU64::new(0),
        })
    }

    /// A number for an endpoint or a reply.
    pub fn random_number(&self) -> u64 {
        self.keys.hash_one(self.count.fetch_add(1, Ordering::Relaxed)) & ENDPOINT_BITS
    }

    /// A number for a reply that this thread waits for. It is there already, if [`Sender::prepare_number`] was called.
    #[inline]
    pub fn next_number(&self) -> u64 {
        match NEXT_NUMBER.take() {
            (sender, number) if sender == self.number => number,
            _ => self.random_number(),
        }
    }

    /// Makes the number of the next reply, while there is time.
    #[inline]
    pub fn prepare_number(&self) {
        NEXT_NUMBER.set((self.number, self.random_number()));
    }

    /// This node, as others reach it now.
    pub fn own_address(&self) -> Result<Arc<NodeAddress>, Error> {
        let address = self.node.address()?;
        let mut own = self.own.write().unwrap_or_else(PoisonError::into_inner);
        if *own.address != *address {
            *own = Arc::new(NodeAddress { id: own.id, address: address.into() });
            self.own_version.fetch_add(1, Ordering::Relaxed);
        }
        Ok(own.clone())
    }

    /// This node, as others reached it when the last endpoint or route was made, and the number of that address.
    pub fn last_own_address(&self) -> (Arc<NodeAddress>, u64) {
        let own = self.own.read().unwrap_or_else(PoisonError::into_inner);
        (own.clone(), self.own_version.load(Ordering::Relaxed))
    }

    /// Sends a call as [`Sender::try_request`] does, if its receiver knows the startpoint of this node.
    #[inline]
    pub fn try_call(&self, start: &Startpoint, handler: Handler<'_>, tag: u64, buffer: &Buffer<'_>) -> Option<Channel> {
        let [target] = &start.targets[..] else { return None };
        let (channel, told) = self.routes.known_channel(target.node.id, start.chosen())?;
        if told != self.own_version.load(Ordering::Relaxed) {
            return None;
        }
        let reply_to = Some(ReplyPlace::Back(tag));
        let head = Head { handler, reply_to, is_reply: false, ..Head::reply(ReplyStatus::Done) };
        self.try_by((channel, target.endpoint), &head, buffer).then_some(channel)
    }

    /// Sends a request at once, if it is to one endpoint to which a route is known, fits one packet, and there is room. Returns the channel; `None`:
    /// nothing was sent. It reads no clock.
    #[inline]
    pub fn try_request(&self, start: &Startpoint, head: &Head<'_>, buffer: &Buffer<'_>) -> Option<Channel> {
        let [target] = &start.targets[..] else { return None };
        let (channel, _) = self.routes.known_channel(target.node.id, start.chosen())?;
        self.try_by((channel, target.endpoint), head, buffer).then_some(channel)
    }

    /// Sends head and data at once, if they fit one packet and there is room.
    #[inline]
    fn try_by(&self, to: (Channel, u64), head: &Head<'_>, buffer: &Buffer<'_>) -> bool {
        if buffer.is_empty() {
            return match (head.word(), head.reply_to) {
                (Some(word), _) => self.try_inject(to, &word),
                (None, Some(ReplyPlace::Startpoint(_))) => self.try_one_piece::<MAX_HEAD>(to, head, buffer),
                (None, _) => self.try_one_piece::<SMALL_HEAD>(to, head, buffer),
            };
        }
        if buffer.len() > self.options.one_packet.min(MAX_GATHERED) {
            return false;
        }
        match head.reply_to {
            Some(ReplyPlace::Startpoint(_)) => self.try_one_piece::<{ MAX_HEAD + MAX_GATHERED }>(to, head, buffer),
            _ => self.try_one_piece::<{ SMALL_HEAD + MAX_GATHERED }>(to, head, buffer),
        }
    }

    /// Sends head and data, which have at most `N` bytes, as one piece, if there is room.
    #[inline]
    fn try_one_piece<const N: usize>(&self, to: (Channel, u64), head: &Head<'_>, buffer: &Buffer<'_>) -> bool {
        let mut memory = [0; N];
        let start = head.write(&mut memory).len();
        let end = start + buffer.len();
        buffer.copy_to(&mut memory[start..end]);
        self.try_inject(to, &memory[..end])
    }

    #[inline]
    fn try_inject(&self, (channel, tag): (Channel, u64), bytes: &[u8]) -> bool {
        self.node.try_inject(&Outgoing { channel, tag, headers: &[], mode: Mode::Automatic }, &[bytes]).is_ok()
    }

    /// Sends a request to every endpoint of a startpoint.
    pub fn request(
        &self,
        start: &Startpoint,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if let [target] = &start.targets[..] {
            return self.send(target, start.chosen(), head, buffer, deadline).map(drop);
        }
        let (mut reached, mut first) = (0, None);
        for target in &start.targets {
            match self.send(target, start.chosen(), head, buffer, deadline) {
                Ok(_) => reached += 1,
                Err(error) => _ = first.get_or_insert(error),
            }
        }
        first.map_or(Ok(()), |first| Err(if reached > 0 { Error::Partly(reached, Box::new(first)) } else { first }))
    }

    /// Sends a request to one endpoint. Returns the route that it has taken.
    #[inline]
    pub fn send(
        &self,
        target: &Target,
        driver: Option<&str>,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        deadline: Deadline,
    ) -> Result<Arc<Route>, Error> {
        let mut attempts = 0;
        loop {
            let route = match self.routes.known(target.node.id, driver) {
                Some(route) => route,
                None => self.open(target, driver, deadline)?,
            };
            let Err((error, nothing_sent)) = self.send_by(&route, target.endpoint, head, buffer, deadline) else {
                return Ok(route);
            };
            if !self.is_gone(route.channel) && error != Error::Node(NodeError::Closed) {
                return Err(error);
            }
            // The peer has ended, and may be there again; or it has closed the channel.
            self.routes.forget(&self.node, target.node.id, &route);
            attempts += 1;
            if !nothing_sent || attempts > MAX_ATTEMPTS {
                return Err(error);
            }
        }
    }

    /// The route to an endpoint, which is made if there is none.
    #[cold]
    pub fn open(&self, target: &Target, driver: Option<&str>, deadline: Deadline) -> Result<Arc<Route>, Error> {
        let opened = |channel| {
            if let Some(opened) = self.opened.get() {
                opened(channel);
            }
        };
        let _ = self.own_address(); // a reply to what is sent now finds this node
        self.routes.open(&self.node, &target.node, driver, (Serve::Tagged(self.context), deadline), opened)
    }

    /// Whether the link of a channel is gone.
    pub fn is_gone(&self, channel: Channel) -> bool {
        self.node.link_info(channel.link).map_or(true, |info| info.gone.is_some())
    }

    /// Sends by this route. After an error, whether the peer has got nothing of it.
    #[inline]
    fn send_by(
        &self,
        route: &Route,
        endpoint: u64,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        deadline: Deadline,
    ) -> Result<(), (Error, bool)> {
        let channel = route.channel;
        let first = Outgoing { channel, tag: endpoint, headers: &[], mode: Mode::Automatic };
        if buffer.len() > self.options.one_packet {
            return self.send_in_two(route, first, head, buffer, deadline);
        }
        let (mut small, mut large);
        let memory: &mut [u8] = if let Some(ReplyPlace::Startpoint(_)) = head.reply_to {
            large = [0; MAX_HEAD];
            &mut large
        } else {
            small = [0; SMALL_HEAD];
            &mut small
        };
        let bytes = head.write(memory);
        let sent = if buffer.is_empty() {
            self.node.send(channel, endpoint, bytes, deadline.left())
        } else {
            buffer.with_pieces(bytes, |pieces| self.node.send_with(&first, pieces, deadline.left()))
        };
        sent.map_err(|error| (error.into(), true))
    }

    /// Sends the head, and then the data by themselves, from where they are.
    fn send_in_two(
        &self,
        route: &Route,
        first: Outgoing<'_>,
        head: &Head<'_>,
        buffer: &Buffer<'_>,
        deadline: Deadline,
    ) -> Result<(), (Error, bool)> {
        let tag = DATA_TAG | self.count.fetch_add(1, Ordering::Relaxed) & ENDPOINT_BITS;
        let head = Head { apart: Some((buffer.len() as u64, tag)), ..*head };
        let mut memory = [0; MAX_HEAD];
        let _turn = route.two_packets.take(deadline).ok_or((Error::TimedOut, true))?;
        let bytes = head.write(&mut memory);
        self.node.send_with(&first, &[bytes], deadline.left()).map_err(|error| (error.into(), true))?;
        let data = Outgoing { tag, ..first };
        let sent = buffer.with_pieces(&[], |pieces| self.node.send_with(&data, pieces, deadline.left()));
        if sent == Err(NodeError::TimedOut) {
            // The receiver waits for data that do not come: a message of another length says so.
            let _ = self.node.try_inject(&data, &[]);
        }
        sent.map_err(|error| (error.into(), false))
    }

    /// Sends the reply to a call.
    #[inline]
    pub fn reply(&self, to: &ReplyTo, status: ReplyStatus, buffer: &Buffer<'_>) -> Result<(), Error> {
        match to {
            ReplyTo::Startpoint(start) if !self.delays() => self.reply_to_startpoint(start, status, buffer),
            ReplyTo::Startpoint(start) => self.reply_without_wait(start, status, buffer),
            ReplyTo::Back(channel, tag) if self.try_by((*channel, *tag), &Head::reply(status), buffer) => Ok(()),
            ReplyTo::Back(channel, tag) => self.reply_later(*channel, *tag, status, buffer),
        }
    }

    /// Tells a caller that has no reply from a handler how its call has ended.
    #[inline]
    pub fn answer(&self, to: Option<ReplyTo>, status: ReplyStatus) {
        if let Some(to) = to {
            let _ = self.reply(&to, status, &Buffer::new()); // who called may be gone
        }
    }

    /// Sends a reply that could not leave at once by the channel of its request: by the route to that peer.
    #[cold]
    fn reply_later(&self, channel: Channel, tag: u64, status: ReplyStatus, buffer: &Buffer<'_>) -> Result<(), Error> {
        if self.delays() && !self.is_gone(channel) {
            return self.delay((channel, tag), status, buffer);
        }
        let node = match self.routes.caller(channel) {
            Some(node) => node,
            None => Arc::new(NodeAddress { id: self.node.link_info(channel.link)?.peer, address: "".into() }),
        };
        let start = Startpoint::to(Target { node, endpoint: tag });
        if self.delays() {
            return self.reply_without_wait(&start, status, buffer);
        }
        self.reply_to_startpoint(&start, status, buffer)
    }

    /// Whether replies are sent without waiting. Where the program receives itself, only it makes progress, so it waits.
    fn delays(&self) -> bool {
        self.options.reception != Reception::Caller
    }

    /// The most bytes of replies to one peer that are under way.
    fn most_delayed(&self) -> usize {
        self.options.memory / 4
    }

    /// Sends a reply to a startpoint without waiting for its node, which may be stopped: the thread that runs handlers serves others.
    fn reply_without_wait(&self, to: &Startpoint, status: ReplyStatus, buffer: &Buffer<'_>) -> Result<(), Error> {
        if self.try_request(to, &Head::reply(status), buffer).is_some() {
            return Ok(());
        }
        let ([target], Some(sender)) = (&to.targets[..], self.own_self.get().and_then(Weak::upgrade)) else {
            return self.reply_to_startpoint(to, status, buffer);
        };
        match self.routes.known(target.node.id, to.chosen()).filter(|route| !self.is_gone(route.channel)) {
            Some(route) => self.delay((route.channel, target.endpoint), status, buffer),
            None => {
                let (target, driver) = (target.clone(), to.chosen().map(str::to_owned));
                let reply = self.copy(target.endpoint, status, buffer);
                let open = move |deadline| Some(sender.open(&target, driver.as_deref(), deadline).ok()?.channel);
                self.delayed.open_and_send(&self.node, open, reply, self.most_delayed())
            }
        }
    }

    /// Sends a copy of a reply, which ends later.
    fn delay(&self, to: (Channel, u64), status: ReplyStatus, buffer: &Buffer<'_>) -> Result<(), Error> {
        self.delayed.send(&self.node, to.0, self.copy(to.1, status, buffer), self.most_delayed())
    }

    fn copy(&self, endpoint: u64, status: ReplyStatus, buffer: &Buffer<'_>) -> delayed::Reply {
        let mut memory = [0; MAX_HEAD];
        let mut messages = VecDeque::new();
        if buffer.len() > self.options.one_packet {
            let tag = DATA_TAG | self.count.fetch_add(1, Ordering::Relaxed) & ENDPOINT_BITS;
            let head = Head { apart: Some((buffer.len() as u64, tag)), ..Head::reply(status) };
            messages.push_back((endpoint, head.write(&mut memory).to_vec()));
            messages.push_back((tag, buffer.with_pieces(&[], |pieces| pieces.concat())));
        } else {
            let head = Head::reply(status).write(&mut memory);
            messages.push_back((endpoint, buffer.with_pieces(head, |pieces| pieces.concat())));
        }
        delayed::Reply { messages, limit: Duration::from_nanos(self.options.reply_limit_ns) }
    }

    /// Sends a reply to a startpoint.
    pub fn reply_to_startpoint(&self, to: &Startpoint, status: ReplyStatus, buffer: &Buffer<'_>) -> Result<(), Error> {
        let head = Head::reply(status);
        if self.try_request(to, &head, buffer).is_some() {
            return Ok(());
        }
        let limit = Some(Duration::from_nanos(self.options.reply_limit_ns));
        self.request(to, &head, buffer, Deadline::within(limit))
    }

    /// Where the reply to a call goes that has come by this channel, from the word of a peer. Only numbers of replies are taken: a call is no means to send
    /// to endpoints.
    #[inline]
    pub fn reply_to(&self, place: ReplyPlace<'_>, channel: Channel) -> Option<ReplyTo> {
        match place {
            ReplyPlace::Back(tag) => Some(ReplyTo::Back(channel, tag)),
            ReplyPlace::Startpoint(bytes) => self.reply_to_bytes(bytes, channel),
        }
    }

    /// Notes the address of a peer that sends its own startpoint: later calls need not have it.
    #[inline(never)]
    fn reply_to_bytes(&self, bytes: &[u8], channel: Channel) -> Option<ReplyTo> {
        let start = Startpoint::from_bytes(bytes).ok()?;
        let [target] = &start.targets[..] else { return None };
        if target.endpoint & REPLY_TAG == 0 {
            return None;
        }
        if self.node.link_info(channel.link).is_ok_and(|info| info.peer == target.node.id) {
            self.routes.note_caller(channel, &target.node);
        }
        Some(ReplyTo::Startpoint(start))
    }

    /// The startpoint of a reply, for other processes. `None`: the caller has not told its address.
    pub fn startpoint_of(&self, reply_to: &ReplyTo) -> Option<Startpoint> {
        match reply_to {
            ReplyTo::Startpoint(start) => Some(start.clone()),
            ReplyTo::Back(channel, tag) => {
                Some(Startpoint::to(Target { node: self.routes.caller(*channel)?, endpoint: *tag }))
            }
        }
    }
}
