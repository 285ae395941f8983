//! Progress: the loop that moves everything of a node. One thread at a time runs it, for all threads.
//!
//! A *round* polls the active links, and now and then one of the parked links, whose peers ring the doorbell when they send. At intervals it reads the clock
//! and polls the kernel for events. Handlers run one at a time, without the node's lock.

use super::connections::Serve;
use super::link::{IDLE_POLLS, Look};
use super::message_state::{ChannelPhase, Delivered, HandlerMessage, Place};
use super::node_state::{Guard, NodeState, Source};
use super::stats::ConnectHistory;
use super::{Body, CqId, LinkId, Message, Node};
use motet_proto::message::Reception;
use motet_sys::rustix::event::{Timespec, epoll};
use motet_sys::rustix::fd::AsFd;
use motet_sys::{clock, membarrier, socket};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Rounds between two polls of a parked link.
pub(super) const SWEEP: u32 = 4;
/// Rounds between two readings of the clock.
pub(super) const SLOW: u32 = 512;
/// Time between two polls of the kernel, ns.
const ASK: u64 = 1_000_000;
/// Number of active links above which idle links are parked.
const BUSY: usize = 8;
/// Messages for handlers that are taken from one link before the next link has its turn.
const TURN: usize = 16;
/// Events taken from the kernel by one call.
const EVENTS: usize = 32;

impl Node {
    /// Makes one round. True: something has arrived, or was done.
    #[inline(always)]
    pub(super) fn round(&self, node: &mut Guard<'_>) -> bool {
        let rounds = node.progress.rounds().wrapping_add(1);
        node.progress.set_rounds(rounds);
        let mut came = false;
        for _ in 0..node.links.active().len() {
            let Some(link) = node.links.whose_turn() else { break };
            came |= self.poll_link(node, link);
            if node.messages.operations.blocking_has_ended() {
                node.links.keep_turn();
                break; // messages of other links stay in their FIFOs until they are waited for: here they would have to be stored
            }
            node.links.pass_turn();
        }
        if rounds.is_multiple_of(SWEEP) && node.links.has_inactive() {
            came |= self.sweep(node);
        }
        if rounds.is_multiple_of(SLOW) {
            self.slow(node);
        }
        if !node.messages.open_requests.is_empty() {
            self.answer_open_requests(node);
        }
        if !node.messages.ended.is_empty() {
            node.forget_ended();
        }
        if node.progress.has_tasks() || !node.messages.deferred_drops.is_empty() {
            self.run_tasks(node);
            came = true;
        }
        if node.messages.wake_pending {
            node.wake_waiters();
        }
        came
    }

    /// Handles what has arrived on a link, and sends what the link owes its peer.
    #[inline(always)]
    pub(super) fn poll_link(&self, node: &mut Guard<'_>, link: LinkId) -> bool {
        let mut came = false;
        for _ in 0..TURN {
            let now = node.progress.now();
            let NodeState { links, messages, rx_packet, .. } = &mut **node;
            let (Some(link_state), Some(rx_packet)) = (links.get_mut(link), rx_packet) else { return came };
            let look = link_state.look(link, messages, rx_packet, now);
            if look == Look::Silent && link_state.peer_closed {
                link_state.end(link, messages);
            }
            if link_state.channel_table.copies_wait() {
                came |= link_state.copy(link, messages);
            }
            if link_state.proto.is_due() {
                link_state.flush(link, messages); // the peer may wait for this, and this link may not be polled again for long
            }
            if link_state.tx_blocked {
                link_state.look_for_room(messages);
            }
            came |= look != Look::Silent;
            if look != Look::Deliver {
                break;
            }
            self.deliver(node);
        }
        came
    }

    /// Runs the handler of the message that has just arrived.
    fn deliver(&self, node: &mut Guard<'_>) {
        let Some(HandlerMessage { channel, tag, what }) = node.messages.handler_message.take() else { return };
        let place = node.place(channel.link, channel.id).map(|place| place.handler);
        let handler = place.and_then(|number| node.connections.handler(number));
        let Some(rx_packet) = node.rx_packet.take() else { return };
        let mut left = None;
        let mut result = Ok(());
        if let Some(handler) = handler {
            let run = || match what {
                Delivered::Whole(headers, body) => {
                    let body = Body::Whole(rx_packet.bytes(body));
                    handler.message(self, Message { channel, tag, headers: rx_packet.bytes(headers), body });
                }
                Delivered::Long(held) => {
                    left = Some(held);
                    let headers = left.as_ref().map(|held| held.headers().to_vec()).unwrap_or_default();
                    let body = Body::Long(&mut left);
                    handler.message(self, Message { channel, tag, headers: &headers, body });
                }
            };
            result = node.unlocked(|| inside(run));
            node.quiet = CqId::NONE; // another thread may have set it meanwhile, and this round changes more
        } else if let Delivered::Long(held) = what {
            left = Some(held);
        }
        node.rx_packet = Some(rx_packet);
        // A message that the handler has not taken is discarded.
        if let (Some(held), Ok((link_state, _))) = (left, node.link(channel.link)) {
            link_state.proto.discard(held);
        }
        go_on(node, result);
    }

    /// Polls the next parked link, and makes it active if something has arrived.
    fn sweep(&self, node: &mut Guard<'_>) -> bool {
        let Some(link) = node.links.next_inactive() else { return false };
        let Some(link_state) = node.links.get_mut(link) else { return false };
        let idle = link_state.shm().is_some_and(|shm| shm.inward.is_empty()) && !link_state.proto.is_due();
        if idle {
            return false;
        }
        node.links.activate(link);
        node.messages.operations.blocking_has_ended() || self.poll_link(node, link)
    }

    /// Does the work that is not due in every round.
    #[cold]
    pub(super) fn slow(&self, node: &mut Guard<'_>) {
        let now = node.progress.read_clock();
        if now.saturating_sub(node.progress.kernel_polled_at()) > ASK {
            self.ask(node, Some(0));
        }
        if node.connections.has_pending() {
            self.step_connects(node);
        }
        if node.links.active().len() > BUSY && node.links.count_empty_polls(SLOW) {
            self.park_links(node, |link_state| link_state.empty_polls > IDLE_POLLS);
        }
    }

    /// Polls the kernel for events. If `wait` is not 0, sleeps for them, without the node's lock: `wait` ns, or without limit for `None`.
    pub(super) fn ask(&self, node: &mut Guard<'_>, wait: Option<u64>) {
        let mut events: [epoll::Event; EVENTS] = std::array::from_fn(|_| epoll::Event {
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
            node.progress.fall_asleep();
            let count = node.unlocked(sleep);
            node.quiet = CqId::NONE;
            node.progress.wake();
            count
        };
        node.progress.kernel_was_polled();
        for event in &events[..count] {
            match Source::decode(event.data) {
                Source::Wakeup => {
                    node.progress.drain_wakeup();
                    node.take_returns();
                }
                Source::Control(link) => node.hear(link),
                Source::RxDoorbell(link) => {
                    if let Ok((link_state, _)) = node.link(link)
                        && let Some(shm) = link_state.shm()
                    {
                        socket::drain_eventfd(shm.rx_doorbell.as_fd().as_raw_fd());
                    }
                    node.links.activate(link);
                }
                Source::End(link) => {
                    if let Ok((link_state, _)) = node.link(link) {
                        link_state.peer_closed = true;
                    }
                    node.links.activate(link);
                }
                Source::Packet(link) => node.links.activate(link),
                Source::Connection => self.meet(node),
            }
        }
        let now = node.progress.now();
        if node.connections.listener_is_due(now) {
            self.meet(node); // unauthenticated connections that stay silent are closed
        }
        if node.connections.is_closing() {
            node.connections.close_more(now);
        }
        let lingering = node.links.take_lingering();
        node.messages.ended.extend(lingering);
        if node.messages.pool.released_segments() != node.gone {
            node.withdraw_segments();
        }
        if wait == Some(0) {
            node.publish();
        }
    }

    /// Releases the pages of payload rings that links have not used for long.
    pub(super) fn trim(&self, node: &mut Guard<'_>) {
        let now = node.progress.now();
        for link in node.links.all() {
            if let Some(link_state) = node.links.get_mut(link).filter(|link_state| link_state.trim.is_some()) {
                link_state.trim(now);
            }
        }
    }

    // ---- others ------------------------------------------------------------------------------------------------------

    /// Accepts incoming connections, and continues connection attempts.
    fn meet(&self, node: &mut Guard<'_>) {
        let now = node.progress.now();
        while let Some((driver, met)) = node.connections.next_accepted(now) {
            // A link that cannot be added is closed at once, which its connector sees.
            if let Ok(link) = node.add_link(met, driver.name(), &ConnectHistory::default())
                && let Ok((link_state, _)) = node.link(link)
            {
                link_state.accepted = true;
            }
        }
        self.step_connects(node);
    }

    /// Continues the connection attempts under way.
    pub(super) fn step_connects(&self, node: &mut Guard<'_>) {
        let (now, identity) = (node.progress.now(), node.identity.clone());
        for index in node.connections.pending() {
            let Some(pending) = node.connections.pending_mut(index) else { continue };
            if let Some((driver, result)) = pending.step(&identity, now) {
                let how = std::mem::take(&mut pending.how);
                let result = result.and_then(|met| node.add_link(met, driver.name(), &how));
                if let Some(pending) = node.connections.pending_mut(index) {
                    pending.result = Some(result);
                }
                node.messages.wake_pending = true;
            }
        }
    }

    /// Accepts or refuses the channels that peers ask to open.
    fn answer_open_requests(&self, node: &mut Guard<'_>) {
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
                    link_state
                        .channel_table
                        .put(channel.id, Place { phase: ChannelPhase::Open, reception, handler, taken: false });
                    link_state.flush(channel.link, messages);
                    node.connections.channel_opened(service, channel);
                }
                _ => {
                    let _ = link_state
                        .with(channel.link, messages, |proto, _, callbacks| proto.release(callbacks, channel.id));
                    if let Some(Reception::Matched(scope)) = reception {
                        super::message_state::abandon(&mut node.messages, scope);
                    }
                }
            }
            node.messages.wake_pending = true;
        }
    }

    fn run_tasks(&self, node: &mut Guard<'_>) {
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
        node.progress.put_back(tasks);
        node.progress.resume();
        go_on(node, result);
    }

    // ---- sleep -------------------------------------------------------------------------------------------------------

    /// Parks every link, so that its peer rings the doorbell from now on. False: something has arrived meanwhile.
    pub(super) fn arm_doorbells(&self, node: &mut Guard<'_>) -> bool {
        self.park_links(node, |_| true);
        node.links.active().is_empty()
            && !node.messages.has_work()
            && !node.progress.has_tasks()
            && !node.messages.wake_pending
    }

    /// Parks every link for a sleep on the node's descriptor. False: something has arrived meanwhile, and the parked links are active again.
    pub(super) fn arm_for_program_sleep(&self, node: &mut Guard<'_>) -> bool {
        let anew = !node.progress.is_asleep();
        node.links.note_parked(anew);
        let may = self.arm_doorbells(node);
        if !may {
            node.links.resume_parked();
        }
        may
    }

    /// Parks links: their peers ring the doorbell from now on. Links on which something has arrived meanwhile stay active.
    fn park_links(&self, node: &mut Guard<'_>, which: impl Fn(&super::link::LinkState) -> bool) {
        node.publish();
        let now = node.progress.now();
        let NodeState { links, messages, .. } = &mut **node;
        let mut needs_barrier = false;
        let chosen = links.deactivate(|link_state| {
            if link_state.peer_closed || !which(link_state) {
                return false;
            }
            let starved = link_state.proto.is_due() || link_state.tx_blocked;
            if let Some(shm) = link_state.shm() {
                needs_barrier |= shm.inward.announce_sleep();
                if starved {
                    needs_barrier |= shm.outward.announce_wait();
                }
            }
            true
        });
        if needs_barrier {
            membarrier::global_barrier();
        }
        for link in chosen {
            let Some(link_state) = links.get_mut(link) else { continue };
            if link_state.proto.is_due() {
                link_state.flush(link, messages);
            }
            if link_state.trim.is_none() {
                link_state.rest(now);
            }
            link_state.is_active = match link_state.shm() {
                Some(shm) => !shm.inward.confirm_sleep(),
                None => false,
            };
            link_state.is_active |= link_state.channel_table.must_copy();
            if link_state.is_active {
                links.reactivate(link);
            }
        }
    }

    /// Longest sleep, ns, until something is due; `None`: without limit.
    pub(super) fn sleep_at_most(&self, node: &NodeState, deadline: Option<u64>) -> Option<u64> {
        const CALLS: u64 = 1_000_000;
        let links = node.links.states().filter_map(|link_state| link_state.due()).min();
        let connects = node.connections.has_pending().then(|| node.progress.now() + CALLS);
        let until = [deadline, links, node.connections.due(), connects].into_iter().flatten().min();
        until.map(|until| until.saturating_sub(clock::nanoseconds()))
    }
}

thread_local! {
    /// Whether this thread runs a handler.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a handler, in which it must not wait.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs a handler, and catches its panic.
fn inside(handler: impl FnOnce()) -> std::thread::Result<()> {
    let before = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(handler));
    INSIDE.set(before);
    result
}

/// Continues after code of the program has run. If it has panicked, so does the call that ran it, and another thread may run progress.
fn go_on(node: &mut Guard<'_>, result: std::thread::Result<()>) {
    if let Err(panic) = result {
        node.progress.stop();
        node.wake_waiters();
        resume_unwind(panic);
    }
}
