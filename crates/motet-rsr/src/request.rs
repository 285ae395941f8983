//! A request that has arrived, as its handler sees it.

use crate::buffer::{Buffer, Reader};
use crate::error::Error;
use crate::format::Format;
use crate::memory::Lease;
use crate::sender::{ReplyTo, Sender};
use crate::startpoint::Startpoint;
use crate::wire::ReplyStatus;
use motet::node::{Channel, NodeId};
use std::any::Any;
use std::ops::Range;

/// The data of a request or reply: a part of a buffer.
#[derive(Debug)]
pub struct Data {
    pub memory: Vec<u8>,
    pub range: Range<usize>,
    pub format: Format,
    /// Whether the buffer is one for first packets.
    pub is_first: bool,
    /// Leave to hold it.
    pub lease: Option<Lease>,
}

impl Data {
    /// The data.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }

    /// A reader of the data.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self.bytes(), self.format)
    }
}

/// A request, for the handler that runs for it.
pub struct Request<'a> {
    pub(crate) sender: &'a Sender,
    pub(crate) user: Option<&'a (dyn Any + Send + Sync)>,
    pub(crate) data: &'a [u8],
    pub(crate) format: Format,
    pub(crate) channel: Channel,
    /// Where the reply to a call goes, until it is sent.
    pub(crate) reply_to: Option<ReplyTo>,
}

impl std::fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request").field("bytes", &self.data.len()).field("format", &self.format).finish_non_exhaustive()
    }
}

impl Request<'_> {
    /// Gets the data, from their beginning.
    #[inline]
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(self.data, self.format)
    }

    /// The data as they came.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.data
    }

    /// The user value of the endpoint, if it has one of this type.
    pub fn user<T: Any>(&self) -> Option<&T> {
        self.user?.downcast_ref()
    }

    /// The node that has sent it.
    pub fn peer(&self) -> Result<NodeId, Error> {
        Ok(self.sender.node.link_info(self.channel.link)?.peer)
    }

    /// Whether the sender waits for a reply ([`crate::Rsr::call`]) that was not sent yet.
    pub fn wants_reply(&self) -> bool {
        self.reply_to.is_some()
    }

    /// The startpoint to which the reply of a call goes, for a reply that another process or a later time sends ([`crate::Rsr::reply`]). The
    /// handler then has not to reply. `None`: the sender waits for no reply, or has sent a wrong request.
    pub fn take_reply_startpoint(&mut self) -> Option<Startpoint> {
        let startpoint = self.sender.startpoint_of(self.reply_to.as_ref()?)?;
        self.reply_to = None;
        Some(startpoint)
    }

    /// Replies to a call. A reply that cannot leave at once is copied, and given up after [`crate::Options::reply_limit_ns`]; with
    /// [`crate::Reception::Caller`] this waits for it instead. [`Error::Invalid`]: there is no call, or it has its reply. [`Error::TimedOut`]: the caller does
    /// not receive, and as many of its replies are under way as one peer may have.
    pub fn reply(&mut self, buffer: &Buffer<'_>) -> Result<(), Error> {
        let to = self.reply_to.take().ok_or(Error::Invalid("the request wants no reply, or has got it"))?;
        self.sender.reply(&to, ReplyStatus::Done, buffer)
    }
}
