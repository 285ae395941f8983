//! Waiting: one thread drives progress for all, the others sleep until it has what they wait for or leaves.

use super::node_state::{Core, Guard};
use super::progress::is_inside;
use super::spin_policy::Next;
use super::{Error, GroupId, Node};
use motet_sys::clock;
use std::time::Duration;

/// Longest sleep of a thread that does not drive: it looks by itself then.
const LOOK: Duration = Duration::from_millis(500);

impl Node {
    /// Makes progress until `ready` says what it has been waiting for, or CLOCK_MONOTONIC (ns) passes `deadline`.
    #[inline(always)]
    pub(super) fn wait<R>(
        &self,
        mut core: Guard<'_>,
        deadline: Option<u64>,
        mut ready: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            if let Some(found) = ready(&mut core) {
                return Ok(found);
            }
            if !core.progress.is_running() {
                core.progress.start();
                let result = self.drive(&mut core, deadline, &mut ready);
                core.progress.stop();
                core.progress.wake_one(); // somebody must drive
                match result {
                    Some(result) => return result,
                    None => continue, // another thread does
                }
            }
            if is_inside() {
                return Err(Error::WouldBlock);
            }
            self.watch_others(&mut core, deadline)?;
        }
    }

    /// Drives. `None`: another thread does now.
    #[inline(always)]
    fn drive<R>(
        &self,
        core: &mut Guard<'_>,
        deadline: Option<u64>,
        ready: &mut impl FnMut(&mut Core) -> Option<R>,
    ) -> Option<Result<R, Error>> {
        let mut spin = core.progress.spin.begin(self.spin());
        core.progress.wake();
        core.progress.program_wakes(); // whoever slept on the descriptor is here, or is woken by what is found
        loop {
            let came = self.round(core);
            if let Some(found) = ready(core) {
                core.progress.spin.paid();
                return Some(Ok(found));
            }
            if core.has_waiters() && !core.progress.is_superseded() {
                core.yield_to_waiters();
                core.quiet = GroupId::NONE;
            }
            if came {
                if core.progress.is_superseded() {
                    return None;
                }
                // What comes without an end, or is copied for long, is no reason to stay.
                if let Err(late) = passed(core, deadline) {
                    return Some(Err(late));
                }
                spin.again();
                continue;
            }
            match spin.next() {
                Next::Look => {}
                Next::Yield => {
                    let mut pace = std::mem::take(&mut core.progress.spin);
                    let hog = core.unlocked(|| pace.lend());
                    core.progress.spin = pace;
                    core.quiet = GroupId::NONE;
                    if hog {
                        spin.give_up();
                    }
                    if let Err(late) = passed(core, deadline) {
                        return Some(Err(late));
                    }
                }
                Next::Sleep => {
                    if let Err(late) = passed(core, deadline) {
                        return Some(Err(late));
                    }
                    if let Some(found) = self.sleep(core, deadline, ready) {
                        return Some(Ok(found));
                    }
                    spin = core.progress.spin.begin(self.spin());
                }
            }
        }
    }

    /// Sleeps, unless what is waited for is there once every peer has been told to ring.
    #[cold]
    fn sleep<R>(
        &self,
        core: &mut Guard<'_>,
        deadline: Option<u64>,
        ready: &mut impl FnMut(&mut Core) -> Option<R>,
    ) -> Option<R> {
        if !self.arm(core) {
            return None;
        }
        let found = ready(core);
        if found.is_some() {
            return found;
        }
        core.progress.spin.failed();
        let most = self.sleep_at_most(core, deadline);
        let began = clock::nanoseconds();
        self.ask(core, most);
        let slept = core.progress.now().saturating_sub(began);
        core.progress.spin.slept(slept);
        self.trim(core);
        if core.connections.has_pending() {
            self.step_calls(core);
        }
        None
    }

    /// Sleeps while another thread drives, until something has happened.
    #[cold]
    fn watch_others(&self, core: &mut Guard<'_>, deadline: Option<u64>) -> Result<(), Error> {
        passed(core, deadline)?;
        core.progress.add_waiter();
        if core.progress.is_asleep() {
            // It may have to wait for something else now: room in a lane, say.
            core.progress.ring_wakeup();
        }
        let left = deadline.map(|until| Duration::from_nanos(until.saturating_sub(clock::nanoseconds())));
        core.unlocked(|| std::thread::park_timeout(left.unwrap_or(LOOK).min(LOOK)));
        core.quiet = GroupId::NONE;
        core.progress.remove_waiter();
        Ok(())
    }
}

/// Whether nobody may wait any longer.
fn passed(core: &Core, deadline: Option<u64>) -> Result<(), Error> {
    const EBADF: i32 = 9;
    if core.progress.is_closing() {
        return Err(Error::NoNode(EBADF));
    }
    if deadline.is_some_and(|until| clock::nanoseconds() >= until) { Err(Error::TimedOut) } else { Ok(()) }
}
