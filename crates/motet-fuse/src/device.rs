//! The device of a mount: how the kernel gets the mount, and how it is taken away.
//!
//! The mount belongs to this crate, not to fuser, which would unmount by path when its session ends: that could be the next mount on the same directory.

use fuser::InitFlags;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::process::{getegid, geteuid};
use std::ffi::{CString, OsStr};
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// The program that mounts for users without the privilege.
const HELPER: &str = "fusermount3";

/// What is mounted.
#[derive(Debug, Clone, Copy)]
pub struct Mounting<'a> {
    /// The name of the export.
    pub name: &'a str,
    /// It refuses changes.
    pub read_only: bool,
    /// Other users may use it, with the permissions of its files.
    pub other_users: bool,
}

impl Mounting<'_> {
    /// Mounts at `directory`; returns the device from which it is to be served.
    pub fn attach(self, directory: &Path) -> Result<OwnedFd> {
        match self.attach_by_kernel(directory) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.attach_by_helper(directory),
            attached => attached,
        }
    }

    /// Mounts at `directory`. Fails if /dev/fuse cannot be opened, or the process may not mount.
    pub fn attach_by_kernel(self, directory: &Path) -> Result<OwnedFd> {
        let device = open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
            let error = Error::from(error);
            Error::new(error.kind(), format!("/dev/fuse: {error}"))
        })?;
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let others = if self.other_users { ",allow_other" } else { "" };
        let options = format!(
            "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions{others}",
            device.as_raw_fd()
        );
        let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
        flags.set(MountFlags::RDONLY, self.read_only);
        mount(format!("motet:{}", self.name), directory, "fuse.motet", flags, CString::new(options)?.as_c_str())?;
        Ok(device)
    }

    /// Mounts by the program that comes with FUSE. It sends the device over its standard input.
    fn attach_by_helper(self, directory: &Path) -> Result<OwnedFd> {
        let (socket, of_helper) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let access = if self.read_only { "ro" } else { "rw" };
        let others = if self.other_users { ",allow_other" } else { "" };
        let options =
            format!("fsname=motet:{},subtype=motet,default_permissions,nodev,nosuid,{access}{others}", self.name);
        let mut command = Command::new(HELPER);
        command.args(["-o", &options, "--"]).arg(directory).env("_FUSE_COMMFD", "0").stdin(of_helper);
        let helper = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        // Its end of the socket is closed when it ends.
        drop(command);
        let device = receive(&socket);
        let output = helper.wait_with_output()?;
        match device {
            Ok(Some(device)) if output.status.success() => Ok(device),
            Err(error) => Err(error),
            Ok(_) => Err(Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
        }
    }
}

/// The descriptor that comes over a socket; `None`: it was closed.
fn receive(socket: &OwnedFd) -> Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    Ok(ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.into_iter().next(),
        _ => None,
    }))
}

/// `FUSE_NOTIFY_INVAL_INODE` of the kernel's interface.
const INVALIDATE_FILE: i32 = 2;
/// `FUSE_NOTIFY_INVAL_ENTRY` of the kernel's interface, and a flag of it since Linux 6.2: the name is only looked up again.
const INVALIDATE_NAME: i32 = 3;
const EXPIRE_ONLY: u32 = 1;
/// Whether the kernel knows the flag.
static KERNEL_EXPIRES_NAMES: AtomicBool = AtomicBool::new(false);

/// Makes the kernel forget the attributes that it has of a file. False: it does not have the file, which fuser's notifier does not tell.
pub fn forget_attributes(device: &OwnedFd, number: u64) -> bool {
    // The file, and a range of its content: none.
    let fields = [&number.to_ne_bytes()[..], &(-1_i64).to_ne_bytes(), &0_i64.to_ne_bytes()];
    notify(device, INVALIDATE_FILE, &fields) != Err(Errno::NOENT)
}

/// Notes what the kernel can do.
pub fn note_kernel(capabilities: InitFlags) {
    KERNEL_EXPIRES_NAMES.store(capabilities.contains(InitFlags::FUSE_HAS_EXPIRE_ONLY), Ordering::Relaxed);
}

/// Whether [`expire_name`] leaves directories to programs that work in them: Linux 6.2.
pub fn kernel_expires_names() -> bool {
    KERNEL_EXPIRES_NAMES.load(Ordering::Relaxed)
}

/// Makes the kernel look a name up again before it uses it. A directory that is the working directory of a program must not be invalidated: it would count as
/// removed. fuser's notifier can do only that.
pub fn expire_name(device: &OwnedFd, directory: u64, name: &OsStr) {
    let length = name.len() as u32; // 255 at most
    let fields =
        [&directory.to_ne_bytes()[..], &length.to_ne_bytes(), &EXPIRE_ONLY.to_ne_bytes(), name.as_bytes(), &[0]];
    // What the kernel does not know any more need not expire.
    let _ = notify(device, INVALIDATE_NAME, &fields);
}

fn notify(device: &OwnedFd, notice: i32, fields: &[&[u8]]) -> rustix::io::Result<usize> {
    // The length, the notice, and the request that it answers: none.
    let length = 16 + fields.iter().map(|field| field.len()).sum::<usize>();
    let mut message = Vec::with_capacity(length);
    message.extend((length as u32).to_ne_bytes());
    message.extend(notice.to_ne_bytes());
    message.extend(0_u64.to_ne_bytes());
    fields.iter().for_each(|field| message.extend(*field));
    rustix::io::write(device, &message)
}

/// Unmounts a directory; without the privilege by the program that comes with FUSE, which does not know [`UnmountFlags::FORCE`].
pub fn unmount(directory: &Path, flags: UnmountFlags) -> Result<()> {
    match rustix::mount::unmount(directory, flags) {
        Err(Errno::PERM) => {}
        done => return Ok(done?),
    }
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if flags.contains(UnmountFlags::DETACH) {
        command.arg("-z");
    }
    let output = command.arg("--").arg(directory).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}
