//! Open messages: their bodies are copied while their senders still show them.
//!
//! What it is: the copying, for a receive that waits right there ([`super::expect`]) and for one that is posted. What it is not: a second
//! way to match. A posted receive that has got part of a message stays posted until all of it is there. Its memory is not as it was, so it
//! is not cancelled any more, but may be taken back ([`super::Node::take_back`]). Only receives from one channel are served so, where the
//! next message is this one.

use super::desk::View;
use super::medium::Lanes;
use super::operations::Seen;
use super::packets::chunk_of;
use motet_proto::message::{Broken, Link, stack};
use motet_wire::lane::bulk::Run;
use motet_wire::lane::{Consumer, Packet};
use std::ops::Range;

/// Looks for each next part of a message whose sender is putting it there.
const PATIENCE: u32 = 2000;

/// Has each part of an open message placed once its sender has shown it: the bytes of `run` in this range. False: the sender does not go
/// on, or the message is not divided as ours are.
pub fn follow(inward: &Consumer, packet: &Packet, run: Run, mut place: impl FnMut(Range<usize>)) -> bool {
    let chunk = chunk_of(run.len());
    if run.len().div_ceil(chunk) != 1 + usize::from(packet.more()) {
        return false;
    }
    for part in 0..=packet.more() {
        let mut looks = 0;
        while part > 0 && inward.follows(part) != Ok(true) {
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

/// Takes the open message that is the next packet, if a posted receive will get it. False: not yet.
#[inline(never)]
pub fn take(
    lanes: &mut Lanes,
    proto: &mut Link,
    view: &mut View<'_>,
    packet: &Packet,
    bytes: &[u8],
    now: u64,
) -> Result<bool, Broken> {
    let Lanes { inward, bulk: (_, ring), .. } = lanes;
    let place = ring.head();
    if view.back.late == Some(place) {
        return Ok(false);
    }
    let Some((front, run)) = ring.behind(bytes).ok().and_then(|(front, run)| Some((front.try_into().ok()?, run)))
    else {
        return Ok(false); // it is broken, and found to be once it is whole
    };
    let Some(awaited) = proto.awaits(&view.desk.table, packet.kind, front, run.len()) else { return Ok(false) };
    let Some(operation) = view.desk.operations.get(awaited.receive.operation) else { return Ok(false) };
    if !matches!(operation.seen(), Seen::Nothing) {
        return Ok(false); // room for a copy is made when all of the message is known
    }
    let before = awaited.message.headers;
    let whole = follow(inward, packet, run, |part| {
        operation.begun = true;
        let start = part.start.max(before);
        if start < part.end {
            operation.place_run(start - before, run.behind(start).front(part.end - start));
        }
    });
    if !whole {
        view.back.late = Some(place);
        return Ok(false);
    }
    let mut headers = [0; stack::MOST];
    let headers = &mut headers[..before];
    run.read(headers);
    let result = proto.take_awaited(view, &awaited, headers, now);
    inward.consume(packet);
    ring.release(run.len());
    inward.freed();
    result.map(|()| true)
}
