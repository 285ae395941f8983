//! A node's part in requests, and its endpoints.

use super::data::RawReader;
use super::handles::{self, Attached, OpenEndpoint, Pin};
use super::{EBUSY, errno, errno_at, limit, may_wait};
use crate::messages::abi::{read, write, write_handle};
use crate::messages::nodes::text;
use crate::messages::{Deadline, EDEADLK, EINVAL, Errno, call};
use crate::user_pointer::UserPointer;
use motet_api::node::Node;
use motet_rsr::{Handler, Handlers, MAX_ONE_PACKET, Options, Reception, Request, Rsr};
use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::sync::Arc;

/// struct motet_rsr_options.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawOptions {
    size: usize,
    reception: u32,
    workers: u32,
    queue: u32,
    one_packet: i32,
    max_request: u64,
    memory: u64,
}

/// struct motet_rsr_counts.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCounts {
    size: usize,
    counts: [u64; 8],
}

/// The type `motet_rsr_function`.
pub type Function = unsafe extern "C" fn(*mut RawReader, *mut c_void);

/// struct motet_rsr_handler.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawHandler {
    size: usize,
    name: *const c_char,
    number: u32,
    threaded: u32,
    function: Option<Function>,
}

thread_local! {
    /// How many handlers this thread runs, one within the other.
    static RUNNING: Cell<u32> = const { Cell::new(0) };
}

/// The options of a caller; null stands for the default ones.
unsafe fn options(from: *const RawOptions) -> Result<Options, Errno> {
    let mut options = Options::default();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the caller's promise.
    let RawOptions { reception, workers, queue, one_packet, max_request, memory, .. } = unsafe { read(from) }?;
    options.reception = match reception {
        0 => Reception::OneThread,
        1 => Reception::Caller,
        2 => Reception::ThreadPerChannel,
        _ => return Err(EINVAL),
    };
    options.one_packet = match one_packet {
        -1 => 0,
        0 => MAX_ONE_PACKET,
        bytes => usize::try_from(bytes).map_err(|_| EINVAL)?,
    };
    let set = |option: &mut usize, value: u64| {
        if value != 0 {
            *option = usize::try_from(value).unwrap_or(usize::MAX);
        }
    };
    set(&mut options.workers, workers.into());
    set(&mut options.queue, queue.into());
    set(&mut options.max_request, max_request);
    set(&mut options.memory, memory);
    Ok(options)
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_attach(node: u64, wanted: *const RawOptions, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let options = unsafe {
            write_handle(out, 0)?;
            options(wanted)?
        };
        may_wait()?;
        let pin = Pin::new(node)?;
        let rsr = Rsr::attach(&Node::of_engine(pin.entry().node.clone()), options).map_err(errno)?;
        let handle = handles::insert(Attached { rsr, users: Arc::new(()), _pin: pin })?;
        // SAFETY: as above.
        unsafe { write_handle(out, handle) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_detach(rsr: u64) -> i32 {
    call(|| {
        may_wait()?;
        if RUNNING.get() > 0 {
            return Err(EDEADLK);
        }
        let is_free = |attached: &Attached| if Arc::strong_count(&attached.users) > 1 { Err(EBUSY) } else { Ok(()) };
        handles::remove_if::<Attached>(rsr, is_free).map(|_| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_poll(rsr: u64, deadline: i64) -> i32 {
    call(|| {
        may_wait()?;
        let (found, deadline) = (handles::find::<Attached>(rsr)?, Deadline(deadline));
        let came = found.rsr.poll(limit(deadline)).map_err(|error| errno_at(deadline, error))?;
        Ok(i32::try_from(came).unwrap_or(i32::MAX))
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_count(rsr: u64, out: *mut RawCounts) -> i32 {
    call(|| {
        let now = handles::find::<Attached>(rsr)?.rsr.counts();
        let counts = [
            now.handled,
            now.no_endpoint,
            now.no_handler,
            now.malformed,
            now.too_long,
            now.incomplete,
            now.late_replies,
            now.foreign,
        ];
        // SAFETY: the caller's promise.
        unsafe { write(out, RawCounts { size: 0, counts }) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_rsr.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_rsr_endpoint_open(
    rsr: u64,
    handlers: *const RawHandler,
    count: u32,
    user: *mut c_void,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { write_handle(out, 0) }?;
        let found = handles::find::<Attached>(rsr)?;
        let mut all = Handlers::new();
        let distance = match count {
            0 => 0,
            // SAFETY: the caller's promise: at least one element, which begins with its size.
            _ => unsafe { read(handlers) }?.size,
        };
        for at in 0..count as usize {
            // SAFETY: the caller's promise: an array of `count` elements at this distance.
            let (handler, name) = unsafe {
                let handler = read(handlers.byte_add(at * distance))?;
                (handler, text(handler.name)?)
            };
            let function = handler.function.ok_or(EINVAL)?;
            let user = UserPointer(user);
            let run = move |request: &mut Request<'_>| {
                RUNNING.set(RUNNING.get() + 1);
                let mut reader = RawReader::of_request(request);
                // SAFETY: `motet_rsr.h` says what the function may rely on; the reader stays for the call.
                unsafe { function(&raw mut reader, user.pointer()) };
                RUNNING.set(RUNNING.get() - 1);
            };
            let which = if handler.name.is_null() { Handler::Number(handler.number) } else { Handler::Name(name) };
            all = if handler.threaded != 0 { all.threaded(which, run) } else { all.on(which, run) };
        }
        let endpoint = found.rsr.endpoint(all).map_err(errno)?;
        let handle = handles::insert(OpenEndpoint { endpoint, _user: found.users.clone() })?;
        // SAFETY: as above.
        unsafe { write_handle(out, handle) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_rsr_endpoint_close(endpoint: u64) -> i32 {
    call(|| {
        may_wait()?;
        handles::remove_if::<OpenEndpoint>(endpoint, |_| Ok(()))?.endpoint.close();
        Ok(0)
    })
}
