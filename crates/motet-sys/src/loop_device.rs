//! A loop device: a file as a block device of the host.
//!
//! What it is: the calls of `loop(4)` that attach a file to a free device. The device lets go of its file when the last one who has it open closes it
//! (`LO_FLAGS_AUTOCLEAR`), so the end of this process, `kill -9` included, leaves no device behind. A mounted device stays until it is unmounted.

use crate::{Errno, errno};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags, open};
use std::path::{Path, PathBuf};
use syscalls::{Sysno, syscall};

/// `LOOP_CTL_GET_FREE` and `LOOP_CONFIGURE` of linux/loop.h.
const CTL_GET_FREE: usize = 0x4C82;
const CONFIGURE: usize = 0x4C0A;
/// `LO_FLAGS_*`.
const READ_ONLY: u32 = 1;
const AUTOCLEAR: u32 = 4;
const PARTITIONS: u32 = 8;
const DIRECT_IO: u32 = 16;
/// Bytes of a sector.
const SECTOR: u32 = 512;
/// How often another program may be faster to take the device that was free.
const ATTEMPTS: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    represented_device: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device that is attached to a file. It lets go of the file some time after this is dropped: when nothing else has it open.
#[derive(Debug)]
pub struct LoopDevice {
    _open: OwnedFd,
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches a file, which is read and written past the page cache of its file system. Errors: those of the system; ACCES and PERM without the
    /// privilege, NOENT without loop devices.
    pub fn attach(file: BorrowedFd<'_>, read_only: bool) -> Result<Self, Errno> {
        let control = open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map_err(rustix::io::Errno::raw_os_error)?;
        let busy = rustix::io::Errno::BUSY.raw_os_error();
        for _ in 0..ATTEMPTS {
            // SAFETY: the call has no memory of this process.
            let number = unsafe { syscall!(Sysno::ioctl, control.as_raw_fd(), CTL_GET_FREE) }.map_err(errno)?;
            match Self::configure(number, file, read_only) {
                Err(error) if error == busy => {}
                done => return done,
            }
        }
        Err(busy)
    }

    fn configure(number: usize, file: BorrowedFd<'_>, read_only: bool) -> Result<Self, Errno> {
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let device = open(&path, access | OFlags::CLOEXEC, Mode::empty()).map_err(rustix::io::Errno::raw_os_error)?;
        let flags = AUTOCLEAR | PARTITIONS | DIRECT_IO | if read_only { READ_ONLY } else { 0 };
        let config = Config {
            fd: file.as_raw_fd().cast_unsigned(),
            block_size: SECTOR,
            info: Info {
                device: 0,
                inode: 0,
                represented_device: 0,
                offset: 0,
                size_limit: 0,
                number: 0,
                encrypt_type: 0,
                encrypt_key_size: 0,
                flags,
                file_name: [0; 64],
                crypt_name: [0; 64],
                encrypt_key: [0; 32],
                init: [0; 2],
            },
            reserved: [0; 8],
        };
        // SAFETY: the kernel reads one struct loop_config, which outlives the call.
        unsafe { syscall!(Sysno::ioctl, device.as_fd().as_raw_fd(), CONFIGURE, &raw const config) }.map_err(errno)?;
        Ok(Self { _open: device, path })
    }

    /// The device's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::time::{Duration, Instant};

    #[test]
    fn structures_have_the_kernels_size() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }

    #[test]
    fn a_device_has_the_files_content_and_goes_with_its_last_user() {
        let mut named = tempfile::NamedTempFile::new().unwrap();
        std::io::Write::write_all(&mut named, &[7; 1 << 16]).unwrap();
        let device = match LoopDevice::attach(named.as_file().as_fd(), true) {
            Ok(device) => device,
            Err(error) => return eprintln!("SKIPPED: no loop device: error {error}"),
        };
        let mut content = Vec::new();
        let mut opened = std::fs::File::open(device.path()).unwrap();
        opened.read_to_end(&mut content).unwrap();
        assert!(content == vec![7; 1 << 16]);
        let name = device.path().file_name().unwrap().to_owned();
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        let is_ours = || std::fs::read_to_string(&backing).is_ok_and(|text| Path::new(text.trim()) == named.path());
        assert!(is_ours());
        drop(device);
        assert!(is_ours(), "a device that is open stays");
        drop(opened);
        let began = Instant::now();
        while is_ours() {
            assert!(began.elapsed() < Duration::from_secs(60), "the device stays");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
