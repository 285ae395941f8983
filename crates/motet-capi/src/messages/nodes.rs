//! Nodes: open and close, name and address, progress, and sleep in the caller's own poll.

use super::abi::{self, RawNodeOptions};
use super::handlers::{self, Work};
use super::node_handles::{self, enter};
use super::{EAGAIN, EINVAL, Errno, call, errno};
use crate::{EPROTO, guard};
use motet_api::node::{MessageLimits, Secret, options};
use motet_engine::message::Node;
use motet_sys::thread;
use std::ffi::{CStr, c_char, c_void};
use std::net::SocketAddr;

/// MOTET_NODE_SINGLE.
const SINGLE: u32 = 1;
/// MOTET_NODE_PROGRESS_THREAD.
const PROGRESS_THREAD: u32 = 2;
/// Stack of the progress thread, bytes. The program's handlers run on it.
const PROGRESS_THREAD_STACK: usize = 1 << 20;
/// Largest `max_rendezvous` and `max_channels`.
const MAX_RECORDS: u32 = (1 << 20) - 1;
/// Allowed values of `window`, bytes.
const WINDOW_BYTES: std::ops::RangeInclusive<u64> = 4 << 10..=4 << 30;

/// The caller's string; null stands for an empty one.
///
/// # Safety
/// `text` is null or ends with a zero.
pub unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Errno> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| EINVAL)
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_open(wanted: *const RawNodeOptions, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, flags) = unsafe {
            abi::write_handle(out, 0)?;
            wanted_options(wanted)?
        };
        let single = flags & SINGLE != 0;
        let node = if single { Node::open_single(&options) } else { Node::open(&options) };
        let handle = node_handles::insert(node.map_err(errno)?, single)?;
        if flags & PROGRESS_THREAD != 0 {
            start_progress_thread(handle).inspect_err(|_| {
                let _ = node_handles::close(handle);
            })?;
        }
        // SAFETY: as above.
        unsafe { abi::write_handle(out, handle) }.map(|()| 0)
    })
}

/// Starts the progress thread. It exits when the node is closed.
fn start_progress_thread(handle: u64) -> Result<(), Errno> {
    let run = move || {
        if let Ok(entered) = enter(handle) {
            entered.node.run_progress_thread();
        }
    };
    let started = thread::spawn_without_signals("motet-progress", PROGRESS_THREAD_STACK, run);
    started.map_err(|error| error.raw_os_error().unwrap_or(EAGAIN))
}

/// The options and flags of the node.
///
/// # Safety
/// `wanted` is null or points to a struct that begins with its size, with strings that end with a zero.
unsafe fn wanted_options(wanted: *const RawNodeOptions) -> Result<(motet_api::node::NodeOptions, u32), Errno> {
    if wanted.is_null() {
        return Ok((options("", None), 0));
    }
    // SAFETY: the caller's promise.
    let (wanted, name, listen, secret) = unsafe {
        let wanted = abi::read_grown(wanted, &abi::RawNodeOptions::EARLIER_SIZES)?;
        (wanted, text(wanted.name)?, text(wanted.listen)?, text(wanted.secret)?)
    };
    let secret = match secret {
        "" => None,
        digits => Some(Secret::parse(digits).ok_or(EINVAL)?),
    };
    let listen = match listen {
        "" => None,
        listen => Some(listen.parse::<SocketAddr>().map_err(|_| EINVAL)?),
    };
    let bad = !matches!(wanted.flags, 0 | SINGLE | PROGRESS_THREAD)
        || wanted.reserved != 0
        || wanted.max_rendezvous > MAX_RECORDS
        || wanted.max_channels > MAX_RECORDS
        || (wanted.window != 0 && !WINDOW_BYTES.contains(&wanted.window));
    if bad {
        return Err(EINVAL);
    }
    let mut options = options(name, listen);
    options.secret = secret;
    let or = |wanted: u64, default: u64| if wanted == 0 { default } else { wanted };
    let MessageLimits { window, max_rendezvous, channels, eager, single_copy, pool, body_path } = options.limits;
    options.limits = MessageLimits {
        window: or(wanted.window, window),
        max_rendezvous: or(wanted.max_rendezvous.into(), max_rendezvous.into()) as u32,
        channels: or(wanted.max_channels.into(), channels.into()) as u32,
        eager: [or(wanted.eager_max_shm, eager[0]), or(wanted.eager_max_network, eager[1])],
        single_copy: or(wanted.single_copy_min, single_copy),
        body_path,
        pool: or(wanted.pool_max, pool as u64) as usize,
    };
    Ok((options, wanted.flags))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_node_close(node: u64) -> i32 {
    call(|| node_handles::close(node).map(|()| 0))
}

/// Writes a string, cut where it does not fit, with a zero; returns its whole length.
///
/// # Safety
/// `size` bytes from `into` may be written.
unsafe fn write_text(text: &str, into: *mut c_char, size: usize) -> Result<isize, Errno> {
    if size > 0 {
        if into.is_null() {
            return Err(EINVAL);
        }
        let fits = text.len().min(size - 1);
        // SAFETY: the caller's promise; fits < size.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), into.cast(), fits);
            into.add(fits).write(0);
        }
    }
    Ok(text.len() as isize)
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_name(node: u64, into: *mut c_char, size: usize) -> isize {
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let written = enter(node).and_then(|node| unsafe { write_text(&node.node.name().map_err(errno)?, into, size) });
        written.unwrap_or_else(|errno| -(errno as isize))
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_address(node: u64, into: *mut c_char, size: usize) -> isize {
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let written =
            enter(node).and_then(|node| unsafe { write_text(&node.node.address().map_err(errno)?, into, size) });
        written.unwrap_or_else(|errno| -(errno as isize))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_node_progress(node: u64) -> i32 {
    call(|| enter(node)?.node.progress().map(i32::from).map_err(errno))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_node_descriptor(node: u64) -> i32 {
    call(|| Ok(enter(node)?.node.descriptor()))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_node_arm(node: u64) -> i32 {
    call(|| enter(node)?.node.arm().map(i32::from).map_err(errno))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_defer(node: u64, function: Option<Work>, user: *mut c_void) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let task = handlers::task(node, function.ok_or(EINVAL)?, user);
        entered.node.defer(task).map(|()| 0).map_err(errno)
    })
}
