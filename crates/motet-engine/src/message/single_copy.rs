//! Single copies: bodies that the receiver copies out of the sender's process, alone or with the sender's help (cooperative copies).
//!
//! For a cooperative copy the receiver sends the address of its buffer, and both sides copy chunks that they claim from words beside the ring
//! ([`motet_wire::message::fifo::chunk_claims`]). The sender copies whenever it makes progress; the receiver does not wait for a sender that claims nothing.
//! The receiver's memory is the program's again when the sender has reported its chunks as copied, or is gone.
//!
//! The strategy is chosen in [`super::copy_strategy`].

pub(in crate::message) mod pending;

use super::link::{LinkState, MAX_COPY_STEP_BYTES, PEER_IS_GONE};
use super::message_state::{LinkCallbacks, MessageState};
use super::operations::Operation;
use super::{LinkId, regions};
use crate::reason::Reason;
use motet_proto::message::{AssistRequest, CopyRequest};
use motet_sys::user_memory::OperationMemory;
use motet_sys::{process_vm, socket, thread};
use motet_wire::message::fifo::chunk_claims::Assisted;
use pending::{CooperativeCopy, CopyAssist, PendingCopy};
use std::os::fd::{AsFd, AsRawFd};

/// The result of a step.
enum CopyStep {
    /// There is more to do.
    More,
    /// The sender has claimed the last chunks, and has not copied them yet.
    Waiting,
    /// The copy has ended; true: all bytes are copied.
    Done(bool),
}

/// Bytes of a chunk. Both ends compute the same value.
fn chunk_of(length: u64) -> u64 {
    (length / 16).next_power_of_two().clamp(64 << 10, 512 << 10)
}

fn chunks_of(length: u64) -> u32 {
    u32::try_from(length.div_ceil(chunk_of(length))).unwrap_or(u32::MAX - 1)
}

/// The offset and the length of a chunk, bytes.
fn chunk(at: u32, length: u64) -> (u64, usize) {
    let begin = (u64::from(at) * chunk_of(length)).min(length);
    (begin, (length - begin).min(chunk_of(length)) as usize)
}

impl LinkState {
    /// Continues the copies between the two processes. False: there was nothing to do but to wait.
    #[cold]
    pub fn copy(&mut self, id: LinkId, messages: &mut MessageState) -> bool {
        if self.give_in_place(id, messages) {
            return true;
        }
        let message = self.copy_message(id, messages);
        let remote = self.copy_remote(id, messages);
        self.assist(messages) | message | remote
    }

    fn copy_message(&mut self, id: LinkId, messages: &mut MessageState) -> bool {
        let Some(&front) = self.channel_table.copies.front() else { return false };
        if front.assisted && self.channel_table.cooperative_copy.is_none() {
            self.begin_cooperative_copy(id, messages, &front.request);
        }
        let step = match self.channel_table.cooperative_copy {
            Some(cooperative_copy) => self.copy_next_chunk(messages, &front.request, cooperative_copy),
            None => self.copy_alone(messages, front),
        };
        if self.has_peer_closed() {
            self.take_down(id, messages, Reason::PEER_GONE, PEER_IS_GONE);
            return true;
        }
        self.channel_table.waits_for_assist = matches!(step, CopyStep::Waiting);
        match step {
            CopyStep::More => {}
            CopyStep::Waiting => return false,
            CopyStep::Done(copied) => {
                self.channel_table.copies.pop_front();
                self.copy_counts.note(copied, front.request.length);
                // A copy for a detached receive fails for another reason than the system's refusal.
                let is_attached = |operation: &mut Operation| !operation.detached;
                if !copied && messages.operations.get(front.request.operation).is_some_and(is_attached) {
                    self.channel_table.copy_chooser.exclude_copies();
                }
                let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
                self.proto.copied(&mut callbacks, front.request.record, copied);
            }
        }
        true
    }

    fn copy_alone(&mut self, messages: &mut MessageState, PendingCopy { request, done, .. }: PendingCopy) -> CopyStep {
        let length = (request.length - done).min(MAX_COPY_STEP_BYTES as u64) as usize;
        let pid = self.shm().map_or(0, |shm| shm.pid);
        let seen = self.copy_from_mapping(messages, &request, done, length);
        let Some(more) = seen.or_else(|| copy_part(messages, pid, &request, done, length)) else {
            return CopyStep::Done(false);
        };
        if done + more >= request.length {
            return CopyStep::Done(true);
        }
        if let Some(front) = self.channel_table.copies.front_mut() {
            front.done += more;
        }
        CopyStep::More
    }

    /// Begins a cooperative copy: sends the address of the receive's buffer to the sender.
    fn begin_cooperative_copy(&mut self, id: LinkId, messages: &mut MessageState, request: &CopyRequest) {
        let memory = messages.operations.get(request.operation).map(|operation| &operation.memory);
        let address = memory.filter(|memory| memory.len() as u64 >= request.length).map(OperationMemory::address);
        let (Some(shm), Some(address)) = (self.shm(), address) else { return };
        let claims = shm.payload_rings.1.claims();
        self.channel_table.copy_id = self.channel_table.copy_id.wrapping_add(1).max(1);
        let (copy_id, chunks) = (self.channel_table.copy_id, chunks_of(request.length));
        claims.begin(copy_id);
        let &CopyRequest { record, operation, .. } = request;
        self.channel_table.cooperative_copy =
            Some(CooperativeCopy { claims, operation, copy_id, chunks, copied_here: 0 });
        self.proto.offer_copy_assist(record, address, copy_id);
        self.flush(id, messages);
    }

    /// Copies the next unclaimed chunk of a cooperative copy.
    fn copy_next_chunk(
        &mut self,
        messages: &mut MessageState,
        request: &CopyRequest,
        cooperative_copy: CooperativeCopy,
    ) -> CopyStep {
        let CooperativeCopy { claims, copy_id, chunks, copied_here, .. } = cooperative_copy;
        if let Some(next) = claims.claim(copy_id, chunks) {
            let pid = self.shm().map_or(0, |shm| shm.pid);
            let (mut at, mut left) = chunk(next, request.length);
            while left > 0 {
                let Some(copied) = copy_part(messages, pid, request, at, left) else {
                    self.end_cooperative_copy();
                    return CopyStep::Done(false);
                };
                (at, left) = (at + copied, left - copied as usize);
            }
            if let Some(cooperative_copy) = &mut self.channel_table.cooperative_copy {
                cooperative_copy.copied_here += 1;
            }
            return CopyStep::More;
        }
        match claims.assisted(copy_id) {
            Assisted::Chunks(assisted) if assisted >= chunks - copied_here => {
                self.channel_table.cooperative_copy = None;
                self.copy_counts.assisted += u64::from(assisted > 0);
                CopyStep::Done(true)
            }
            Assisted::Chunks(_) => CopyStep::Waiting,
            Assisted::Failed => {
                // The chunks that the sender has claimed are missing: all is copied again, and no cooperative copy is chosen on this link any more.
                self.channel_table.cooperative_copy = None;
                self.channel_table.copy_chooser.exclude_assist();
                if let Some(front) = self.channel_table.copies.front_mut() {
                    (front.done, front.assisted) = (0, false);
                }
                CopyStep::More
            }
        }
    }

    /// Ends the cooperative copy, if it is for this operation.
    pub fn end_cooperative_copy_of(&mut self, operation: u64) {
        if self.channel_table.cooperative_copy.is_some_and(|cooperative_copy| cooperative_copy.operation == operation) {
            self.end_cooperative_copy();
            if let Some(front) = self.channel_table.copies.front_mut() {
                front.assisted = false;
            }
        }
    }

    /// Ends the cooperative copy. The sender claims no further chunk, and this call waits for those that it has claimed, because its writes into our memory
    /// cannot be called back. A sender that has closed the link (or has ended, or runs another program, which closes the link) is not in the middle of a
    /// chunk. A sender that is stopped within a chunk blocks this call until it continues, because it may still have to write. (A hostile sender gains
    /// nothing by this: it may write to our memory anyway.)
    pub fn end_cooperative_copy(&mut self) {
        let Some(CooperativeCopy { claims, copy_id, chunks, copied_here, .. }) =
            self.channel_table.cooperative_copy.take()
        else {
            return;
        };
        let copied_there = claims.close(copy_id).min(chunks).saturating_sub(copied_here);
        let Some(shm) = self.shm() else { return };
        let (control, process) = (shm.control.as_fd().as_raw_fd(), shm.process.as_ref());
        let is_done = || match claims.assisted(copy_id) {
            Assisted::Chunks(assisted) => assisted >= copied_there,
            Assisted::Failed => true,
        };
        for polls in 0u64.. {
            let lives =
                || socket::is_connected(control) && process.is_some_and(|process| !thread::has_exited(process.as_fd()));
            if is_done() || polls % 1024 == 1023 && !lives() {
                return;
            }
            if polls > 4096 { thread::sleep_ns(100_000) } else { std::hint::spin_loop() }
        }
    }

    /// Helps with the cooperative copy of a body of ours: copies the next unclaimed chunk. False: there is no such copy.
    fn assist(&mut self, messages: &mut MessageState) -> bool {
        let Some(&CopyAssist { request, .. }) = self.channel_table.assists.front() else { return false };
        let AssistRequest { operation, shared } = request;
        let Some(shm) = self.shm() else {
            self.channel_table.assists.clear();
            return false;
        };
        let (pid, claims) = (shm.pid, shm.payload_rings.0.claims());
        let chunks = chunks_of(shared.length);
        let may_copy = pid != 0 && socket::is_connected(shm.control.as_fd().as_raw_fd());
        let next = match messages.operations.get(operation) {
            Some(_) if may_copy => claims.claim(shared.copy_id, chunks),
            _ => None, // the operation has completed, or this side cannot write there
        };
        let Some(next) = next else {
            self.channel_table.assists.pop_front();
            return true;
        };
        let (at, length) = chunk(next, shared.length);
        let memory = messages.operations.get(operation).map(|operation| &operation.memory);
        let written = memory.is_some_and(|memory| {
            let body = memory.bytes(at as usize, length);
            body.len() == length && write_all(pid, shared.address + at, body)
        });
        let last = match (written, self.channel_table.assists.front_mut()) {
            (true, Some(assist)) => {
                assist.done += 1;
                claims.report_assisted(shared.copy_id, assist.done, chunks)
            }
            _ => {
                claims.report_failed(shared.copy_id);
                self.channel_table.assists.pop_front();
                true
            }
        };
        if last {
            self.wake(); // the peer may wait for nothing else
        }
        true
    }

    fn copy_remote(&mut self, id: LinkId, messages: &mut MessageState) -> bool {
        let Some((request, done)) = self.channel_table.remote_copy() else { return false };
        let pid = self.shm().map_or(0, |shm| shm.pid);
        let length = (request.length - done).min(MAX_COPY_STEP_BYTES as u64) as usize;
        let copied = regions::copy_remote_part(messages, pid, &request, done, length);
        if self.has_peer_closed() {
            self.take_down(id, messages, Reason::PEER_GONE, PEER_IS_GONE);
            return true;
        }
        let ends = copied.is_none_or(|more| done + more >= request.length);
        if let (Some(more), Some(first)) = (copied, self.channel_table.remote_copies.front_mut()) {
            first.1 += more;
        }
        if ends {
            self.channel_table.remote_copies.pop_front();
            self.copy_counts.note(copied.is_some(), request.length);
            let mut callbacks = LinkCallbacks::of(messages, &mut self.channel_table, id);
            self.proto.copied_remote(&mut callbacks, request.record, copied.is_some());
        }
        true
    }

    /// Whether the peer has closed the link. Checked after each copy out of its memory: a peer that reuses announced memory before its release was reported
    /// closes the link first, so what was copied while the link was connected is what was announced.
    fn has_peer_closed(&mut self) -> bool {
        self.shm().is_some_and(|shm| !socket::is_connected(shm.control.as_fd().as_raw_fd()))
    }
}

/// Copies the next bytes of a request out of the peer's memory. `None`: they cannot be copied.
fn copy_part(messages: &mut MessageState, pid: u32, request: &CopyRequest, done: u64, length: usize) -> Option<u64> {
    let operation = messages.operations.get(request.operation)?;
    let from = request.address.checked_add(done)?;
    if pid == 0 {
        return None;
    }
    let copied = operation.memory.write(done as usize, length, |into| process_vm::read_from(pid, from, into));
    copied.ok().filter(|&copied| copied > 0).map(|copied| copied as u64)
}

/// Copies all of `body` to an address in another process. False: not all of it could be copied.
fn write_all(pid: u32, address: u64, mut body: &[u8]) -> bool {
    let mut at = address;
    while !body.is_empty() {
        match process_vm::write_to(pid, at, body) {
            Ok(written @ 1..) if written <= body.len() => (at, body) = (at + written as u64, &body[written..]),
            _ => return false,
        }
    }
    true
}
