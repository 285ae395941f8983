//! What a node is made of, behind its lock.

use super::link::LinkState;
use super::loaned::Returns;
use super::message_state::MessageState;
use super::packets::RxPacket;
use super::spin_policy::Pace;
use super::stats::{How, Sheet};
use super::transport::{Connected, Connector, Identity, Listener, PacketTransport, Transport};
use super::{Channel, Context, Error, Handler, LinkId, MessageLimits, Task};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::slab::{Number, Pool};
use motet_proto::message::{Broken, ChannelId, Reception};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::event::epoll;
use motet_sys::rustix::fd::AsFd;
use motet_sys::{biased_lock, clock, private_fds, thread};
use std::collections::{HashMap, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::Thread;

/// How long a node that is dropped waits until peers have got what was sent to them, ns, and between two looks.
const PARTING: u64 = 1_000_000_000;
const NAP: u64 = 50_000;

/// The lock, while it is held.
pub type Guard<'a> = biased_lock::Guard<'a, Core>;

/// Everything of a node that changes.
pub struct Core {
    /// Who we are.
    pub identity: Identity,
    /// Ways to others.
    pub drivers: Vec<&'static dyn Driver>,
    /// What our links allow.
    pub limits: MessageLimits,
    /// Shared by all links.
    pub state: MessageState,
    /// By number.
    pub links: Pool<Box<LinkState>>,
    /// Those that are looked at in every round; the others ring, and one of them is looked at now and then.
    pub hot: Vec<LinkId>,
    /// Those that a sleep on our descriptor has let go: busy again when it is over.
    pub dozing: Vec<LinkId>,
    /// Where the next look at one of the others begins.
    pub sweep: u32,
    /// Whose turn it is among the busy links, and how many messages it has had in a row.
    pub turn: (usize, u32),
    /// Rounds so far.
    pub rounds: u32,
    /// The clock, as of the last slow round.
    pub now: u64,
    /// When descriptors were last asked.
    pub asked: u64,
    /// Where the packet lies that is being looked at; away while a handler has it.
    pub rx_packet: Option<Box<RxPacket>>,
    /// Who waits for others, with the driver's name.
    pub listeners: Vec<(&'static dyn Driver, Box<dyn Listener>)>,
    /// What still has to be delivered over links that are closed here.
    pub leaving: Vec<Box<dyn PacketTransport>>,
    /// On the way to others.
    pub calls: Pool<PendingConnect>,
    /// What peers may open channels to.
    pub services: HashMap<u64, Service>,
    /// Handlers by number.
    pub handlers: Pool<Arc<dyn Handler>>,
    /// What handlers have left for later.
    pub tasks: VecDeque<Task>,
    /// A thread makes progress.
    pub driving: bool,
    /// Another one has begun to while the one that did ran tasks: this one leaves.
    pub ousted: bool,
    /// It sleeps; or nobody does, and the program or the stand-in sleeps on our descriptor.
    pub asleep: bool,
    /// The program sleeps there, or is about to.
    pub outside: bool,
    /// Threads that wait meanwhile.
    pub waiters: Vec<Thread>,
    /// Whether waiting outside the kernel pays.
    pub pace: Pace,
    /// The group for which the last look found everything done: none of its ends waits to be told, and the busy links need only be looked at.
    /// Cleared by every use of the node but posting receives and sending. [`super::GroupId::NONE`]: not known.
    pub quiet: super::GroupId,
    /// Links that are gone, of whose messages some wait to be received.
    pub lingering: Vec<LinkId>,
    /// Nobody may wait any more.
    pub shut: bool,
    /// Everything that can wake a sleeper.
    pub poll: PrivateFd,
    /// Wakes the thread that sleeps for all.
    pub kick: Arc<PrivateFd>,
    /// Segments of the pool that had gone when peers were last told.
    pub gone: usize,
    /// What others may read of us.
    pub sheet: Sheet,
}

/// On the way to another node.
pub struct PendingConnect {
    /// What is done at present.
    pub calling: Option<Box<dyn Connector>>,
    /// Whose that is.
    pub driver: &'static dyn Driver,
    /// What else there is to try: driver and address.
    pub rest: VecDeque<(&'static dyn Driver, String)>,
    /// What was in vain, and why.
    pub how: How,
    /// What came of it.
    pub result: Option<Result<LinkId, Reason>>,
}

/// What peers may open channels to.
pub struct Service {
    /// How their messages are received.
    pub serve: Serve,
    /// Channels that nobody has taken note of yet.
    pub opened: VecDeque<Channel>,
}

/// How messages of a channel are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serve {
    /// In order, by whoever receives on the channel.
    Queue,
    /// By tag, by whoever receives on the channel or in the context.
    Tagged(Context),
    /// By a handler, by its number.
    Handler(u32),
}

/// What an event of the poll set is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A thread of ours wants the sleeper's attention.
    Kick,
    /// A peer has put something where we do not look.
    Ear(LinkId),
    /// A peer's process has ended, or it has closed the link.
    End(LinkId),
    /// A packet transport.
    Packet(LinkId),
    /// The peer says something of its memory, or has gone.
    Control(LinkId),
    /// Somebody knocks, or answers.
    Meeting,
}

impl Source {
    fn encode(self) -> epoll::EventData {
        let (kind, link) = match self {
            Self::Kick => (0, 0),
            Self::Ear(link) => (1, link.0),
            Self::End(link) => (2, link.0),
            Self::Packet(link) => (3, link.0),
            Self::Meeting => (4, 0),
            Self::Control(link) => (5, link.0),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(link))
    }

    /// What to look for.
    fn flags(self) -> epoll::EventFlags {
        let once = matches!(self, Self::End(_) | Self::Control(_));
        let once = if once { epoll::EventFlags::ONESHOT } else { epoll::EventFlags::empty() };
        epoll::EventFlags::IN | epoll::EventFlags::RDHUP | once
    }

    /// From an event.
    pub fn decode(data: epoll::EventData) -> Self {
        let link = LinkId(data.u64() as u32);
        match data.u64() >> 32 {
            0 => Self::Kick,
            1 => Self::Ear(link),
            2 => Self::End(link),
            3 => Self::Packet(link),
            5 => Self::Control(link),
            _ => Self::Meeting,
        }
    }
}

impl Core {
    /// Of a node that knows nobody yet.
    pub fn new(
        identity: Identity,
        limits: MessageLimits,
        mut state: MessageState,
        poll: PrivateFd,
        kick: PrivateFd,
    ) -> Self {
        let kick = Arc::new(kick);
        state.operations.returns = Some(Arc::new(Returns::new(kick.clone())));
        let (links, calls) = (Pool::default(), Pool::default());
        let (hot, dozing, listeners, waiters) = Default::default();
        let handlers = Pool::default();
        let (services, tasks, pace) = Default::default();
        Self {
            identity,
            drivers: Vec::new(),
            limits,
            state,
            links,
            hot,
            dozing,
            sweep: 0,
            turn: (0, 0),
            rounds: 0,
            now: clock::nanoseconds(),
            asked: 0,
            rx_packet: Some(Box::default()),
            listeners,
            leaving: Vec::new(),
            calls,
            services,
            handlers,
            tasks,
            driving: false,
            ousted: false,
            asleep: false,
            outside: false,
            waiters,
            pace,
            quiet: super::GroupId::NONE,
            lingering: Vec::new(),
            shut: false,
            poll,
            kick,
            gone: 0,
            sheet: Sheet::default(),
        }
    }

    /// Waits for others by every driver that can.
    pub fn listen(&mut self, drivers: &[&'static dyn Driver]) -> Result<(), Error> {
        let mut refused = Reason::NO_MESSAGES;
        for &driver in drivers {
            match driver.listen(&self.identity) {
                Ok(listening) => {
                    self.watch(listening.descriptor(), Source::Meeting)?;
                    self.listeners.push((driver, listening));
                }
                Err(Reason::NO_MESSAGES) => {}
                // The name or address is what the program asked for: nothing stands in for it.
                Err(reason @ (Reason::NAME_TAKEN | Reason::BAD_NAME)) => return Err(Error::Unreachable(reason)),
                Err(reason) => refused = reason,
            }
        }
        self.drivers = drivers.to_vec();
        if self.listeners.is_empty() { Err(Error::Unreachable(refused)) } else { Ok(()) }
    }

    /// Whether what serves so is there.
    pub fn can_serve(&self, serve: Serve) -> Result<(), Error> {
        let known = match serve {
            Serve::Queue => true,
            Serve::Tagged(context) => self.state.table.knows(context.0),
            Serve::Handler(handler) => self.handlers.find(Number(handler)).is_some(),
        };
        if known { Ok(()) } else { Err(Error::Unknown) }
    }

    /// How the protocol is to receive what is served so.
    pub fn reception(&mut self, serve: Serve) -> Result<Reception, Error> {
        self.can_serve(serve)?;
        let scope = match serve {
            Serve::Queue => self.state.table.join_ordered(),
            Serve::Tagged(context) => self.state.table.join(Some(context.0)),
            Serve::Handler(_) => return Ok(Reception::Handler),
        };
        scope.map(Reception::Matched).ok_or(Error::Full)
    }

    /// Has a descriptor wake the sleeper.
    pub fn watch(&self, fd: RawFd, source: Source) -> Result<(), Error> {
        epoll::add(&self.poll, private_fds::borrow(fd), source.encode(), source.flags())
            .map_err(|e| Error::NoNode(e.raw_os_error()))
    }

    /// The peer may say more on the control connection of a link.
    pub fn watch_control_again(&mut self, link: LinkId) {
        let Some(link_state) = self.links.named(Number(link.0)) else { return };
        let Some(shm) = link_state.shm() else { return };
        let source = Source::Control(link);
        // Without it, its end is seen when the peer's process ends.
        let _ = epoll::modify(&self.poll, shm.control.as_fd(), source.encode(), source.flags());
    }

    /// A link.
    #[inline(always)]
    pub fn link(&mut self, link: LinkId) -> Result<(&mut LinkState, &mut MessageState), Error> {
        match self.links.named(Number(link.0)) {
            Some(link_state) => Ok((link_state, &mut self.state)),
            None => Err(Error::Unknown),
        }
    }

    /// Why a link is gone, if it is.
    pub fn gone(&mut self, link: LinkId) -> Option<Reason> {
        self.links.named(Number(link.0)).and_then(|link_state| link_state.gone)
    }

    /// Makes a link over a new transport.
    pub fn join(&mut self, met: Connected, driver: &'static str, how: &How) -> Result<LinkId, Reason> {
        use std::os::fd::AsRawFd;
        // The protocol must know the number before the record is there.
        let Connected { peer, transport } = met;
        let number = self.links.insert(Box::new(LinkState::empty(peer, driver))).ok_or(Reason::NO_MEMORY)?;
        let link = LinkId(number.0);
        let watched = match &transport {
            Transport::SharedMemory(shm) => {
                let process =
                    shm.process.as_ref().map_or(Ok(()), |process| self.watch(raw(process), Source::End(link)));
                let control = self.watch(raw(&shm.control), Source::Control(link));
                process.and(control).and(self.watch(raw(&shm.ear), Source::Ear(link)))
            }
            Transport::Packet(packet_transport) => self.watch(packet_transport.descriptor(), Source::Packet(link)),
        };
        if watched.is_err() {
            self.links.remove(number.index());
            return Err(Reason::NO_MEMORY);
        }
        if let Some(link_state) = self.links.named(number) {
            **link_state = LinkState::new(link, peer, transport, driver, &self.limits);
            link_state.hot = true;
            self.hot.push(link);
            self.sheet.link_state(number.index(), link.0, link_state, how);
        }
        self.state.stirred = true;
        return Ok(link);

        fn raw(fd: &PrivateFd) -> RawFd {
            fd.as_fd().as_raw_fd()
        }
    }

    /// The busy link whose turn it is.
    #[inline(always)]
    pub fn whose_turn(&mut self) -> Option<LinkId> {
        if self.turn.0 >= self.hot.len() {
            self.turn.0 = 0;
        }
        self.hot.get(self.turn.0).copied()
    }

    /// The next one's turn.
    #[inline(always)]
    pub fn pass_turn(&mut self) {
        self.turn = (self.turn.0 + 1, 0);
    }

    /// It had the message that was waited for: it may well have the next one, and has its turn again, but not for ever.
    #[inline(always)]
    pub fn keep_turn(&mut self) {
        const IN_A_ROW: u32 = 16;
        self.turn.1 += 1;
        if self.turn.1 >= IN_A_ROW {
            self.pass_turn();
        }
    }

    /// A link is looked at in every round from now on: its peer need not ring.
    pub fn warm(&mut self, link: LinkId) {
        let Some(link_state) = self.links.named(Number(link.0)).filter(|link_state| !link_state.hot) else { return };
        link_state.hot = true;
        link_state.silent = 0;
        if let Some(shm) = link_state.shm() {
            shm.inward.end_sleep();
        }
        self.hot.push(link);
    }

    /// A sleep on our descriptor is about to let the busy links go. Those whose looks cost a system call are not noted, nor any of very many.
    pub fn note_busy(&mut self) {
        const MOST: usize = 32;
        let Self { hot, links, dozing, asleep, .. } = self;
        if !*asleep {
            dozing.clear(); // of a sleep that a wait has ended
        }
        let mut comes_by =
            |link: &LinkId| links.named(Number(link.0)).is_some_and(|link_state| link_state.comes_by_lane());
        for link in hot {
            if dozing.len() < MOST && comes_by(link) && !dozing.contains(link) {
                dozing.push(*link);
            }
        }
    }

    /// It is over: who polls now must find what comes on any of them in its next round, and peers need not ring.
    pub fn wake_up(&mut self) {
        let Self { hot, links, dozing, .. } = self;
        for link in dozing.drain(..) {
            let Some(link_state) = links.named(Number(link.0)).filter(|link_state| !link_state.hot) else { continue };
            let Some(shm) = link_state.shm() else { continue };
            shm.inward.end_sleep();
            link_state.hot = true; // how long it has been silent stays: it is let go for that
            hot.push(link);
        }
    }

    /// Forgets a link that is gone and of which the program holds nothing any more.
    pub fn forget(&mut self, link: LinkId) {
        let number = Number(link.0);
        let Some(index) = self.links.find(number) else { return };
        self.hot.retain(|known| *known != link);
        self.sheet.left(index);
        let Some(mut link_state) = self.links.remove(index) else { return };
        link_state.came = false; // nothing of it is left to be looked at
        let mut transport = None;
        if link_state.gone.is_none() {
            link_state.flush(link, &mut self.state);
            link_state.end_sharing();
            transport = link_state.transport.take();
            link_state.lose(link, &mut self.state, Reason::PEER_GONE, Broken("the link was closed here"));
        }
        link_state.release_all(link, &mut self.state);
        if let Some(Transport::Packet(packet_transport)) = transport {
            self.see_off(packet_transport);
        }
        for service in self.services.values_mut() {
            service.opened.retain(|channel| channel.link != link);
        }
    }

    /// Forgets links that peers have begun, that are gone, and of which the program holds nothing: whoever comes and goes leaves nothing
    /// behind. Where messages wait to be received it stays until they are.
    #[cold]
    pub fn forget_ended(&mut self) {
        for link in std::mem::take(&mut self.state.ended) {
            let Ok((link_state, _)) = self.link(link) else { continue };
            let (Some(reason), true) = (link_state.gone, link_state.came) else { continue };
            if !link_state.is_held() {
                if matches!(reason, Reason::BROKEN | Reason::GUESSED) {
                    self.sheet.failed(reason); // its row goes with it
                }
                self.forget(link);
            } else if !link_state.callback_state.is_held() && !self.lingering.contains(&link) {
                self.lingering.push(link);
            }
        }
    }

    /// Ends a packet transport once it has delivered what was put.
    fn see_off(&mut self, mut packet_transport: Box<dyn PacketTransport>) {
        if packet_transport.close(clock::nanoseconds()) {
            return;
        }
        let _ = epoll::delete(&self.poll, private_fds::borrow(packet_transport.descriptor()));
        if self.watch(packet_transport.descriptor(), Source::Meeting).is_ok() {
            self.leaving.push(packet_transport);
        }
    }

    /// Closes every link. What was put is delivered where that takes no longer than [`PARTING`].
    pub fn part(&mut self) {
        for index in self.links.indices() {
            self.forget(LinkId(self.links.number(index).0));
        }
        let until = clock::nanoseconds().saturating_add(PARTING);
        while !self.leaving.is_empty() && clock::nanoseconds() < until {
            thread::nap(NAP);
            self.see_all_off();
        }
    }

    /// Goes on with goodbyes.
    #[cold]
    pub fn see_all_off(&mut self) {
        let now = clock::nanoseconds();
        self.leaving.retain_mut(|packet_transport| !packet_transport.close(now));
    }

    /// Puts what is owed to all peers, as far as there is room: they may wait for nothing else.
    pub fn take_leave(&mut self) {
        let Self { links, state, .. } = self;
        for index in links.indices() {
            let link = LinkId(links.number(index).0);
            if let Some(link_state) = links.get_mut(index) {
                link_state.flush(link, state);
            }
        }
    }

    /// All ways to this node.
    pub fn address(&self) -> String {
        self.ways(|listening| listening.address())
    }

    /// The same for people to see.
    pub fn shown_address(&self) -> String {
        self.ways(|listening| listening.place())
    }

    fn ways(&self, say: impl Fn(&dyn Listener) -> String) -> String {
        let way = |(driver, listening): &(&'static dyn Driver, Box<dyn Listener>)| {
            format!("{}://{}", driver.name(), say(&**listening))
        };
        self.listeners.iter().map(way).collect::<Vec<_>>().join(",")
    }

    /// Has the sheet say how the busy links are.
    pub fn publish(&self) {
        for &link in &self.hot {
            let Some(index) = self.links.find(Number(link.0)) else { continue };
            if let Some(link_state) = self.links.get(index) {
                self.sheet.counts(index, link_state);
            }
        }
    }

    /// The handler with this number.
    pub fn handler(&self, number: u32) -> Option<Arc<dyn Handler>> {
        self.handlers.get(self.handlers.find(Number(number))?).cloned()
    }

    /// What is kept of a channel.
    #[inline(always)]
    pub fn place(&mut self, link: LinkId, channel: ChannelId) -> Option<&mut super::message_state::Place> {
        self.links.named(Number(link.0))?.callback_state.place(channel)
    }

    /// Wakes the threads that wait for what another one drives.
    #[inline(always)]
    pub fn stir(&mut self) {
        self.state.stirred = false;
        if !self.waiters.is_empty() {
            self.wake_waiters();
        }
    }

    #[cold]
    fn wake_waiters(&mut self) {
        for thread in self.waiters.drain(..) {
            thread.unpark();
        }
    }
}
