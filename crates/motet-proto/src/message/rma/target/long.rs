//! Long operations of the peer, each with a record until its end was reported.
//!
//! The bytes of a put are copied by the owner or requested in pieces. For a get the address of its bytes is sent, or the bytes in
//! pieces. A long operation holds its region only while the owner copies, or while the peer knows the address of the bytes. In pieces,
//! each piece is an access of its own: when the region is revoked, the next one ends the operation. The number of operations is limited
//! by [`super::Target`].

use super::super::format::{self, COPIED, NOT_COPIED, OF_GET, Range, code};
use super::super::revocation::release;
use super::super::{CopyTo, RemoteCopy, RemoteRecord, room};
use crate::message::gather::put;
use crate::message::packet::{Head, Kind, RemoteAddress};
use crate::message::regions::Rights;
use crate::message::slab::{IntrusiveList, Slab, SlabId};
use crate::message::{Callbacks, Limits, Packets, ProtocolViolation, Status, UNKNOWN_REGION_KEY};

/// Lists: records that owe a short packet, and records that send bytes.
const DUE_LIST: usize = 0;
const SENDING_LIST: usize = 1;

/// PUT LONG or GET LONG.
#[derive(Debug, Clone, Copy)]
pub struct LongRequest {
    /// The peer's number of the operation.
    pub number: SlabId,
    /// The bytes of the region.
    pub range: Range,
    /// The kind of access.
    pub access: LongAccess,
}

/// The access of a long operation.
#[derive(Debug, Clone, Copy)]
pub enum LongAccess {
    /// A put of the bytes at `from` in the peer's memory. If its address is 0, they are requested in pieces.
    Put {
        /// The address of the bytes.
        from: RemoteAddress,
    },
    /// A get. `direct`: the peer can copy the bytes by itself, if it gets their address.
    Get {
        /// The peer can copy.
        direct: bool,
    },
}

/// A long operation.
#[derive(Debug)]
struct Long {
    /// The peer's number.
    number: SlabId,
    range: Range,
    /// Bytes received of a put, or sent of a get.
    moved: u64,
    state: TargetState,
    queued: bool,
}

/// The state of a long operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetState {
    /// A put: the owner copies. The region is held.
    Copying,
    /// A put in pieces: wanted up to `until`, requested up to `asked`.
    Pulling {
        until: u64,
        asked: u64,
    },
    /// A put that failed: requested pieces up to `asked` still arrive.
    Draining {
        asked: u64,
        status: Status,
    },
    /// A get: GET_ADDR is due, or was sent. The region is held.
    GetAddrDue(RemoteAddress),
    GetAddrSent,
    /// A get in pieces.
    Sending,
    /// PUT_FIN is due.
    PutFinDue(Status),
}

/// The long operations of the peer.
#[derive(Debug, Default)]
pub struct LongOperations {
    long: Slab<Long, 2>,
    /// By the index of the peer's number: the index of the record plus one, 0 for none.
    by_number: Vec<u32>,
    due: IntrusiveList,
    sending: IntrusiveList,
}

impl LongOperations {
    /// Number of operations.
    pub fn count(&self) -> u32 {
        self.long.count()
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.long.bytes() + self.by_number.capacity() * size_of::<u32>()
    }

    /// Whether a packet is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        !self.due.is_empty() || !self.sending.is_empty()
    }

    /// PUT LONG or GET LONG.
    pub fn begin<O: Callbacks>(
        &mut self,
        owner: &mut O,
        limits: &Limits,
        LongRequest { number, range, access }: LongRequest,
    ) -> Result<(), ProtocolViolation> {
        let at = number.index() as usize;
        if at >= limits.requests as usize || number.0 == 0 || range.length == 0 {
            return Err(ProtocolViolation(
                "PUT LONG or GET LONG of no bytes, or with a number beyond the limit of HELLO",
            ));
        }
        if at >= self.by_number.len() {
            self.by_number.resize(at + 1, 0);
        }
        if self.by_number[at] != 0 {
            return Err(ProtocolViolation("PUT LONG or GET LONG with a number that is in use"));
        }
        let long = Long { number, range, moved: 0, state: TargetState::GetAddrSent, queued: false };
        let record =
            self.long.insert(long).ok_or(ProtocolViolation("PUT LONG or GET LONG beyond the number of records"))?;
        let index = record.index();
        self.by_number[at] = index + 1;
        let right = match access {
            LongAccess::Put { .. } => Rights::PUT,
            LongAccess::Get { .. } => Rights::GET,
        };
        if !owner.regions().was_given_out(range.key) {
            return Err(UNKNOWN_REGION_KEY);
        }
        match (owner.regions().reach(range.key, right, range.offset, range.length), access) {
            (Err(status), _) => self.schedule(index, TargetState::PutFinDue(status)),
            (Ok(region), LongAccess::Put { from }) if from.address != 0 => {
                owner.regions().hold(range.key);
                self.set(index, TargetState::Copying);
                let (record, to) = (RemoteRecord::Put(record), CopyTo::Region { region, at: range.offset });
                owner.copy_remote(RemoteCopy { record, to, from, length: range.length });
            }
            (Ok(_), LongAccess::Put { .. }) => self.pull(index, limits.ahead.max(1)),
            (Ok(region), LongAccess::Get { direct }) => {
                let place = if direct {
                    owner.region_address(region, range.offset, range.length)
                } else {
                    RemoteAddress::default()
                };
                if place.address != 0 {
                    owner.regions().hold(range.key);
                    self.schedule(index, TargetState::GetAddrDue(place));
                } else {
                    self.send(index);
                }
            }
        }
        Ok(())
    }

    fn by_number(&self, number: SlabId) -> Option<u32> {
        let index = self.by_number.get(number.index() as usize)?.checked_sub(1)?;
        (self.long.get(index)?.number == number).then_some(index)
    }

    /// The owner has copied the bytes of a put, or could not.
    pub fn copied<O: Callbacks>(&mut self, owner: &mut O, record: SlabId, done: bool, broken: bool, ahead: u64) {
        let Some(long) = self.long.get_by_id(record).filter(|long| long.state == TargetState::Copying) else { return };
        let key = long.range.key;
        if broken {
            self.remove(record.index());
        } else if done {
            self.schedule(record.index(), TargetState::PutFinDue(Status::Done));
        } else {
            self.pull(record.index(), ahead);
        }
        release(owner, key);
    }

    /// BYTES of a put.
    pub fn piece<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        at: u64,
        bytes: &[u8],
        ahead: u64,
    ) -> Result<(), ProtocolViolation> {
        let index = self.by_number(number).ok_or(ProtocolViolation("BYTES for an unknown put"))?;
        let Some(long) = self.long.get_mut(index) else { return Ok(()) };
        let most = match long.state {
            TargetState::Pulling { asked, .. } | TargetState::Draining { asked, .. } => asked,
            _ => return Err(ProtocolViolation("BYTES for an unknown put")),
        };
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|&end| at == long.moved && at < end && end <= most);
        long.moved = end.ok_or(ProtocolViolation("BYTES of a put out of order or beyond what was requested"))?;
        let Range { key, offset, length } = long.range;
        if let TargetState::Pulling { until, asked } = long.state {
            // The range was checked, so the sum does not overflow.
            let reached = owner.regions().reach(key, Rights::PUT, offset + at, bytes.len() as u64);
            match reached.and_then(|region| owner.region_write(region, offset + at, bytes)) {
                Err(status) => long.state = TargetState::Draining { asked, status },
                Ok(()) => {
                    if long.moved == length {
                        self.schedule(index, TargetState::PutFinDue(Status::Done));
                    } else if until - long.moved <= ahead / 2 && until < length {
                        let until = length.min(long.moved.saturating_add(ahead));
                        self.schedule(index, TargetState::Pulling { until, asked });
                    }
                    return Ok(());
                }
            }
        }
        if let TargetState::Draining { asked, status } = long.state
            && long.moved == asked
        {
            self.schedule(index, TargetState::PutFinDue(status));
        }
        Ok(())
    }

    /// GET_FIN: the initiator has copied the bytes of a get, or could not.
    pub fn on_get_fin<O: Callbacks>(
        &mut self,
        owner: &mut O,
        number: SlabId,
        own: u16,
    ) -> Result<(), ProtocolViolation> {
        let index = self.by_number(number).ok_or(ProtocolViolation("GET_FIN without a GET_ADDR"))?;
        let Some(long) = self.long.get(index).filter(|long| long.state == TargetState::GetAddrSent) else {
            return Err(ProtocolViolation("GET_FIN without a GET_ADDR"));
        };
        let key = long.range.key;
        match own {
            COPIED => self.remove(index),
            NOT_COPIED => self.send(index),
            _ => return Err(ProtocolViolation("GET_FIN with an unknown status")),
        }
        release(owner, key);
        Ok(())
    }

    fn set(&mut self, index: u32, state: TargetState) {
        if let Some(long) = self.long.get_mut(index) {
            long.state = state;
        }
    }

    fn pull(&mut self, index: u32, ahead: u64) {
        let length = self.long.get(index).map_or(0, |long| long.range.length);
        self.schedule(index, TargetState::Pulling { until: length.min(ahead), asked: 0 });
    }

    fn send(&mut self, index: u32) {
        self.set(index, TargetState::Sending);
        self.long.append(&mut self.sending, SENDING_LIST, index);
    }

    /// Removes a record that is in no list.
    fn remove(&mut self, index: u32) {
        let Some(long) = self.long.remove(index) else { return };
        if let Some(slot) = self.by_number.get_mut(long.number.index() as usize) {
            *slot = 0;
        }
        if self.long.count() == 0 && self.by_number.len() > 64 {
            self.by_number = Vec::new();
        }
    }

    // ---- packets due ------------------------------------------------------------------------------------------------

    fn schedule(&mut self, index: u32, state: TargetState) {
        let Some(long) = self.long.get_mut(index) else { return };
        long.state = state;
        if !std::mem::replace(&mut long.queued, true) {
            self.long.append(&mut self.due, DUE_LIST, index);
        }
    }

    /// Sends the short packets that are due. Returns false when there is no room for more.
    pub fn flush<P: Packets>(&mut self, packets: &mut P) -> bool {
        while let Some(index) = self.due.first() {
            let Some(long) = self.long.get_mut(index) else { return true };
            let head = |own| Head { to: long.number, own, grant: 0 };
            let put = match &mut long.state {
                TargetState::PutFinDue(status) => packets.put(Kind::PutFin as u8, &[&head(code(*status)).write()]),
                TargetState::GetAddrDue(place) => {
                    packets.put(Kind::GetAddr as u8, &[&format::write_place(head(0), *place)])
                }
                TargetState::Pulling { until, asked } => {
                    let put = packets.put(Kind::PutCts as u8, &[&head(0).write_word(*until)]);
                    *asked = if put { *until } else { *asked };
                    put
                }
                _ => true, // a put that failed before PUT_CTS was sent
            };
            if !put {
                return false;
            }
            long.queued = false;
            let over = matches!(long.state, TargetState::PutFinDue(_));
            if let TargetState::GetAddrDue(_) = long.state {
                long.state = TargetState::GetAddrSent;
            }
            self.long.unlink(&mut self.due, DUE_LIST, index);
            if over {
                self.remove(index);
            }
        }
        true
    }

    /// Sends bytes of gets, one piece of each in turn.
    pub fn flush_bytes<P: Packets, O: Callbacks>(
        &mut self,
        packets: &mut P,
        owner: &mut O,
        reserve: usize,
        pieces: &mut usize,
    ) {
        while let Some(index) = self.sending.first() {
            let Some(long) = self.long.get_mut(index) else { return };
            let Range { key, offset, length } = long.range;
            let (number, at) = (long.number, long.moved);
            if *pieces == 0 {
                return;
            }
            let Some(bytes) = room(packets, length - at, reserve) else { return };
            let head = Head { to: number, own: OF_GET, grant: 0 }.write_word(at);
            let reached = owner.regions().reach(key, Rights::GET, offset + at, bytes as u64);
            let gone = reached.and_then(|region| {
                owner.region_read(region, offset + at, bytes, &mut |body| put(packets, Kind::Bytes, &head, &[], body))
            });
            match gone {
                Ok(true) => {}
                Ok(false) => return,
                Err(status) => {
                    self.long.unlink(&mut self.sending, SENDING_LIST, index);
                    self.schedule(index, TargetState::PutFinDue(status)); // sent by the next flush
                    continue;
                }
            }
            *pieces -= 1;
            long.moved += bytes as u64;
            let more = long.moved < length;
            self.long.unlink(&mut self.sending, SENDING_LIST, index);
            if more {
                self.long.append(&mut self.sending, SENDING_LIST, index); // after the others
            } else {
                self.remove(index);
            }
        }
    }

    /// The link is down: nothing is owed, and only regions into which the owner copies are held.
    pub fn fail<O: Callbacks>(&mut self, owner: &mut O) {
        (self.due, self.sending) = Default::default();
        for index in self.long.indices() {
            let Some(long) = self.long.get_mut(index) else { continue };
            long.queued = false;
            let key = long.range.key;
            match long.state {
                TargetState::Copying => continue,
                TargetState::GetAddrDue(_) | TargetState::GetAddrSent => {
                    self.remove(index);
                    release(owner, key);
                }
                _ => self.remove(index),
            }
        }
    }
}
