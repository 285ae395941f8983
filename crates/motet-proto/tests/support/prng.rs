//! SplitMix64 (Steele, Lea, Flood 2014): small, repeatable, good enough to choose steps.

/// A generator; its whole state is the seed.
#[derive(Debug, Clone)]
pub struct Prng(pub u64);

impl Prng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Mostly short, sometimes up to `most`, never 0.
    pub fn size(&mut self, most: usize) -> usize {
        let most = match self.below(4) {
            0 => 8,
            1 => 48,
            2 => 600,
            _ => most,
        };
        1 + self.below(most as u64) as usize
    }
}
