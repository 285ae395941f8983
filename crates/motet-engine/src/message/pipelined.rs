//! Pipelined messages: their bodies are copied while their senders still publish them.
//!
//! The protocol says which posted receive the message will match, before the message is complete. That receive stays posted until the whole message has
//! arrived. Part of its memory is already written, so [`super::Node::cancel`] does not cancel it, but [`super::Node::take_back`] does. This works only for
//! receives from one channel, where the next message is known to be this one.

use super::Channel;
use super::fast_receive::Taken;
use super::message_state::LinkCallbacks;
use super::operations::{Buffer, CompletionSink, CqId, Kind, Operation, Operations, Seen};
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
const PATIENCE: u32 = 2000;

/// Calls `place` with the range of each part of `run`, once the sender has published the part. False: the sender does not go on, or it has not divided the
/// message as [`chunk_of`] does.
pub fn follow(inward: &FifoRx, packet: &Packet, run: RingSpan, mut place: impl FnMut(Range<usize>)) -> bool {
    let chunk = chunk_of(run.len());
    if run.len().div_ceil(chunk) != 1 + usize::from(packet.continuations()) {
        return false;
    }
    for part in 0..=packet.continuations() {
        let mut looks = 0;
        while part > 0 && inward.has_continuations(part) != Ok(true) {
            looks += 1;
            if looks > PATIENCE {
                return false;
            }
            std::hint::spin_loop();
        }
        let start = usize::from(part) * chunk;
        place(start..run.len().min(start + chunk));
    }
    true
}

/// Receives the pipelined message that is the next packet, if an unrecorded receive will get it, and reports its completion. [`Taken::Other`]: the message is
/// for another receive, or not all of it has arrived in time.
#[inline(never)]
pub fn report(
    shm: &mut ShmTransport,
    proto: &mut Link,
    callbacks: &mut LinkCallbacks<'_>,
    (packet, bytes): (&Packet, &[u8]),
    (cq, now): (CqId, u64),
    sink: &mut impl CompletionSink,
) -> Taken {
    let ShmTransport { inward, bulk: (_, ring), .. } = shm;
    let place = ring.head();
    let front = ring.split_packet(bytes).ok().and_then(|(front, run)| Some((front.try_into().ok()?, run)));
    let Some((front, run)) = front.filter(|_| callbacks.channel_table.late != Some(place)) else {
        return Taken::Other;
    };
    let Some(awaited) = proto.match_pipelined(&callbacks.messages.table, packet.kind, front, run.len()) else {
        return Taken::Other;
    };
    let mut headers = [0; header_stack::MAX_HEADERS_BYTES];
    let headers = &mut headers[..awaited.message.headers];
    run.read(headers); // the headers are published with the first part
    let (span, body) = (awaited.receive.buffer.span, awaited.body);
    let reportable = Operations::is_unrecorded(&awaited.receive, cq) && sink.takes(false, body <= span.len(), headers);
    if !reportable || callbacks.messages.operations.is_cq_empty(cq) != Ok(true) {
        return Taken::Other;
    }
    let mut begun = false;
    let whole = follow(inward, packet, run, |part| {
        begun = true;
        place_part(&span, headers.len(), run, part);
    });
    if !whole || proto.take_expected(callbacks, &awaited.message, now).is_err() {
        if let Some(operation) = name(callbacks, &awaited) {
            operation.begun = begun;
        }
        callbacks.channel_table.late = Some(place);
        return Taken::Other;
    }
    let channel = Channel { link: callbacks.link, id: awaited.message.channel };
    let message = (&awaited.receive, channel, awaited.message.tag, &*headers);
    callbacks.messages.operations.report_message(message, body, cq, sink, |_| body);
    callbacks.messages.table.cancel(awaited.ticket);
    inward.consume(packet);
    ring.release(run.len());
    inward.notify_freed();
    Taken::Reported
}

/// Copies the bytes of `run` that are in the range `part` and behind the headers into the memory of the receive.
fn place_part(span: &UserMemory, headers: usize, run: RingSpan, part: Range<usize>) {
    let start = part.start.max(headers);
    if start < part.end {
        span.write(start - headers, part.end - start, |into| run.read_from(start, into));
    }
}

/// The operation of a receive that gets part of its message and stays posted. An unrecorded receive gets a record by this call.
fn name<'a>(callbacks: &'a mut LinkCallbacks<'_>, awaited: &PipelinedReceive<Buffer>) -> Option<&'a mut Operation> {
    let name = callbacks.messages.operations.name_of(awaited.receive);
    if name != awaited.receive.operation {
        callbacks.messages.table.rename(awaited.ticket, Receive { operation: name, ..awaited.receive });
        let operation = callbacks.messages.operations.get(name)?;
        operation.kind = Kind::Receive(Some(awaited.ticket));
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
    let ShmTransport { inward, bulk: (_, ring), .. } = shm;
    let place = ring.head();
    if callbacks.channel_table.late == Some(place) {
        return Ok(false);
    }
    let Some((front, run)) = ring.split_packet(bytes).ok().and_then(|(front, run)| Some((front.try_into().ok()?, run)))
    else {
        return Ok(false); // it is invalid, which is detected when all of it has arrived
    };
    let Some(awaited) = proto.match_pipelined(&callbacks.messages.table, packet.kind, front, run.len()) else {
        return Ok(false);
    };
    let Some(operation) = name(callbacks, &awaited) else { return Ok(false) };
    if !matches!(operation.seen(), Seen::Nothing) {
        return Ok(false); // the memory for a copy is allocated when the whole message has arrived
    }
    let before = awaited.message.headers;
    let whole = follow(inward, packet, run, |part| {
        operation.begun = true;
        let start = part.start.max(before);
        if start < part.end {
            operation.place_span(start - before, run.skip(start).first(part.end - start));
        }
    });
    if !whole {
        callbacks.channel_table.late = Some(place);
        return Ok(false);
    }
    let mut headers = [0; header_stack::MAX_HEADERS_BYTES];
    let headers = &mut headers[..before];
    run.read(headers);
    let result = proto.finish_pipelined(callbacks, &awaited, headers, now);
    inward.consume(packet);
    ring.release(run.len());
    inward.notify_freed();
    result.map(|()| true)
}
