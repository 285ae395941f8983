//! The direct path of a whole message: from the lane, or its ring, to the memory of its receive, or to the table if none waits for it.
//!
//! It is a step of a look for ends ([`super::completions`]), which then gets the end at once, or of any other look ([`super::link::LinkState::look`]).
//! Which receive gets the message is the protocol's decision. Any other packet is left untouched to [`Link::arrived`].

use super::message_state::{LinkCallbacks, MessageState};
use super::operations::{CompletionRef, CompletionSink, CqId, NONE};
use super::packets::RxPacket;
use super::transport::ShmTransport;
use super::{Channel, pipelined};
use motet_proto::message::fast_path::{Matched, Receiver};
use motet_proto::message::matching::Selector;
use motet_proto::message::packet::{self, Kind};
use motet_proto::message::rendezvous::Payload;
use motet_proto::message::{Callbacks, Envelope, Link, Outcome, Status, header_stack};
use motet_sys::user_memory::UserMemory;
use motet_wire::message::fifo::payload_ring::{BODY_IN_RING, RingSpan};
use motet_wire::message::fifo::{Peeked, SingleCell};

/// Words of a line that every message has.
const WORDS: usize = packet::MESSAGE / 8;

/// What became of the next packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There is none.
    Nothing,
    /// It is something else than a whole message for a posted receive, and nothing has been done.
    Other,
    /// It was one; its end lies with its operation.
    Kept,
    /// It was one, and its end was reported.
    Reported,
    /// It is a whole message that no receive waits for: the table keeps it.
    Queued,
}

/// Takes the next packet if it is a whole message, and tells the end of its receive if that is one of this cq. No earlier end may be queued
/// in the cq.
#[inline(always)]
pub fn report(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> Taken {
    let short = match shm.inward.peek_cell() {
        Peeked::Nothing => return Taken::Nothing,
        Peeked::SingleCell(short) => short,
        Peeked::FlaggedCell(short) => return receive_from_ring(shm, &short, proto, callbacks, (cq, now), sink),
        Peeked::Other => return receive_longer(shm, proto, callbacks, rx_packet, (cq, now), sink),
    };
    let Some((matched, length)) = matched(&short, proto, callbacks, (now, sink.alone())) else { return Taken::Other };
    if let Receiver::Unexpected = matched.receiver {
        queue_short(&short, proto, callbacks, &matched, length);
        shm.inward.consume_cell();
        return Taken::Queued;
    }
    let (words, bytes);
    let (pushed, body) = match matched.headers {
        // What most short messages are: a word, behind none or that of a library that has a header.
        headers @ (0 | 8) if length == headers + 8 => {
            words = [short.word(WORDS), short.word(WORDS + 1)].map(u64::to_le_bytes);
            let (pushed, body) = words.as_flattened().split_at(headers);
            (pushed, &body[..8])
        }
        headers => {
            bytes = short.bytes_from_word::<WORDS>();
            bytes[..length.min(bytes.len())].split_at(headers.min(length))
        }
    };
    let taken = end(callbacks, &matched, (pushed, body.len()), cq, sink, |span| span.fill(0, body));
    if taken == Taken::Kept {
        keep(callbacks, &matched, pushed, body);
    }
    shm.inward.consume_cell();
    taken
}

/// Takes a message of which the line holds the first words, and the ring the other bytes.
#[inline(never)]
fn receive_from_ring(
    shm: &mut ShmTransport,
    short: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> Taken {
    if short.flags != BODY_IN_RING || short.length() != packet::MESSAGE + size_of::<u32>() {
        return Taken::Other;
    }
    let Ok(run) = shm.bulk.1.span(short.word(WORDS) as u32 as usize) else { return Taken::Other };
    let words = [short.word(0), short.word(1)];
    let wanted = (now, sink.alone().map(|(selector, _)| selector));
    let Some(matched) = proto.match_message(callbacks, short.kind, words, run.len(), wanted) else {
        return Taken::Other;
    };
    let taken = match matched.receiver {
        Receiver::Unexpected => queue(proto, callbacks, &matched, Payload::InRing(run)),
        _ => receive_ring_span(callbacks, &matched, run, cq, sink),
    };
    shm.inward.consume_cell();
    shm.bulk.1.release(run.len());
    shm.inward.notify_freed();
    taken
}

/// Ends the receive of a message that lies in the ring.
#[inline(always)]
fn receive_ring_span(
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    run: RingSpan,
    cq: CqId,
    sink: &mut impl CompletionSink,
) -> Taken {
    let (mut word, mut bytes);
    let headers = match matched.headers {
        0 => &mut [][..],
        // That of a library that has a header.
        8 => {
            word = [0; 8];
            &mut word[..]
        }
        headers => {
            bytes = [0; header_stack::MAX_HEADERS_BYTES];
            &mut bytes[..headers]
        }
    };
    run.read(headers);
    let body = run.skip(headers.len());
    let taken = end(callbacks, matched, (headers, body.len()), cq, sink, |span| {
        let fits = span.len().min(body.len());
        span.write(0, fits, |into| body.read(into));
        fits
    });
    if taken == Taken::Kept {
        keep_run(callbacks, matched, headers, body);
    }
    taken
}

/// Takes a message that is longer than one line, once all of it is there.
#[inline(never)]
fn receive_longer(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    rx_packet: &mut RxPacket,
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> Taken {
    let Ok(Some(packet)) = shm.inward.peek(&mut rx_packet.fifo) else { return Taken::Other };
    if packet.kind != Kind::Message as u8 {
        return Taken::Other;
    }
    let (bytes, wanted) = (packet.bytes(&rx_packet.fifo), (now, sink.alone().map(|(selector, _)| selector)));
    if packet.continuations() > 0 && shm.inward.has_continuations(packet.continuations()) != Ok(true) {
        if packet.flags != BODY_IN_RING {
            return Taken::Other;
        }
        return pipelined::report(shm, proto, callbacks, (&packet, bytes), (cq, now), sink);
    }
    if packet.flags == 0 {
        let Some((words, rest)) = words_of(bytes) else { return Taken::Other };
        let Some(matched) = proto.match_message(callbacks, packet.kind, words, rest.len(), wanted) else {
            return Taken::Other;
        };
        let (pushed, body) = rest.split_at(matched.headers);
        let taken = match matched.receiver {
            Receiver::Unexpected => queue(proto, callbacks, &matched, Payload::InPacket(rest)),
            _ => end(callbacks, &matched, (pushed, body.len()), cq, sink, |span| span.fill(0, body)),
        };
        if taken == Taken::Kept {
            keep(callbacks, &matched, pushed, body);
        }
        shm.inward.consume(&packet);
        return taken;
    }
    let ring = &mut shm.bulk.1;
    let (true, Ok((front, run))) = (packet.flags == BODY_IN_RING, ring.split_packet(bytes)) else {
        return Taken::Other;
    };
    let Some((words, [])) = words_of(front) else { return Taken::Other };
    let Some(matched) = proto.match_message(callbacks, packet.kind, words, run.len(), wanted) else {
        return Taken::Other;
    };
    let taken = match matched.receiver {
        Receiver::Unexpected => queue(proto, callbacks, &matched, Payload::InRing(run)),
        _ => receive_ring_span(callbacks, &matched, run, cq, sink),
    };
    shm.inward.consume(&packet);
    ring.release(run.len());
    shm.inward.notify_freed();
    taken
}

/// The first words of a packet, and what follows them.
fn words_of(bytes: &[u8]) -> Option<([u64; WORDS], &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    Some(([first, second].map(|word| u64::from_le_bytes(*word)), rest))
}

/// The message of a line, and its bytes behind those words.
#[inline(always)]
fn matched(
    short: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (now, alone): (u64, Option<(&Selector, UserMemory)>),
) -> Option<(Matched, usize)> {
    let length = short.length().checked_sub(packet::MESSAGE)?;
    let words = [short.word(0), short.word(1)];
    let wanted = (now, alone.map(|(selector, _)| selector));
    proto.match_message(callbacks, short.kind, words, length, wanted).map(|matched| (matched, length))
}

/// Ends the receive of a message, with its headers and so many bytes of body, which `fill` puts into place, and tells that.
/// [`Taken::Kept`]: nothing has been done, as it is no receive of this cq into memory of the program's.
#[inline(always)]
fn end(
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    (headers, length): (&[u8], usize),
    cq: CqId,
    sink: &mut impl CompletionSink,
    fill: impl FnOnce(UserMemory) -> usize,
) -> Taken {
    let channel = Channel { link: callbacks.link, id: matched.channel };
    let MessageState { table, operations, .. } = &mut *callbacks.messages;
    let Receiver::PostedReceive(oldest) = matched.receiver else {
        end_alone((channel, matched.tag, headers), length, sink, fill);
        return Taken::Reported;
    };
    let Some(receive) = table.get(oldest) else { return Taken::Kept };
    if !operations.report_message((receive, channel, matched.tag, headers), length, cq, sink, fill) {
        return Taken::Kept;
    }
    table.remove(oldest);
    Taken::Reported
}

/// Ends a blocking receive that is not posted.
#[inline(always)]
fn end_alone(
    (channel, tag, headers): (Channel, u64, &[u8]),
    full: usize,
    sink: &mut impl CompletionSink,
    fill: impl FnOnce(UserMemory) -> usize,
) {
    let Some((_, span)) = sink.alone() else { return };
    let landed = fill(span);
    let status = if landed < full { Status::Truncated } else { Status::Done };
    let (length, full, channel) = (landed as u64, full as u64, Some(channel));
    sink.report(&CompletionRef { operation: NONE, context: 0, status, length, tag, full, headers, channel });
}

/// Takes the message of a line that is still to be consumed. False: it is another packet, and nothing has been done.
#[inline(always)]
pub fn take(short: &SingleCell, proto: &mut Link, callbacks: &mut LinkCallbacks<'_>, now: u64) -> bool {
    let Some((matched, length)) = matched(short, proto, callbacks, (now, None)) else { return false };
    if let Receiver::Unexpected = matched.receiver {
        queue_short(short, proto, callbacks, &matched, length);
        callbacks.messages.wake_pending = true;
        return true;
    }
    let bytes = short.bytes_from_word::<WORDS>();
    let (pushed, body) = bytes[..length.min(bytes.len())].split_at(matched.headers.min(length));
    keep(callbacks, &matched, pushed, body);
    true
}

/// Keeps a message of one line that no receive waits for.
#[inline(never)]
fn queue_short(
    short: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    length: usize,
) -> Taken {
    let bytes = short.bytes_from_word::<WORDS>();
    queue(proto, callbacks, matched, Payload::InPacket(&bytes[..length.min(bytes.len())]))
}

/// Keeps a message that no receive waits for: these are its headers and its body.
fn queue(proto: &mut Link, callbacks: &mut LinkCallbacks<'_>, matched: &Matched, all: Payload<'_>) -> Taken {
    proto.keep_message(callbacks, matched, all.to_box());
    callbacks.messages.queued = true;
    Taken::Queued
}

/// Ends the receive as an operation whose end is queued in its cq.
#[inline(never)]
fn keep(callbacks: &mut LinkCallbacks<'_>, matched: &Matched, headers: &[u8], body: &[u8]) {
    let &Matched { receiver, tag, channel, .. } = matched;
    let envelope = Envelope { source: callbacks.link.0, channel, tag, length: body.len() as u64, headers };
    let Receiver::PostedReceive(oldest) = receiver else { return };
    let Some(receive) = callbacks.messages.table.take(oldest) else { return };
    let operation = callbacks.start_receive(receive);
    callbacks.received(operation, receive.capacity, &envelope, body);
}

/// Ends a receive as [`keep`] does, with a body that lies in the ring.
#[cold]
fn keep_run(callbacks: &mut LinkCallbacks<'_>, matched: &Matched, headers: &[u8], body: RingSpan) {
    let &Matched { receiver, tag, channel, .. } = matched;
    let envelope = Envelope { source: callbacks.link.0, channel, tag, length: body.len() as u64, headers };
    let Receiver::PostedReceive(oldest) = receiver else { return };
    let Some(receive) = callbacks.messages.table.take(oldest) else { return };
    let operation = callbacks.start_receive(receive);
    callbacks.matched(operation, &envelope);
    let fits = receive.capacity.min(body.len() as u64);
    callbacks.place_span(operation, 0, body.first(fits as usize));
    let status = if fits < body.len() as u64 { Status::Truncated } else { Status::Done };
    callbacks.completed(operation, Outcome { status, length: fits });
}
