//! A seeded generator of random numbers (SplitMix64: Steele, Lea, Flood 2014).

/// The generator.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    /// True once in `often` calls on average.
    pub fn once_in(&mut self, often: u64) -> bool {
        self.below(often) == 0
    }

    /// A message length. Most are short; some need several packets or a rendezvous.
    pub fn length(&mut self) -> usize {
        let most = [1, 41, 300, 4_100, 20_000, 90_000, 300_000][self.below(16).min(6) as usize];
        self.below(most) as usize
    }
}
