//! The state of a node that its lock protects, and the calls that add and remove links.

use super::connections::{Connections, Serve};
use super::link::LinkState;
use super::links::Links;
use super::loaned::ReleaseQueue;
use super::message_state::MessageState;
use super::packets::RxPacket;
use super::progress_state::ProgressState;
use super::stats::{ConnectHistory, StatsPage};
use super::transport::{Connected, Identity, PacketTransport, Transport};
use super::{Error, LinkId, MessageLimits};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::{ChannelId, ProtocolViolation, Reception};
use motet_sys::private_fds::PrivateFd;
use motet_sys::rustix::event::epoll;
use motet_sys::rustix::fd::AsFd;
use motet_sys::{biased_lock, clock, private_fds, thread};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::Arc;

/// How long a node that is dropped waits until its peers have received what was sent to them, ns.
const LINGER_NS: u64 = 1_000_000_000;
/// Sleep between two checks whether all packet transports are closed, ns.
const LINGER_CHECK_INTERVAL_NS: u64 = 50_000;

/// The held lock of a node, which gives access to its [`NodeState`].
pub type NodeGuard<'a> = biased_lock::BiasedLockGuard<'a, NodeState>;

/// The state of a node that its lock protects.
pub struct NodeState {
    /// The node's number, name, secret and listening address.
    pub identity: Identity,
    /// The limits that apply to every link.
    pub limits: MessageLimits,
    /// Matching, operations and regions, which all links share.
    pub messages: MessageState,
    /// The links of the node.
    pub links: Links,
    /// Listeners, connects, services and handlers.
    pub connections: Connections,
    /// The thread that makes progress, and the events that wake it.
    pub progress: ProgressState,
    /// The completion queue whose last poll did all that was due: no completion waits in it, and the next poll needs to look at the active links only.
    /// [`super::CqId::NONE`]: not known. Every use of the node clears it, except posts of receives and sends.
    pub quiet: super::CqId,
    /// The buffer of the packet that is being handled. It is taken out while a handler runs.
    pub rx_packet: Option<Box<RxPacket>>,
    /// Number of released segments of the pool when the peers were last informed.
    pub withdrawn_segments: usize,
    /// The stats page.
    pub stats: StatsPage,
}

/// What an event of the epoll set is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// The wakeup descriptor: a thread of this process wants the sleeping thread's attention.
    Wakeup,
    /// The receive doorbell of a link: its peer has sent although the link is not polled.
    RxDoorbell(LinkId),
    /// The peer's process has ended, or the peer has closed the link.
    PeerClosed(LinkId),
    /// The packet transport of a link can receive or send.
    Packet(LinkId),
    /// The control connection of a link: its peer announces or withdraws a segment, or has closed the connection.
    Control(LinkId),
    /// A listener, a connection attempt, or a packet transport that is being closed.
    Connection,
}

impl EventSource {
    fn encode(self) -> epoll::EventData {
        let (kind, link) = match self {
            Self::Wakeup => (0, 0),
            Self::RxDoorbell(link) => (1, link.0),
            Self::PeerClosed(link) => (2, link.0),
            Self::Packet(link) => (3, link.0),
            Self::Connection => (4, 0),
            Self::Control(link) => (5, link.0),
        };
        epoll::EventData::new_u64(kind << 32 | u64::from(link))
    }

    /// The epoll flags of this source.
    fn flags(self) -> epoll::EventFlags {
        let once = matches!(self, Self::PeerClosed(_) | Self::Control(_));
        let once = if once { epoll::EventFlags::ONESHOT } else { epoll::EventFlags::empty() };
        epoll::EventFlags::IN | epoll::EventFlags::RDHUP | once
    }

    /// Decodes the source of an event.
    pub fn decode(data: epoll::EventData) -> Self {
        let link = LinkId(data.u64() as u32);
        match data.u64() >> 32 {
            0 => Self::Wakeup,
            1 => Self::RxDoorbell(link),
            2 => Self::PeerClosed(link),
            3 => Self::Packet(link),
            5 => Self::Control(link),
            _ => Self::Connection,
        }
    }
}

impl NodeState {
    /// The state of a node without links.
    pub fn new(
        identity: Identity,
        limits: MessageLimits,
        mut messages: MessageState,
        poll: PrivateFd,
        wakeup: PrivateFd,
    ) -> Self {
        let wakeup = Arc::new(wakeup);
        messages.operations.releases = Some(Arc::new(ReleaseQueue::new(wakeup.clone())));
        Self {
            identity,
            limits,
            messages,
            links: Links::default(),
            connections: Connections::default(),
            progress: ProgressState::new(poll, wakeup),
            quiet: super::CqId::NONE,
            rx_packet: Some(Box::default()),
            withdrawn_segments: 0,
            stats: StatsPage::default(),
        }
    }

    /// Listens for other nodes with every driver that carries messages.
    pub fn listen(&mut self, drivers: &[&'static dyn Driver]) -> Result<(), Error> {
        let mut refused = Reason::NO_MESSAGES;
        for &driver in drivers {
            match driver.listen(&self.identity) {
                Ok(listening) => {
                    self.watch(listening.descriptor(), EventSource::Connection)?;
                    self.connections.add_listener(driver, listening);
                }
                Err(Reason::NO_MESSAGES) => {}
                // The program asked for this name or address, so another listener cannot replace it.
                Err(reason @ (Reason::NAME_TAKEN | Reason::BAD_NAME)) => return Err(Error::Unreachable(reason)),
                Err(reason) => refused = reason,
            }
        }
        self.connections.set_drivers(drivers);
        if self.connections.has_listener() { Ok(()) } else { Err(Error::Unreachable(refused)) }
    }

    /// Listens for nodes of other hosts at this address, with the drivers that do not listen yet. A node that listens for them goes on as it is.
    pub fn listen_for_hosts(&mut self, address: SocketAddr) -> Result<(), Error> {
        if self.identity.listen.is_some() {
            return Ok(());
        }
        self.identity.listen = Some(address);
        let mut result = Err(Reason::NO_MESSAGES);
        for driver in self.connections.idle_drivers() {
            match driver.listen(&self.identity) {
                Ok(listening) => {
                    self.watch(listening.descriptor(), EventSource::Connection)?;
                    self.connections.add_listener(driver, listening);
                    result = Ok(());
                }
                Err(Reason::NO_MESSAGES) => {}
                Err(reason) => result = result.or(Err(reason)),
            }
        }
        if result.is_err() {
            self.identity.listen = None;
        }
        result.map_err(Error::Unreachable)
    }

    /// Listens in a folder, too, and looks there for other nodes. Its addresses come first.
    pub fn listen_in(&mut self, folder: &Path) -> Result<(), Error> {
        if self.identity.folder.as_deref() == Some(folder) {
            return Ok(());
        }
        let identity = Identity { folder: Some(folder.to_owned()), ..self.identity.clone() };
        let mut refused = Reason::NO_MESSAGES;
        for driver in self.connections.drivers().to_vec() {
            match driver.listen_in_folder(&identity) {
                Ok(listening) => {
                    self.watch(listening.descriptor(), EventSource::Connection)?;
                    self.connections.add_first_listener(driver, listening);
                    self.identity = identity;
                    return Ok(());
                }
                Err(reason) => refused = reason,
            }
        }
        Err(Error::Unreachable(refused))
    }

    /// Checks that the context or handler that `serve` names exists.
    pub fn can_serve(&self, serve: Serve) -> Result<(), Error> {
        let known = match serve {
            Serve::Queue => true,
            Serve::Tagged(context) => self.messages.table.has_context(context.0),
            Serve::Handler(handler) => self.connections.handler(handler).is_some(),
        };
        if known { Ok(()) } else { Err(Error::Unknown) }
    }

    /// The way in which the protocol receives the messages of a channel that is served by `serve`.
    pub fn reception(&mut self, serve: Serve) -> Result<Reception, Error> {
        self.can_serve(serve)?;
        let scope = match serve {
            Serve::Queue => self.messages.table.add_ordered_scope(),
            Serve::Tagged(context) => self.messages.table.add_scope(Some(context.0)),
            Serve::Handler(_) => return Ok(Reception::Handler),
        };
        scope.map(Reception::Matched).ok_or(Error::Full)
    }

    /// Adds a descriptor to the epoll set, so that it wakes the sleeping thread.
    pub fn watch(&self, fd: RawFd, source: EventSource) -> Result<(), Error> {
        epoll::add(self.progress.poll(), private_fds::borrow(fd), source.encode(), source.flags())
            .map_err(|e| Error::NoNode(e.raw_os_error()))
    }

    /// Watches the control connection of a link for its next event, because these events are one-shot.
    pub fn watch_control_again(&mut self, link: LinkId) {
        let Some(link_state) = self.links.get_mut(link) else { return };
        let Some(shm) = link_state.shm() else { return };
        let source = EventSource::Control(link);
        // If this fails, the end of the link is noticed when the peer's process ends.
        let _ = epoll::modify(self.progress.poll(), shm.control.as_fd(), source.encode(), source.flags());
    }

    /// A link, and the message state that all links share.
    #[inline(always)]
    pub fn link(&mut self, link: LinkId) -> Result<(&mut LinkState, &mut MessageState), Error> {
        match self.links.get_mut(link) {
            Some(link_state) => Ok((link_state, &mut self.messages)),
            None => Err(Error::Unknown),
        }
    }

    /// Why a link is down, if it is.
    pub fn gone(&mut self, link: LinkId) -> Option<Reason> {
        self.links.get(link).and_then(|link_state| link_state.gone)
    }

    /// Adds a link over a new transport.
    pub fn add_link(
        &mut self,
        connected: Connected,
        driver: &'static str,
        history: &ConnectHistory,
    ) -> Result<LinkId, Reason> {
        use std::os::fd::AsRawFd;
        // The state of a link contains the link's number, so an empty state is inserted first.
        let Connected { peer, transport } = connected;
        let link = self.links.insert(LinkState::empty(peer, driver)).ok_or(Reason::NO_MEMORY)?;
        let watched = match &transport {
            Transport::SharedMemory(shm) => {
                let process = shm
                    .process
                    .as_ref()
                    .map_or(Ok(()), |process| self.watch(raw(process), EventSource::PeerClosed(link)));
                let control = self.watch(raw(&shm.control), EventSource::Control(link));
                process.and(control).and(self.watch(raw(&shm.rx_doorbell), EventSource::RxDoorbell(link)))
            }
            Transport::Packet(packet_transport) => self.watch(packet_transport.descriptor(), EventSource::Packet(link)),
        };
        if watched.is_err() {
            self.links.remove(link);
            return Err(Reason::NO_MEMORY);
        }
        if let (Some(index), Some(link_state)) = (self.links.index(link), self.links.get_mut(link)) {
            *link_state = LinkState::new(link, peer, transport, driver, &self.limits);
            self.stats.link_up(index, link.0, link_state, history);
            self.links.activate(link);
        }
        self.messages.wake_pending = true;
        return Ok(link);

        fn raw(fd: &PrivateFd) -> RawFd {
            fd.as_fd().as_raw_fd()
        }
    }

    /// Removes a link. If it is still up it is shut down first, so that what was put is still delivered.
    pub fn remove_link(&mut self, link: LinkId) {
        let Some(index) = self.links.index(link) else { return };
        self.stats.link_removed(index);
        let Some(mut link_state) = self.links.remove(link) else { return };
        link_state.accepted = false; // so that the calls below do not queue it for `forget_ended`
        let mut transport = None;
        if link_state.gone.is_none() {
            link_state.flush(link, &mut self.messages);
            link_state.end_cooperative_copy();
            transport = link_state.transport.take();
            link_state.take_down(
                link,
                &mut self.messages,
                Reason::PEER_GONE,
                ProtocolViolation("this side has closed the link"),
            );
        }
        link_state.release_channels(link, &mut self.messages);
        if let Some(Transport::Packet(packet_transport)) = transport {
            self.linger(packet_transport);
        }
        self.connections.forget_channels_of(link);
    }

    /// Removes the links that peers have opened, that are down, and of which the program holds nothing, so that peers that connect and disconnect leave
    /// nothing behind. A link with messages that wait to be received stays until they are received.
    #[cold]
    pub fn remove_ended_links(&mut self) {
        for link in std::mem::take(&mut self.messages.ended_links) {
            let Ok((link_state, _)) = self.link(link) else { continue };
            let (Some(reason), true) = (link_state.gone, link_state.accepted) else { continue };
            if !link_state.is_held() {
                if matches!(reason, Reason::BROKEN | Reason::UNKNOWN_REGION_KEY) {
                    self.stats.connect_failed(reason); // the row of the link is about to be removed
                }
                self.remove_link(link);
            } else if !link_state.channel_table.is_held() {
                self.links.linger(link);
            }
        }
    }

    /// Closes a packet transport. If packets are still to be delivered, the transport is kept until they are.
    fn linger(&mut self, mut packet_transport: Box<dyn PacketTransport>) {
        if packet_transport.close(clock::nanoseconds()) {
            return;
        }
        let _ = epoll::delete(self.progress.poll(), private_fds::borrow(packet_transport.descriptor()));
        if self.watch(packet_transport.descriptor(), EventSource::Connection).is_ok() {
            self.connections.add_closing(packet_transport);
        }
    }

    /// Closes every link. Waits at most [`LINGER_NS`] until what was put is delivered.
    pub fn shut_down_links(&mut self) {
        for link in self.links.all() {
            self.remove_link(link);
        }
        let until = clock::nanoseconds().saturating_add(LINGER_NS);
        while self.connections.is_closing() && clock::nanoseconds() < until {
            thread::sleep_ns(LINGER_CHECK_INTERVAL_NS);
            self.connections.continue_closing(clock::nanoseconds());
        }
    }

    /// Sends what the links owe their peers, as far as there is room: the peers may wait for nothing else.
    pub fn flush_all(&mut self) {
        let Self { links, messages, .. } = self;
        for link in links.all() {
            if let Some(link_state) = links.get_mut(link) {
                link_state.flush(link, messages);
            }
        }
    }

    /// Writes the counters of the active links to the stats page.
    pub fn publish(&self) {
        for &link in self.links.active() {
            if let (Some(index), Some(link_state)) = (self.links.index(link), self.links.get(link)) {
                self.stats.counts(index, link_state);
            }
        }
    }

    /// The state of a channel, if the channel exists.
    #[inline(always)]
    pub fn channel_state(
        &mut self,
        link: LinkId,
        channel: ChannelId,
    ) -> Option<&mut super::message_state::ChannelState> {
        self.links.get_mut(link)?.channel_table.channel_state(channel)
    }

    /// Wakes the threads that wait while another one makes progress.
    #[inline(always)]
    pub fn wake_waiters(&mut self) {
        self.messages.wake_pending = false;
        self.progress.wake_all();
    }
}
