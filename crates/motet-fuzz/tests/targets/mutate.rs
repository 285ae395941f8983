//! A small, repeatable mutator with changes that are likely to confuse parsers.

/// A random number generator (SplitMix64: Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Prng(pub u64);

impl Prng {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }
}

/// Boundary values.
const EDGES: [u64; 10] = [0, 1, 40, 41, 4096, 4097, u32::MAX as u64, i64::MAX as u64, u64::MAX - 1, u64::MAX];

/// Changes an input in a few places.
pub fn mutate(input: &mut Vec<u8>, prng: &mut Prng) {
    for _ in 0..prng.below(4) {
        let at = prng.below(input.len().max(1));
        match prng.below(8) {
            0 if !input.is_empty() => input[at] ^= 1 << prng.below(8),
            1 if !input.is_empty() => input[at] = prng.draw() as u8,
            2 => input.truncate(at),
            3 => input.extend((0..1 + prng.below(16)).map(|_| prng.draw() as u8)),
            4 => {
                let part: Vec<u8> = input[at.min(input.len())..].iter().copied().take(1 + prng.below(32)).collect();
                let to = prng.below(input.len() + 1);
                input.splice(to..to, part);
            }
            _ => {
                let value = match prng.below(3) {
                    0 => prng.draw(),
                    1 => 1 << prng.below(64),
                    _ => EDGES[prng.below(EDGES.len())],
                };
                let width = [1, 2, 4, 8][prng.below(4)];
                let at = at / width * width;
                if at + width <= input.len() {
                    input[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
                }
            }
        }
    }
}
