//! Progress: the loop that moves everything of a node. One thread at a time runs it, for all threads.
//!
//! A *round* polls the active links, and now and then one of the parked links, whose peers ring the doorbell when they send. At intervals it reads the clock
//! and polls the kernel for events. Handlers run one at a time, without the node's lock.

use super::connections::Serve;
use super::link::{IDLE_POLLS, PollResult};
use super::message_state::{ChannelPhase, ChannelState, HandlerContent, HandlerMessage};
use super::node_state::{EventSource, NodeGuard, NodeState};
use super::stats::ConnectHistory;
use super::{Body, CqId, LinkId, Message, Node};
use motet_proto::message::Reception;
use motet_sys::rustix::event::{Timespec, epoll};
use motet_sys::rustix::fd::AsFd;
use motet_sys::{asymmetric_fence, clock, socket};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Rounds between two polls of a parked link.
pub(super) const INACTIVE_POLL_ROUNDS: u32 = 4;
/// Rounds between two readings of the clock.
pub(super) const SLOW_WORK_ROUNDS: u32 = 512;
/// Time between two polls of the kernel, ns.
const KERNEL_POLL_INTERVAL_NS: u64 = 1_000_000;
/// Number of active links above which idle links are parked.
const PARK_ABOVE_LINKS: usize = 8;
/// Messages for handlers that are taken from one link before the next link has its turn.
const MAX_HANDLER_MESSAGES_PER_POLL: usize = 16;
/// Events taken from the kernel by one call.
const MAX_EVENTS_PER_KERNEL_POLL: usize = 32;

impl Node {
    /// Makes one round. True: something has arrived, or was done.
    #[inline(always)]
    pub(super) fn round(&self, node: &mut NodeGuard<'_>) -> bool {
        let rounds = node.progress.rounds().wrapping_add(1);
        node.progress.set_rounds(rounds);
        let mut did_work = false;
        for _ in 0..node.links.active().len() {
            let Some(link) = node.links.whose_turn() else { break };
            did_work |= self.poll_link(node, link);
            if node.messages.operations.blocking_has_completed() {
                node.links.keep_turn();
                break; // messages of other links stay in their FIFOs until they are waited for: here they would have to be stored
            }
            node.links.pass_turn();
        }
        if rounds.is_multiple_of(INACTIVE_POLL_ROUNDS) && node.links.has_inactive() {
            did_work |= self.poll_one_inactive(node);
        }
        if rounds.is_multiple_of(SLOW_WORK_ROUNDS) {
            self.slow_work(node);
        }
        if !node.messages.open_requests.is_empty() {
            self.answer_open_requests(node);
        }
        if !node.messages.ended_links.is_empty() {
            node.remove_ended_links();
        }
        if node.progress.has_tasks() || !node.messages.deferred_drops.is_empty() {
            self.run_tasks(node);
            did_work = true;
        }
        if node.messages.wake_pending {
            node.wake_waiters();
        }
        did_work
    }

    /// Handles what has arrived on a link, and sends what the link owes its peer.
    #[inline(always)]
    pub(super) fn poll_link(&self, node: &mut NodeGuard<'_>, link: LinkId) -> bool {
        let mut did_work = false;
        for _ in 0..MAX_HANDLER_MESSAGES_PER_POLL {
            let now = node.progress.now();
            let NodeState { links, messages, rx_packet, .. } = &mut **node;
            let (Some(link_state), Some(rx_packet)) = (links.get_mut(link), rx_packet) else { return did_work };
            let polled = link_state.poll(link, messages, rx_packet, now);
            if polled == PollResult::Empty && link_state.peer_closed {
                link_state.end_after_peer(link, messages);
            }
            if link_state.channel_table.has_copies() {
                did_work |= link_state.copy(link, messages);
            }
            if link_state.proto.is_due() {
                link_state.flush(link, messages); // the peer may wait for this, and this link may not be polled again for long
            }
            if link_state.tx_blocked {
                link_state.check_room(messages);
            }
            did_work |= polled != PollResult::Empty;
            if polled != PollResult::RunHandler {
                break;
            }
            self.run_handler(node);
        }
        did_work
    }

    /// Runs the handler of the message that has just arrived.
    fn run_handler(&self, node: &mut NodeGuard<'_>) {
        let Some(HandlerMessage { channel, tag, content }) = node.messages.handler_message.take() else { return };
        let place = node.channel_state(channel.link, channel.id).map(|state| state.handler);
        let handler = place.and_then(|number| node.connections.handler(number));
        let Some(rx_packet) = node.rx_packet.take() else { return };
        let mut left = None;
        let mut result = Ok(());
        if let Some(handler) = handler {
            let run = || match content {
                HandlerContent::Whole(headers, body) => {
                    let body = Body::Whole(rx_packet.bytes(body));
                    handler.message(self, Message { channel, tag, headers: rx_packet.bytes(headers), body });
                }
                HandlerContent::Long(unexpected) => {
                    left = Some(unexpected);
                    let headers = left.as_ref().map(|unexpected| unexpected.headers().to_vec()).unwrap_or_default();
                    let body = Body::Long(&mut left);
                    handler.message(self, Message { channel, tag, headers: &headers, body });
                }
            };
            result = node.unlocked(|| run_in_handler(run));
            node.quiet = CqId::NONE; // another thread may have set it meanwhile, and this round changes more
        } else if let HandlerContent::Long(unexpected) = content {
            left = Some(unexpected);
        }
        node.rx_packet = Some(rx_packet);
        // A message that the handler has not taken is discarded.
        if let (Some(unexpected), Ok((link_state, _))) = (left, node.link(channel.link)) {
            link_state.proto.discard(unexpected);
        }
        rethrow_panic(node, result);
    }

    /// Polls the next parked link, and makes it active if something has arrived.
    fn poll_one_inactive(&self, node: &mut NodeGuard<'_>) -> bool {
        let Some(link) = node.links.next_inactive() else { return false };
        let Some(link_state) = node.links.get_mut(link) else { return false };
        let idle = link_state.shm().is_some_and(|shm| shm.fifo_rx.is_empty()) && !link_state.proto.is_due();
        if idle {
            return false;
        }
        node.links.activate(link);
        node.messages.operations.blocking_has_completed() || self.poll_link(node, link)
    }

    /// Does the work that is not due in every round.
    #[cold]
    pub(super) fn slow_work(&self, node: &mut NodeGuard<'_>) {
        let now = node.progress.read_clock();
        if now.saturating_sub(node.progress.kernel_polled_at()) > KERNEL_POLL_INTERVAL_NS {
            self.poll_kernel(node, Some(0));
        }
        if node.connections.has_pending() {
            self.step_connects(node);
        }
        if node.links.active().len() > PARK_ABOVE_LINKS && node.links.count_empty_polls(SLOW_WORK_ROUNDS) {
            self.park_links(node, |link_state| link_state.empty_polls > IDLE_POLLS);
        }
    }

    /// Polls the kernel for events. If `wait` is not 0, sleeps for them, without the node's lock: `wait` ns, or without limit for `None`.
    pub(super) fn poll_kernel(&self, node: &mut NodeGuard<'_>, wait: Option<u64>) {
        let mut events: [epoll::Event; MAX_EVENTS_PER_KERNEL_POLL] = std::array::from_fn(|_| epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        });
        let timeout =
            wait.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
        let poll = node.progress.poll();
        let mut sleep = || epoll::wait(poll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        let count = if wait == Some(0) {
            sleep()
        } else {
            node.progress.begin_sleep();
            let count = node.unlocked(sleep);
            node.quiet = CqId::NONE;
            node.progress.end_sleep();
            count
        };
        node.progress.kernel_was_polled();
        for event in &events[..count] {
            match EventSource::decode(event.data) {
                EventSource::Wakeup => {
                    node.progress.drain_wakeup();
                    node.release_dropped_loans();
                }
                EventSource::Control(link) => node.handle_control(link),
                EventSource::RxDoorbell(link) => {
                    if let Ok((link_state, _)) = node.link(link)
                        && let Some(shm) = link_state.shm()
                    {
                        socket::drain_eventfd(shm.rx_doorbell.as_fd().as_raw_fd());
                    }
                    node.links.activate(link);
                }
                EventSource::PeerClosed(link) => {
                    if let Ok((link_state, _)) = node.link(link) {
                        link_state.peer_closed = true;
                    }
                    node.links.activate(link);
                }
                EventSource::Packet(link) => node.links.activate(link),
                EventSource::Connection => self.accept_connections(node),
            }
        }
        let now = node.progress.now();
        if node.connections.listener_is_due(now) {
            self.accept_connections(node); // unauthenticated connections that stay silent are closed
        }
        if node.connections.is_closing() {
            node.connections.continue_closing(now);
        }
        let lingering = node.links.take_lingering();
        node.messages.ended_links.extend(lingering);
        if node.messages.pool.released_segments() != node.withdrawn_segments {
            node.withdraw_segments();
        }
        if wait == Some(0) {
            node.publish();
        }
    }

    /// Releases the pages of payload rings that links have not used for long.
    pub(super) fn trim_payload_rings(&self, node: &mut NodeGuard<'_>) {
        let now = node.progress.now();
        for link in node.links.all() {
            if let Some(link_state) = node.links.get_mut(link).filter(|link_state| link_state.trim.is_some()) {
                link_state.trim(now);
            }
        }
    }

    // ---- others ------------------------------------------------------------------------------------------------------

    /// Accepts incoming connections, and continues connection attempts.
    fn accept_connections(&self, node: &mut NodeGuard<'_>) {
        let now = node.progress.now();
        while let Some((driver, connected)) = node.connections.next_accepted(now) {
            // A link that cannot be added is closed at once, which its connector sees.
            if let Ok(link) = node.add_link(connected, driver.name(), &ConnectHistory::default())
                && let Ok((link_state, _)) = node.link(link)
            {
                link_state.accepted = true;
            }
        }
        self.step_connects(node);
    }

    /// Continues the connection attempts under way.
    pub(super) fn step_connects(&self, node: &mut NodeGuard<'_>) {
        let (now, identity) = (node.progress.now(), node.identity.clone());
        for index in node.connections.pending() {
            let Some(pending) = node.connections.pending_mut(index) else { continue };
            if let Some((driver, result)) = pending.step(&identity, now) {
                let history = std::mem::take(&mut pending.history);
                let result = result.and_then(|connected| node.add_link(connected, driver.name(), &history));
                if let Some(pending) = node.connections.pending_mut(index) {
                    pending.result = Some(result);
                }
                node.messages.wake_pending = true;
            }
        }
    }

    /// Accepts or refuses the channels that peers ask to open.
    fn answer_open_requests(&self, node: &mut NodeGuard<'_>) {
        while let Some((channel, service)) = node.messages.open_requests.pop_front() {
            let serve = node.connections.service(service);
            let reception = serve.and_then(|serve| node.reception(serve).ok());
            let Ok((link_state, messages)) = node.link(channel.link) else { continue };
            let taken = match reception {
                Some(reception) => link_state.proto.accept_channel(channel.id, reception).is_ok(),
                None => false,
            };
            match (taken, serve, reception) {
                (true, Some(serve), Some(reception)) => {
                    let handler = if let Serve::Handler(number) = serve { number } else { u32::MAX };
                    link_state.channel_table.insert(
                        channel.id,
                        ChannelState { phase: ChannelPhase::Open, reception, handler, is_held: false },
                    );
                    link_state.flush(channel.link, messages);
                    node.connections.channel_opened(service, channel);
                }
                _ => {
                    let _ = link_state
                        .with(channel.link, messages, |proto, _, callbacks| proto.release(callbacks, channel.id));
                    if let Some(Reception::Matched(scope)) = reception {
                        super::message_state::close_scope(&mut node.messages, scope);
                    }
                }
            }
            node.messages.wake_pending = true;
        }
    }

    fn run_tasks(&self, node: &mut NodeGuard<'_>) {
        let (mut tasks, deferred_drops) =
            (node.progress.take_tasks(), std::mem::take(&mut node.messages.deferred_drops));
        // Tasks may wait, so other threads, and the tasks themselves, may run progress meanwhile.
        node.progress.pause();
        node.wake_waiters();
        let result = node.unlocked(|| {
            catch_unwind(AssertUnwindSafe(|| {
                drop(deferred_drops);
                while let Some(task) = tasks.pop_front() {
                    task(self);
                }
            }))
        });
        node.quiet = CqId::NONE;
        // A task that panics does not cancel the tasks behind it.
        node.progress.return_tasks(tasks);
        node.progress.resume();
        rethrow_panic(node, result);
    }

    // ---- sleep -------------------------------------------------------------------------------------------------------

    /// Parks every link, so that its peer rings the doorbell from now on. False: something has arrived meanwhile.
    pub(super) fn arm_doorbells(&self, node: &mut NodeGuard<'_>) -> bool {
        self.park_links(node, |_| true);
        node.links.active().is_empty()
            && !node.messages.has_work()
            && !node.progress.has_tasks()
            && !node.messages.wake_pending
    }

    /// Parks every link for a sleep on the node's descriptor. False: something has arrived meanwhile, and the parked links are active again.
    pub(super) fn arm_for_program_sleep(&self, node: &mut NodeGuard<'_>) -> bool {
        let anew = !node.progress.is_asleep();
        node.links.note_parked(anew);
        let may = self.arm_doorbells(node);
        if !may {
            node.links.resume_parked();
        }
        may
    }

    /// Parks links: their peers ring the doorbell from now on. Links on which something has arrived meanwhile stay active.
    fn park_links(&self, node: &mut NodeGuard<'_>, which: impl Fn(&super::link::LinkState) -> bool) {
        node.publish();
        let now = node.progress.now();
        let NodeState { links, messages, .. } = &mut **node;
        let mut needs_barrier = false;
        let chosen = links.deactivate(|link_state| {
            if link_state.peer_closed || !which(link_state) {
                return false;
            }
            let waits_for_room = link_state.proto.is_due() || link_state.tx_blocked;
            if let Some(shm) = link_state.shm() {
                needs_barrier |= shm.fifo_rx.announce_sleep();
                if waits_for_room {
                    needs_barrier |= shm.fifo_tx.announce_wait();
                }
            }
            true
        });
        if needs_barrier {
            asymmetric_fence::heavy_global();
        }
        for link in chosen {
            let Some(link_state) = links.get_mut(link) else { continue };
            if link_state.proto.is_due() {
                link_state.flush(link, messages);
            }
            if link_state.trim.is_none() {
                link_state.schedule_trim(now);
            }
            link_state.is_active = match link_state.shm() {
                Some(shm) => !shm.fifo_rx.confirm_sleep(),
                None => false,
            };
            link_state.is_active |= link_state.channel_table.must_copy();
            if link_state.is_active {
                links.reactivate(link);
            }
        }
    }

    /// Longest sleep, ns, until something is due; `None`: without limit.
    pub(super) fn max_sleep(&self, node: &NodeState, deadline: Option<u64>) -> Option<u64> {
        const CONNECT_STEP_NS: u64 = 1_000_000;
        let links = node.links.states().filter_map(|link_state| link_state.due()).min();
        let connects = node.connections.has_pending().then(|| node.progress.now() + CONNECT_STEP_NS);
        let until = [deadline, links, node.connections.due(), connects].into_iter().flatten().min();
        until.map(|until| until.saturating_sub(clock::nanoseconds()))
    }
}

thread_local! {
    /// Whether this thread runs a handler.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a handler, in which it must not wait.
pub(super) fn is_in_handler() -> bool {
    IN_HANDLER.get()
}

/// Runs a handler, and catches its panic.
fn run_in_handler(handler: impl FnOnce()) -> std::thread::Result<()> {
    let before = IN_HANDLER.replace(true);
    let result = catch_unwind(AssertUnwindSafe(handler));
    IN_HANDLER.set(before);
    result
}

/// Continues after code of the program has run. If it has panicked, so does the call that ran it, and another thread may run progress.
fn rethrow_panic(node: &mut NodeGuard<'_>, result: std::thread::Result<()>) {
    if let Err(panic) = result {
        node.progress.stop();
        node.wake_waiters();
        resume_unwind(panic);
    }
}
