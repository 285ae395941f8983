//! Reads by io_uring into registered buffers: a small safe interface over the crate `io-uring`.
//!
//! What it is: one ring with one thread, and a pool of registered buffers. Any thread starts a read; the ring's thread hands what was read to a handler, in the
//! buffer into which the device has written it. What it is not: no writes, no sockets, no futures.
//!
//! | module | what |
//! | --- | --- |
//! | `ring` | how reads are started |
//! | `reads` | reads on their way |
//! | `reaper` | the thread of the ring: it alone submits and reaps |
//! | `pool` | the registered buffers |
//! | `next` | what follows a completion |
//! | `available` | whether this process may use io_uring |
//!
//! The thread of the ring submits, too, although any thread could: the kernel finishes a request in the thread that has submitted it, and would interrupt the waits
//! of the others for that.
#![deny(unsafe_op_in_unsafe_fn)]

mod available;
mod next;
mod pool;
mod reads;
mod reaper;
mod ring;

pub use available::{Unavailable, probe};
pub use reads::{Completed, Read};
pub use ring::Ring;

/// Buffers of a ring: reads that are under way, or completed and not dropped yet.
pub const BUFFERS: usize = 64;
/// Bytes of a buffer: the longest read.
pub const BUFFER_BYTES: usize = 64 << 10;
