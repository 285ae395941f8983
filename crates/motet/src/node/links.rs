//! Links, services, channels, contexts and handlers.

use super::{Channel, Context, Error, LinkId, Message, Node, Serve, borrowed_memory, deadline};
use motet_engine::message::Node as EngineNode;
use motet_engine::message::connect::LinkInfo;
use std::sync::Arc;
use std::time::Duration;

impl Node {
    /// Opens a link to the node at `address`: a name of this host, or the text of its [`Node::address`]. With a time limit, waits for a node
    /// that does not exist yet.
    #[inline]
    pub fn connect(&self, address: &str, limit: Option<Duration>) -> Result<LinkId, Error> {
        self.0.connect(address, deadline(limit))
    }

    /// Opens a link to a node that is there, as [`Node::connect`] does; where there is none it fails at once. The limit is for a peer that does not answer.
    #[inline]
    pub fn connect_existing(&self, address: &str, limit: Option<Duration>) -> Result<LinkId, Error> {
        self.0.connect_existing(address, deadline(limit))
    }

    /// The links that are up, or down and not closed. A link that the peer opened and that is down closes itself when none of its messages waits
    /// and this side has no channel of it.
    #[inline]
    pub fn links(&self) -> Result<Vec<LinkId>, Error> {
        self.0.links()
    }

    /// The state of a link.
    #[inline]
    pub fn link_info(&self, link: LinkId) -> Result<LinkInfo, Error> {
        self.0.link_info(link)
    }

    /// Closes a link and everything on it. Messages that were sent completely reach a peer that lives.
    #[inline]
    pub fn disconnect(&self, link: LinkId) -> Result<(), Error> {
        self.0.disconnect(link)
    }

    /// Lets peers open channels to a service. The latest call determines how channels that open after it are received.
    #[inline]
    pub fn serve(&self, service: u64, serve: Serve) -> Result<(), Error> {
        self.0.serve(service, serve)
    }

    /// Refuses new channels to a service; open ones stay.
    #[inline]
    pub fn withdraw(&self, service: u64) -> Result<(), Error> {
        self.0.withdraw(service)
    }

    /// Refuses further channels to a service, and closes those that no call has accepted.
    pub fn end_service(&self, service: u64) -> Result<(), Error> {
        self.0.end_service(service)
    }

    /// Returns the next channel that a peer opened to a service.
    #[inline]
    pub fn accept(&self, service: u64, limit: Option<Duration>) -> Result<Channel, Error> {
        self.0.accept(service, deadline(limit))
    }

    /// Opens a channel to a service of the peer. `serve`: how this side receives on it.
    #[inline]
    pub fn open_channel(
        &self,
        link: LinkId,
        service: u64,
        serve: Serve,
        limit: Option<Duration>,
    ) -> Result<Channel, Error> {
        self.0.open_channel(link, service, serve, deadline(limit))
    }

    /// Ends this side's sends on a channel; messages still arrive.
    #[inline]
    pub fn finish(&self, channel: Channel) -> Result<(), Error> {
        self.0.finish(channel)
    }

    /// Closes this side of a channel: its receives complete as closed, messages that were not received are discarded.
    #[inline]
    pub fn close_channel(&self, channel: Channel) -> Result<(), Error> {
        self.0.close_channel(channel)
    }

    /// A new context: receives from any of the channels that are put into it ([`Serve::Tagged`]).
    #[inline]
    pub fn context(&self) -> Result<Context, Error> {
        self.0.context()
    }

    /// A new context whose receives take whole messages only: those that are sent in one packet ([`Node::inject`]). Longer ones go to receives of their
    /// channels. So a peer that stops within a message keeps no receive that others need.
    #[inline]
    pub fn whole_message_context(&self) -> Result<Context, Error> {
        self.0.whole_message_context()
    }

    /// Frees a context. [`Error::WouldBlock`] while it has channels or receives.
    #[inline]
    pub fn remove_context(&self, context: Context) -> Result<(), Error> {
        self.0.remove_context(context)
    }

    /// Registers a function that runs when a message arrives, in the thread that makes progress, one at a time in a node. It may send without
    /// waiting, and must not wait: use [`Node::defer`] for longer work. Returns the reception for [`Node::serve`] and [`Node::open_channel`].
    pub fn handler(&self, function: impl Fn(&Self, Message<'_>) + Send + Sync + 'static) -> Result<Serve, Error> {
        let handler = move |node: &EngineNode, message: Message<'_>| function(borrowed_memory::node_of(node), message);
        self.0.handler(Arc::new(handler))
    }

    /// Frees a handler: it is not called for further messages, which are discarded. It may still be running when this returns.
    pub fn remove_handler(&self, handler: Serve) -> Result<(), Error> {
        match handler {
            Serve::Handler(number) => self.0.remove_handler(number),
            _ => Err(Error::Unknown),
        }
    }
}
