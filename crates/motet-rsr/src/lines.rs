//! Lines: the requests of a channel behind one whose data come apart, so that all are handled in the order in which they were sent.
//!
//! What it is: for each channel with such a request the requests from that one on, each with what of its data is here. What it is not: it receives
//! nothing and runs nothing; `reception` does both. A channel without data that come apart has no line. Bounds are those of a link: a peer may open as many
//! channels as it likes.

use crate::endpoint::{Entry, Job, Registered};
use crate::format::Format;
use crate::memory::Lease;
use crate::request::Data;
use crate::sender::ReplyTo;
use motet::node::{Channel, LinkId};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Requests of a link whose data are under way. A sender has at most 64 ([`crate::routes::Turns`]), and some whose deadline has passed.
const MAX_APART: usize = 256;
/// With so many requests in its lines, or so many bytes of short ones, a link is full: nothing more is received from it then.
const FULL: usize = 512;
const FULL_BYTES: usize = 1 << 20;

/// A request in a line.
pub struct Waiting {
    pub endpoint: Arc<Registered>,
    pub entry: Arc<Entry>,
    pub format: Format,
    pub reply_to: Option<ReplyTo>,
    pub content: Content,
}

/// The data of a request in a line.
pub enum Content {
    /// They are here.
    Here(Data),
    /// They come in a message of their own, for which there was no memory yet.
    Announced { length: usize, tag: u64 },
    /// They are being received.
    Arriving { length: usize, lease: Lease },
    /// They will not come.
    Gone,
}

/// The lines.
#[derive(Default)]
pub struct Lines {
    by_channel: HashMap<Channel, Line>,
    by_link: HashMap<LinkId, Share>,
    /// Where the requests are whose data are being received, by the number of the operation.
    arriving: HashMap<u64, (Channel, u64)>,
    /// Requests in all lines.
    count: usize,
}

#[derive(Default)]
struct Line {
    requests: VecDeque<Waiting>,
    /// How many have left the line: the place of its front.
    left: u64,
}

/// What a link has in lines.
#[derive(Debug, Default)]
struct Share {
    requests: usize,
    /// Requests whose data come apart.
    apart: usize,
    /// Bytes of requests in one packet.
    bytes: usize,
}

impl Share {
    fn is_full(&self) -> bool {
        self.requests >= FULL || self.bytes >= FULL_BYTES
    }
}

impl Lines {
    /// Requests in all lines.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether a request of this channel has to wait in line.
    pub fn has(&self, channel: Channel) -> bool {
        self.by_channel.contains_key(&channel)
    }

    /// Adds a request at the end of its channel's line. False: the peer has announced more data than it may.
    pub fn push(&mut self, channel: Channel, waiting: Waiting) -> bool {
        let share = self.by_link.entry(channel.link).or_default();
        share.requests += 1;
        match &waiting.content {
            Content::Here(data) => share.bytes += data.memory.len(),
            _ => share.apart += 1,
        }
        self.by_channel.entry(channel).or_default().requests.push_back(waiting);
        self.count += 1;
        share.apart <= MAX_APART
    }

    /// Begins to receive data, in order and as long as `begin` does: it gets length and tag, and returns the number of the operation. `None`: there is
    /// no memory; `Some(None)`: the data cannot come. Later requests of the line get no memory before an earlier one, which would wait for them forever.
    /// Returns whether some wait for memory, and how many cannot come.
    pub fn receive(
        &mut self,
        channel: Channel,
        mut begin: impl FnMut(usize, u64) -> Option<Option<(u64, Lease)>>,
    ) -> (bool, usize) {
        let Some(line) = self.by_channel.get_mut(&channel) else { return (false, 0) };
        let mut gone = 0;
        for (at, waiting) in line.requests.iter_mut().enumerate() {
            let Content::Announced { length, tag } = waiting.content else { continue };
            match begin(length, tag) {
                None => return (true, gone),
                Some(None) => {
                    waiting.content = Content::Gone;
                    gone += 1;
                }
                Some(Some((number, lease))) => {
                    waiting.content = Content::Arriving { length, lease };
                    self.arriving.insert(number, (channel, line.left + at as u64));
                }
            }
        }
        (false, gone)
    }

    /// Notes the end of a receive: `take` gets the length that was announced, and makes the data of their memory, or says that they are not whole. Returns
    /// the channel.
    pub fn received(
        &mut self,
        number: u64,
        take: impl FnOnce(usize, Format, Lease) -> Option<Data>,
    ) -> Option<Channel> {
        let (channel, place) = self.arriving.remove(&number)?;
        let line = self.by_channel.get_mut(&channel)?;
        let waiting = line.requests.get_mut(usize::try_from(place.checked_sub(line.left)?).ok()?)?;
        if let Content::Arriving { length, lease } = std::mem::replace(&mut waiting.content, Content::Gone) {
            waiting.content = take(length, waiting.format, lease).map_or(Content::Gone, Content::Here);
        }
        Some(channel)
    }

    /// Gives up what a link has announced and is not being received.
    pub fn abandon(&mut self, link: LinkId) {
        let lines = self.by_channel.iter_mut().filter(|(channel, _)| channel.link == link);
        for waiting in lines.flat_map(|(_, line)| &mut line.requests) {
            if matches!(waiting.content, Content::Announced { .. }) {
                waiting.content = Content::Gone;
            }
        }
    }

    /// The request at the front of a line, if its data are here. Those whose data do not come are dropped.
    pub fn next(&mut self, channel: Channel) -> Option<Job> {
        let line = self.by_channel.get_mut(&channel)?;
        let share = self.by_link.get_mut(&channel.link)?;
        let found = loop {
            match line.requests.front().map(|waiting| &waiting.content) {
                None | Some(Content::Announced { .. } | Content::Arriving { .. }) => break None,
                Some(Content::Here(_) | Content::Gone) => {}
            }
            let Some(Waiting { endpoint, entry, reply_to, content, .. }) = line.requests.pop_front() else {
                break None;
            };
            line.left += 1;
            self.count -= 1;
            share.requests -= 1;
            let Content::Here(data) = content else {
                share.apart -= 1;
                continue;
            };
            match data.lease {
                None => share.bytes -= data.memory.len(),
                Some(_) => share.apart -= 1,
            }
            break Some(Job { endpoint, entry, data, channel, reply_to });
        };
        if line.requests.is_empty() {
            self.by_channel.remove(&channel);
        }
        if share.requests == 0 {
            self.by_link.remove(&channel.link);
        }
        found
    }

    /// Channels with data that wait for memory.
    pub fn without_memory(&self) -> Vec<Channel> {
        let waits = |waiting: &Waiting| matches!(waiting.content, Content::Announced { .. });
        self.by_channel
            .iter()
            .filter(|(_, line)| line.requests.iter().any(waits))
            .map(|(channel, _)| *channel)
            .collect()
    }

    /// Whether a link has as many requests in lines as it may.
    pub fn is_full(&self, link: LinkId) -> bool {
        self.by_link.get(&link).is_some_and(Share::is_full)
    }

    /// Whether that is so for any link.
    pub fn any_full(&self) -> bool {
        self.by_link.values().any(Share::is_full)
    }
}
