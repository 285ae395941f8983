//! A blocking receive: its caller waits right here until the message has come.
//!
//! What it is: a receive without a record ([`super::port`]), of a group that the node keeps for it. The wait begins with looks by the direct
//! path ([`super::ends`]). One thread at a time receives so; what it waits for longer, or does not come whole, ends in that group. What it is
//! not: another way to match.

use super::core::Guard;
use super::ends::{Next, look_at_lanes, take_from};
use super::operations::{Blocking, Buffer, Got};
use super::port::post_otherwise;
use super::receiving::From;
use super::{Error, Node};
use motet_sys::span::Span;

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
        (from, tag, ignore): (From, u64, u64),
        span: Span,
        headers: &mut Option<&mut Vec<u8>>,
        deadline: Option<u64>,
    ) -> Result<Got, Error> {
        let mut core = self.core()?;
        let selector = core.selector(from, tag, ignore)?;
        let operations = &mut core.desk.operations;
        if operations.is_blocked() {
            return Err(Error::Full);
        }
        let receive = operations.begin_bare(operations.blocking, Buffer { span, context: 0 })?;
        if core.desk.table.post_simply(selector, receive).is_some() {
            let mut teller = Blocking { headers, got: None };
            let more = self.look_for_blocking(&mut core, &mut teller);
            if let Some(got) = teller.got {
                core.pace.paid();
                if more {
                    self.look_everywhere(&mut core);
                }
                core.release();
                return Ok(got);
            }
        } else {
            post_otherwise(&mut core, selector, receive);
        }
        self.wait(core, deadline, |core| core.desk.operations.take_blocking(headers))
    }

    /// Waits on for a blocking receive whose wait has ended with an error.
    pub fn wait_blocking(&self, headers: &mut Option<&mut Vec<u8>>, deadline: Option<u64>) -> Result<Got, Error> {
        self.wait(self.core()?, deadline, |core| core.desk.operations.take_blocking(headers))
    }

    /// Has the blocking receive end as cancelled, unless its message is on its way there: it ends with that then.
    pub fn cancel_blocking(&self, from: From) -> Result<(), Error> {
        let group = self.core()?.desk.operations.blocking;
        self.cancel_bare(group, from, 0, true).map(drop)
    }

    /// Takes the memory away from the blocking receive, and forgets it.
    pub fn abandon_blocking(&self, from: From) -> Result<(), Error> {
        let group = self.core()?.desk.operations.blocking;
        let abandoned = self.abandon_bare(group, from);
        while self.core()?.desk.operations.next_end(group)?.is_some() {}
        abandoned
    }

    /// The looks that a wait begins with. Whether there is more to do than they did.
    #[inline(always)]
    fn look_for_blocking(&self, core: &mut Guard<'_>, teller: &mut Blocking<'_, '_>) -> bool {
        if core.driving || core.shut {
            return true;
        }
        let others = core.others();
        let group = core.desk.operations.blocking;
        let mut looks = core.pace.looks(self.spin());
        let (mut told, mut more) = look_at_lanes(core, (group, 1), teller);
        while !more && told == 0 && looks > 1 && !others.are_waiting() {
            looks -= 1;
            std::hint::spin_loop();
            (told, more) = match core.next_busy() {
                Next::Nothing => continue,
                Next::Link(link) => take_from(core, link, (group, 1), teller),
                Next::Due => (0, true),
            };
        }
        more
    }
}
