//! Circuits: open, close, messages and active messages.

use super::abi::{self, RawCircuitMessage, RawCircuitState, RawMember};
use super::handles;
use super::{errno, errno_at, limit};
use crate::messages::abi::{bytes, write, write_handle};
use crate::messages::node_handles::{in_handler, run_handler};
use crate::messages::nodes::text;
use crate::messages::{Deadline, EDEADLK, EINVAL, Errno, call};
use crate::user_pointer::UserPointer;
use motet_group::{Circuit, Group};
use std::ffi::{c_char, c_void};
use std::time::Instant;

/// MOTET_ANY_RANK.
const ANY_RANK: u32 = u32::MAX;

/// The type `motet_circuit_handler`.
pub type Function = unsafe extern "C" fn(circuit: u64, from: u32, tag: u32, *const u8, usize, *mut c_void);

/// The caller's memory of `length` bytes.
///
/// # Safety
/// It may be read and written during `'a`, and is not accessed otherwise.
pub unsafe fn bytes_mut<'a>(into: *mut u8, length: usize) -> Result<&'a mut [u8], Errno> {
    match (length, into.is_null()) {
        (0, _) => Ok(&mut []),
        (length, false) if length <= isize::MAX as usize => {
            // SAFETY: the caller's promise; not null and of no impossible length.
            Ok(unsafe { std::slice::from_raw_parts_mut(into, length) })
        }
        _ => Err(EINVAL),
    }
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_open(group: u64, name: *const c_char, deadline: i64, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe {
            write_handle(out, 0)?;
            text(name)?
        };
        let (found, deadline) = (handles::find::<Group>(group)?, Deadline(deadline));
        let circuit = found.object.open(name, limit(deadline)).map_err(|error| errno_at(deadline, error))?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(circuit, found.pin.clone())?) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_circuit_close(circuit: u64) -> i32 {
    call(|| {
        if in_handler() {
            return Err(EDEADLK);
        }
        handles::remove::<Circuit>(circuit)?.object.unhandle();
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_info(
    circuit: u64,
    state: *mut RawCircuitState,
    members: *mut RawMember,
    max: u32,
) -> i32 {
    call(|| {
        let found = handles::find::<Circuit>(circuit)?;
        let circuit = &found.object;
        let (members_count, rank) = (circuit.size() as u32, circuit.rank() as u32);
        let now = RawCircuitState { size: 0, number: circuit.number(), members: members_count, rank };
        // SAFETY: the caller's promise.
        unsafe {
            abi::write_members(circuit.members(), members, max)?;
            if !state.is_null() {
                write(state, now)?;
            }
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_circuit_rank(circuit: u64) -> i32 {
    call(|| Ok(handles::find::<Circuit>(circuit)?.object.rank() as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_circuit_size(circuit: u64) -> i32 {
    call(|| Ok(handles::find::<Circuit>(circuit)?.object.size() as i32))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_circuit_set_deadline(circuit: u64, deadline: i64) -> i32 {
    call(|| {
        let left = limit(Deadline(deadline));
        let deadline = left.and_then(|left| Instant::now().checked_add(left));
        handles::find::<Circuit>(circuit)?.object.set_deadline(deadline);
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_send(circuit: u64, to: u32, tag: u32, body: *const u8, length: usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let body = unsafe { bytes(body, length) }?;
        let found = handles::find::<Circuit>(circuit)?;
        found.object.send(to as usize, tag, body).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_receive(
    circuit: u64,
    from: u32,
    tag: u32,
    buffer: *mut u8,
    capacity: usize,
    deadline: i64,
    message: *mut RawCircuitMessage,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise: the message's struct begins with its size.
        if !message.is_null() && unsafe { *message.cast::<usize>() } < size_of::<RawCircuitMessage>() {
            return Err(EINVAL); // before a message is received, which could not be reported
        }
        // SAFETY: the caller's promise.
        let buffer = unsafe { bytes_mut(buffer, capacity) }?;
        let (found, deadline) = (handles::find::<Circuit>(circuit)?, Deadline(deadline));
        let from = (from != ANY_RANK).then_some(from as usize);
        let received = found.object.receive_within(from, tag, buffer, limit(deadline));
        let received = received.map_err(|error| errno_at(deadline, error))?;
        if !message.is_null() {
            let (length, from) = (received.length, received.from as u32);
            // SAFETY: as above.
            unsafe { write(message, RawCircuitMessage { size: 0, length, from, reserved: 0 }) }?;
        }
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_handle(circuit: u64, function: Option<Function>, user: *mut c_void) -> i32 {
    call(|| {
        if in_handler() {
            return Err(EDEADLK);
        }
        let found = handles::find::<Circuit>(circuit)?;
        let Some(function) = function else {
            found.object.unhandle();
            return Ok(0);
        };
        let user = UserPointer(user);
        let run = move |from: usize, tag: u32, body: &[u8]| {
            // SAFETY: `motet_group.h` says what the function may rely on; the body stays for the call.
            run_handler(|| unsafe { function(circuit, from as u32, tag, body.as_ptr(), body.len(), user.pointer()) });
        };
        found.object.handle(run).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_send_active(
    circuit: u64,
    to: u32,
    tag: u32,
    body: *const u8,
    length: usize,
) -> i32 {
    call(|| {
        if in_handler() {
            return Err(EDEADLK);
        }
        // SAFETY: the caller's promise.
        let body = unsafe { bytes(body, length) }?;
        let found = handles::find::<Circuit>(circuit)?;
        found.object.send_active(to as usize, tag, body).map(|()| 0).map_err(errno)
    })
}
