//! Calls to serve the channels that peers open, and to make the contexts and handlers that receive their messages.

use super::node_state::NodeState;
use super::{Channel, Context, Error, Handler, Node, Serve};
use motet_proto::message::matching::Source;
use std::sync::Arc;

impl Node {
    /// Makes a context, for receives from any of the channels that are in it.
    pub fn context(&self) -> Result<Context, Error> {
        self.lock()?.messages.table.add_context().map(Context).ok_or(Error::Full)
    }

    /// Makes a context whose receives take whole messages only ([`Table::add_whole_message_context`]).
    ///
    /// [`Table::add_whole_message_context`]: motet_proto::message::matching::Table::add_whole_message_context
    pub fn whole_message_context(&self) -> Result<Context, Error> {
        self.lock()?.messages.table.add_whole_message_context().map(Context).ok_or(Error::Full)
    }

    /// Removes a context. While channels or receives are in it, nothing is done and the error is [`Error::WouldBlock`].
    pub fn remove_context(&self, context: Context) -> Result<(), Error> {
        let mut node = self.lock()?;
        let table = &mut node.messages.table;
        match table.has_context(context.0) {
            false => Err(Error::Unknown),
            true if table.remove_source(Source::Any(context.0)) => Ok(()),
            true => Err(Error::WouldBlock),
        }
    }

    /// Registers a handler and returns the [`Serve::Handler`] with its number.
    pub fn handler(&self, handler: Arc<dyn Handler>) -> Result<Serve, Error> {
        self.lock()?.connections.add_handler(handler).map(Serve::Handler).ok_or(Error::Full)
    }

    /// Removes a handler: it is not called for further messages, which are discarded. It may still be running when this returns.
    pub fn remove_handler(&self, handler: u32) -> Result<(), Error> {
        let mut node = self.lock()?;
        let handler = node.connections.remove_handler(handler).ok_or(Error::Unknown)?;
        drop(node);
        drop(handler); // without the lock: the drop runs code of the program
        Ok(())
    }

    /// Lets peers open channels to a service, whose messages are received as `serve` says. A later call for the same service replaces this one;
    /// channels that are open already do not change.
    pub fn serve(&self, service: u64, serve: Serve) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.can_serve(serve)?;
        node.connections.set_service(service, serve);
        Ok(())
    }

    /// Refuses further channels to a service. Those that are open do not change.
    pub fn withdraw(&self, service: u64) -> Result<(), Error> {
        self.lock()?.connections.remove_service(service);
        Ok(())
    }

    /// Refuses further channels to a service, and closes those that no call has accepted.
    pub fn end_service(&self, service: u64) -> Result<(), Error> {
        let unaccepted = self.lock()?.connections.remove_service(service);
        for channel in unaccepted {
            let _ = self.close_channel(channel); // its link may be gone
        }
        Ok(())
    }

    /// Waits for the next channel that a peer opens to a service. [`Error::Refused`] if this node does not serve it.
    pub fn accept(&self, service: u64, deadline: Option<u64>) -> Result<Channel, Error> {
        let known = |node: &mut NodeState| {
            let opened = node.connections.next_opened(service)?;
            if let Some(state) = opened.and_then(|channel| node.channel_state(channel.link, channel.id)) {
                state.is_held = true;
            }
            Some(opened)
        };
        self.wait(self.lock()?, deadline, |node| match known(node) {
            Some(channel) => channel.map(Ok),
            None => Some(Err(Error::Refused)),
        })?
    }
}
