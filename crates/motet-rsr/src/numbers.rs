//! Maps by numbers that this process has chosen, on the way of each request.
//!
//! The hash is one multiplication (Fibonacci hashing; Knuth, *The Art of Computer Programming* 3, 6.4), which is no protection where a peer chooses the
//! keys: maps with keys of peers use the standard hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map by numbers.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// The hash of one number.
#[derive(Debug, Default, Clone, Copy)]
pub struct NumberHasher(u64);

/// 2^64 over the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let mixed = (self.0 ^ number).wrapping_mul(FACTOR);
        self.0 = mixed ^ mixed >> 32;
    }
}
