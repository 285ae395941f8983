//! The direct path of a whole message at its receiver: out of the FIFO or the payload ring into the memory of its receive, or into the matching
//! table if no receive is posted.
//!
//! A poll of a completion queue ([`super::completions`]) reports the completion in the same step; any other poll
//! ([`super::link::LinkState::look`]) queues it. The protocol decides which receive gets the message ([`Link::match_message`]). Any other packet
//! is left untouched for [`Link::arrived`].

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

/// Words of the packet head that every message has.
const WORDS: usize = packet::MESSAGE / 8;

/// What was done with the next packet of a FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There is no packet.
    Nothing,
    /// It does not take the direct path, and nothing has been done.
    Other,
    /// It was a whole message for a receive, whose completion is queued.
    Kept,
    /// It was a whole message for a receive, whose completion was reported.
    Reported,
    /// It was a whole message that no receive waits for: the matching table keeps it.
    Queued,
}

/// Takes the next packet if it is a whole message, and reports the completion of its receive if that belongs to `cq`. The caller makes sure that no
/// earlier completion is queued in `cq`.
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
        // Most short messages: a body of one word, after no header or a header of one word.
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

/// Takes a message whose cell holds the packet head and whose headers and body are in the payload ring.
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

/// Completes the receive of a message in the payload ring.
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
        // Libraries send a header of one word.
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

/// Takes a message that is longer than one cell. One whose sender still writes it is left to [`pipelined::report`].
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

/// Splits a packet into the words of its head and the bytes that follow them.
fn words_of(bytes: &[u8]) -> Option<([u64; WORDS], &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    Some(([first, second].map(|word| u64::from_le_bytes(*word)), rest))
}

/// Matches the message of a cell. Returns the match and the number of bytes that follow the packet head.
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

/// Completes the receive of a message with `headers` and a body of `length` bytes, which `fill` copies, and reports the completion.
/// [`Taken::Kept`]: nothing has been done, because the completion must be queued; the caller does that.
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

/// Completes a blocking receive that is not posted, and reports its completion.
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

/// Takes the message of a cell, which the caller consumes afterwards, and queues its completion. False: it does not take the direct path, and
/// nothing has been done.
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

/// Stores an unexpected message of one cell in the matching table.
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

/// Stores an unexpected message in the matching table; `all` is its headers and its body.
fn queue(proto: &mut Link, callbacks: &mut LinkCallbacks<'_>, matched: &Matched, all: Payload<'_>) -> Taken {
    proto.keep_message(callbacks, matched, all.to_box());
    callbacks.messages.queued = true;
    Taken::Queued
}

/// Completes a receive with its headers and body, and queues the completion.
#[inline(never)]
fn keep(callbacks: &mut LinkCallbacks<'_>, matched: &Matched, headers: &[u8], body: &[u8]) {
    let &Matched { receiver, tag, channel, .. } = matched;
    let envelope = Envelope { source: callbacks.link.0, channel, tag, length: body.len() as u64, headers };
    let Receiver::PostedReceive(oldest) = receiver else { return };
    let Some(receive) = callbacks.messages.table.take(oldest) else { return };
    let operation = callbacks.start_receive(receive);
    callbacks.received(operation, receive.capacity, &envelope, body);
}

/// Completes a receive whose body is in the payload ring, and queues the completion.
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
