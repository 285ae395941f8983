//! The direct path of a whole message at its receiver: out of the FIFO or the payload ring into the memory of its receive, or into the matching
//! table if no receive is posted.
//!
//! A poll of a completion queue ([`super::completions`]) reports the completion in the same step; any other poll
//! ([`super::link::LinkState::poll`]) queues it. The protocol decides which receive gets the message ([`Link::match_message`]). Any other packet
//! is left untouched for [`Link::arrived`].

use super::message_state::{LinkCallbacks, MessageState};
use super::operations::{CompletionRef, CompletionSink, CqId, NO_OPERATION};
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
const HEAD_WORDS: usize = packet::MESSAGE_HEAD_BYTES / 8;

/// What was done with the next packet of a FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOutcome {
    /// There is no packet.
    Nothing,
    /// It does not take the direct path, and nothing has been done.
    Other,
    /// It was a whole message for a receive, whose completion is queued.
    CompletionQueued,
    /// It was a whole message for a receive, whose completion was reported.
    Reported,
    /// It was a whole message that no receive waits for: the matching table keeps it.
    Unexpected,
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
) -> TakeOutcome {
    let cell = match shm.fifo_rx.peek_cell() {
        Peeked::Nothing => return TakeOutcome::Nothing,
        Peeked::SingleCell(cell) => cell,
        Peeked::FlaggedCell(cell) => return receive_from_ring(shm, &cell, proto, callbacks, (cq, now), sink),
        Peeked::Other => return receive_longer(shm, proto, callbacks, rx_packet, (cq, now), sink),
    };
    let Some((matched, length)) = match_cell(&cell, proto, callbacks, (now, sink.unposted_receive())) else {
        return TakeOutcome::Other;
    };
    if let Receiver::Unexpected = matched.receiver {
        store_cell(&cell, proto, callbacks, &matched, length);
        shm.fifo_rx.consume_cell();
        return TakeOutcome::Unexpected;
    }
    let (words, bytes);
    let (header_bytes, body) = match matched.headers {
        // Most short messages: a body of one word, after no header or a header of one word.
        headers @ (0 | 8) if length == headers + 8 => {
            words = [cell.word(HEAD_WORDS), cell.word(HEAD_WORDS + 1)].map(u64::to_le_bytes);
            let (header_bytes, body) = words.as_flattened().split_at(headers);
            (header_bytes, &body[..8])
        }
        headers => {
            bytes = cell.bytes_from_word::<HEAD_WORDS>();
            bytes[..length.min(bytes.len())].split_at(headers.min(length))
        }
    };
    let taken =
        complete_and_report(callbacks, &matched, (header_bytes, body.len()), cq, sink, |span| span.fill(0, body));
    if taken == TakeOutcome::CompletionQueued {
        complete_and_queue(callbacks, &matched, header_bytes, body);
    }
    shm.fifo_rx.consume_cell();
    taken
}

/// Takes a message whose cell holds the packet head and whose headers and body are in the payload ring.
#[inline(never)]
fn receive_from_ring(
    shm: &mut ShmTransport,
    cell: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> TakeOutcome {
    if cell.flags != BODY_IN_RING || cell.length() != packet::MESSAGE_HEAD_BYTES + size_of::<u32>() {
        return TakeOutcome::Other;
    }
    let Ok(ring_span) = shm.payload_rings.1.span(cell.word(HEAD_WORDS) as u32 as usize) else {
        return TakeOutcome::Other;
    };
    let words = [cell.word(0), cell.word(1)];
    let wanted = (now, sink.unposted_receive().map(|(selector, _)| selector));
    let Some(matched) = proto.match_message(callbacks, cell.kind, words, ring_span.len(), wanted) else {
        return TakeOutcome::Other;
    };
    let taken = match matched.receiver {
        Receiver::Unexpected => store_unexpected(proto, callbacks, &matched, Payload::InRing(ring_span)),
        _ => receive_ring_span(callbacks, &matched, ring_span, cq, sink),
    };
    shm.fifo_rx.consume_cell();
    shm.payload_rings.1.release(ring_span.len());
    shm.fifo_rx.notify_freed();
    taken
}

/// Completes the receive of a message in the payload ring.
#[inline(always)]
fn receive_ring_span(
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    ring_span: RingSpan,
    cq: CqId,
    sink: &mut impl CompletionSink,
) -> TakeOutcome {
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
    ring_span.read(headers);
    let body = ring_span.skip(headers.len());
    let taken = complete_and_report(callbacks, matched, (headers, body.len()), cq, sink, |span| {
        let fits = span.len().min(body.len());
        span.write(0, fits, |into| body.read(into));
        fits
    });
    if taken == TakeOutcome::CompletionQueued {
        complete_and_queue_from_ring(callbacks, matched, headers, body);
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
) -> TakeOutcome {
    let Ok(Some(packet)) = shm.fifo_rx.peek(&mut rx_packet.fifo) else { return TakeOutcome::Other };
    if packet.kind != Kind::Message as u8 {
        return TakeOutcome::Other;
    }
    let (bytes, wanted) = (packet.bytes(&rx_packet.fifo), (now, sink.unposted_receive().map(|(selector, _)| selector)));
    if packet.continuations() > 0 && shm.fifo_rx.has_continuations(packet.continuations()) != Ok(true) {
        if packet.flags != BODY_IN_RING {
            return TakeOutcome::Other;
        }
        return pipelined::report(shm, proto, callbacks, (&packet, bytes), (cq, now), sink);
    }
    if packet.flags == 0 {
        let Some((words, rest)) = words_of(bytes) else { return TakeOutcome::Other };
        let Some(matched) = proto.match_message(callbacks, packet.kind, words, rest.len(), wanted) else {
            return TakeOutcome::Other;
        };
        let (header_bytes, body) = rest.split_at(matched.headers);
        let taken = match matched.receiver {
            Receiver::Unexpected => store_unexpected(proto, callbacks, &matched, Payload::InPacket(rest)),
            _ => complete_and_report(callbacks, &matched, (header_bytes, body.len()), cq, sink, |span| {
                span.fill(0, body)
            }),
        };
        if taken == TakeOutcome::CompletionQueued {
            complete_and_queue(callbacks, &matched, header_bytes, body);
        }
        shm.fifo_rx.consume(&packet);
        return taken;
    }
    let ring = &mut shm.payload_rings.1;
    let (true, Ok((front, ring_span))) = (packet.flags == BODY_IN_RING, ring.split_packet(bytes)) else {
        return TakeOutcome::Other;
    };
    let Some((words, [])) = words_of(front) else { return TakeOutcome::Other };
    let Some(matched) = proto.match_message(callbacks, packet.kind, words, ring_span.len(), wanted) else {
        return TakeOutcome::Other;
    };
    let taken = match matched.receiver {
        Receiver::Unexpected => store_unexpected(proto, callbacks, &matched, Payload::InRing(ring_span)),
        _ => receive_ring_span(callbacks, &matched, ring_span, cq, sink),
    };
    shm.fifo_rx.consume(&packet);
    ring.release(ring_span.len());
    shm.fifo_rx.notify_freed();
    taken
}

/// Splits a packet into the words of its head and the bytes that follow them.
fn words_of(bytes: &[u8]) -> Option<([u64; HEAD_WORDS], &[u8])> {
    let (first, rest) = bytes.split_first_chunk()?;
    let (second, rest) = rest.split_first_chunk()?;
    Some(([first, second].map(|word| u64::from_le_bytes(*word)), rest))
}

/// Matches the message of a cell. Returns the match and the number of bytes that follow the packet head.
#[inline(always)]
fn match_cell(
    cell: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (now, unposted_receive): (u64, Option<(&Selector, UserMemory)>),
) -> Option<(Matched, usize)> {
    let length = cell.length().checked_sub(packet::MESSAGE_HEAD_BYTES)?;
    let words = [cell.word(0), cell.word(1)];
    let wanted = (now, unposted_receive.map(|(selector, _)| selector));
    proto.match_message(callbacks, cell.kind, words, length, wanted).map(|matched| (matched, length))
}

/// Completes the receive of a message with `headers` and a body of `length` bytes, which `fill` copies, and reports the completion.
/// [`TakeOutcome::CompletionQueued`]: nothing has been done, because the completion must be queued; the caller does that.
#[inline(always)]
fn complete_and_report(
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    (headers, length): (&[u8], usize),
    cq: CqId,
    sink: &mut impl CompletionSink,
    fill: impl FnOnce(UserMemory) -> usize,
) -> TakeOutcome {
    let channel = Channel { link: callbacks.link, id: matched.channel };
    let MessageState { table, operations, .. } = &mut *callbacks.messages;
    let Receiver::PostedReceive(oldest) = matched.receiver else {
        complete_unposted((channel, matched.tag, headers), length, sink, fill);
        return TakeOutcome::Reported;
    };
    let Some(receive) = table.get(oldest) else { return TakeOutcome::CompletionQueued };
    if !operations.report_message((receive, channel, matched.tag, headers), length, cq, sink, fill) {
        return TakeOutcome::CompletionQueued;
    }
    table.remove(oldest);
    TakeOutcome::Reported
}

/// Completes a blocking receive that is not posted, and reports its completion.
#[inline(always)]
fn complete_unposted(
    (channel, tag, headers): (Channel, u64, &[u8]),
    message_length: usize,
    sink: &mut impl CompletionSink,
    fill: impl FnOnce(UserMemory) -> usize,
) {
    let Some((_, span)) = sink.unposted_receive() else { return };
    let copied = fill(span);
    let status = if copied < message_length { Status::Truncated } else { Status::Done };
    let (length, message_length, channel) = (copied as u64, message_length as u64, Some(channel));
    sink.report(&CompletionRef {
        operation: NO_OPERATION,
        user_data: 0,
        status,
        length,
        tag,
        message_length,
        headers,
        channel,
    });
}

/// Takes the message of a cell, which the caller consumes afterwards, and queues its completion. False: it does not take the direct path, and
/// nothing has been done.
#[inline(always)]
pub fn take(cell: &SingleCell, proto: &mut Link, callbacks: &mut LinkCallbacks<'_>, now: u64) -> bool {
    let Some((matched, length)) = match_cell(cell, proto, callbacks, (now, None)) else { return false };
    if let Receiver::Unexpected = matched.receiver {
        store_cell(cell, proto, callbacks, &matched, length);
        callbacks.messages.wake_pending = true;
        return true;
    }
    let bytes = cell.bytes_from_word::<HEAD_WORDS>();
    let (header_bytes, body) = bytes[..length.min(bytes.len())].split_at(matched.headers.min(length));
    complete_and_queue(callbacks, &matched, header_bytes, body);
    true
}

/// Stores an unexpected message of one cell in the matching table.
#[inline(never)]
fn store_cell(
    cell: &SingleCell,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    length: usize,
) -> TakeOutcome {
    let bytes = cell.bytes_from_word::<HEAD_WORDS>();
    store_unexpected(proto, callbacks, matched, Payload::InPacket(&bytes[..length.min(bytes.len())]))
}

/// Stores an unexpected message in the matching table; `all` is its headers and its body.
fn store_unexpected(
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    matched: &Matched,
    all: Payload<'_>,
) -> TakeOutcome {
    proto.keep_message(callbacks, matched, all.to_box());
    callbacks.messages.new_unexpected = true;
    TakeOutcome::Unexpected
}

/// Completes a receive with its headers and body, and queues the completion.
#[inline(never)]
fn complete_and_queue(callbacks: &mut LinkCallbacks<'_>, matched: &Matched, headers: &[u8], body: &[u8]) {
    let &Matched { receiver, tag, channel, .. } = matched;
    let envelope = Envelope { source: callbacks.link.0, channel, tag, length: body.len() as u64, headers };
    let Receiver::PostedReceive(oldest) = receiver else { return };
    let Some(receive) = callbacks.messages.table.take(oldest) else { return };
    let operation = callbacks.start_receive(receive);
    callbacks.received(operation, receive.capacity, &envelope, body);
}

/// Completes a receive whose body is in the payload ring, and queues the completion.
#[cold]
fn complete_and_queue_from_ring(callbacks: &mut LinkCallbacks<'_>, matched: &Matched, headers: &[u8], body: RingSpan) {
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
