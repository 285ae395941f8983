//! Joining and leaving; progress, and sleep in the caller's own poll.

use super::abi::{self, NodeOptions};
use super::handlers::{self, Work};
use super::node_handles::{self, enter};
use super::{EAGAIN, EINVAL, Errno, call, errno};
use crate::{EPROTO, guard};
use motet_api::node::{MessageLimits, Node, Secret, options};
use motet_sys::thread;
use std::ffi::{CStr, c_char, c_void};
use std::net::SocketAddr;

/// Joins only for the thread that asks.
const SINGLE: u32 = 1;
/// A thread of ours makes progress while the program makes none.
const STAND_IN: u32 = 2;
/// Of that thread's stack, bytes: the program's handlers run there.
const STACK: usize = 1 << 20;
/// Most records of a kind.
const RECORDS: u32 = (1 << 20) - 1;
/// Windows, bytes.
const WINDOWS: std::ops::RangeInclusive<u64> = 4 << 10..=4 << 30;

/// A string of the caller's.
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
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_open(wanted: *const NodeOptions, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let (options, flags) = unsafe {
            abi::put(out, 0)?;
            wanted_options(wanted)?
        };
        let single = flags & SINGLE != 0;
        let node = if single { Node::single(&options) } else { Node::with(&options) };
        let handle = node_handles::keep(node.map_err(errno)?, single)?;
        if flags & STAND_IN != 0 {
            stand_in(handle).inspect_err(|_| {
                let _ = node_handles::close(handle);
            })?;
        }
        // SAFETY: as above.
        unsafe { abi::put(out, handle) }.map(|()| 0)
    })
}

/// Starts the thread that makes progress while the program makes none. It ends with the node.
fn stand_in(handle: u64) -> Result<(), Errno> {
    let stay = move || {
        if let Ok(entered) = enter(handle) {
            entered.node.stand_in();
        }
    };
    let started = thread::spawn_without_signals("motet-stand-in", STACK, stay);
    started.map_err(|error| error.raw_os_error().unwrap_or(EAGAIN))
}

/// What the node is to be, and its flags.
///
/// # Safety
/// As of the call.
unsafe fn wanted_options(wanted: *const NodeOptions) -> Result<(motet_api::node::NodeOptions, u32), Errno> {
    if wanted.is_null() {
        return Ok((options("", None), 0));
    }
    // SAFETY: the caller's promise.
    let (wanted, name, listen, secret) = unsafe {
        let wanted = abi::read_grown(wanted, &abi::NodeOptions::EARLIER)?;
        (wanted, text(wanted.name)?, text(wanted.listen)?, text(wanted.secret)?)
    };
    let secret = match secret {
        "" => None,
        digits => Some(Secret::read(digits).ok_or(EINVAL)?),
    };
    let listen = match listen {
        "" => None,
        listen => Some(listen.parse::<SocketAddr>().map_err(|_| EINVAL)?),
    };
    let bad = !matches!(wanted.flags, 0 | SINGLE | STAND_IN)
        || wanted.reserved != 0
        || wanted.longs > RECORDS
        || wanted.channels > RECORDS
        || (wanted.window != 0 && !WINDOWS.contains(&wanted.window));
    if bad {
        return Err(EINVAL);
    }
    let mut options = options(name, listen);
    options.secret = secret;
    let or = |wanted: u64, default: u64| if wanted == 0 { default } else { wanted };
    let MessageLimits { window, longs, channels, eager, single_copy, pool, bodies } = options.limits;
    options.limits = MessageLimits {
        window: or(wanted.window, window),
        longs: or(wanted.longs.into(), longs.into()) as u32,
        channels: or(wanted.channels.into(), channels.into()) as u32,
        eager: [or(wanted.eager_memory, eager[0]), or(wanted.eager_network, eager[1])],
        single_copy: or(wanted.single_copy, single_copy),
        bodies,
        pool: or(wanted.pool, pool as u64) as usize,
    };
    Ok((options, wanted.flags))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_node_close(node: u64) -> i32 {
    call(|| node_handles::close(node).map(|()| 0))
}

/// Writes a string, cut short where it does not fit; its whole length.
///
/// # Safety
/// `size` bytes from `into` may be written.
unsafe fn tell(text: &str, into: *mut c_char, size: usize) -> Result<isize, Errno> {
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
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_name(node: u64, into: *mut c_char, size: usize) -> isize {
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let told = enter(node).and_then(|node| unsafe { tell(&node.node.name().map_err(errno)?, into, size) });
        told.unwrap_or_else(|errno| -(errno as isize))
    })
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_address(node: u64, into: *mut c_char, size: usize) -> isize {
    guard(EPROTO, || {
        // SAFETY: the caller's promise.
        let told = enter(node).and_then(|node| unsafe { tell(&node.node.address().map_err(errno)?, into, size) });
        told.unwrap_or_else(|errno| -(errno as isize))
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
pub extern "C" fn motet_node_prepare_sleep(node: u64) -> i32 {
    call(|| enter(node)?.node.prepare_sleep().map(i32::from).map_err(errno))
}

/// # Safety
/// See `motet.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_node_defer(node: u64, function: Option<Work>, user: *mut c_void) -> i32 {
    call(|| {
        let entered = enter(node)?;
        let task = handlers::task(node, function.ok_or(EINVAL)?, user);
        entered.node.defer(task).map(|()| 0).map_err(errno)
    })
}
