//! The structs of `motet_group.h`.

use crate::messages::abi;
use crate::messages::{EINVAL, Errno};
use motet_group::{Member, View};

/// The bytes of a host's name, with the zero at its end.
const HOST_BYTES: usize = 64;

/// struct motet_view.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawView {
    pub size: usize,
    pub number: u64,
    pub members: u32,
    pub rank: i32,
}

/// struct motet_member.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawMember {
    pub size: usize,
    pub node: [u8; 16],
    pub host: [u8; HOST_BYTES],
    pub pid: i32,
    pub reserved: u32,
    pub since: u64,
}

/// struct motet_circuit_state.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCircuitState {
    pub size: usize,
    pub number: u64,
    pub members: u32,
    pub rank: u32,
}

/// struct motet_circuit_message.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawCircuitMessage {
    pub size: usize,
    pub length: usize,
    pub from: u32,
    pub reserved: u32,
}

/// struct motet_start_point.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RawStartPoint {
    pub number: u64,
    pub rank: u32,
    pub reserved: u32,
}

impl RawMember {
    fn of(member: &Member) -> Self {
        let mut host = [0; HOST_BYTES];
        let length = member.host.len().min(HOST_BYTES - 1);
        host[..length].copy_from_slice(&member.host.as_bytes()[..length]);
        let node = u128::from_str_radix(&member.node, 16).unwrap_or(0).to_be_bytes();
        let pid = i32::try_from(member.process.pid).unwrap_or(0);
        Self { size: 0, node, host, pid, reserved: 0, since: member.since }
    }
}

/// Writes a view, and as many of its members as fit.
///
/// # Safety
/// `view` and `members` are null or point to structs that begin with their size; there are `max` members.
pub unsafe fn write_view(
    view: &View,
    rank: Option<usize>,
    into: *mut RawView,
    members: *mut RawMember,
    max: u32,
) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        write_members(&view.members, members, max)?;
        if into.is_null() {
            return Ok(());
        }
        let rank = rank.map_or(-1, |rank| rank as i32);
        abi::write(into, RawView { size: 0, number: view.number, members: view.members.len() as u32, rank })
    }
}

/// Writes as many members as fit.
///
/// # Safety
/// `into` is null or points to `max` structs, the first of which has the size of each.
pub unsafe fn write_members(members: &[Member], into: *mut RawMember, max: u32) -> Result<(), Errno> {
    if max == 0 {
        return Ok(());
    }
    if into.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: the caller's promise: the first one begins with its size, which is that of each.
    let size = unsafe { *into.cast::<usize>() };
    if size < size_of::<RawMember>() || !size.is_multiple_of(align_of::<RawMember>()) {
        return Err(EINVAL);
    }
    for (at, member) in members.iter().take(max as usize).enumerate() {
        // SAFETY: at < max structs of `size` bytes; each gets its size first.
        unsafe {
            let into = into.byte_add(at * size);
            (*into).size = size;
            abi::write(into, RawMember::of(member))?;
        }
    }
    Ok(())
}
