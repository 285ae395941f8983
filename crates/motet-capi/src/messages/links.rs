//! Links, services, contexts and channels.

use super::abi::{self, RawLinkState, RawReceiveMode};
use super::node_handles::enter;
use super::nodes::text;
use super::{Deadline, EINVAL, Errno, call, channel, channel_handle, errno, number};
use crate::{EPROTO, guard};
use motet_api::node::{Context, LinkId, Serve};
use std::ffi::c_char;

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_link_open(node: u64, address: *const c_char, deadline: i64, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let address = unsafe {
            abi::write_handle(out, 0)?;
            text(address)?
        };
        let entered = enter(node)?;
        let until = Deadline(deadline).at().unwrap_or(u64::MAX);
        let link = entered.node.connect(address, Some(until));
        let link = link.map_err(|error| Deadline(deadline).errno(error))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, link.0.into()) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_link_info(node: u64, link: u64, into: *mut RawLinkState) -> i32 {
    call(|| {
        let info = enter(node)?.node.link_info(LinkId(number(link)?)).map_err(errno)?;
        let mut driver = [0; 16];
        let name = &info.driver.as_bytes()[..info.driver.len().min(driver.len() - 1)];
        driver[..name.len()].copy_from_slice(name);
        let found = RawLinkState {
            size: 0,
            peer: info.peer.0,
            driver,
            down: info.gone.is_some().into(),
            reason: info.gone.map_or(0, |reason| reason.0),
            channels: info.counts[0],
            rendezvous_receives: info.counts[1],
            rendezvous_sends: info.counts[2],
            reserved: 0,
            record_bytes: info.bytes[0] as u64,
            unexpected_bytes: info.bytes[1] as u64,
            inject_size: info.inject as u64,
        };
        // SAFETY: the caller's promise.
        unsafe { abi::write(into, found) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_links(node: u64, into: *mut u64, max: usize) -> isize {
    guard(EPROTO, || {
        let list = || {
            let links = enter(node)?.node.links().map_err(errno)?;
            if into.is_null() && max > 0 {
                return Err(EINVAL);
            }
            for (at, link) in links.iter().take(max).enumerate() {
                // SAFETY: the caller's promise: the array has `max` elements.
                unsafe { into.add(at).write(link.0.into()) };
            }
            Ok(links.len() as isize)
        };
        list().unwrap_or_else(|errno| -(errno as isize))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_link_close(node: u64, link: u64) -> i32 {
    call(|| enter(node)?.node.disconnect(LinkId(number(link)?)).map(|()| 0).map_err(errno))
}

// ---- services and contexts -------------------------------------------------------------------------------------------

/// # Safety
/// `mode` is null or points to a struct that begins with its size.
unsafe fn serve(mode: *const RawReceiveMode) -> Result<Serve, Errno> {
    // SAFETY: the caller's promise.
    let RawReceiveMode { kind, reserved, target, .. } = unsafe { abi::read(mode) }?;
    match (kind, reserved, target) {
        (1, 0, 0) => Ok(Serve::Queue),
        (2, 0, context) => Ok(Serve::Tagged(Context::from_number(number(context)?))),
        (3, 0, handler) => Ok(Serve::Handler(number(handler)?)),
        _ => Err(EINVAL),
    }
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_service_open(node: u64, service: u64, mode: *const RawReceiveMode) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let serve = unsafe { serve(mode) }?;
        enter(node)?.node.serve(service, serve).map(|()| 0).map_err(errno)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_service_close(node: u64, service: u64) -> i32 {
    call(|| enter(node)?.node.withdraw(service).map(|()| 0).map_err(errno))
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_context_new(node: u64, out: *mut u64) -> i32 {
    call(|| {
        let context = enter(node)?.node.context().map_err(errno)?;
        // SAFETY: the caller's promise.
        unsafe { abi::write_handle(out, context.number().into()) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_context_free(node: u64, context: u64) -> i32 {
    call(|| {
        let context = Context::from_number(number(context)?);
        enter(node)?.node.remove_context(context).map(|()| 0).map_err(errno)
    })
}

// ---- channels --------------------------------------------------------------------------------------------------------

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_channel_accept(node: u64, service: u64, deadline: i64, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { abi::write_handle(out, 0) }?;
        let accepted = enter(node)?.node.accept(service, Deadline(deadline).at());
        let channel = accepted.map_err(|error| Deadline(deadline).errno(error))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, channel_handle(channel)) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_channel_open(
    node: u64,
    link: u64,
    service: u64,
    mode: *const RawReceiveMode,
    deadline: i64,
    out: *mut u64,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let serve = unsafe {
            abi::write_handle(out, 0)?;
            serve(mode)?
        };
        let (entered, link) = (enter(node)?, LinkId(number(link)?));
        let until = Deadline(deadline).at();
        let opened = entered.node.open_channel(link, service, serve, until);
        let channel = opened.map_err(|error| Deadline(deadline).errno(error))?;
        // SAFETY: as above.
        unsafe { abi::write_handle(out, channel_handle(channel)) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_channel_finish(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.finish(channel(handle)).map(|()| 0).map_err(errno))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_channel_close(node: u64, handle: u64) -> i32 {
    call(|| enter(node)?.node.close_channel(channel(handle)).map(|()| 0).map_err(errno))
}
