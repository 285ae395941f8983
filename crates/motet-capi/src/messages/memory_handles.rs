//! What a program holds by handle that is memory: loans, messages received in place, regions of peers that it goes by address in.
//!
//! What it is: one table of a node's, so that a handle of one kind is none of another. A place without a holding is a loan that is being
//! sent at this moment. What it is not: handles of anything else are the engine's numbers, but for claimed messages.

use super::abi::{End, InPlace};
use super::node_handles::Record;
use super::{EBADF, ECHILD, ENOBUFS, Errno, number};
use motet_api::node::{Completion, Lent, Loan, Mapped, Status};
use motet_proto::message::slab::Number;

/// Memory in the hands of the program.
pub enum Holding {
    /// A block of the pool that has not been sent.
    Loan(Loan),
    /// A message that lies where its sender has put it.
    Lent(Lent),
    /// One that does not: it was received as a copy.
    Copy(Vec<u8>),
    /// A region of a peer's, mapped.
    View(Mapped),
}

/// Keeps something; its handle. Without room for it, it goes back where it came from.
pub fn hold(record: &Record, holding: Holding) -> Result<u64, Errno> {
    record.holdings().insert(Some(holding)).map(|number| number.0.into()).ok_or(ENOBUFS)
}

/// What may be a handle. In a forked child nothing is: all is the parent's.
fn known(record: &Record, handle: u64) -> Result<Number, Errno> {
    if record.node.is_inherited() { Err(ECHILD) } else { number(handle).map(Number) }
}

/// Looks at what is held by a handle.
pub fn look<T>(record: &Record, handle: u64, at: impl FnOnce(&Holding) -> Option<T>) -> Result<T, Errno> {
    let number = known(record, handle)?;
    record.holdings().named(number).and_then(|place| at(place.as_ref()?)).ok_or(EBADF)
}

/// Takes what is held by a handle, if it is of this kind; its place stays until it is [forgotten](forget) or [put back](put_back).
pub fn take<T>(
    record: &Record,
    handle: u64,
    kind: impl FnOnce(Holding) -> Result<T, Holding>,
) -> Result<(Number, T), Errno> {
    let number = known(record, handle)?;
    let mut holdings = record.holdings();
    let place = holdings.named(number).ok_or(EBADF)?;
    match kind(place.take().ok_or(EBADF)?) {
        Ok(taken) => Ok((number, taken)),
        Err(other) => {
            *place = Some(other);
            Err(EBADF)
        }
    }
}

/// Frees a place.
pub fn forget(record: &Record, number: Number) {
    let mut holdings = record.holdings();
    if let Some(index) = holdings.find(number) {
        holdings.remove(index);
    }
}

/// Puts back what was taken.
pub fn put_back(record: &Record, number: Number, holding: Holding) {
    if let Some(place) = record.holdings().named(number) {
        *place = Some(holding);
    }
}

/// Takes what is held by a handle for good.
pub fn take_out<T>(record: &Record, handle: u64, kind: impl FnOnce(Holding) -> Result<T, Holding>) -> Result<T, Errno> {
    let (number, taken) = take(record, handle, kind)?;
    forget(record, number);
    Ok(taken)
}

/// The end of an operation, and, of a receive in place, its message in the program's hands. `wanted`: the program can be told of that;
/// where it cannot, the message goes back.
pub fn end_of<'a>(record: &Record, completion: &'a mut Completion, wanted: bool) -> End<'a> {
    let whole = matches!(completion.status, Status::Done | Status::Truncated);
    let found = match (completion.lent.take(), completion.memory.take()) {
        (Some(lent), _) => Some((lent.as_ptr(), Holding::Lent(lent))),
        (None, Some(mut bytes)) if !bytes.is_empty() => {
            bytes.truncate(completion.length as usize);
            Some((bytes.as_ptr(), Holding::Copy(bytes)))
        }
        _ => None,
    };
    let mut end = End::of(completion);
    end.in_place = Some(InPlace::default());
    match found {
        Some((body, holding)) if whole && wanted => match hold(record, holding) {
            Ok(lent) => end.in_place = Some(InPlace { lent, body }),
            Err(errno) => end.status = -errno,
        },
        Some((_, holding)) => go_back(record, holding),
        None => {}
    }
    end
}

/// Nobody looks at a message any more.
pub fn go_back(record: &Record, holding: Holding) {
    if let Holding::Lent(lent) = holding {
        let _ = record.node.give_back(lent); // in a forked child it is the parent's
    }
}
