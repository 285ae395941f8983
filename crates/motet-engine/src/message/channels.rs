//! Channels: what a program calls to open and to close them.
//!
//! How channels that peers open are accepted is in [`super::connect`].

use super::message_state::{self, ChannelPhase, ChannelState};
use super::node_state::NodeState;
use super::{Channel, Error, LinkId, Node, Serve};
use crate::reason::Reason;
use motet_proto::message::{Reception, Rejected};

impl Node {
    /// Opens a channel to a service of the peer, and waits until the peer has answered. `serve` says how this side receives the messages of the
    /// channel.
    ///
    /// Errors: [`Error::Refused`] if the peer does not serve `service`; [`Error::Lost`] if the link is gone; [`Error::TimedOut`].
    pub fn open_channel(
        &self,
        link: LinkId,
        service: u64,
        serve: Serve,
        deadline: Option<u64>,
    ) -> Result<Channel, Error> {
        let opened = self.wait(self.lock()?, deadline, |node| {
            let gone = node.gone(link);
            if node.link(link).is_ok_and(|(link_state, _)| !link_state.proto.is_hello_received() && gone.is_none()) {
                return None; // the HELLO of the peer, which limits the number of channels, has not arrived
            }
            Some(self.begin_channel(node, link, service, serve))
        })?;
        let channel = opened?;
        match self.wait(self.lock()?, deadline, |node| node.answered(channel)) {
            Ok(Ok(())) => Ok(channel),
            Ok(Err(error)) | Err(error) => {
                let _ = self.close_channel(channel);
                Err(error)
            }
        }
    }

    /// Sends the request to open a channel; [`NodeState::answered`] finds the answer.
    fn begin_channel(&self, node: &mut NodeState, link: LinkId, service: u64, serve: Serve) -> Result<Channel, Error> {
        let gone = node.gone(link);
        node.link(link)?;
        let reception = node.reception(serve)?;
        let (link_state, messages) = node.link(link)?;
        match link_state.proto.open(service, reception) {
            Ok(id) => {
                let handler = if let Serve::Handler(number) = serve { number } else { u32::MAX };
                link_state
                    .channel_table
                    .insert(id, ChannelState { phase: ChannelPhase::Opening, reception, handler, is_held: true });
                node.flush_link(link);
                Ok(Channel { link, id })
            }
            Err(rejection) => {
                if let Reception::Matched(scope) = reception {
                    message_state::close_scope(messages, scope);
                }
                Err(if rejection == Rejected::WouldBlock { Error::Full } else { Error::of(rejection, gone) })
            }
        }
    }

    /// Ends the sending direction of a channel: this side sends no more messages on it, and still receives those of the peer.
    pub fn finish(&self, channel: Channel) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.channel_state(channel.link, channel.id).ok_or(Error::Unknown)?;
        let gone = node.gone(channel.link);
        let (link_state, _) = node.link(channel.link)?;
        link_state.proto.close(channel.id).map_err(|rejection| Error::of(rejection, gone))?;
        node.flush_link(channel.link);
        Ok(())
    }

    /// Closes a channel on this side. Receives that wait on it complete as closed; messages that were not received are discarded.
    pub fn close_channel(&self, channel: Channel) -> Result<(), Error> {
        let mut node = self.lock()?;
        node.channel_state(channel.link, channel.id).ok_or(Error::Unknown)?;
        let gone = node.gone(channel.link);
        let (link_state, messages) = node.link(channel.link)?;
        let released =
            link_state.with(channel.link, messages, |proto, _, callbacks| proto.release(callbacks, channel.id));
        released.map_err(|rejection| Error::of(rejection, gone))?;
        link_state.channel_table.remove(channel.id);
        link_state.schedule_forget(channel.link, messages);
        node.flush_link(channel.link);
        node.notify();
        Ok(())
    }
}

impl NodeState {
    /// The result of opening a channel; `None` while the peer has not answered.
    pub(super) fn answered(&mut self, channel: Channel) -> Option<Result<(), Error>> {
        let gone = self.gone(channel.link);
        match self.channel_state(channel.link, channel.id).map(|state| state.phase) {
            None => Some(Err(Error::Unknown)),
            Some(ChannelPhase::Opening) => None,
            Some(ChannelPhase::Open) => Some(Ok(())),
            Some(ChannelPhase::Refused) => Some(Err(Error::Refused)),
            Some(ChannelPhase::Broken) => Some(Err(Error::Lost(gone.unwrap_or(Reason::PEER_GONE)))),
        }
    }
}
