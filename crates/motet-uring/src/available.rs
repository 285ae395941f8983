//! Whether this process may use io_uring, and why not.

use crate::{BUFFER_BYTES, BUFFERS};
use io_uring::{IoUring, Probe, opcode};
use std::fmt;
use std::io::Error;

/// Why there is no ring, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unavailable(pub(crate) String);

impl fmt::Display for Unavailable {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    /// The kernel has refused a ring.
    pub(crate) fn setup(error: &Error) -> Self {
        let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
        Self::of_setup(error, disabled.trim())
    }

    fn of_setup(error: &Error, disabled: &str) -> Self {
        Self(match error.raw_os_error() {
            Some(libc::ENOSYS) => "the kernel has no io_uring, or a seccomp filter hides it".to_owned(),
            Some(libc::EPERM | libc::EACCES) if matches!(disabled, "1" | "2") => {
                format!("kernel.io_uring_disabled is {disabled}")
            }
            Some(libc::EPERM | libc::EACCES) => "a seccomp filter or security module forbids io_uring".to_owned(),
            Some(libc::EMFILE | libc::ENFILE) => "too many open files".to_owned(),
            Some(libc::ENOMEM) => "the limit of locked memory (ulimit -l) is too low for io_uring".to_owned(),
            _ => format!("io_uring_setup: {error}"),
        })
    }

    /// The kernel has refused to register the buffers.
    pub(crate) fn registration(error: &Error) -> Self {
        let needed = (BUFFERS * BUFFER_BYTES) >> 10;
        Self(match error.raw_os_error() {
            Some(libc::ENOMEM) => {
                format!("the limit of locked memory (ulimit -l) is below the {needed} KiB of buffers")
            }
            _ => format!("registering {needed} KiB of buffers: {error}"),
        })
    }
}

/// Tries whether this process may have a ring. The limit of locked memory is found out by the first real one.
pub fn probe() -> Result<(), Unavailable> {
    let ring = IoUring::new(1).map_err(|error| Unavailable::setup(&error))?;
    check_operations(&ring)
}

/// Whether the kernel knows the operations that a ring uses.
pub(crate) fn check_operations(ring: &IoUring) -> Result<(), Unavailable> {
    let mut probe = Probe::new();
    let known = ring.submitter().register_probe(&mut probe);
    let all = [opcode::Read::CODE, opcode::ReadFixed::CODE];
    if known.is_ok() && all.iter().all(|&code| probe.is_supported(code)) {
        Ok(())
    } else {
        Err(Unavailable("the kernel's io_uring is too old (Linux 5.6 is needed)".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_says_what_would_have_to_change() {
        let of = |code, disabled| Unavailable::of_setup(&Error::from_raw_os_error(code), disabled).to_string();
        assert!(of(libc::EPERM, "2").contains("kernel.io_uring_disabled is 2"));
        assert!(of(libc::EPERM, "0").contains("seccomp"));
        assert!(of(libc::EPERM, "").contains("seccomp"), "a kernel without the setting");
        assert!(of(libc::ENOSYS, "").contains("has no io_uring"));
        assert!(of(libc::ENOMEM, "0").contains("ulimit -l"));
        assert!(of(libc::EINVAL, "0").contains("io_uring_setup"));
        let registration = |code| Unavailable::registration(&Error::from_raw_os_error(code)).to_string();
        assert!(registration(libc::ENOMEM).contains("4096 KiB") && registration(libc::EFAULT).contains("4096 KiB"));
    }
}
