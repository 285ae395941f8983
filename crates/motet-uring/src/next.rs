//! What follows a completion of the kernel.

/// How often a read that the kernel puts off or a signal interrupts is submitted again.
const MAX_ATTEMPTS: u32 = 8;

/// How far a read is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that were read.
    pub done: usize,
    /// Bytes that were asked for.
    pub length: usize,
    /// Bytes of a block: offsets of direct reads are multiples of it.
    pub block: usize,
    /// How often it was put off since the last bytes came.
    pub attempts: u32,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The read is done: the buffer is full, or the file has ended.
    Done(usize),
    /// The rest is read.
    Continue(Progress),
    /// It has failed, with this error number of the system.
    Failed(i32),
}

impl Progress {
    /// The kernel has completed a read of the rest with this result: bytes, or a negative error number.
    pub fn after(self, result: i32) -> Next {
        let Ok(read) = usize::try_from(result) else { return self.after_error(result.saturating_neg()) };
        let done = self.done + read;
        if done > self.length {
            // More than was asked for: not a kernel's answer to this request.
            return Next::Failed(libc::EIO);
        }
        // A read that ends within a block ends with the file. At the end of a block the file may go on.
        if read == 0 || done == self.length || !done.is_multiple_of(self.block) {
            return Next::Done(done);
        }
        Next::Continue(Self { done, attempts: 0, ..self })
    }

    fn after_error(self, errno: i32) -> Next {
        match errno {
            libc::EAGAIN | libc::EINTR if self.attempts < MAX_ATTEMPTS => {
                Next::Continue(Self { attempts: self.attempts + 1, ..self })
            }
            _ => Next::Failed(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGUN: Progress = Progress { done: 0, length: 16384, block: 4096, attempts: 0 };

    #[test]
    fn a_full_buffer_and_the_end_of_the_file_end_a_read() {
        assert_eq!(BEGUN.after(16384), Next::Done(16384));
        assert_eq!(BEGUN.after(0), Next::Done(0), "behind the end");
        assert_eq!(BEGUN.after(5000), Next::Done(5000), "the end is within a block");
        assert_eq!(Progress { done: 4096, ..BEGUN }.after(0), Next::Done(4096), "the end is that of a block");
        assert_eq!(Progress { done: 4096, ..BEGUN }.after(100), Next::Done(4196));
    }

    #[test]
    fn a_short_read_goes_on() {
        let Next::Continue(rest) = BEGUN.after(8192) else { panic!("the rest is not read") };
        assert_eq!(rest, Progress { done: 8192, ..BEGUN });
        assert_eq!(rest.after(8192), Next::Done(16384));
    }

    #[test]
    fn what_is_put_off_or_interrupted_is_submitted_again_but_not_for_ever() {
        for errno in [libc::EAGAIN, libc::EINTR] {
            let mut progress = BEGUN;
            for _ in 0..MAX_ATTEMPTS {
                let Next::Continue(next) = progress.after(-errno) else { panic!("given up") };
                progress = next;
            }
            assert_eq!(progress.after(-errno), Next::Failed(errno));
            let Next::Continue(next) = progress.after(4096) else { panic!("given up") };
            assert_eq!(next.attempts, 0, "bytes have come");
        }
    }

    #[test]
    fn errors_of_the_device_end_a_read_also_in_its_middle() {
        assert_eq!(BEGUN.after(-libc::EIO), Next::Failed(libc::EIO));
        assert_eq!(Progress { done: 4096, ..BEGUN }.after(-libc::EIO), Next::Failed(libc::EIO));
        assert_eq!(BEGUN.after(i32::MIN), Next::Failed(i32::MAX));
        assert_eq!(BEGUN.after(16385), Next::Failed(libc::EIO), "more than was asked for");
    }
}
