//! Long messages on their way from this side: what their receivers ask for, and pieces in turn.

use crate::message::credit::Grants;
use crate::message::packet::{Head, Kind, Route, Shared};
use crate::message::slab::Number;
use crate::message::slab::{Fifo, Pool};
use crate::message::{Broken, Outcome, Owner, Packets, Status};

#[derive(Debug)]
pub(crate) struct Outbound {
    pub(in crate::message) operation: u64,
    pub(in crate::message) length: u64,
    /// Bytes put, and bytes that may be put: all of an eager message, of another what has been pulled.
    pub(in crate::message) sent: u64,
    pub(in crate::message) until: u64,
    pub(in crate::message) eager: bool,
    /// The route of what has been pulled; and whether the receiver sees the body, and has asked for help with its copy.
    pub(in crate::message) route: Route,
    pub(in crate::message) shown: bool,
    pub(in crate::message) shared: bool,
    /// CANCEL is wanted, and has been put.
    pub(in crate::message) cancel: bool,
    pub(in crate::message) cancelled: bool,
    pub(in crate::message) queued: bool,
}

impl Outbound {
    /// One of which nothing goes before it is pulled.
    #[inline]
    pub(in crate::message) fn announced(operation: u64, length: u64) -> Self {
        let (route, shown, shared) = (Route::Any, false, false);
        let (cancel, cancelled, queued) = (false, false, false);
        Self { operation, length, sent: 0, until: 0, eager: false, route, shown, shared, cancel, cancelled, queued }
    }
}

/// Long messages on their way from this side.
#[derive(Debug, Default)]
pub struct Outbounds {
    pub(in crate::message) pool: Pool<Outbound, 1>,
    /// Those that have something to put.
    pub(in crate::message) due: Fifo,
    /// The peer's limit.
    pub(in crate::message) most: u32,
}

impl Outbounds {
    /// The peer has said how many it keeps records of.
    pub fn allow(&mut self, most: u32) {
        self.most = most;
    }

    /// Messages, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes())
    }

    #[inline(always)]
    pub(in crate::message) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(in crate::message) fn add(&mut self, outbound: Outbound) -> Option<Number> {
        if self.pool.count() >= self.most { None } else { self.pool.insert(outbound) }
    }

    pub(in crate::message) fn owe(&mut self, index: u32) {
        let Some(outbound) = self.pool.get_mut(index) else { return };
        if !std::mem::replace(&mut outbound.queued, true) {
            self.pool.append(&mut self.due, 0, index);
        }
    }

    fn remove(&mut self, index: u32) -> Option<Outbound> {
        if self.pool.get(index)?.queued {
            self.pool.unlink(&mut self.due, 0, index);
        }
        self.pool.remove(index)
    }

    /// PULL: the peer takes payload up to `until`.
    pub fn pulled(&mut self, number: Number, until: u64, route: Route) -> Result<(), Broken> {
        let outbound = self.pool.named(number).filter(|outbound| !outbound.eager);
        let outbound = outbound.ok_or(Broken("a pull of no announced message"))?;
        if until <= outbound.until || until > outbound.length {
            return Err(Broken("a pull of bytes that are not there"));
        }
        (outbound.until, outbound.route) = (until, route);
        self.owe(number.index());
        Ok(())
    }

    /// SHARE: the peer copies so many bytes of the message; returns the operation.
    pub fn share(&mut self, number: Number, shared: &Shared) -> Result<u64, Broken> {
        let outbound = self.pool.named(number).filter(|outbound| outbound.shown && !outbound.shared);
        let outbound = outbound.ok_or(Broken("a share of what is not shown"))?;
        if shared.length > outbound.length || shared.address.checked_add(shared.length).is_none() {
            return Err(Broken("a share of bytes that are not there"));
        }
        outbound.shared = true;
        Ok(outbound.operation)
    }

    /// DONE: the operation, and the bytes that were taken.
    pub fn done(&mut self, number: Number, status: Status) -> Result<(u64, u64), Broken> {
        let outbound = self.pool.named(number).filter(|outbound| !outbound.eager);
        let outbound = outbound.ok_or(Broken("the end of no announced message"))?;
        if outbound.sent != outbound.until {
            return Err(Broken("the end of a message with pieces under way"));
        }
        if status == Status::Cancelled && !outbound.cancelled {
            return Err(Broken("a message cancelled by nobody"));
        }
        let length = if status == Status::Done { outbound.length } else { 0 };
        let operation = outbound.operation;
        self.remove(number.index());
        Ok((operation, length))
    }

    pub(in crate::message) fn cancel(&mut self, number: Number) -> bool {
        let Some(outbound) = self.pool.named(number).filter(|outbound| !outbound.eager) else { return false };
        if !std::mem::replace(&mut outbound.cancel, true) {
            self.owe(number.index());
        }
        true
    }

    /// Puts cancellations and pieces in turn.
    pub(in crate::message) fn flush<P: Packets, O: Owner>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        grants: &mut Grants,
        reserve: usize,
        pieces: &mut usize,
    ) {
        let most = packets.longest_piece() as u64;
        while let Some(index) = self.due.first() {
            let number = self.pool.number(index);
            let Some(outbound) = self.pool.get_mut(index) else { return };
            if outbound.cancel && !outbound.cancelled {
                if !packets.put(Kind::Cancel as u8, &[&Head { to: number, own: 0, grant: 0 }.write()]) {
                    return;
                }
                outbound.cancelled = true;
            }
            let length = (outbound.until - outbound.sent).min(most);
            if length > 0 {
                if *pieces == 0 || !packets.piece_fits(length as usize, reserve) {
                    return;
                }
                *pieces -= 1;
                let (at, grant) = (outbound.sent, grants.next());
                let head = Head { to: number, own: 0, grant }.write_word(at);
                let route = outbound.route;
                let mut put = |body: &[&[u8]]| packets.put_piece(&head, body, route);
                let gone = owner.body(outbound.operation, at, length as usize, &mut put);
                if !gone {
                    return;
                }
                grants.gone(grant);
                outbound.sent += length;
            }
            let more = outbound.sent < outbound.until;
            outbound.queued = false;
            let whole = outbound.eager && !more;
            self.pool.unlink(&mut self.due, 0, index);
            if more {
                self.owe(index); // behind the others
            } else if whole && let Some(outbound) = self.remove(index) {
                let outcome = Outcome { status: Status::Done, length: outbound.length };
                owner.completed(outbound.operation, outcome);
                owner.unblocked();
            }
        }
    }

    /// The link is broken: all of them complete.
    pub fn fail<O: Owner>(&mut self, owner: &mut O) {
        for index in self.pool.indices() {
            if let Some(outbound) = self.remove(index) {
                owner.completed(outbound.operation, Outcome { status: Status::Broken, length: 0 });
            }
        }
    }
}
