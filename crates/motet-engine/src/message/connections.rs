//! How links begin and end: listeners, connects under way, transports that are being closed; and what peers may open channels to.

use super::stats::ConnectHistory;
use super::transport::{Connected, Connector, Identity, Listener, PacketTransport};
use super::{Channel, Context, Handler, LinkId};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::slab::{Slab, SlabId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// How messages of a channel are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serve {
    /// In order, by receives on the channel.
    Queue,
    /// By tag, by receives on the channel or in the context.
    Tagged(Context),
    /// By a handler, by its number.
    Handler(u32),
}

/// What peers may open channels to.
struct Service {
    /// How their messages are received.
    serve: Serve,
    /// Channels that the program has not accepted yet.
    opened: VecDeque<Channel>,
}

/// A connect under way.
pub struct PendingConnect {
    /// The connector of the address that is tried at present.
    pub connector: Option<Box<dyn Connector>>,
    /// The driver of that connector.
    pub driver: &'static dyn Driver,
    /// The addresses that are still to be tried, each with its driver.
    pub remaining: VecDeque<(&'static dyn Driver, String)>,
    /// The addresses that failed, and why.
    pub history: ConnectHistory,
    /// The result, until its caller takes it.
    pub result: Option<Result<LinkId, Reason>>,
}

/// What a node knows of others before and after their links.
#[derive(Default)]
pub struct Connections {
    drivers: Vec<&'static dyn Driver>,
    listeners: Vec<(&'static dyn Driver, Box<dyn Listener>)>,
    /// Transports of links that are closed here, which still have something to deliver.
    closing: Vec<Box<dyn PacketTransport>>,
    pending: Slab<PendingConnect>,
    services: HashMap<u64, Service>,
    handlers: Slab<Arc<dyn Handler>>,
}

impl Connections {
    /// The drivers that the node may use, the best first.
    pub fn drivers(&self) -> &[&'static dyn Driver] {
        &self.drivers
    }

    /// Sets the drivers.
    pub fn set_drivers(&mut self, drivers: &[&'static dyn Driver]) {
        self.drivers = drivers.to_vec();
    }

    // ---- listeners ---------------------------------------------------------------------------------------------------

    /// Adds a listener of a driver.
    pub fn add_listener(&mut self, driver: &'static dyn Driver, listener: Box<dyn Listener>) {
        self.listeners.push((driver, listener));
    }

    /// The drivers that do not listen.
    pub fn idle_drivers(&self) -> Vec<&'static dyn Driver> {
        let listens =
            |driver: &&'static dyn Driver| self.listeners.iter().any(|(other, _)| other.name() == driver.name());
        self.drivers.iter().copied().filter(|driver| !listens(driver)).collect()
    }

    /// Adds a listener whose address is tried before those of the others.
    pub fn add_first_listener(&mut self, driver: &'static dyn Driver, listener: Box<dyn Listener>) {
        self.listeners.insert(0, (driver, listener));
    }

    /// Whether the node listens at all.
    pub fn has_listener(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// The next peer that has connected, and the driver that it has come by.
    pub fn next_accepted(&mut self, now: u64) -> Option<(&'static dyn Driver, Connected)> {
        self.listeners.iter_mut().find_map(|(driver, listener)| Some((*driver, listener.step(now)?)))
    }

    /// The node's addresses, as [`super::Node::connect`] takes them.
    pub fn address(&self) -> String {
        self.addresses(|listener| listener.address())
    }

    /// The node's addresses without their secrets, for people.
    pub fn shown_address(&self) -> String {
        self.addresses(|listener| listener.shown_address())
    }

    fn addresses(&self, say: impl Fn(&dyn Listener) -> String) -> String {
        let address = |(driver, listener): &(&'static dyn Driver, Box<dyn Listener>)| {
            format!("{}://{}", driver.name(), say(&**listener))
        };
        self.listeners.iter().map(address).collect::<Vec<_>>().join(",")
    }

    // ---- connects ----------------------------------------------------------------------------------------------------

    /// Adds a connect. `None`: there are as many as can be.
    pub fn add_pending(&mut self, pending: PendingConnect) -> Option<SlabId> {
        self.pending.insert(pending)
    }

    /// Drops a connect.
    pub fn drop_pending(&mut self, number: SlabId) {
        if let Some(index) = self.pending.find(number) {
            self.pending.remove(index);
        }
    }

    /// Whether connects are under way.
    pub fn has_pending(&self) -> bool {
        self.pending.count() > 0
    }

    /// The connects under way, by index. The list is a copy.
    pub fn pending(&self) -> Vec<u32> {
        self.pending.indices().collect()
    }

    /// A connect, by index.
    pub fn pending_mut(&mut self, index: u32) -> Option<&mut PendingConnect> {
        self.pending.get_mut(index)
    }

    /// The result of a connect, which is dropped then.
    pub fn take_result(&mut self, number: SlabId) -> Option<Result<LinkId, Reason>> {
        let index = self.pending.find(number)?;
        let result = self.pending.get_mut(index)?.result.take()?;
        self.pending.remove(index);
        Some(result)
    }

    // ---- closing -----------------------------------------------------------------------------------------------------

    /// Keeps a transport until it has delivered what was put.
    pub fn add_closing(&mut self, transport: Box<dyn PacketTransport>) {
        self.closing.push(transport);
    }

    /// Whether transports still have something to deliver.
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Goes on with the transports that are being closed.
    #[cold]
    pub fn continue_closing(&mut self, now: u64) {
        self.closing.retain_mut(|transport| !transport.close(now));
    }

    /// When a listener or a closing transport must be looked at although nothing arrives, ns.
    pub fn due(&self) -> Option<u64> {
        let listeners = self.listeners.iter().filter_map(|(_, listener)| listener.due());
        listeners.chain(self.closing.iter().filter_map(|transport| transport.due())).min()
    }

    /// Whether a listener must be looked at although nothing arrives.
    pub fn listener_is_due(&self, now: u64) -> bool {
        self.listeners.iter().any(|(_, listener)| listener.due().is_some_and(|due| due <= now))
    }

    // ---- services and handlers ---------------------------------------------------------------------------------------

    /// Lets peers open channels to a service. The latest call wins.
    pub fn set_service(&mut self, service: u64, serve: Serve) {
        self.services.entry(service).or_insert(Service { serve, opened: VecDeque::new() }).serve = serve;
    }

    /// Refuses channels to a service from now on. Returns those that are not accepted.
    pub fn remove_service(&mut self, service: u64) -> VecDeque<Channel> {
        self.services.remove(&service).map(|service| service.opened).unwrap_or_default()
    }

    /// How a service's channels are received; `None`: there is no such service.
    pub fn service(&self, service: u64) -> Option<Serve> {
        self.services.get(&service).map(|known| known.serve)
    }

    /// A peer has opened a channel to a service.
    pub fn channel_opened(&mut self, service: u64, channel: Channel) {
        if let Some(service) = self.services.get_mut(&service) {
            service.opened.push_back(channel);
        }
    }

    /// The next channel that a peer has opened to a service; `None`: there is no such service.
    pub fn next_opened(&mut self, service: u64) -> Option<Option<Channel>> {
        self.services.get_mut(&service).map(|service| service.opened.pop_front())
    }

    /// Forgets the channels of a link that were not accepted.
    pub fn forget_channels_of(&mut self, link: LinkId) {
        for service in self.services.values_mut() {
            service.opened.retain(|channel| channel.link != link);
        }
    }

    /// Adds a handler. `None`: there are as many as can be.
    pub fn add_handler(&mut self, handler: Arc<dyn Handler>) -> Option<u32> {
        self.handlers.insert(handler).map(|number| number.0)
    }

    /// Takes a handler out.
    pub fn remove_handler(&mut self, number: u32) -> Option<Arc<dyn Handler>> {
        let index = self.handlers.find(SlabId(number))?;
        self.handlers.remove(index)
    }

    /// A handler.
    pub fn handler(&self, number: u32) -> Option<Arc<dyn Handler>> {
        self.handlers.get(self.handlers.find(SlabId(number))?).cloned()
    }
}

impl PendingConnect {
    /// Goes on with the connect; the driver of the last address that was tried and its result, once there is one.
    pub fn step(&mut self, identity: &Identity, now: u64) -> Option<(&'static dyn Driver, Result<Connected, Reason>)> {
        if self.result.is_some() {
            return None;
        }
        loop {
            let result = self.connector.as_mut()?.step(now)?;
            let Err(reason) = result else { return Some((self.driver, result)) };
            self.history.add_failure(self.driver.name(), reason);
            let Some((driver, address)) = self.remaining.pop_front() else { return Some((self.driver, Err(reason))) };
            self.driver = driver;
            match driver.connect_node(identity, &address) {
                Ok(connector) => self.connector = Some(connector),
                Err(reason) if self.remaining.is_empty() => return Some((driver, Err(reason))),
                Err(reason) => self.history.add_failure(driver.name(), reason),
            }
        }
    }
}
