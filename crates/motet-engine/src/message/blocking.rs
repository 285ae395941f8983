//! Blocking receives: the calling thread waits until the message has come.
//!
//! The wait begins with looks on the direct path ([`super::completions`]). While no other receive is posted, this receive is matched without being
//! posted. If the looks do not find the message, or it does not arrive in one piece, the receive is posted without a record ([`super::port`])
//! in a completion group that the node reserves for blocking receives. One thread at a time can use that group. Matching is the protocol's.

use super::completions::{Next, is_of, look_at_lanes, take_from};
use super::node_state::{Core, Guard};
use super::operations::{Blocking, Buffer, Got};
use super::port::post_otherwise;
use super::receive::RecvFrom;
use super::{Error, GroupId, Node};
use motet_proto::message::matching::Selector;
use motet_sys::user_memory::UserMemory;

impl Node {
    /// Receives the next message whose tag is `tag` but for the bits in `ignore`, and waits for it. The message's headers, the outermost first,
    /// are appended to `headers`.
    ///
    /// Errors: [`Error::Full`] when another thread receives so: post a receive and wait for it. Behind any error but that and
    /// [`Error::Unknown`], [`Error::Closed`], the receive has not ended: [`Node::cancel_blocking`] and [`Node::wait_blocking`], or
    /// [`Node::abandon_blocking`].
    #[inline(always)]
    pub fn receive(
        &self,
        (from, tag, ignore): (RecvFrom, u64, u64),
        span: UserMemory,
        headers: &mut Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        let (mut core, quiet) = self.core_by(None)?;
        let selector = core.selector(from, tag, ignore)?;
        let mut teller = Blocking { alone: None, headers, got: None };
        let mut looks = Looks::More;
        if core.state.table.is_sole_receive(&selector) {
            teller.alone = Some((selector, span));
            looks = self.look_for_blocking(&mut core, quiet, &mut teller);
            if let Some(got) = teller.got.take() {
                core.release();
                return Ok(got);
            }
            teller.alone = None;
        }
        self.receive_posted(core, (selector, span), teller, looks, deadline)
    }

    /// Posts the receive, looks for its message again, and then waits as any operation does.
    #[inline(never)]
    fn receive_posted(
        &self,
        mut core: Guard<'_>,
        (selector, span): (Selector, UserMemory),
        mut teller: Blocking<'_, '_>,
        looks: Looks,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        let operations = &mut core.state.operations;
        if operations.is_blocked() {
            return Err(Error::Full);
        }
        let receive = operations.begin_bare(operations.blocking, Buffer { span, context: 0 })?;
        if core.state.table.post_fast(selector, receive).is_none() {
            post_otherwise(&mut core, selector, receive);
        } else if looks == Looks::More {
            self.look_for_blocking(&mut core, GroupId::NONE, &mut teller);
            if let Some(got) = teller.got.take() {
                return Ok(got);
            }
        }
        self.wait(core, deadline, |core| core.state.operations.take_blocking(teller.headers))
    }

    /// Waits on for a blocking receive whose wait has ended with an error.
    pub fn wait_blocking(&self, headers: &mut Option<&mut Vec<u8>>, deadline: Option<u64>) -> Result<Got, Error> {
        self.wait(self.core()?, deadline, |core| core.state.operations.take_blocking(headers))
    }

    /// Has the blocking receive end as cancelled, unless its message is on its way there: it ends with that then.
    pub fn cancel_blocking(&self, from: RecvFrom) -> Result<(), Error> {
        let group = self.core()?.state.operations.blocking;
        self.cancel_bare(group, from, 0, true).map(drop)
    }

    /// Takes the memory away from the blocking receive, and forgets it.
    pub fn abandon_blocking(&self, from: RecvFrom) -> Result<(), Error> {
        let group = self.core()?.state.operations.blocking;
        let abandoned = self.abandon_bare(group, from);
        while self.core()?.state.operations.next_end(group)?.is_some() {}
        abandoned
    }

    /// Looks for the message on the direct path. Stops when the message has come, when the number of looks is used up, or when there is
    /// work that the direct path does not do.
    #[inline(always)]
    fn look_for_blocking(&self, core: &mut Guard<'_>, quiet: GroupId, teller: &mut Blocking<'_, '_>) -> Looks {
        if core.progress.is_running() || core.progress.is_closing() {
            return Looks::Enough;
        }
        let group = core.state.operations.blocking;
        let look = |core: &mut Core, teller: &mut _| match core.next_busy() {
            Next::Nothing => (0, false),
            Next::Link(link) => take_from(core, link, (group, 1), teller),
            Next::Due => (0, true),
        };
        let (mut told, mut more) = match is_of(quiet, group) {
            true => look(core, teller),
            false => look_at_lanes(core, (group, 1), teller),
        };
        let all_have_been_looked_at = told == 0 || core.links.active().len() == 1 || is_of(quiet, group);
        if !more && told == 0 {
            let (others, most) = (core.waiters(), core.progress.spin.looks(self.spin()));
            for _ in 1..most {
                std::hint::spin_loop();
                (told, more) = look(core, teller);
                if more || told > 0 || others.are_waiting() {
                    break;
                }
            }
        }
        if more {
            if told > 0 {
                self.look_everywhere(core);
            }
            return Looks::More;
        }
        if all_have_been_looked_at {
            core.quiet = group;
        }
        if told > 0 {
            core.progress.spin.paid();
        }
        Looks::Enough
    }
}

/// Why the looks for a message have ended without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Looks {
    /// Another packet has come, or other work is due.
    More,
    /// The number of looks is used up.
    Enough,
}
