//! Collective operations on circuits. Numbers are those of the caller's memory, by `enum motet_atomic_type`.

use super::circuits::bytes_mut;
use super::errno;
use super::handles;
use crate::messages::abi::bytes;
use crate::messages::{EINVAL, Errno, call};
use motet_group::{Circuit, Element, op};

#[unsafe(no_mangle)]
pub extern "C" fn motet_circuit_barrier(circuit: u64) -> i32 {
    call(|| handles::find::<Circuit>(circuit)?.object.barrier().map(|()| 0).map_err(errno))
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_broadcast(circuit: u64, root: u32, data: *mut u8, length: usize) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let data = unsafe { bytes_mut(data, length) }?;
        handles::find::<Circuit>(circuit)?.object.broadcast(root as usize, data).map(|()| 0).map_err(errno)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_gather(
    circuit: u64,
    root: u32,
    own: *const u8,
    length: usize,
    all: *mut u8,
    each: usize,
    lengths: *mut usize,
) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let own = unsafe { bytes(own, length) }?;
        let found = handles::find::<Circuit>(circuit)?;
        let (circuit, root) = (&found.object, root as usize);
        let room = each.checked_mul(circuit.size()).ok_or(EINVAL)?;
        let mut counts = Vec::new();
        let all = if circuit.rank() == root {
            counts.resize(circuit.size(), 0);
            // SAFETY: the caller's promise: the root has so much room.
            unsafe { bytes_mut(all, room) }?
        } else {
            &mut []
        };
        circuit.gather_into(root, own, each, all, &mut counts).map_err(errno)?;
        if !lengths.is_null() {
            // SAFETY: the caller's promise: at the root one for each member; elsewhere there are no counts.
            unsafe { std::ptr::copy_nonoverlapping(counts.as_ptr(), lengths, counts.len()) };
        }
        Ok(0)
    })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_reduce(
    circuit: u64,
    root: u32,
    values: *mut u8,
    count: usize,
    element: u32,
    operation: u32,
) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { reduce(circuit, Some(root), (values, count), element, operation) })
}

/// # Safety
/// The caller keeps what `motet_group.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_circuit_all_reduce(
    circuit: u64,
    values: *mut u8,
    count: usize,
    element: u32,
    operation: u32,
) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { reduce(circuit, None, (values, count), element, operation) })
}

/// Elements that wrap, and those that do not.
trait Reducible: Element {
    /// The operation with this number of `enum motet_atomic_operation`.
    fn operation(number: u32) -> Option<fn(Self, Self) -> Self>;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Reducible for $type {
            fn operation(number: u32) -> Option<fn(Self, Self) -> Self> {
                Some(match number {
                    0 => <$type>::wrapping_add,
                    1 => <$type>::wrapping_mul,
                    2 => op::min,
                    3 => op::max,
                    7 => |a, b| a & b,
                    8 => |a, b| a | b,
                    9 => |a, b| a ^ b,
                    _ => return None,
                })
            }
        }
    )*};
}
integers!(i8, u8, i16, u16, i32, u32, i64, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Reducible for $type {
            fn operation(number: u32) -> Option<fn(Self, Self) -> Self> {
                Some(match number {
                    0 => op::sum,
                    1 => op::product,
                    2 => op::min,
                    3 => op::max,
                    _ => return None,
                })
            }
        }
    )*};
}
floats!(f32, f64);

/// # Safety
/// There are `count` elements, which may be read and written.
unsafe fn reduce(
    circuit: u64,
    root: Option<u32>,
    values: (*mut u8, usize),
    element: u32,
    operation: u32,
) -> Result<i32, Errno> {
    let found = handles::find::<Circuit>(circuit)?;
    let circuit = &found.object;
    // SAFETY: the caller's promise.
    unsafe {
        match element {
            0 => reduce_of::<i8>(circuit, root, values, operation),
            1 => reduce_of::<u8>(circuit, root, values, operation),
            2 => reduce_of::<i16>(circuit, root, values, operation),
            3 => reduce_of::<u16>(circuit, root, values, operation),
            4 => reduce_of::<i32>(circuit, root, values, operation),
            5 => reduce_of::<u32>(circuit, root, values, operation),
            6 => reduce_of::<i64>(circuit, root, values, operation),
            7 => reduce_of::<u64>(circuit, root, values, operation),
            8 => reduce_of::<f32>(circuit, root, values, operation),
            9 => reduce_of::<f64>(circuit, root, values, operation),
            _ => Err(EINVAL),
        }
    }
}

/// # Safety
/// There are `count` elements, which may be read and written.
unsafe fn reduce_of<T: Reducible>(
    circuit: &Circuit,
    root: Option<u32>,
    (values, count): (*mut u8, usize),
    operation: u32,
) -> Result<i32, Errno> {
    let operation = T::operation(operation).ok_or(EINVAL)?;
    let values = values.cast::<T>();
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or(EINVAL)?;
    let values = match bytes {
        0 => &mut [],
        _ if values.is_null() || !values.is_aligned() => return Err(EINVAL),
        // SAFETY: the caller's promise; not null, aligned, and of no impossible length.
        _ => unsafe { std::slice::from_raw_parts_mut(values, count) },
    };
    let reduced = match root {
        Some(root) => circuit.reduce(root as usize, values, operation),
        None => circuit.all_reduce(values, operation),
    };
    reduced.map(|()| 0).map_err(errno)
}
