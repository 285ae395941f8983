//! Progress: the one loop that moves everything of a node, driven by whoever waits.
//!
//! A *round* looks at the links that have been busy lately, and now and then at one of the others, whose peers ring a bell when
//! they put something where nobody looks. Every so many rounds it asks the clock and the kernel. Handlers run with no lock held,
//! one at a time.

use super::connections::Serve;
use super::link::{Look, SILENT};
use super::message_state::{Delivered, Delivery, Phase, Place};
use super::node_state::{Core, Guard, Source};
use super::stats::How;
use super::{Body, GroupId, LinkId, Message, Node};
use motet_proto::message::Reception;
use motet_sys::rustix::event::{Timespec, epoll};
use motet_sys::rustix::fd::AsFd;
use motet_sys::{clock, membarrier, socket};
use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// Rounds between two looks at one of the links that are not busy.
pub(super) const SWEEP: u32 = 4;
/// Rounds between two looks at the clock, and time (ns) between two at the kernel.
pub(super) const SLOW: u32 = 512;
const ASK: u64 = 1_000_000;
/// Busy links beyond so many are let go once they have been silent.
const BUSY: usize = 8;
/// Messages for handlers taken from one link before others have their turn.
const TURN: usize = 16;
/// Events taken from the kernel at a time.
const EVENTS: usize = 32;

impl Node {
    /// One round. True: something has come, or was done.
    #[inline(always)]
    pub(super) fn round(&self, core: &mut Guard<'_>) -> bool {
        let rounds = core.progress.rounds().wrapping_add(1);
        core.progress.set_rounds(rounds);
        let mut came = false;
        for _ in 0..core.links.active().len() {
            let Some(link) = core.links.whose_turn() else { break };
            came |= self.attend(core, link);
            if core.state.operations.blocking_has_ended() {
                core.links.keep_turn();
                break; // what the others have stays where it is until somebody waits for it: here it would have to be kept
            }
            core.links.pass_turn();
        }
        if rounds.is_multiple_of(SWEEP) && core.links.has_inactive() {
            came |= self.sweep(core);
        }
        if rounds.is_multiple_of(SLOW) {
            self.slow(core);
        }
        if !core.state.offers.is_empty() {
            self.answer_offers(core);
        }
        if !core.state.ended.is_empty() {
            core.forget_ended();
        }
        if core.progress.has_tasks() || !core.state.spent.is_empty() {
            self.run_tasks(core);
            came = true;
        }
        if core.state.stirred {
            core.stir();
        }
        came
    }

    /// Takes what a link has, and puts what it owes.
    #[inline(always)]
    pub(super) fn attend(&self, core: &mut Guard<'_>, link: LinkId) -> bool {
        let mut came = false;
        for _ in 0..TURN {
            let now = core.progress.now();
            let Core { links, state, rx_packet, .. } = &mut **core;
            let (Some(link_state), Some(rx_packet)) = (links.get_mut(link), rx_packet) else { return came };
            let look = link_state.look(link, state, rx_packet, now);
            if look == Look::Silent && link_state.ending {
                link_state.end(link, state);
            }
            if link_state.callback_state.copies_wait() {
                came |= link_state.copy(link, state);
            }
            if link_state.proto.is_due() {
                link_state.flush(link, state); // the peer may wait for this, and nobody look here again for long
            }
            if link_state.blocked {
                link_state.look_for_room(state);
            }
            came |= look != Look::Silent;
            if look != Look::Deliver {
                break;
            }
            self.deliver(core);
        }
        came
    }

    /// Runs the handler of the message that has just come.
    fn deliver(&self, core: &mut Guard<'_>) {
        let Some(Delivery { channel, tag, what }) = core.state.delivery.take() else { return };
        let place = core.place(channel.link, channel.id).map(|place| place.handler);
        let handler = place.and_then(|number| core.connections.handler(number));
        let Some(rx_packet) = core.rx_packet.take() else { return };
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
            result = core.unlocked(|| inside(run));
            core.quiet = GroupId::NONE; // said by whoever was here meanwhile, of what this round goes on to change
        } else if let Delivered::Long(held) = what {
            left = Some(held);
        }
        core.rx_packet = Some(rx_packet);
        // A message that the handler has not taken is nobody's.
        if let (Some(held), Ok((link_state, _))) = (left, core.link(channel.link)) {
            link_state.proto.discard(held);
        }
        go_on(core, result);
    }

    /// A look at one of the links that are not busy.
    fn sweep(&self, core: &mut Guard<'_>) -> bool {
        let Some(link) = core.links.next_inactive() else { return false };
        let Some(link_state) = core.links.get_mut(link) else { return false };
        let idle = link_state.shm().is_some_and(|shm| shm.inward.is_empty()) && !link_state.proto.is_due();
        if idle {
            return false;
        }
        core.links.activate(link);
        core.state.operations.blocking_has_ended() || self.attend(core, link)
    }

    /// What need not be done in every round.
    #[cold]
    pub(super) fn slow(&self, core: &mut Guard<'_>) {
        let now = core.progress.read_clock();
        if now.saturating_sub(core.progress.kernel_polled_at()) > ASK {
            self.ask(core, Some(0));
        }
        if core.connections.has_pending() {
            self.step_calls(core);
        }
        if core.links.active().len() > BUSY && core.links.count_silence(SLOW) {
            self.let_go(core, |link_state| link_state.silent > SILENT);
        }
    }

    /// Asks the kernel what has happened; sleeps for it, `wait` ns or for ever, without the lock.
    pub(super) fn ask(&self, core: &mut Guard<'_>, wait: Option<u64>) {
        let mut events: [epoll::Event; EVENTS] = std::array::from_fn(|_| epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        });
        let timeout =
            wait.map(|ns| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ });
        let poll = core.progress.poll();
        let mut sleep = || epoll::wait(poll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        let count = if wait == Some(0) {
            sleep()
        } else {
            core.progress.fall_asleep();
            let count = core.unlocked(sleep);
            core.quiet = GroupId::NONE;
            core.progress.wake();
            count
        };
        core.progress.kernel_was_polled();
        for event in &events[..count] {
            match Source::decode(event.data) {
                Source::Kick => {
                    core.progress.drain_wakeup();
                    core.take_returns();
                }
                Source::Control(link) => core.hear(link),
                Source::Ear(link) => {
                    if let Ok((link_state, _)) = core.link(link)
                        && let Some(shm) = link_state.shm()
                    {
                        socket::drain_eventfd(shm.ear.as_fd().as_raw_fd());
                    }
                    core.links.activate(link);
                }
                Source::End(link) => {
                    if let Ok((link_state, _)) = core.link(link) {
                        link_state.ending = true;
                    }
                    core.links.activate(link);
                }
                Source::Packet(link) => core.links.activate(link),
                Source::Meeting => self.meet(core),
            }
        }
        let now = core.progress.now();
        if core.connections.listener_is_due(now) {
            self.meet(core); // unauthenticated connections that say nothing are closed
        }
        if core.connections.is_closing() {
            core.connections.close_more(now);
        }
        let lingering = core.links.take_lingering();
        core.state.ended.extend(lingering);
        if core.state.pool.released_segments() != core.gone {
            core.withdraw_segments();
        }
        if wait == Some(0) {
            core.publish();
        }
    }

    /// Gives back what links have not used for long.
    pub(super) fn trim(&self, core: &mut Guard<'_>) {
        let now = core.progress.now();
        for link in core.links.all() {
            if let Some(link_state) = core.links.get_mut(link).filter(|link_state| link_state.trim.is_some()) {
                link_state.trim(now);
            }
        }
    }

    // ---- others ------------------------------------------------------------------------------------------------------

    /// Takes whoever knocks, and goes on with calls.
    fn meet(&self, core: &mut Guard<'_>) {
        let now = core.progress.now();
        while let Some((driver, met)) = core.connections.next_accepted(now) {
            // A link that we cannot keep is closed at once, which its caller sees.
            if let Ok(link) = core.join(met, driver.name(), &How::default())
                && let Ok((link_state, _)) = core.link(link)
            {
                link_state.came = true;
            }
        }
        self.step_calls(core);
    }

    /// Goes on with calls under way.
    pub(super) fn step_calls(&self, core: &mut Guard<'_>) {
        let (now, identity) = (core.progress.now(), core.identity.clone());
        for index in core.connections.pending() {
            let Some(pending) = core.connections.pending_mut(index) else { continue };
            if let Some((driver, result)) = pending.step(&identity, now) {
                let how = std::mem::take(&mut pending.how);
                let result = result.and_then(|met| core.join(met, driver.name(), &how));
                if let Some(pending) = core.connections.pending_mut(index) {
                    pending.result = Some(result);
                }
                core.state.stirred = true;
            }
        }
    }

    /// Takes or refuses the channels that peers would like.
    fn answer_offers(&self, core: &mut Guard<'_>) {
        while let Some((channel, service)) = core.state.offers.pop_front() {
            let serve = core.connections.service(service);
            let reception = serve.and_then(|serve| core.reception(serve).ok());
            let Ok((link_state, state)) = core.link(channel.link) else { continue };
            let taken = match reception {
                Some(reception) => link_state.proto.accept_channel(channel.id, reception).is_ok(),
                None => false,
            };
            match (taken, serve, reception) {
                (true, Some(serve), Some(reception)) => {
                    let handler = if let Serve::Handler(number) = serve { number } else { u32::MAX };
                    link_state
                        .callback_state
                        .put(channel.id, Place { phase: Phase::Open, reception, handler, taken: false });
                    link_state.flush(channel.link, state);
                    core.connections.channel_opened(service, channel);
                }
                _ => {
                    let _ = link_state
                        .with(channel.link, state, |proto, _, callbacks| proto.release(callbacks, channel.id));
                    if let Some(Reception::Matched(scope)) = reception {
                        super::message_state::abandon(&mut core.state, scope);
                    }
                }
            }
            core.state.stirred = true;
        }
    }

    fn run_tasks(&self, core: &mut Guard<'_>) {
        let (mut tasks, spent) = (core.progress.take_tasks(), std::mem::take(&mut core.state.spent));
        // They may wait, so others, they among them, may drive meanwhile.
        core.progress.pause();
        core.stir();
        let result = core.unlocked(|| {
            catch_unwind(AssertUnwindSafe(|| {
                drop(spent);
                while let Some(task) = tasks.pop_front() {
                    task(self);
                }
            }))
        });
        core.quiet = GroupId::NONE;
        // One that has panicked takes no other with it.
        core.progress.put_back(tasks);
        core.progress.resume();
        go_on(core, result);
    }

    // ---- sleep -------------------------------------------------------------------------------------------------------

    /// Has peers ring from now on, on every link. False: something has come meanwhile.
    pub(super) fn arm(&self, core: &mut Guard<'_>) -> bool {
        self.let_go(core, |_| true);
        core.links.active().is_empty()
            && !core.state.is_left_something()
            && !core.progress.has_tasks()
            && !core.state.stirred
    }

    /// The same for a sleep on our descriptor.
    pub(super) fn arm_outside(&self, core: &mut Guard<'_>) -> bool {
        let anew = !core.progress.is_asleep();
        core.links.note_parked(anew);
        let may = self.arm(core);
        if !may {
            core.links.resume_parked();
        }
        may
    }

    /// The peers of these links ring from now on, unless something has come meanwhile: those stay busy.
    fn let_go(&self, core: &mut Guard<'_>, which: impl Fn(&super::link::LinkState) -> bool) {
        core.publish();
        let now = core.progress.now();
        let Core { links, state, .. } = &mut **core;
        let mut needs_barrier = false;
        let chosen = links.deactivate(|link_state| {
            if link_state.ending || !which(link_state) {
                return false;
            }
            let starved = link_state.proto.is_due() || link_state.blocked;
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
                link_state.flush(link, state);
            }
            if link_state.trim.is_none() {
                link_state.rest(now);
            }
            link_state.hot = match link_state.shm() {
                Some(shm) => !shm.inward.confirm_sleep(),
                None => false,
            };
            link_state.hot |= link_state.callback_state.must_copy();
            if link_state.hot {
                links.reactivate(link);
            }
        }
    }

    /// How long (ns) a sleep may last; `None`: for ever.
    pub(super) fn sleep_at_most(&self, core: &Core, deadline: Option<u64>) -> Option<u64> {
        const CALLS: u64 = 1_000_000;
        let links = core.links.states().filter_map(|link_state| link_state.due()).min();
        let connects = core.connections.has_pending().then(|| core.progress.now() + CALLS);
        let until = [deadline, links, core.connections.due(), connects].into_iter().flatten().min();
        until.map(|until| until.saturating_sub(clock::nanoseconds()))
    }
}

thread_local! {
    /// This thread runs a handler.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a handler, and so must not wait.
pub(super) fn is_inside() -> bool {
    INSIDE.get()
}

/// Runs a handler.
fn inside(handler: impl FnOnce()) -> std::thread::Result<()> {
    let before = INSIDE.replace(true);
    let result = catch_unwind(AssertUnwindSafe(handler));
    INSIDE.set(before);
    result
}

/// The program's code has panicked: so does the call that ran it, and another thread may drive.
fn go_on(core: &mut Guard<'_>, result: std::thread::Result<()>) {
    if let Err(panic) = result {
        core.progress.stop();
        core.stir();
        resume_unwind(panic);
    }
}
