//! Descriptors that a process has inherited, and that its children must not: a lock that a shell holds by one of them would last as long as the
//! child, and a pipe would have no end.

use crate::private_fds::set_cloexec;
use std::os::unix::process::CommandExt;
use std::process::Command;
use syscalls::{Sysno, syscall};

/// The first descriptor that is none of the standard ones.
const FIRST: u32 = 3;
/// `CLOSE_RANGE_CLOEXEC` of the kernel, since Linux 5.11.
const CLOSE_ON_EXEC: u32 = 4;
/// How many descriptors are looked at one by one where the kernel lacks that.
const MOST: i32 = 1 << 16;

/// Makes a command start its program with the standard descriptors only: for daemons, which outlive what has started them.
pub fn only_standard_descriptors(command: &mut Command) -> &mut Command {
    let close = || {
        close_on_exec();
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only. It allocates nothing and takes no lock.
    unsafe { command.pre_exec(close) }
}

/// Lets programs that this process starts inherit the standard descriptors only.
pub fn close_on_exec() {
    // SAFETY: the call changes a flag of descriptors and no memory.
    if unsafe { syscall!(Sysno::close_range, FIRST, u32::MAX, CLOSE_ON_EXEC) }.is_err() {
        (FIRST as i32..MOST).for_each(|descriptor| set_cloexec(descriptor, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn program_gets_the_standard_descriptors_only() {
        let kept = File::open("/dev/null").unwrap();
        set_cloexec(kept.as_raw_fd(), false);
        let script = format!("test -e /proc/self/fd/{}", kept.as_raw_fd());
        let sees_it = |command: &mut Command| command.args(["-c", &script]).status().unwrap().success();
        assert!(sees_it(&mut Command::new("sh")));
        assert!(!sees_it(only_standard_descriptors(&mut Command::new("sh"))));
        assert!(rustix::io::fcntl_getfd(&kept).unwrap().is_empty(), "this process keeps it as it was");
    }
}
