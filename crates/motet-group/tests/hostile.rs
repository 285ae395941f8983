//! Messages that no member sends: an opener ignores them or takes them, and neither panics nor stops to work after the next view.
#![forbid(unsafe_code)]

use motet_group::opener::{Message, Opener, Opening, Step};
use motet_group::token::Token;

/// A simple generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A number as an attacker chooses it.
    fn value(&mut self) -> u64 {
        match self.below(4) {
            0 => u64::MAX - self.below(3),
            1 => self.number(),
            _ => self.below(5),
        }
    }

    fn opening(&mut self) -> Opening {
        Opening { number: self.value(), name: ["a", "b", ""][self.below(3) as usize].to_owned(), view: self.value() }
    }

    fn message(&mut self) -> Message<u8> {
        match self.below(7) {
            0 => Message::Request(self.value()),
            1 => {
                let (granted, queue) = (self.below(4), self.below(4));
                let granted: Vec<_> = (0..granted).map(|_| format!("\"{}\":{}", self.below(6), self.value())).collect();
                let queue: Vec<_> = (0..queue).map(|_| self.below(6).to_string()).collect();
                let text = format!(
                    "{{\"granted\":{{{}}},\"queue\":[{}],\"next_number\":{}}}",
                    granted.join(","),
                    queue.join(","),
                    self.value()
                );
                Message::Token(serde_json::from_str::<Token<u8>>(&text).unwrap())
            }
            2 => Message::Open(self.opening()),
            3 => Message::Opened(self.value()),
            4 => Message::Last((self.below(2) == 0).then(|| self.opening())),
            5 => Message::Agreed((self.below(2) == 0).then(|| self.opening())),
            _ => Message::Ready,
        }
    }
}

#[test]
fn random_messages_do_no_harm() {
    for seed in 1..3000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut opener = Opener::new(2u8);
        let mut view = 0;
        for _ in 0..60 {
            match random.below(8) {
                0 => {
                    view += random.below(3);
                    let members: &[u8] = [&[1, 2, 3][..], &[2, 3], &[2], &[1, 3]][random.below(4) as usize];
                    drop(opener.install(view, members));
                }
                1 => drop(opener.open(["a", "b", "c"][random.below(3) as usize])),
                _ => {
                    let (from, message) = (random.below(5) as u8, random.message());
                    let of = if random.below(4) == 0 { random.value() } else { view };
                    drop(opener.receive(from, of, message));
                }
            }
        }
        // Alone in a new view, it opens what it wants.
        let mut steps = opener.install(u64::MAX, &[2]);
        steps.extend(opener.open("mine"));
        assert!(steps.iter().all(|step| matches!(step, Step::Install(_))), "{steps:?}");
        assert!(opener.number_of("mine").is_some(), "seed {seed}");
    }
}
