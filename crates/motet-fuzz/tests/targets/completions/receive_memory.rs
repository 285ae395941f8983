//! Memory for posted receives. Only memory whose owner guarantees its lifetime may receive bytes from a cell.
//!
//! This is the only file of the crate with `unsafe`.
#![allow(unsafe_code)]

use motet_sys::user_memory::UserMemory;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes that live as long as the process.
pub struct ReceiveMemory(&'static [AtomicU8]);

impl ReceiveMemory {
    pub fn new(bytes: usize) -> Self {
        Self(Box::leak((0..bytes).map(|_| AtomicU8::new(0)).collect()))
    }

    /// A span of these bytes.
    pub fn span(&self, at: usize, length: usize) -> UserMemory {
        let bytes = &self.0[at..][..length];
        // SAFETY: the bytes are never freed. They are atomics, so they may be written through a shared reference. Only the thread that owns this
        // value reads them, between its calls on the node, which no other thread uses.
        unsafe { UserMemory::new(bytes.as_ptr().cast_mut().cast(), length) }
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        self.0[at..][..length].iter().map(|byte| byte.load(Ordering::Relaxed)).collect()
    }

    pub fn fill(&self, at: usize, length: usize, value: u8) {
        self.0[at..][..length].iter().for_each(|byte| byte.store(value, Ordering::Relaxed));
    }
}
