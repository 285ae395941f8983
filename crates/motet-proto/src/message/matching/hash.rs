//! The hash function of the matching table. It is keyed, because peers choose the tags that are hashed.

use std::hash::{BuildHasher, Hasher};

/// A keyed hash of two words by folded multiplication: a few cycles, and colliding tags cannot be chosen without the seed.
#[derive(Debug, Clone, Copy)]
pub struct Seeded(pub [u64; 2]);

impl BuildHasher for Seeded {
    type Hasher = Folded;

    #[inline(always)]
    fn build_hasher(&self) -> Folded {
        Folded { state: self.0[0], seed: self.0[1] | 1 }
    }
}

/// The state of a hash.
pub struct Folded {
    state: u64,
    seed: u64,
}

impl Hasher for Folded {
    #[inline(always)]
    fn write_u64(&mut self, word: u64) {
        let wide = u128::from(self.state ^ word) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c14);
        self.state = (wide as u64) ^ (wide >> 64) as u64 ^ self.seed.rotate_left(17);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline(always)]
    fn finish(&self) -> u64 {
        let wide = u128::from(self.state) * u128::from(self.seed);
        (wide as u64) ^ (wide >> 64) as u64
    }
}
