//! Memory for receives to fill: what is delivered out of a line lands in memory that somebody vouches for, or not at all.
//!
//! The one file of this crate with `unsafe`.
#![allow(unsafe_code)]

use motet_sys::user_memory::UserMemory;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that stay as long as the process.
pub struct ReceiveMemory(&'static [AtomicU8]);

impl ReceiveMemory {
    pub fn new(bytes: usize) -> Self {
        Self(Box::leak((0..bytes).map(|_| AtomicU8::new(0)).collect()))
    }

    /// So many bytes of it.
    pub fn span(&self, at: usize, length: usize) -> UserMemory {
        let bytes = &self.0[at..][..length];
        // SAFETY: the bytes are never freed; they are atomics, so may be written through a shared reference; and only the thread that
        // has this value looks at them, between its calls on the node, to none of which another thread comes.
        unsafe { UserMemory::new(bytes.as_ptr().cast_mut().cast(), length) }
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        self.0[at..][..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    pub fn fill(&self, at: usize, length: usize, value: u8) {
        self.0[at..][..length].iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
    }
}
