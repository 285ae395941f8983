//! A bell: a pipe whose owner sleeps at one end while others, whoever they are, write a byte into the other.
//!
//! A pipe, not an eventfd: those who may ring cannot listen, so none of them takes another's ring away. A full pipe has been rung.

use crate::Errno;
use crate::fds::PrivateFd;
use rustix::fd::AsFd;
use rustix::pipe::PipeFlags;

/// The owner's end, and what it hands out.
#[derive(Debug)]
pub struct Bell {
    ear: PrivateFd,
    rope: PrivateFd,
}

impl Bell {
    /// A new one, which nobody has rung.
    pub fn new() -> Result<Self, Errno> {
        let (ear, rope) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|e| e.raw_os_error())?;
        Ok(Self { ear: PrivateFd::new(ear), rope: PrivateFd::new(rope) })
    }

    /// Readable once it has been rung.
    pub fn ear(&self) -> &PrivateFd {
        &self.ear
    }

    /// For others, to ring it.
    pub fn rope(&self) -> &PrivateFd {
        &self.rope
    }

    /// Hears all rings so far. Bounded: who rings on and on is heard again.
    pub fn hear(&self) {
        let mut bytes = [0; 512];
        while rustix::io::read(&self.ear, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
    }
}

/// Rings. Never blocks; whoever cannot be rung any more is gone, which is learned elsewhere.
pub fn ring(rope: impl AsFd) {
    let _ = rustix::io::write(rope, &[1]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket;
    use rustix::fd::AsRawFd;

    #[test]
    fn a_ring_is_heard_once_and_never_blocks() {
        let bell = Bell::new().unwrap();
        let rung = || socket::readable(bell.ear().as_fd().as_raw_fd());
        assert!(!rung());
        (0..100_000).for_each(|_| ring(bell.rope()));
        assert!(rung());
        while rung() {
            bell.hear();
        }
        ring(bell.rope());
        assert!(rung());
    }
}
