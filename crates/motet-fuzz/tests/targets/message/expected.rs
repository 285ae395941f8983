//! A packet that comes while somebody waits for a message, by both ways: the short one, which takes it from where it lies, and the long one of a
//! posted receive. What the one takes the other must take, with the same tag, headers and bytes; and what breaks the link in one, in both.

use super::{BUFFER, Game, Side};
use motet_proto::message::expected::Expected;
use motet_proto::message::matching::{Posted, Receive, Scope, Selector, Source};
use motet_proto::message::packet::Kind;
use motet_proto::message::{Broken, ChannelId, Envelope, Link};
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages that were taken the short way, in all inputs of the process.
pub static TAKEN: AtomicU64 = AtomicU64::new(0);
/// Receives of the long way: no other operation has such a number.
const POSTED: u64 = 1 << 40;

/// A message, as whoever waited for it gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    channel: ChannelId,
    tag: u64,
    length: u64,
    headers: Vec<u8>,
    body: Vec<u8>,
}

impl Taken {
    /// The message, of its headers and its body.
    pub fn of(message: &Expected, rest: &[u8]) -> Self {
        let (headers, body) = rest.split_at_checked(message.headers).expect("headers lie inside the packet");
        let (length, fits) = (body.len() as u64, body.len().min(BUFFER as usize));
        let (headers, body) = (headers.to_vec(), body[..fits].to_vec());
        Self { channel: message.channel, tag: message.tag, length, headers, body }
    }
}

/// What has become of a receive of the long way.
#[derive(Debug)]
pub struct Watched {
    /// The receive.
    pub operation: u64,
    /// The message that it has got.
    pub taken: Option<Taken>,
    /// It has completed.
    pub over: bool,
}

impl Watched {
    /// A message is for it.
    pub fn matched(&mut self, envelope: &Envelope<'_>) {
        let &Envelope { channel, tag, length, headers, .. } = envelope;
        self.taken = Some(Taken { channel, tag, length, headers: headers.to_vec(), body: Vec::new() });
    }

    /// These bytes of it have come.
    pub fn placed(&mut self, bytes: &[u8]) {
        self.taken.as_mut().expect("matched before").body.extend(bytes);
    }
}

/// The packet comes to both.
pub fn arrived(short: &mut Game, long: &mut Game, scope: Scope, kind: u8, packet: &[u8]) {
    let selector = Selector { from: Source::One(scope), tag: 0, ignore: u64::MAX };
    let alone = short.side.table.alone(selector);
    assert_eq!(alone.is_some(), long.side.table.alone(selector).is_some());
    let by_short = &mut None;
    short.arrived(|link, side, now| {
        if let Some(selector) = alone
            && let Some(taken) = by_lane(link, side, &selector, kind, packet, now)
        {
            *by_short = taken.as_ref().ok().cloned();
            // What is refused the short way arrives, and must break the link.
            return taken.map(|_| ()).or_else(|_| link.arrived(side, kind, packet, now));
        }
        posted(link, side, selector, kind, packet, now).1
    });
    let by_long = &mut None;
    long.arrived(|link, side, now| {
        let (taken, arrived) = posted(link, side, selector, kind, packet, now);
        *by_long = taken;
        arrived
    });
    if by_short.is_some() {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        assert_eq!(by_short, by_long, "the same message");
    } else if alone.is_some() && kind == Kind::Message as u8 {
        assert_eq!(*by_long, None, "a message that somebody waits for alone is taken the short way");
    }
}

/// The short way. None: it is not for that.
pub fn by_lane(
    link: &mut Link,
    side: &mut Side,
    selector: &Selector,
    kind: u8,
    packet: &[u8],
    now: u64,
) -> Option<Result<Taken, Broken>> {
    let (front, rest) = packet.split_first_chunk()?;
    let message = link.expects(&side.table, selector, kind, front, rest.len())?;
    Some(link.take_expected(side, &message, now).map(|()| Taken::of(&message, rest)))
}

/// The long way: what a receive that is posted for this packet alone has got from it, and what came of the packet.
pub fn posted(
    link: &mut Link,
    side: &mut Side,
    selector: Selector,
    kind: u8,
    packet: &[u8],
    now: u64,
) -> (Option<Taken>, Result<(), Broken>) {
    let operation = POSTED | now;
    let ticket = match side.table.post(selector, Receive { operation, capacity: BUFFER, buffer: () }) {
        Posted::Waiting(ticket) => ticket,
        Posted::Found(held) => {
            link.discard(held);
            return (None, link.arrived(side, kind, packet, now));
        }
        Posted::Ended(_) => return (None, link.arrived(side, kind, packet, now)),
    };
    side.operations.push(operation);
    side.watched = Some(Watched { operation, taken: None, over: false });
    let arrived = link.arrived(side, kind, packet, now);
    if side.table.cancel(ticket).is_some() {
        side.operations.retain(|&known| known != operation);
    }
    let watched = side.watched.take().filter(|watched| watched.over && arrived.is_ok());
    (watched.and_then(|watched| watched.taken), arrived)
}
