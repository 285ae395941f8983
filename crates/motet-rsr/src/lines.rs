//! Lines: the requests of a channel behind one whose data come apart, so that all are handled in the order in which they were sent.
//!
//! What it is: for each channel with such a request the requests from that one on, each with what of its data is here. What it is not: it receives
//! nothing and runs nothing; `reception` does both. A channel without data that come apart has no line.

use crate::endpoint::{Entry, Job, Registered};
use crate::format::Format;
use crate::memory::Lease;
use crate::request::Data;
use crate::sender::ReplyTo;
use motet::node::Channel;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests of a channel whose data are under way. A sender has at most 64 ([`crate::routes::Turns`]), and some whose deadline has passed.
const MAX_APART: usize = 256;
/// A line with so many requests, or so many bytes of short ones, is full: nothing more is received then.
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
    /// Requests whose data come apart.
    apart: usize,
    /// Bytes of requests in one packet.
    bytes: usize,
    full_since: Option<Instant>,
}

impl Line {
    fn note_fullness(&mut self) {
        let is_full = self.requests.len() >= FULL || self.bytes >= FULL_BYTES;
        self.full_since = is_full.then(|| self.full_since.unwrap_or_else(Instant::now));
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

    /// Adds a request at the end of its channel's line. False: the channel has announced more data than it may.
    pub fn push(&mut self, channel: Channel, waiting: Waiting) -> bool {
        let line = self.by_channel.entry(channel).or_default();
        match &waiting.content {
            Content::Here(data) => line.bytes += data.memory.len(),
            _ => line.apart += 1,
        }
        line.requests.push_back(waiting);
        line.note_fullness();
        self.count += 1;
        line.apart <= MAX_APART
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

    /// Gives up what a channel has announced and is not being received. Returns how many requests that were.
    pub fn abandon(&mut self, channel: Channel) -> usize {
        let waiting = self.by_channel.get_mut(&channel).into_iter().flat_map(|line| &mut line.requests);
        let announced = waiting.filter(|waiting| matches!(waiting.content, Content::Announced { .. }));
        announced.map(|waiting| waiting.content = Content::Gone).count()
    }

    /// The request at the front of a line, if its data are here. Those whose data do not come are dropped.
    pub fn next(&mut self, channel: Channel) -> Option<Job> {
        let line = self.by_channel.get_mut(&channel)?;
        let found = loop {
            match line.requests.front()?.content {
                Content::Announced { .. } | Content::Arriving { .. } => break None,
                Content::Here(_) | Content::Gone => {}
            }
            let Some(Waiting { endpoint, entry, reply_to, content, .. }) = line.requests.pop_front() else {
                break None;
            };
            line.left += 1;
            self.count -= 1;
            if let Content::Here(data) = content {
                match data.lease {
                    None => line.bytes -= data.memory.len(),
                    Some(_) => line.apart -= 1,
                }
                break Some(Job { endpoint, entry, data, channel, reply_to });
            }
            line.apart -= 1;
            if line.requests.is_empty() {
                break None;
            }
        };
        line.note_fullness();
        if line.requests.is_empty() {
            self.by_channel.remove(&channel);
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

    /// Whether a line is full.
    pub fn is_full(&self) -> bool {
        self.by_channel.values().any(|line| line.full_since.is_some())
    }

    /// The channels whose line has been full for so long, and at whose front are data that their sender does not send.
    pub fn stuck(&self, limit: Duration) -> Vec<Channel> {
        let stuck = |line: &Line| {
            line.full_since.is_some_and(|since| since.elapsed() >= limit)
                && matches!(line.requests.front(), Some(Waiting { content: Content::Arriving { .. }, .. }))
        };
        self.by_channel.iter().filter(|(_, line)| stuck(line)).map(|(channel, _)| *channel).collect()
    }
}
