//! A packet on both paths: the direct one, which reads it in place, and the general one. Both must give a posted receive the same message, or keep
//! the same message if no receive is posted. A packet that breaks the link on one path must break it on both.

use super::{BUFFER, Model, Side};
use motet_proto::message::fast_path::{Matched, Receiver};
use motet_proto::message::matching::{PostOutcome, Receive, Scope, Selector, Source};
use motet_proto::message::packet;
use motet_proto::message::{Callbacks, ChannelId, Envelope, Link, Outcome, ProtocolViolation, Status};
use std::sync::atomic::{AtomicU64, Ordering};

/// Messages received on the direct path, in all inputs of the process.
pub static MESSAGES_TAKEN: AtomicU64 = AtomicU64::new(0);
/// Messages kept without a receive on the direct path.
pub static MESSAGES_KEPT: AtomicU64 = AtomicU64::new(0);
/// Ids of this module's receives; no other operation has this bit.
const POSTED: u64 = 1 << 40;

/// A received message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    channel: ChannelId,
    tag: u64,
    length: u64,
    headers: Vec<u8>,
    body: Vec<u8>,
}

/// A receive under observation.
#[derive(Debug)]
pub struct Watched {
    /// Its operation.
    pub operation: u64,
    /// The message that it matched.
    pub taken: Option<Taken>,
    /// Whether it has completed.
    pub over: bool,
}

impl Watched {
    /// A message matches it.
    pub fn matched(&mut self, envelope: &Envelope<'_>) {
        let &Envelope { channel, tag, length, headers, .. } = envelope;
        self.taken = Some(Taken { channel, tag, length, headers: headers.to_vec(), body: Vec::new() });
    }

    /// Bytes of the message arrive.
    pub fn placed(&mut self, bytes: &[u8]) {
        self.taken.as_mut().expect("matched before").body.extend(bytes);
    }
}

/// The path of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The direct path, if it takes the packet.
    Direct,
    /// The general path, [`Link::arrived`].
    General,
}

/// Passes a packet to both sides, with a posted receive.
pub fn arrived(direct: &mut Model, general: &mut Model, scope: Scope, kind: u8, packet: &[u8]) {
    let selector = Selector { from: Source::One(scope), tag: 0, ignore: u64::MAX };
    let [by_direct, by_general] = [(direct, Path::Direct), (general, Path::General)].map(|(model, path)| {
        let mut taken = None;
        model.arrived(|link, side, now| {
            let result;
            (taken, result) = posted(link, side, selector, (kind, packet), now, path);
            result
        });
        taken
    });
    assert_eq!(by_direct, by_general, "the same message");
}

/// Passes a packet to both sides, without a posted receive.
pub fn arrived_early(direct: &mut Model, general: &mut Model, kind: u8, packet: &[u8]) {
    direct.arrived(|link, side, now| match take(link, side, kind, packet, now) {
        Some(()) => Ok(()),
        None => link.arrived(side, kind, packet, now),
    });
    general.arrived(|link, side, now| link.arrived(side, kind, packet, now));
}

/// Posts a receive for this packet alone. Returns the message that it got, and the result of the packet.
pub fn posted(
    link: &mut Link,
    side: &mut Side,
    selector: Selector,
    (kind, packet): (u8, &[u8]),
    now: u64,
    path: Path,
) -> (Option<Taken>, Result<(), ProtocolViolation>) {
    let operation = POSTED | now;
    let ticket = match side.table.post(selector, Receive { operation, capacity: BUFFER, buffer: () }) {
        PostOutcome::Posted(ticket) => ticket,
        PostOutcome::Matched(held) => {
            link.discard(held);
            return (None, link.arrived(side, kind, packet, now));
        }
        PostOutcome::Ended(_) => return (None, link.arrived(side, kind, packet, now)),
    };
    side.operations.push(operation);
    side.watched = Some(Watched { operation, taken: None, over: false });
    let taken = path == Path::Direct && take(link, side, kind, packet, now).is_some();
    let arrived = if taken { Ok(()) } else { link.arrived(side, kind, packet, now) };
    if side.table.cancel(ticket).is_some() {
        side.operations.retain(|&known| known != operation);
    }
    let watched = side.watched.take().filter(|watched| watched.over && arrived.is_ok());
    (watched.and_then(|watched| watched.taken), arrived)
}

/// The direct path, with its owner's part. `None`: it does not take the packet, and nothing was done.
fn take(link: &mut Link, side: &mut Side, kind: u8, packet: &[u8], now: u64) -> Option<()> {
    let (words, rest) = packet.split_first_chunk::<{ packet::MESSAGE_HEAD_BYTES }>()?;
    let words = [0, 8].map(|at| u64::from_le_bytes(std::array::from_fn(|byte| words[at + byte])));
    let matched = link.match_message(side, kind, words, rest.len(), (now, None))?;
    let Matched { receiver, channel, tag, headers } = matched;
    let receive = match receiver {
        Receiver::PostedReceive(receive) => receive,
        Receiver::Unposted => panic!("there is none"),
        Receiver::Unexpected => {
            link.keep_message(side, &matched, rest.into());
            MESSAGES_KEPT.fetch_add(1, Ordering::Relaxed);
            return Some(());
        }
    };
    let (headers, body) = rest.split_at(headers);
    let Receive { operation, capacity, .. } = *side.table.get(receive).expect("it is still in the table");
    side.table.remove(receive);
    let (length, fits) = (body.len() as u64, body.len().min(capacity as usize));
    side.matched(operation, &Envelope { source: 0, channel, tag, length, headers });
    side.place(operation, 0, &body[..fits]);
    let status = if fits < body.len() { Status::Truncated } else { Status::Done };
    side.completed(operation, Outcome { status, length: fits as u64 });
    MESSAGES_TAKEN.fetch_add(1, Ordering::Relaxed);
    Some(())
}
