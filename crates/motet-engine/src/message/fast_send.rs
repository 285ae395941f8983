//! The direct path of an injected message at its sender: the packet head goes into a cell of the FIFO, headers and body into the same cell or into
//! the payload ring.
//!
//! [`super::send`] tries it first for injected messages. A message that is too long, that goes over a packet transport, or for which there is no room
//! or no credit is left untouched for the general path of [`super::send`].

use super::Channel;
use super::link::LinkState;
use super::node_state::NodeState;
use super::packets::{CELL_BODY_BYTES, MAX_ONE_CHUNK_BYTES};
use super::transport::ShmTransport;
use super::transport::Transport;
use motet_proto::message::packet::Kind;
use motet_sys::memory;
use motet_wire::message::fifo::payload_ring::BODY_IN_RING;
use motet_wire::message::fifo::{Broken, PutOutcome};

impl NodeState {
    /// Sends a message by the direct path. False: it must take the general path, and nothing has been done.
    #[inline(always)]
    pub(super) fn inject_fast(&mut self, channel: Channel, tag: u64, headers: &[u8], body: &[u8]) -> bool {
        let length = headers.len().saturating_add(body.len());
        if length > MAX_ONE_CHUNK_BYTES {
            return false;
        }
        let Some(link_state) = self.links.get_mut(channel.link) else { return false };
        let LinkState { transport: Some(Transport::SharedMemory(shm)), proto, .. } = link_state else {
            return false;
        };
        let Some(to) = proto.outgoing(channel.id) else { return false };
        let Some(prepared) = proto.prepare_send(to, tag, headers.len(), length) else { return false };
        let (kind, words) = (Kind::Message as u8, prepared.words);
        let put = match headers.len() {
            _ if length > CELL_BODY_BYTES => put_in_ring(shm, words, [headers, body]),
            0 => shm.fifo_tx.try_put_cell(kind, words, body),
            _ => shm.fifo_tx.try_put_cell_parts(kind, words, [headers, body]),
        };
        if !matches!(put, Ok(PutOutcome::Published | PutOutcome::Wake)) {
            return false;
        }
        proto.mark_sent(prepared);
        if put == Ok(PutOutcome::Wake) {
            link_state.wake();
        }
        true
    }
}

/// Puts a message whose headers and body are in the payload ring.
#[inline(never)]
fn put_in_ring(shm: &mut ShmTransport, words: [u64; 2], parts: [&[u8]; 2]) -> Result<PutOutcome, Broken> {
    let (ring, length) = (&mut shm.payload_rings.0, parts[0].len() + parts[1].len());
    if !ring.ensure_pages(length, memory::populate_at) || !ring.fits(length)? {
        return Ok(PutOutcome::Full);
    }
    ring.write(&parts, false);
    let put = shm.fifo_tx.try_put_ring_header(Kind::Message as u8, BODY_IN_RING, words, length as u32);
    if !matches!(put, Ok(PutOutcome::Published | PutOutcome::Wake)) {
        ring.retract(length);
    }
    put
}
