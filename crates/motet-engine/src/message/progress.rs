//! Progress: the one loop that moves everything of a node, driven by whoever waits.
//!
//! A *round* looks at the links that have been busy lately, and now and then at one of the others, whose peers ring a bell when
//! they put something where nobody looks. Every so many rounds it asks the clock and the kernel. Handlers run with no lock held,
//! one at a time.

use super::link::{Look, SILENT};
use super::message_state::{Delivered, Delivery, Phase, Place};
use super::node_state::{Core, Guard, PendingConnect, Serve, Source};
use super::stats::How;
use super::transport::Connected;
use super::{Body, GroupId, LinkId, Message, Node};
use crate::driver::Driver;
use crate::reason::Reason;
use motet_proto::message::Reception;
use motet_proto::message::slab::Number;
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
        core.rounds = core.rounds.wrapping_add(1);
        let mut came = false;
        for _ in 0..core.hot.len() {
            let Some(link) = core.whose_turn() else { break };
            came |= self.attend(core, link);
            if core.state.operations.blocking_has_ended() {
                core.keep_turn();
                break; // what the others have stays where it is until somebody waits for it: here it would have to be kept
            }
            core.pass_turn();
        }
        if core.rounds.is_multiple_of(SWEEP) && core.links.count() as usize > core.hot.len() {
            came |= self.sweep(core);
        }
        if core.rounds.is_multiple_of(SLOW) {
            self.slow(core);
        }
        if !core.state.offers.is_empty() {
            self.answer_offers(core);
        }
        if !core.state.ended.is_empty() {
            core.forget_ended();
        }
        if !core.tasks.is_empty() || !core.state.spent.is_empty() {
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
            let now = core.now;
            let Core { links, state, rx_packet, .. } = &mut **core;
            let (Some(link_state), Some(rx_packet)) = (links.named(Number(link.0)), rx_packet) else { return came };
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
        let handler = place.and_then(|number| core.handler(number));
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
        let most = core.links.highest();
        for _ in 0..most {
            core.sweep = if core.sweep + 1 >= most { 0 } else { core.sweep + 1 };
            let sweep = core.sweep;
            let link = LinkId(core.links.number(sweep).0);
            let Some(link_state) = core.links.get_mut(sweep).filter(|link_state| !link_state.hot) else { continue };
            if link_state.transport.is_none() {
                continue;
            }
            let idle = link_state.shm().is_some_and(|shm| shm.inward.is_empty()) && !link_state.proto.is_due();
            if !idle {
                core.warm(link);
                return core.state.operations.blocking_has_ended() || self.attend(core, link);
            }
            return false;
        }
        false
    }

    /// What need not be done in every round.
    #[cold]
    pub(super) fn slow(&self, core: &mut Guard<'_>) {
        core.now = clock::nanoseconds();
        if core.now.saturating_sub(core.asked) > ASK {
            self.ask(core, Some(0));
        }
        if core.calls.count() > 0 {
            self.step_calls(core);
        }
        if core.hot.len() > BUSY {
            let Core { hot, links, .. } = &mut **core;
            for link in hot {
                if let Some(link_state) = links.named(Number(link.0)) {
                    link_state.count_silence(SLOW);
                }
            }
            let silent = |core: &Core, link: &LinkId| {
                let index = core.links.find(Number(link.0));
                index.and_then(|index| core.links.get(index)).is_none_or(|link_state| link_state.silent > SILENT)
            };
            if core.hot.iter().filter(|link| silent(core, link)).count() > core.hot.len() / 2 {
                self.let_go(core, |link_state| link_state.silent > SILENT);
            }
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
        let poll = core.poll.as_fd().as_raw_fd();
        let mut sleep = || {
            let poll = motet_sys::private_fds::borrow(poll);
            epoll::wait(poll, &mut events[..], timeout.as_ref()).unwrap_or(0)
        };
        let count = if wait == Some(0) {
            sleep()
        } else {
            core.asleep = true;
            let count = core.unlocked(sleep);
            core.quiet = GroupId::NONE;
            core.asleep = false;
            count
        };
        core.now = clock::nanoseconds();
        core.asked = core.now;
        for event in &events[..count] {
            match Source::decode(event.data) {
                Source::Kick => {
                    socket::drain(core.kick.as_fd().as_raw_fd());
                    core.take_returns();
                }
                Source::Control(link) => core.hear(link),
                Source::Ear(link) => {
                    if let Ok((link_state, _)) = core.link(link)
                        && let Some(shm) = link_state.shm()
                    {
                        socket::drain(shm.ear.as_fd().as_raw_fd());
                    }
                    core.warm(link);
                }
                Source::End(link) => {
                    if let Ok((link_state, _)) = core.link(link) {
                        link_state.ending = true;
                    }
                    core.warm(link);
                }
                Source::Packet(link) => core.warm(link),
                Source::Meeting => self.meet(core),
            }
        }
        let now = core.now;
        if core.listeners.iter().any(|listener| listener.1.due().is_some_and(|due| due <= now)) {
            self.meet(core); // guests that say nothing go
        }
        if !core.leaving.is_empty() {
            core.see_all_off();
        }
        if !core.lingering.is_empty() {
            let lingering = std::mem::take(&mut core.lingering);
            core.state.ended.extend(lingering);
        }
        if core.state.pool.gone() != core.gone {
            core.withdraw_segments();
        }
        if wait == Some(0) {
            core.publish();
        }
    }

    /// Gives back what links have not used for long.
    pub(super) fn trim(&self, core: &mut Guard<'_>) {
        let now = core.now;
        for index in core.links.indices() {
            if let Some(link_state) = core.links.get_mut(index).filter(|link_state| link_state.trim.is_some()) {
                link_state.trim(now);
            }
        }
    }

    // ---- others ------------------------------------------------------------------------------------------------------

    /// Takes whoever knocks, and goes on with calls.
    fn meet(&self, core: &mut Guard<'_>) {
        for at in 0..core.listeners.len() {
            let now = core.now;
            while let Some((driver, met)) = core.listeners[at].1.step(now).map(|met| (core.listeners[at].0, met)) {
                // A link that we cannot keep is closed at once, which its caller sees.
                if let Ok(link) = core.join(met, driver.name(), &How::default())
                    && let Ok((link_state, _)) = core.link(link)
                {
                    link_state.came = true;
                }
            }
        }
        self.step_calls(core);
    }

    /// Goes on with calls under way.
    pub(super) fn step_calls(&self, core: &mut Guard<'_>) {
        for index in core.calls.indices() {
            let now = core.now;
            let identity = core.identity.clone();
            let Some(call) = core.calls.get_mut(index) else { continue };
            if let Some((driver, result)) = call.step(&identity, now) {
                let how = std::mem::take(&mut call.how);
                let result = result.and_then(|met| core.join(met, driver.name(), &how));
                if let Some(call) = core.calls.get_mut(index) {
                    call.result = Some(result);
                }
                core.state.stirred = true;
            }
        }
    }

    /// Takes or refuses the channels that peers would like.
    fn answer_offers(&self, core: &mut Guard<'_>) {
        while let Some((channel, service)) = core.state.offers.pop_front() {
            let serve = core.services.get(&service).map(|known| known.serve);
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
                    if let Some(service) = core.services.get_mut(&service) {
                        service.opened.push_back(channel);
                    }
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
        let (mut tasks, spent) = (std::mem::take(&mut core.tasks), std::mem::take(&mut core.state.spent));
        // They may wait, so others, they among them, may drive meanwhile.
        core.driving = false;
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
        tasks.append(&mut core.tasks);
        core.tasks = tasks;
        // Who drives now may do so for ever: it is not waited for.
        core.ousted = core.driving;
        core.driving = true;
        go_on(core, result);
    }

    // ---- sleep -------------------------------------------------------------------------------------------------------

    /// Has peers ring from now on, on every link. False: something has come meanwhile.
    pub(super) fn arm(&self, core: &mut Guard<'_>) -> bool {
        self.let_go(core, |_| true);
        core.hot.is_empty() && !core.state.is_left_something() && core.tasks.is_empty() && !core.state.stirred
    }

    /// The same for a sleep on our descriptor.
    pub(super) fn arm_outside(&self, core: &mut Guard<'_>) -> bool {
        core.note_busy();
        let may = self.arm(core);
        if !may {
            core.wake_up();
        }
        may
    }

    /// The peers of these links ring from now on, unless something has come meanwhile: those stay busy.
    fn let_go(&self, core: &mut Guard<'_>, which: impl Fn(&super::link::LinkState) -> bool) {
        core.publish();
        let Core { hot, links, state, now, .. } = &mut **core;
        let mut needs_barrier = false;
        let mut chosen = Vec::with_capacity(hot.len());
        hot.retain(|&link| {
            let Some(link_state) = links.named(Number(link.0)) else { return false };
            if link_state.ending || !which(link_state) {
                return true;
            }
            let starved = link_state.proto.is_due() || link_state.blocked;
            if let Some(shm) = link_state.shm() {
                needs_barrier |= shm.inward.announce_sleep();
                if starved {
                    needs_barrier |= shm.outward.announce_wait();
                }
            }
            chosen.push(link);
            false
        });
        if needs_barrier {
            membarrier::everywhere();
        }
        for link in chosen {
            let Some(link_state) = links.named(Number(link.0)) else { continue };
            if link_state.proto.is_due() {
                link_state.flush(link, state);
            }
            if link_state.trim.is_none() {
                link_state.rest(*now);
            }
            link_state.hot = match link_state.shm() {
                Some(shm) => !shm.inward.confirm_sleep(),
                None => false,
            };
            link_state.hot |= link_state.callback_state.must_copy();
            if link_state.hot {
                if let Some(shm) = link_state.shm() {
                    shm.inward.end_sleep();
                }
                hot.push(link);
            }
        }
    }

    /// How long (ns) a sleep may last; `None`: for ever.
    pub(super) fn sleep_at_most(&self, core: &Core, deadline: Option<u64>) -> Option<u64> {
        const CALLS: u64 = 1_000_000;
        let packet_transport = core.links.indices().filter_map(|index| core.links.get(index)?.due()).min();
        let listeners = core.listeners.iter().filter_map(|listener| listener.1.due()).min();
        let calls = (core.calls.count() > 0).then(|| core.now + CALLS);
        let leaving = core.leaving.iter().filter_map(|packet_transport| packet_transport.due()).min();
        let until = [deadline, packet_transport, listeners, calls, leaving].into_iter().flatten().min();
        until.map(|until| until.saturating_sub(clock::nanoseconds()))
    }
}

impl PendingConnect {
    /// Goes on; what came of it in the end.
    fn step(
        &mut self,
        identity: &super::transport::Identity,
        now: u64,
    ) -> Option<(&'static dyn Driver, Result<Connected, Reason>)> {
        if self.result.is_some() {
            return None;
        }
        loop {
            let result = self.calling.as_mut()?.step(now)?;
            let Err(reason) = result else { return Some((self.driver, result)) };
            self.how.refused(self.driver.name(), reason);
            // The next best way.
            let Some((driver, address)) = self.rest.pop_front() else { return Some((self.driver, Err(reason))) };
            self.driver = driver;
            match driver.call(identity, &address) {
                Ok(calling) => self.calling = Some(calling),
                Err(reason) if self.rest.is_empty() => return Some((driver, Err(reason))),
                Err(reason) => self.how.refused(driver.name(), reason),
            }
        }
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
        core.driving = std::mem::take(&mut core.ousted);
        core.stir();
        resume_unwind(panic);
    }
}
