//! Clients of exports, and calls on one file.

use super::abi::RawAttributes;
use super::handles::{self, OpenClient, OpenFile};
use super::{EBUSY, errno, may_wait};
use crate::messages::abi::{bytes, write, write_handle};
use crate::messages::nodes::text;
use crate::messages::{EINVAL, Errno, call};
use crate::{EPROTO, guard};
use motet_files::client::{Client, Source};
use motet_files::protocol::{Attributes, Change, OpenFlags};
use motet_sys::rustix::fs::OFlags;
use std::ffi::{CStr, c_char};
use std::sync::Arc;
use std::time::Duration;

/// MOTET_FILES_MESSAGES.
const MESSAGES: u32 = 1;

/// Runs a call that returns a count, or a negative errno.
fn counted(f: impl FnOnce() -> Result<usize, Errno>) -> isize {
    guard(EPROTO, || f().map_or_else(|errno| -(errno as isize), |count| count as isize))
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_files_connect(name: *const c_char, limit: i64, flags: u32, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let name = unsafe {
            write_handle(out, 0)?;
            text(name)?
        };
        may_wait()?;
        if name.is_empty() || limit < 0 || flags & !MESSAGES != 0 {
            return Err(EINVAL);
        }
        let limit = (limit != i64::MAX).then(|| Duration::from_nanos(limit.unsigned_abs()));
        let client = if flags & MESSAGES != 0 {
            Client::connect(Source::Name(name.to_owned()), limit)
        } else {
            Client::named(name, limit)
        };
        let client = client.map_err(|error| errno(&error))?;
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(OpenClient { client, users: Arc::new(()) })?) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_files_close(files: u64) -> i32 {
    call(|| {
        may_wait()?;
        let is_free = |open: &OpenClient| if Arc::strong_count(&open.users) > 1 { Err(EBUSY) } else { Ok(()) };
        handles::remove_if::<OpenClient>(files, is_free)?.client.close();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_files_is_direct(files: u64) -> i32 {
    call(|| Ok(i32::from(handles::find::<OpenClient>(files)?.client.is_direct())))
}

/// The flags of open(2).
fn open_flags(flags: i32) -> Result<OpenFlags, Errno> {
    let flags = OFlags::from_bits_retain(flags.cast_unsigned()) - OFlags::CLOEXEC - OFlags::LARGEFILE;
    let mut wanted = match flags & OFlags::RWMODE {
        mode if mode == OFlags::RDONLY => OpenFlags::READ,
        mode if mode == OFlags::WRONLY => OpenFlags::WRITE,
        mode if mode == OFlags::RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => return Err(EINVAL),
    };
    let mut rest = flags - OFlags::RWMODE;
    for (flag, of) in [
        (OFlags::SYNC, OpenFlags::SYNC),
        (OFlags::DSYNC, OpenFlags::SYNC),
        (OFlags::DIRECT, OpenFlags::DIRECT),
        (OFlags::CREATE, OpenFlags::CREATE),
        (OFlags::EXCL, OpenFlags::EXCLUSIVE),
        (OFlags::TRUNC, OpenFlags::TRUNCATE),
        (OFlags::APPEND, OpenFlags::APPEND),
    ] {
        if rest.contains(flag) {
            wanted |= of;
            rest -= flag;
        }
    }
    if rest.is_empty() { Ok(wanted) } else { Err(EINVAL) }
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_open(files: u64, path: *const c_char, flags: i32, mode: u32, out: *mut u64) -> i32 {
    call(|| {
        // SAFETY: the caller's promise.
        let path = unsafe {
            write_handle(out, 0)?;
            if path.is_null() {
                return Err(EINVAL);
            }
            CStr::from_ptr(path).to_bytes()
        };
        may_wait()?;
        let open = handles::find::<OpenClient>(files)?;
        let user = Arc::clone(&open.users);
        let path = &path[path.iter().take_while(|&&byte| byte == b'/').count()..];
        let opened = open.client.open_file(path, open_flags(flags)?, mode & 0o7777);
        let file = Arc::new(opened.map_err(|error| errno(&error))?.0);
        // SAFETY: as above.
        unsafe { write_handle(out, handles::insert(OpenFile { file, _user: user })?) }.map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_file_close(file: u64) -> i32 {
    call(|| {
        may_wait()?;
        handles::remove_if::<OpenFile>(file, |_| Ok(())).map(|_| 0)
    })
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_read(file: u64, memory: *mut u8, length: usize, offset: u64) -> isize {
    counted(|| {
        may_wait()?;
        let open = handles::find::<OpenFile>(file)?;
        // SAFETY: the caller's promise: the memory is writable during the call, and no other thread uses it.
        let memory = unsafe {
            bytes(memory, length)?;
            if length == 0 { &mut [][..] } else { std::slice::from_raw_parts_mut(memory, length) }
        };
        open.file.read_at(memory, offset).map_err(|error| errno(&error))
    })
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_write(file: u64, memory: *const u8, length: usize, offset: u64) -> isize {
    counted(|| {
        may_wait()?;
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(memory, length) }?;
        handles::find::<OpenFile>(file)?.file.write_at(data, offset).map_err(|error| errno(&error))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_file_sync(file: u64, data_only: i32) -> i32 {
    call(|| {
        may_wait()?;
        handles::find::<OpenFile>(file)?.file.sync(data_only != 0).map(|()| 0).map_err(|error| errno(&error))
    })
}

fn attributes(file: u64) -> Result<Attributes, Errno> {
    may_wait()?;
    handles::find::<OpenFile>(file)?.file.attributes().map_err(|error| errno(&error))
}

/// # Safety
/// The caller keeps what `motet_file.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn motet_file_stat(file: u64, out: *mut RawAttributes) -> i32 {
    // SAFETY: the caller's promise.
    call(|| unsafe { write(out, RawAttributes::of(&attributes(file)?)) }.map(|()| 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_file_size(file: u64) -> i64 {
    counted(|| usize::try_from(attributes(file)?.size).map_err(|_| EINVAL)) as i64
}

#[unsafe(no_mangle)]
pub extern "C" fn motet_file_truncate(file: u64, length: u64) -> i32 {
    call(|| {
        may_wait()?;
        let change = Change { size: Some(length), ..Change::default() };
        handles::find::<OpenFile>(file)?.file.set_attributes(&change).map(|_| 0).map_err(|error| errno(&error))
    })
}
