//! Pipelined messages: their bodies are copied while their senders still publish them.
//!
//! The protocol says which posted receive the message will match, before the message is complete. That receive stays posted until the whole message has
//! arrived. Part of its memory is already written, so [`super::Node::cancel`] does not cancel it, but [`super::Node::cancel_receive`] does. This works only for
//! receives from one channel, where the next message is known to be this one.

use super::Channel;
use super::fast_receive::TakeOutcome;
use super::message_state::LinkCallbacks;
use super::operations::{Buffer, CompletionSink, CqId, InPlaceState, Operation, OperationKind, Operations};
use super::packets::chunk_of;
use super::transport::ShmTransport;
use motet_proto::message::matching::Receive;
use motet_proto::message::pipelined::PipelinedReceive;
use motet_proto::message::{Link, ProtocolViolation, header_stack};
use motet_sys::user_memory::UserMemory;
use motet_wire::message::fifo::payload_ring::RingSpan;
use motet_wire::message::fifo::{FifoRx, Packet};
use std::ops::Range;

/// Polls for each next part of a message that its sender is publishing. After so many the receiver gives up.
const MAX_POLLS_PER_CHUNK: u32 = 2000;

/// Calls `place` with the range of each part of `ring_span`, once the sender has published the part. False: the sender does not go on, or it has
/// not divided the message as [`chunk_of`] does.
pub fn copy_chunks(
    fifo_rx: &FifoRx,
    packet: &Packet,
    ring_span: RingSpan,
    mut place: impl FnMut(Range<usize>),
) -> bool {
    let chunk = chunk_of(ring_span.len());
    if ring_span.len().div_ceil(chunk) != 1 + usize::from(packet.continuations()) {
        return false;
    }
    for part in 0..=packet.continuations() {
        let mut polls = 0;
        while part > 0 && fifo_rx.has_continuations(part) != Ok(true) {
            polls += 1;
            if polls > MAX_POLLS_PER_CHUNK {
                return false;
            }
            std::hint::spin_loop();
        }
        let start = usize::from(part) * chunk;
        place(start..ring_span.len().min(start + chunk));
    }
    true
}

/// Receives the pipelined message that is the next packet, if an unrecorded receive will get it, and reports its completion.
/// [`TakeOutcome::Other`]: the message is for another receive, or not all of it has arrived in time.
#[inline(never)]
pub fn report(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (packet, bytes): (&Packet, &[u8]),
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> TakeOutcome {
    let ShmTransport { fifo_rx, payload_rings: (_, ring), .. } = shm;
    let position = ring.head();
    let front = ring.split_packet(bytes).ok().and_then(|(front, ring_span)| Some((front.try_into().ok()?, ring_span)));
    let Some((front, ring_span)) = front.filter(|_| callbacks.channel_table.late_message != Some(position)) else {
        return TakeOutcome::Other;
    };
    let Some(expected) = proto.match_pipelined(&callbacks.messages.table, packet.kind, front, ring_span.len()) else {
        return TakeOutcome::Other;
    };
    let mut headers = [0; header_stack::MAX_HEADERS_BYTES];
    let headers = &mut headers[..expected.message.headers];
    ring_span.read(headers); // the headers are published with the first part
    let (span, body) = (expected.receive.buffer.span, expected.body);
    let reportable = Operations::is_unrecorded(&expected.receive, cq) && sink.takes(false, body <= span.len(), headers);
    if !reportable || callbacks.messages.operations.is_cq_empty(cq) != Ok(true) {
        return TakeOutcome::Other;
    }
    let mut begun = false;
    let whole = copy_chunks(fifo_rx, packet, ring_span, |part| {
        begun = true;
        place_part(&span, headers.len(), ring_span, part);
    });
    if !whole || proto.take_expected(callbacks, &expected.message, now).is_err() {
        if let Some(operation) = operation_of(callbacks, &expected) {
            operation.begun = begun;
        }
        callbacks.channel_table.late_message = Some(position);
        return TakeOutcome::Other;
    }
    let channel = Channel { link: callbacks.link, id: expected.message.channel };
    let message = (&expected.receive, channel, expected.message.tag, &*headers);
    callbacks.messages.operations.report_message(message, body, cq, sink, |_| body);
    callbacks.messages.table.cancel(expected.ticket);
    fifo_rx.consume(packet);
    ring.release(ring_span.len());
    fifo_rx.notify_freed();
    TakeOutcome::Reported
}

/// Copies the bytes of `ring_span` that are in the range `part` and behind the headers into the memory of the receive.
fn place_part(span: &UserMemory, headers: usize, ring_span: RingSpan, part: Range<usize>) {
    let start = part.start.max(headers);
    if start < part.end {
        span.write(start - headers, part.end - start, |into| ring_span.read_from(start, into));
    }
}

/// The operation of a receive that gets part of its message and stays posted. An unrecorded receive gets a record by this call.
fn operation_of<'a>(
    callbacks: &'a mut LinkCallbacks<'_>,
    expected: &PipelinedReceive<Buffer>,
) -> Option<&'a mut Operation> {
    let name = callbacks.messages.operations.name_of(expected.receive);
    if name != expected.receive.operation {
        callbacks.messages.table.rename(expected.ticket, Receive { operation: name, ..expected.receive });
        let operation = callbacks.messages.operations.get(name)?;
        operation.kind = OperationKind::Receive(Some(expected.ticket));
    }
    callbacks.messages.operations.get(name)
}

/// Receives the pipelined message that is the next packet, if a posted receive will get it. False: not yet.
#[inline(never)]
pub fn take(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    packet: &Packet,
    bytes: &[u8],
    now: u64,
) -> Result<bool, ProtocolViolation> {
    let ShmTransport { fifo_rx, payload_rings: (_, ring), .. } = shm;
    let position = ring.head();
    if callbacks.channel_table.late_message == Some(position) {
        return Ok(false);
    }
    let Some((front, ring_span)) =
        ring.split_packet(bytes).ok().and_then(|(front, ring_span)| Some((front.try_into().ok()?, ring_span)))
    else {
        return Ok(false); // it is invalid, which is detected when all of it has arrived
    };
    let Some(expected) = proto.match_pipelined(&callbacks.messages.table, packet.kind, front, ring_span.len()) else {
        return Ok(false);
    };
    let Some(operation) = operation_of(callbacks, &expected) else { return Ok(false) };
    if !matches!(operation.in_place(), InPlaceState::NotInPlace) {
        return Ok(false); // the memory for a copy is allocated when the whole message has arrived
    }
    let headers_length = expected.message.headers;
    let whole = copy_chunks(fifo_rx, packet, ring_span, |part| {
        operation.begun = true;
        let start = part.start.max(headers_length);
        if start < part.end {
            operation.place_span(start - headers_length, ring_span.skip(start).first(part.end - start));
        }
    });
    if !whole {
        callbacks.channel_table.late_message = Some(position);
        return Ok(false);
    }
    let mut headers = [0; header_stack::MAX_HEADERS_BYTES];
    let headers = &mut headers[..headers_length];
    ring_span.read(headers);
    let result = proto.finish_pipelined(callbacks, &expected, headers, now);
    fifo_rx.consume(packet);
    ring.release(ring_span.len());
    fifo_rx.notify_freed();
    result.map(|()| true)
}
