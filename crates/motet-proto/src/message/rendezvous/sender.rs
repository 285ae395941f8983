//! Long messages at the sender: what receivers request, and pieces in turn.

use crate::message::credit::RxCredit;
use crate::message::packet::{CopyAssist, Head, Kind, Route};
use crate::message::slab::SlabId;
use crate::message::slab::{IntrusiveList, Slab};
use crate::message::{Callbacks, Outcome, Packets, ProtocolViolation, Status};

/// A long message that is being sent.
#[derive(Debug)]
pub(crate) struct RendezvousSend {
    pub(in crate::message) operation: u64,
    pub(in crate::message) length: u64,
    /// Bytes sent, and bytes that may be sent: all of an eager message, of a rendezvous message what was requested.
    pub(in crate::message) sent: u64,
    pub(in crate::message) until: u64,
    pub(in crate::message) eager: bool,
    /// The route of what was requested; whether RTS had an address, and whether the receiver has sent COPY_ASSIST.
    pub(in crate::message) route: Route,
    pub(in crate::message) has_address: bool,
    pub(in crate::message) assist_requested: bool,
    /// Whether CANCEL is wanted, and was sent.
    pub(in crate::message) cancel: bool,
    pub(in crate::message) cancelled: bool,
    pub(in crate::message) queued: bool,
}

impl RendezvousSend {
    /// A rendezvous message of which nothing was requested yet.
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

/// The long messages that are being sent over a link.
#[derive(Debug, Default)]
pub struct RendezvousSends {
    pub(in crate::message) slab: Slab<RendezvousSend, 1>,
    /// Messages that have something to send.
    pub(in crate::message) due: IntrusiveList,
    /// The limit of the peer.
    pub(in crate::message) max: u32,
}

impl RendezvousSends {
    /// Sets the limit of the peer.
    pub fn allow(&mut self, max: u32) {
        self.max = max;
    }

    /// Number of messages, and bytes held for them.
    pub fn size(&self) -> (u32, usize) {
        (self.slab.count(), self.slab.bytes())
    }

    #[inline(always)]
    pub(in crate::message) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(in crate::message) fn add(&mut self, transfer: RendezvousSend) -> Option<SlabId> {
        if self.slab.count() >= self.max { None } else { self.slab.insert(transfer) }
    }

    pub(in crate::message) fn schedule(&mut self, index: u32) {
        let Some(transfer) = self.slab.get_mut(index) else { return };
        if !std::mem::replace(&mut transfer.queued, true) {
            self.slab.append(&mut self.due, 0, index);
        }
    }

    fn remove(&mut self, index: u32) -> Option<RendezvousSend> {
        if self.slab.get(index)?.queued {
            self.slab.unlink(&mut self.due, 0, index);
        }
        self.slab.remove(index)
    }

    /// CTS: the peer takes payload up to `until`.
    pub fn on_cts(&mut self, number: SlabId, until: u64, route: Route) -> Result<(), ProtocolViolation> {
        let transfer = self.slab.get_by_id(number).filter(|transfer| !transfer.eager);
        let transfer = transfer.ok_or(ProtocolViolation("CTS for a message without RTS"))?;
        if until <= transfer.until || until > transfer.length {
            return Err(ProtocolViolation("CTS for bytes beyond the message, or requested before"));
        }
        (transfer.until, transfer.route) = (until, route);
        self.schedule(number.index());
        Ok(())
    }

    /// COPY_ASSIST: the peer copies a number of bytes of the message. Returns the operation.
    pub fn on_copy_assist(&mut self, number: SlabId, assist: &CopyAssist) -> Result<u64, ProtocolViolation> {
        let transfer =
            self.slab.get_by_id(number).filter(|transfer| transfer.has_address && !transfer.assist_requested);
        let transfer =
            transfer.ok_or(ProtocolViolation("COPY_ASSIST for a message without an address, or a second one"))?;
        if assist.length > transfer.length || assist.address.checked_add(assist.length).is_none() {
            return Err(ProtocolViolation("COPY_ASSIST for bytes beyond the message"));
        }
        transfer.assist_requested = true;
        Ok(transfer.operation)
    }

    /// FIN. Returns the operation and the bytes that were received.
    pub fn on_fin(&mut self, number: SlabId, status: Status) -> Result<(u64, u64), ProtocolViolation> {
        let transfer = self.slab.get_by_id(number).filter(|transfer| !transfer.eager);
        let transfer = transfer.ok_or(ProtocolViolation("FIN for a message without RTS"))?;
        if transfer.sent != transfer.until {
            return Err(ProtocolViolation("FIN for a message whose requested pieces are not all sent"));
        }
        if status == Status::Cancelled && !transfer.cancelled {
            return Err(ProtocolViolation("FIN with status cancelled for a message without CANCEL"));
        }
        let length = if status == Status::Done { transfer.length } else { 0 };
        let operation = transfer.operation;
        self.remove(number.index());
        Ok((operation, length))
    }

    pub(in crate::message) fn cancel(&mut self, number: SlabId) -> bool {
        let Some(transfer) = self.slab.get_by_id(number).filter(|transfer| !transfer.eager) else { return false };
        if !std::mem::replace(&mut transfer.cancel, true) {
            self.schedule(number.index());
        }
        true
    }

    /// Sends cancellations, and pieces of each message in turn.
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
            let number = self.slab.number(index);
            let Some(transfer) = self.slab.get_mut(index) else { return };
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
                let (at, grant) = (transfer.sent, rx_credit.next_grant());
                let head = Head { to: number, own: 0, grant }.write_word(at);
                let route = transfer.route;
                let gone = match owner.file_body(transfer.operation).map(|file| file.part(at, length)) {
                    Some(part) => packets.put_file_piece(&head, part),
                    None => {
                        let mut put = |body: &[&[u8]]| packets.put_piece(&head, body, route);
                        owner.body(transfer.operation, at, length as usize, &mut put)
                    }
                };
                if !gone {
                    return;
                }
                rx_credit.mark_sent(grant);
                transfer.sent += length;
            }
            let more = transfer.sent < transfer.until;
            transfer.queued = false;
            let whole = transfer.eager && !more;
            self.slab.unlink(&mut self.due, 0, index);
            if more {
                self.schedule(index); // after the others
            } else if whole && let Some(transfer) = self.remove(index) {
                let outcome = Outcome { status: Status::Done, length: transfer.length };
                owner.completed(transfer.operation, outcome);
                owner.unblocked();
            }
        }
    }

    /// The link is down: all messages complete.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        for index in self.slab.indices() {
            if let Some(transfer) = self.remove(index) {
                owner.completed(transfer.operation, Outcome { status: Status::LinkDown, length: 0 });
            }
        }
    }
}
