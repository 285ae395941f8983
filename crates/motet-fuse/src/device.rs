//! The device of a mount: how the kernel gets the mount, and how it is taken away.
//!
//! The mount belongs to this crate, not to fuser, which would unmount by path when its session ends: that could be the next mount on the same directory.

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use rustix::process::{getegid, geteuid};
use std::ffi::CString;
use std::io::{Error, ErrorKind, IoSliceMut, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

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

/// Makes the kernel forget the attributes that it has of a file. False: it does not have the file, which fuser's notifier does not tell.
pub fn forget_attributes(device: &OwnedFd, number: u64) -> bool {
    // A header: the length, the notice, and the request that it answers. Then the file, and a range of its content: none.
    let mut message = [0_u8; 40];
    let parts: [&[u8]; 6] = [
        &40_u32.to_ne_bytes(),
        &INVALIDATE_FILE.to_ne_bytes(),
        &0_u64.to_ne_bytes(),
        &number.to_ne_bytes(),
        &(-1_i64).to_ne_bytes(),
        &0_i64.to_ne_bytes(),
    ];
    let mut rest = &mut message[..];
    for part in parts {
        let (field, others) = rest.split_at_mut(part.len());
        field.copy_from_slice(part);
        rest = others;
    }
    rustix::io::write(device, &message) != Err(Errno::NOENT)
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
