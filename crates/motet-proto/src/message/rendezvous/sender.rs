//! Long messages on their way from this side: what their receivers ask for, and pieces in turn.

use crate::message::credit::RxCredit;
use crate::message::packet::{CopyAssist, Head, Kind, Route};
use crate::message::slab::SlabId;
use crate::message::slab::{IntrusiveList, Slab};
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Status};

#[derive(Debug)]
pub(crate) struct RendezvousSend {
    pub(in crate::message) operation: u64,
    pub(in crate::message) length: u64,
    /// Bytes put, and bytes that may be put: all of an eager message, of another what has been pulled.
    pub(in crate::message) sent: u64,
    pub(in crate::message) until: u64,
    pub(in crate::message) eager: bool,
    /// The route of what has been pulled; and whether the receiver sees the body, and has asked for help with its copy.
    pub(in crate::message) route: Route,
    pub(in crate::message) has_address: bool,
    pub(in crate::message) assist_requested: bool,
    /// CANCEL is wanted, and has been put.
    pub(in crate::message) cancel: bool,
    pub(in crate::message) cancelled: bool,
    pub(in crate::message) queued: bool,
}

impl RendezvousSend {
    /// One of which nothing goes before it is pulled.
    #[inline]
    pub(in crate::message) fn rendezvous(operation: u64, length: u64) -> Self {
        let (route, has_address, assist_requested) = (Route::Any, false, false);
        let (cancel, cancelled, queued) = (false, false, false);
        Self {
            operation,
            length,
            sent: 0,
            until: 0,
            eager: false,
            route,
            has_address,
            assist_requested,
            cancel,
            cancelled,
            queued,
        }
    }
}

/// Long messages on their way from this side.
#[derive(Debug, Default)]
pub struct RendezvousSends {
    pub(in crate::message) pool: Slab<RendezvousSend, 1>,
    /// Those that have something to put.
    pub(in crate::message) due: IntrusiveList,
    /// The peer's limit.
    pub(in crate::message) max: u32,
}

impl RendezvousSends {
    /// The peer has said how many it keeps records of.
    pub fn allow(&mut self, max: u32) {
        self.max = max;
    }

    /// Messages, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.pool.count(), self.pool.bytes())
    }

    #[inline(always)]
    pub(in crate::message) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(in crate::message) fn add(&mut self, transfer: RendezvousSend) -> Option<SlabId> {
        if self.pool.count() >= self.max { None } else { self.pool.insert(transfer) }
    }

    pub(in crate::message) fn schedule(&mut self, index: u32) {
        let Some(transfer) = self.pool.get_mut(index) else { return };
        if !std::mem::replace(&mut transfer.queued, true) {
            self.pool.append(&mut self.due, 0, index);
        }
    }

    fn remove(&mut self, index: u32) -> Option<RendezvousSend> {
        if self.pool.get(index)?.queued {
            self.pool.unlink(&mut self.due, 0, index);
        }
        self.pool.remove(index)
    }

    /// CTS: the peer takes payload up to `until`.
    pub fn on_cts(&mut self, number: SlabId, until: u64, route: Route) -> Result<(), ProtocolViolation> {
        let transfer = self.pool.get_by_id(number).filter(|transfer| !transfer.eager);
        let transfer = transfer.ok_or(ProtocolViolation("a pull of no announced message"))?;
        if until <= transfer.until || until > transfer.length {
            return Err(ProtocolViolation("a pull of bytes that are not there"));
        }
        (transfer.until, transfer.route) = (until, route);
        self.schedule(number.index());
        Ok(())
    }

    /// COPY_ASSIST: the peer copies so many bytes of the message; returns the operation.
    pub fn on_copy_assist(&mut self, number: SlabId, assist_requested: &CopyAssist) -> Result<u64, ProtocolViolation> {
        let transfer =
            self.pool.get_by_id(number).filter(|transfer| transfer.has_address && !transfer.assist_requested);
        let transfer = transfer.ok_or(ProtocolViolation("a assist of what is not has_address"))?;
        if assist_requested.length > transfer.length
            || assist_requested.address.checked_add(assist_requested.length).is_none()
        {
            return Err(ProtocolViolation("a assist of bytes that are not there"));
        }
        transfer.assist_requested = true;
        Ok(transfer.operation)
    }

    /// FIN: the operation, and the bytes that were taken.
    pub fn on_fin(&mut self, number: SlabId, status: Status) -> Result<(u64, u64), ProtocolViolation> {
        let transfer = self.pool.get_by_id(number).filter(|transfer| !transfer.eager);
        let transfer = transfer.ok_or(ProtocolViolation("the end of no announced message"))?;
        if transfer.sent != transfer.until {
            return Err(ProtocolViolation("the end of a message with pieces under way"));
        }
        if status == Status::Cancelled && !transfer.cancelled {
            return Err(ProtocolViolation("a message cancelled by nobody"));
        }
        let length = if status == Status::Done { transfer.length } else { 0 };
        let operation = transfer.operation;
        self.remove(number.index());
        Ok((operation, length))
    }

    pub(in crate::message) fn cancel(&mut self, number: SlabId) -> bool {
        let Some(transfer) = self.pool.get_by_id(number).filter(|transfer| !transfer.eager) else { return false };
        if !std::mem::replace(&mut transfer.cancel, true) {
            self.schedule(number.index());
        }
        true
    }

    /// Puts cancellations and pieces in turn.
    pub(in crate::message) fn flush<P: Packets, O: Callbacks>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        rx_credit: &mut RxCredit,
        reserve: usize,
        pieces: &mut usize,
    ) {
        let max = packets.longest_piece() as u64;
        while let Some(index) = self.due.first() {
            let number = self.pool.number(index);
            let Some(transfer) = self.pool.get_mut(index) else { return };
            if transfer.cancel && !transfer.cancelled {
                if !packets.put(Kind::Cancel as u8, &[&Head { to: number, own: 0, grant: 0 }.write()]) {
                    return;
                }
                transfer.cancelled = true;
            }
            let length = (transfer.until - transfer.sent).min(max);
            if length > 0 {
                if *pieces == 0 || !packets.piece_fits(length as usize, reserve) {
                    return;
                }
                *pieces -= 1;
                let (at, grant) = (transfer.sent, rx_credit.next());
                let head = Head { to: number, own: 0, grant }.write_word(at);
                let route = transfer.route;
                let mut put = |body: &[&[u8]]| packets.put_piece(&head, body, route);
                let gone = owner.body(transfer.operation, at, length as usize, &mut put);
                if !gone {
                    return;
                }
                rx_credit.mark_sent(grant);
                transfer.sent += length;
            }
            let more = transfer.sent < transfer.until;
            transfer.queued = false;
            let whole = transfer.eager && !more;
            self.pool.unlink(&mut self.due, 0, index);
            if more {
                self.schedule(index); // behind the others
            } else if whole && let Some(transfer) = self.remove(index) {
                let outcome = Outcome { status: Status::Done, length: transfer.length };
                owner.completed(transfer.operation, outcome);
                owner.unblocked();
            }
        }
    }

    /// The link is broken: all of them complete.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        for index in self.pool.indices() {
            if let Some(transfer) = self.remove(index) {
                owner.completed(transfer.operation, Outcome { status: Status::LinkDown, length: 0 });
            }
        }
    }
}
