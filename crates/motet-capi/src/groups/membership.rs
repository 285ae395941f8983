//! Sessions and groups: attach, join, leave, and views.

use super::abi::{self, RawMember, RawView};
use super::handles::{self, Pin, Pinned};
use super::{errno, errno_at, limit};
use crate::messages::abi::write_handle;
use crate::messages::nodes::text;
use crate::messages::{Deadline, EINVAL, Errno, call};
use motet_api::node::Node;
use motet_group::{Group, Membership};
use motet_session::paths::SessionPaths;
use std::ffi::c_char;

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_session_attach(node: u64, session: *const c_char, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let session = unsafe {
            write_handle(out, 0)?;
            text(session)?
        };
        let paths = if session.is_empty() { SessionPaths::from_env() } else { SessionPaths::of(session) };
        let paths = paths.map_err(|_| EINVAL)?;
        let pin = Pin::new(node)?;
        let shared = Node::of_engine(pin.entry().node.clone());
        let membership = Membership::attach_to(&shared, &paths).map_err(errno)?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(membership, pin)?) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_session_detach(membership: u64) -> i32 {
    call(|| handles::remove::<Membership>(membership).map(|_| 0))
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_join(membership: u64, name: *const c_char, rank: i64, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe {
            write_handle(out, 0)?;
            text(name)?
        };
        let rank = match rank {
            -1 => None,
            rank => Some(u32::try_from(rank).map_err(|_| EINVAL)?),
        };
        let found = handles::find::<Membership>(membership)?;
        let group = found.object.join(name, rank).map_err(errno)?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(group, found.pin.clone())?) }.map(|()| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_join_own(membership: u64, deadline: i64, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        unsafe { write_handle(out, 0) }?;
        let deadline = Deadline(deadline);
        let found = handles::find::<Membership>(membership)?;
        let group = found.object.join_own(limit(deadline)).map_err(|error| errno_at(deadline, error))?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(group, found.pin.clone())?) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_group_leave(group: u64) -> i32 {
    call(|| handles::remove::<Group>(group)?.object.leave().map(|()| 0).map_err(errno))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_group_wait(group: u64, members: u32, deadline: i64) -> i32 {
    call(|| {
        let (found, deadline) = (handles::find::<Group>(group)?, Deadline(deadline));
        let view = found.object.wait_for_members(members as usize, limit(deadline));
        view.map(|_| 0).map_err(|error| errno_at(deadline, error))
    })
}

/// Writes a view of a group.
///
/// # Safety
/// The requirements of [`abi::write_view`].
unsafe fn report(
    found: &Pinned<Group>,
    view: &motet_group::View,
    into: *mut RawView,
    members: *mut RawMember,
    max: u32,
) -> Result<i32, Errno> {
    // SAFETY: the caller's promise.
    unsafe { abi::write_view(view, found.object.rank_in(view), into, members, max) }.map(|()| 0)
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_view(group: u64, view: *mut RawView, members: *mut RawMember, max: u32) -> i32 {
    call(|| {
        let found = handles::find::<Group>(group)?;
        let now = found.object.view().map_err(errno)?;
        // SAFETY: the caller's promise.
        unsafe { report(&found, &now, view, members, max) }
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_group_next_view(
    group: u64,
    after: u64,
    deadline: i64,
    view: *mut RawView,
    members: *mut RawMember,
    max: u32,
) -> i32 {
    call(|| {
        let (found, deadline) = (handles::find::<Group>(group)?, Deadline(deadline));
        let next = found.object.next_view(after, limit(deadline)).map_err(|error| errno_at(deadline, error))?;
        // SAFETY: the caller's promise.
        unsafe { report(&found, &next, view, members, max) }
    })
}
