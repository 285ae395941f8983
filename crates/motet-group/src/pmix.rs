//! The size of a parallel job, from the launcher's PMIx server.
//!
//! The only file of this crate with `unsafe`. The library is loaded when it is needed, which is when a launcher with PMIx sets no variable with the size. Types and
//! constants are those of the PMIx standard, version 4 (`pmix_common.h`); they are part of the binary interface of `libpmix.so.2`.
#![allow(unsafe_code)]

use libloading::{Library, Symbol};
use std::ffi::{c_char, c_int, c_void};

/// The library. Its binary interface has this version since PMIx 2.
const LIBRARY: &str = "libpmix.so.2";
/// `PMIX_MAX_NSLEN + 1`.
const NAMESPACE_BYTES: usize = 256;
/// `PMIX_RANK_WILDCARD`: the job as a whole.
const WHOLE_JOB: u32 = u32::MAX - 1;
/// `PMIX_JOB_SIZE`.
const JOB_SIZE: &[u8] = b"pmix.job.size\0";
/// `PMIX_UINT32`.
const TYPE_U32: u16 = 14;
/// `PMIX_SUCCESS`.
const SUCCESS: c_int = 0;

/// `pmix_proc_t`.
#[repr(C)]
struct Proc {
    namespace: [u8; NAMESPACE_BYTES],
    rank: u32,
}

/// The beginning of `pmix_value_t`: the type, and the union of which a number of 32 bits is the first bytes.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// The union is aligned as a pointer.
#[repr(C, align(8))]
struct Data(u32);

type Init = unsafe extern "C" fn(*mut Proc, *mut c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(*const Proc, *const c_char, *const c_void, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;

/// The number of ranks of this process's job. The error says why it is not known.
pub fn job_size(namespace: &str) -> Result<u32, String> {
    let failed = |what: &str| format!("the size of the job {namespace} is not known: {what}");
    if namespace.len() >= NAMESPACE_BYTES {
        return Err(failed("its name is too long"));
    }
    let mut job = Proc { namespace: [0; NAMESPACE_BYTES], rank: WHOLE_JOB };
    job.namespace[..namespace.len()].copy_from_slice(namespace.as_bytes());
    let mut own = Proc { namespace: [0; NAMESPACE_BYTES], rank: 0 };
    // SAFETY: the library's initialisers run, as they do in any program of PMIx. It is never unloaded, since it may leave threads.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| failed(&error.to_string()))?;
    let library: &'static Library = Box::leak(Box::new(library));
    let missing = |error: libloading::Error| failed(&error.to_string());
    // SAFETY: the three functions have these types in every library of this name.
    let (init, get, finalize): (Symbol<'_, Init>, Symbol<'_, Get>, Symbol<'_, Finalize>) = unsafe {
        (
            library.get(b"PMIx_Init").map_err(missing)?,
            library.get(b"PMIx_Get").map_err(missing)?,
            library.get(b"PMIx_Finalize").map_err(missing)?,
        )
    };
    // SAFETY: `own` is a `pmix_proc_t` that the function fills; there are no directives.
    let status = unsafe { init(&raw mut own, std::ptr::null_mut(), 0) };
    if status != SUCCESS {
        return Err(failed(&format!("PMIx_Init returns {status}")));
    }
    let mut value = std::ptr::null_mut();
    // SAFETY: `job` and the key are ended by a zero byte; `value` is where the function writes the address of an allocated `pmix_value_t`.
    let status = unsafe { get(&raw const job, JOB_SIZE.as_ptr().cast(), std::ptr::null(), 0, &raw mut value) };
    // SAFETY: a value that was found is a whole `pmix_value_t`, of which `Value` is the beginning. Its few bytes stay allocated: their owner is the
    // library's allocator.
    let found = unsafe { value.as_ref() }.filter(|_| status == SUCCESS);
    let size = found.filter(|value| value.kind == TYPE_U32).map(|value| value.data.0);
    // The library counts its users: MPI in this process keeps its own.
    // SAFETY: it follows the successful PMIx_Init above; there are no directives.
    unsafe { finalize(std::ptr::null(), 0) };
    size.ok_or_else(|| failed(&format!("PMIx_Get returns {status}")))
}
