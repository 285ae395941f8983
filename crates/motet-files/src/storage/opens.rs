//! Opens files for clients: as the user who asks, and with the layout of a striped file.

use super::descriptors::{attributes_of, proc_path, reopen};
use super::stripes;
use super::tree::Tree;
use crate::Result;
use crate::identity::{Assumed, Identity};
use crate::protocol::{Attributes, Layout, OpenFlags};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, accessat, fcntl_getfl, fcntl_setfl, ftruncate};
use rustix::io::{Errno, pwrite};
use rustix::process::geteuid;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::PoisonError;

/// How often a file is opened or made while others make and remove it.
const MAKE_ATTEMPTS: u32 = 64;

/// What is opened.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The file at a path, or one that is made there.
    Path(&'a [u8]),
    /// A file that is open already, also with O_PATH.
    File(BorrowedFd<'a>),
}

/// An open file.
struct Opened {
    file: OwnedFd,
    layout: Option<Layout>,
    /// Whether this open has made it.
    is_new: bool,
}

impl Tree {
    /// Opens a file or directory for a client as a user, with the layout of a striped file, which is the server's.
    pub fn open_with_layout(
        &self,
        identity: Option<&Identity>,
        place: Place<'_>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<(OwnedFd, Option<Layout>)> {
        // A striped file is truncated by its client, in all exports.
        let Opened { file, layout, is_new } = self.open_whole(identity, place, flags, mode)?;
        match &layout {
            // A new file is empty, and keeps its set-group-id bit, which a truncation removes.
            None if flags.contains(OpenFlags::TRUNCATE) && !is_new => {
                let _assumed = self.assume(identity)?;
                match ftruncate(&file, 0) {
                    // Opened for reading only.
                    Err(Errno::INVAL | Errno::BADF) => {
                        drop(reopen(file.as_fd(), OFlags::WRONLY | OFlags::TRUNC | OFlags::NONBLOCK)?);
                    }
                    done => done?,
                }
            }
            // Its client decides where appended bytes go.
            Some(_) if flags.contains(OpenFlags::APPEND) => fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::APPEND)?,
            _ => {}
        }
        Ok((file, layout))
    }

    /// Opens a file without a truncation, and reads or makes its layout.
    fn open_whole(&self, identity: Option<&Identity>, place: Place<'_>, flags: OpenFlags, mode: u32) -> Result<Opened> {
        if flags.contains(OpenFlags::LOCATE) {
            let file = self.open_as(identity, place, OpenFlags::LOCATE, mode)?;
            return Ok(Opened { file, layout: None, is_new: false });
        }
        let (truncates, flags) = (flags.contains(OpenFlags::TRUNCATE), flags - OpenFlags::TRUNCATE);
        let found = |file: OwnedFd| {
            let layout = stripes::layout(file.as_fd())?;
            Ok(Opened { file, layout, is_new: flags.contains(OpenFlags::EXCLUSIVE) })
        };
        let Some(striping) = &self.striping else {
            if truncates && flags.contains(OpenFlags::CREATE) && !flags.contains(OpenFlags::EXCLUSIVE) {
                return self.open_or_make(identity, place, flags, mode);
            }
            return self.open_as(identity, place, flags, mode).and_then(found);
        };
        if !flags.contains(OpenFlags::TMPFILE) {
            let _reader = self.layouts.read().unwrap_or_else(PoisonError::into_inner);
            match self.open_as(identity, place, flags - OpenFlags::CREATE - OpenFlags::EXCLUSIVE, mode) {
                Ok(_) if flags.contains(OpenFlags::EXCLUSIVE) => return Err(Errno::EXIST.into()),
                Err(error) if flags.contains(OpenFlags::CREATE) && error.kind() == ErrorKind::NotFound => {}
                opened => return opened.and_then(found),
            }
        }
        let _writer = self.layouts.write().unwrap_or_else(PoisonError::into_inner);
        // With TMPFILE it would mean that the file gets no name later.
        let exclusive = if flags.contains(OpenFlags::TMPFILE) { flags } else { flags | OpenFlags::EXCLUSIVE };
        match self.open_as(identity, place, exclusive, mode) {
            // Another client has made it meanwhile, or a program of this host.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !flags.contains(OpenFlags::EXCLUSIVE) => {
                self.open_as(identity, place, flags - OpenFlags::CREATE, mode).and_then(found)
            }
            made => {
                let file = made?;
                let layout = striping.give(file.as_fd())?;
                Ok(Opened { file, layout: Some(layout), is_new: true })
            }
        }
    }

    /// Opens a file, or makes it, such that it is known which.
    fn open_or_make(
        &self,
        identity: Option<&Identity>,
        place: Place<'_>,
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Opened> {
        let mut attempts = 0..MAKE_ATTEMPTS;
        loop {
            let (opened, is_new) = match self.open_as(identity, place, flags - OpenFlags::CREATE, mode) {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    (self.open_as(identity, place, flags | OpenFlags::EXCLUSIVE, mode), true)
                }
                opened => (opened, false),
            };
            match opened {
                // It was made and removed meanwhile.
                Err(error) if is_new && error.kind() == ErrorKind::AlreadyExists && attempts.next().is_some() => {}
                opened => {
                    let file = opened?;
                    let layout = stripes::layout(file.as_fd())?;
                    return Ok(Opened { file, layout, is_new });
                }
            }
        }
    }

    /// Opens a file as a user.
    fn open_as(&self, identity: Option<&Identity>, place: Place<'_>, flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
        let assumed = self.assume(identity)?;
        match (self.open_file(place, flags, mode), assumed) {
            (Err(error), Some(assumed)) if flags.intersects(OpenFlags::EXECUTE | OpenFlags::AGAIN) => {
                self.open_refused(place, flags, assumed, error)
            }
            (opened, _) => opened,
        }
    }

    /// Opens a file or directory for a client. Only regular files and directories are opened: a named pipe, socket or device belongs to the client's host.
    fn open_file(&self, place: Place<'_>, flags: OpenFlags, mode: u32) -> Result<OwnedFd> {
        if flags.contains(OpenFlags::LOCATE) {
            return self.located(place);
        }
        // Without NONBLOCK the server waits in open() for the other end of a named pipe.
        let system = system_flags(flags)? | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = match place {
            Place::Path(path) => path,
            Place::File(file) => {
                check_type(&attributes_of(file)?)?;
                return reopen(file, system);
            }
        };
        let creates = flags.intersects(OpenFlags::CREATE | OpenFlags::TMPFILE);
        let mode = if creates { Mode::from_raw_mode(mode & 0o7777) } else { Mode::empty() };
        if !creates && !flags.contains(OpenFlags::DIRECTORY) {
            // The type is checked before the open, which has effects on a device.
            check_type(&attributes_of(self.locate(path)?.as_fd())?)?;
        }
        let file = self.open_at(path, system, mode)?;
        check_type(&attributes_of(file.as_fd())?)?;
        Ok(file)
    }

    /// Opens a file that was refused to the user of this thread, where the user may use it all the same: a program that it may execute and not read, for
    /// its system reads it; a file that it owns and has had open. `assumed`: the user's identity, which ends. `refused`: what is returned otherwise.
    fn open_refused(
        &self,
        place: Place<'_>,
        flags: OpenFlags,
        assumed: Assumed<'_>,
        refused: std::io::Error,
    ) -> Result<OwnedFd> {
        if refused.kind() != std::io::ErrorKind::PermissionDenied {
            return Err(refused);
        }
        let file = self.located(place)?;
        let found = attributes_of(file.as_fd())?;
        let executes = flags.contains(OpenFlags::EXECUTE) && !flags.intersects(OpenFlags::CHANGES);
        let may = executes && accessat(CWD, proc_path(file.as_fd()), Access::EXEC_OK, AtFlags::EACCESS).is_ok()
            || flags.contains(OpenFlags::AGAIN) && found.user == geteuid().as_raw();
        if !may || FileType::from_raw_mode(found.mode) != FileType::RegularFile {
            return Err(refused);
        }
        drop(assumed);
        reopen(file.as_fd(), system_flags(flags)? | OFlags::NONBLOCK)
    }

    /// A file, opened with O_PATH.
    fn located(&self, place: Place<'_>) -> Result<OwnedFd> {
        match place {
            Place::Path(path) => self.locate(path),
            Place::File(file) => Ok(file.try_clone_to_owned()?),
        }
    }

    /// Makes a striped file longer, and returns its length before.
    pub fn reserve(&self, file: BorrowedFd<'_>, length: u64) -> Result<u64> {
        let _writer = self.layouts.write().unwrap_or_else(PoisonError::into_inner);
        let before = attributes_of(file)?.size;
        let last = before.checked_add(length).and_then(|end| end.checked_sub(1)).ok_or(Errno::FBIG)?;
        // The last byte is in another export or is written later.
        if length > 0 && pwrite(file, &[0], last)? != 1 {
            return Err(Errno::IO.into());
        }
        Ok(before)
    }
}

fn system_flags(flags: OpenFlags) -> Result<OFlags> {
    let mut system = match (flags.contains(OpenFlags::READ), flags.intersects(OpenFlags::WRITE | OpenFlags::APPEND)) {
        (_, false) => OFlags::RDONLY,
        (false, true) => OFlags::WRONLY,
        (true, true) => OFlags::RDWR,
    };
    if flags.bits() & !OpenFlags::all().bits() != 0 {
        return Err(Errno::INVAL.into());
    }
    let pairs = [
        (OpenFlags::APPEND, OFlags::APPEND),
        (OpenFlags::CREATE, OFlags::CREATE),
        (OpenFlags::EXCLUSIVE, OFlags::EXCL),
        (OpenFlags::TRUNCATE, OFlags::TRUNC),
        (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        (OpenFlags::SYNC, OFlags::SYNC),
        (OpenFlags::TMPFILE, OFlags::TMPFILE),
    ];
    for (flag, bits) in pairs {
        if flags.contains(flag) {
            system |= bits;
        }
    }
    Ok(system)
}

fn check_type(stat: &Attributes) -> Result<()> {
    match FileType::from_raw_mode(stat.mode) {
        FileType::RegularFile | FileType::Directory => Ok(()),
        FileType::Symlink => Err(Errno::LOOP.into()),
        _ => Err(Errno::NXIO.into()),
    }
}
