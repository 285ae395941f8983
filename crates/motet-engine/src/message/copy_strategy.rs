//! How long messages reach this side of a link, chosen by what whole messages have taken.
//!
//! There are four strategies. For each class of lengths the one with the highest rate is used. Only the receiver sees a message from the first
//! byte wanted to the last one there, so the receiver chooses and the sender follows. Now and then all strategies are tried
//! again: which is best changes with the CPUs that run the two, and with whether the program uses its buffers again. What it is not: it
//! copies nothing.

use super::Bodies;

/// How a long message is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStrategy {
    /// RingCached the ring and the caches.
    RingCached,
    /// RingCached the ring, around the sender's caches.
    RingNonTemporal,
    /// Copied by the receiver.
    SingleCopy,
    /// Copied by both.
    CooperativeCopy,
}

const WAYS: [CopyStrategy; 4] =
    [CopyStrategy::RingCached, CopyStrategy::RingNonTemporal, CopyStrategy::SingleCopy, CopyStrategy::CooperativeCopy];
/// Lengths from which on the further classes begin.
const CLASSES: [u64; 3] = [1 << 20, 4 << 20, 16 << 20];
/// The class of those that their senders do not show.
const HIDDEN: usize = CLASSES.len() + 1;
/// In this class copies come first: such messages are longer than any cache that would hold them.
const COLD: usize = 3;
/// Bytes after which a stretch of messages that overlap is looked at.
const STRETCH: u64 = 32 << 20;
/// Stretches between two reviews: at first, after another machine was found, and at most.
const FIRST: u32 = 4;
const CHANGED: u32 = 16;
const RARELY: u32 = 1024;
/// A way of less than half the rate of the best is left out of so many reviews.
const LEFT_OUT: u8 = 7;
/// Stretches of a way that count in a review: the faster one does.
const SAMPLES: u32 = 2;
/// So many in a row of less than half the rate are a changed machine, not another process's time slice.
const FALLS: u32 = 3;
/// Bytes that go before a way counts: all of the ring and more, until its lines are where they are used.
const SETTLING: u64 = 4 << 20;

/// What one side of a link knows of its long messages.
#[derive(Debug, Default)]
pub struct CopyChooser {
    classes: Option<Box<[Class; HIDDEN + 1]>>,
    /// Messages under way; of these, those that began before the stretch.
    active: u32,
    foreign: u32,
    /// The stretch: class and way, ticks at its begin, bytes since.
    current: Option<(usize, CopyStrategy)>,
    began: u64,
    bytes: u64,
    /// Ways that this link does not have.
    one_way: bool,
    no_ring: bool,
    no_copy: bool,
    no_help: bool,
    /// Copied by the receiver alone is a way, too, although the sender may help.
    alone: bool,
}

impl CopyChooser {
    /// Of a link where the sender's memory can be copied from, or not; and where the sender may help, or not. The program may have chosen.
    pub fn new(copies: bool, assists: bool, bodies: Bodies) -> Self {
        let no_ring = copies && matches!(bodies, Bodies::Copied | Bodies::CopiedByBoth);
        let (no_copy, no_help) = (!copies || bodies == Bodies::Ring, !assists || bodies == Bodies::Copied);
        Self { no_ring, no_copy, no_help, alone: bodies != Bodies::CopiedByBoth || no_help, ..Self::default() }
    }

    /// Of a link that has one way only.
    pub fn none() -> Self {
        Self { one_way: true, ..Self::default() }
    }

    /// A message of so many bytes begins, now, which its sender shows or not. `None`: there is nothing to choose.
    pub fn want(&mut self, length: u64, shown: bool, now: u64) -> Option<CopyStrategy> {
        if self.one_way {
            return None;
        }
        let at = if shown { CLASSES.iter().filter(|&&least| length >= least).count() } else { HIDDEN };
        let ways = self.ways(at);
        let way = self.classes.get_or_insert_with(Box::default)[at].way(at, ways);
        if self.current != Some((at, way)) || self.active == 0 {
            (self.current, self.foreign) = (Some((at, way)), self.active);
            (self.began, self.bytes) = (now, 0);
        }
        self.active += 1;
        Some(way)
    }

    /// One of so many bytes has landed.
    pub fn landed(&mut self, length: u64, now: u64, ticks_per_1024ns: u64) {
        if self.one_way {
            return;
        }
        self.active = self.active.saturating_sub(1);
        if self.foreign > 0 {
            self.foreign -= 1;
            (self.began, self.bytes) = (now, 0);
            return;
        }
        self.bytes += length;
        if self.active > 0 && self.bytes < STRETCH {
            return;
        }
        let ticks = u128::from(now.wrapping_sub(self.began).max(1));
        let rate = u128::from(self.bytes) * u128::from(ticks_per_1024ns) * 1000 / 1024 / ticks;
        if let Some((at, way)) = self.current {
            let ways = self.ways(at);
            let Some(classes) = &mut self.classes else { return };
            classes[at].note(way, u32::try_from(rate).unwrap_or(u32::MAX), self.bytes, ways);
        }
        (self.began, self.bytes) = (now, 0);
    }

    /// Copies from the sender's memory are refused.
    pub fn no_copies(&mut self) {
        self.no_copy = true;
    }

    /// The sender cannot copy into ours.
    pub fn no_help(&mut self) {
        self.no_help = true;
    }

    /// Whether a message of the way that was last chosen is a try.
    pub fn is_trying(&self) -> bool {
        let class = self.current.and_then(|(at, _)| self.classes.as_ref().map(|classes| &classes[at]));
        class.is_some_and(|class| class.review.is_some())
    }

    /// Which strategies there are.
    fn ways(&self, class: usize) -> [bool; 4] {
        let copies = !self.no_copy && class != HIDDEN;
        let ring = !self.no_ring || !copies;
        [ring, ring, copies && (self.alone || self.no_help), copies && !self.no_help]
    }
}

/// What is known of messages of about one length.
#[derive(Debug, Default)]
struct Class {
    /// In use, once there was one.
    best: Option<CopyStrategy>,
    /// Its rate lately, MB/s, and how often in a row it was less than half of that.
    rate: u32,
    falls: u32,
    /// Stretches since the last review, and until the next.
    since: u32,
    interval: u32,
    review: Option<Review>,
    /// Reviews for which each way is left out.
    left_out: [u8; WAYS.len()],
}

/// Every way is tried that is there and may be the best.
#[derive(Debug, Default)]
struct Review {
    ways: [bool; WAYS.len()],
    /// The rate has fallen: that is why.
    fell: bool,
    /// The way under trial.
    at: usize,
    /// What has been found.
    rates: [u32; WAYS.len()],
    /// Of the way under trial: bytes that do not count yet, and stretches that have counted.
    settling: u64,
    samples: u32,
}

impl Class {
    fn way(&mut self, at: usize, ways: [bool; 4]) -> CopyStrategy {
        if let Some(review) = &self.review {
            return WAYS[review.at];
        }
        let allowed = |way: &CopyStrategy| ways[*way as usize];
        let first = if at == COLD {
            [CopyStrategy::CooperativeCopy, CopyStrategy::SingleCopy]
        } else {
            [CopyStrategy::RingCached; 2]
        };
        self.interval = self.interval.max(if at == COLD { CHANGED } else { FIRST });
        let best = self.best.filter(allowed).or_else(|| first.into_iter().chain(WAYS).find(allowed));
        *self.best.insert(best.unwrap_or(CopyStrategy::RingCached))
    }

    fn note(&mut self, way: CopyStrategy, rate: u32, bytes: u64, ways: [bool; 4]) {
        if let Some(review) = &mut self.review {
            if way == WAYS[review.at] && review.note(rate, bytes) {
                self.decide();
            }
            return;
        }
        let falls = rate < self.rate / 2;
        self.falls = if falls { self.falls + 1 } else { 0 };
        if !falls {
            self.rate = if self.rate == 0 { rate } else { self.rate - self.rate / 4 + rate / 4 };
        }
        self.since += 1;
        let fell = self.falls >= FALLS && self.since >= CHANGED;
        if fell || self.since >= self.interval {
            self.begin(fell, ways);
        }
    }

    fn begin(&mut self, fell: bool, mut ways: [bool; WAYS.len()]) {
        for (may, left_out) in ways.iter_mut().zip(&mut self.left_out) {
            *may &= fell || *left_out == 0;
            *left_out = left_out.saturating_sub(1);
        }
        let mut review = Review { ways, fell, ..Review::default() };
        if review.go_to(0) {
            self.review = Some(review);
        }
    }

    /// Every way has been tried: the fastest is used, unless that gains little.
    fn decide(&mut self) {
        let Some(Review { ways, rates, fell, .. }) = self.review.take() else { return };
        let before = self.best.unwrap_or(CopyStrategy::RingCached);
        let best = WAYS.into_iter().max_by_key(|&way| rates[way as usize]).unwrap_or(before);
        let (there, here) = (rates[best as usize], rates[before as usize]);
        let changes = best != before && there > here + here / 8;
        self.interval = match (changes, fell) {
            (true, true) => CHANGED,
            (false, true) => self.interval,
            (true, false) => self.interval * 2,
            (false, false) => self.interval * 4,
        };
        self.interval = self.interval.min(RARELY);
        if changes {
            self.best = Some(best);
        }
        for at in (0..WAYS.len()).filter(|&at| ways[at]) {
            self.left_out[at] = if rates[at] < there / 2 { LEFT_OUT } else { 0 };
        }
        (self.rate, self.falls, self.since) = (if changes { there } else { here }, 0, 0);
    }
}

impl Review {
    /// Goes on with the next way from there on; false: there is none.
    fn go_to(&mut self, from: usize) -> bool {
        let Some(at) = (from..WAYS.len()).find(|&at| self.ways[at]) else { return false };
        // Only the ring has lines to bring along.
        let settling = match WAYS[at] {
            CopyStrategy::RingCached => SETTLING,
            CopyStrategy::RingNonTemporal => 1,
            CopyStrategy::SingleCopy | CopyStrategy::CooperativeCopy => 0,
        };
        (self.at, self.settling, self.samples) = (at, settling, 0);
        true
    }

    /// Takes note of a stretch; true when every way has been tried.
    fn note(&mut self, rate: u32, bytes: u64) -> bool {
        if self.settling > 0 {
            self.settling = self.settling.saturating_sub(bytes);
            return false;
        }
        let known = &mut self.rates[self.at];
        *known = rate.max(*known);
        self.samples += 1;
        let hopeless = *known < self.rates.iter().copied().max().unwrap_or(0) / 2;
        (self.samples >= SAMPLES || hopeless) && !self.go_to(self.at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages one after the other, each way at its rate (MB/s); which way each went.
    fn run(choice: &mut CopyChooser, length: u64, count: usize, rates: [u64; 4]) -> Vec<CopyStrategy> {
        let mut now = 0;
        let mut one = || {
            let way = choice.want(length, true, now).unwrap();
            now += length * 1000 / rates[way as usize];
            choice.landed(length, now, 1024);
            way
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn the_fastest_way_is_found_whichever_it_is() {
        for length in [300 << 10, 2 << 20, 4 << 20, 64 << 20] {
            for fastest in WAYS {
                let mut choice = CopyChooser::new(true, true, Bodies::Measured);
                let mut rates = [5000, 6000, 4000, 5500];
                rates[fastest as usize] = 12_000;
                let ways = run(&mut choice, length, 2000, rates);
                let wrong = ways[200..].iter().filter(|&&way| way != fastest).count();
                assert!(wrong < 100, "{fastest:?} of {length} bytes: {wrong} otherwise");
            }
        }
    }

    #[test]
    fn another_machine_is_noticed_soon() {
        let mut choice = CopyChooser::new(true, true, Bodies::Measured);
        run(&mut choice, 4 << 20, 5000, [20_000, 5000, 9000, 9500]);
        let ways = run(&mut choice, 4 << 20, 60, [2000, 5000, 9000, 9500]);
        assert!(matches!(ways[40..], [CopyStrategy::SingleCopy, ..] | [CopyStrategy::CooperativeCopy, ..]), "{ways:?}");
    }

    #[test]
    fn a_little_gain_or_a_way_that_is_not_there_changes_nothing() {
        let mut choice = CopyChooser::new(true, true, Bodies::Measured);
        let ways = run(&mut choice, 2 << 20, 500, [10_000, 1000, 10_500, 10_900]);
        assert!(
            ways[30..60].contains(&CopyStrategy::RingCached)
                && ways[450..].iter().all(|&way| way == CopyStrategy::RingCached)
        );
        let mut choice = CopyChooser::new(false, true, Bodies::Measured);
        let ways = run(&mut choice, 64 << 20, 500, [10_000, 1000, 20_000, 30_000]);
        assert!(ways.iter().all(|way| matches!(way, CopyStrategy::RingCached | CopyStrategy::RingNonTemporal)));
        let mut choice = CopyChooser::new(true, true, Bodies::Measured);
        choice.no_help();
        let ways = run(&mut choice, 64 << 20, 500, [10_000, 1000, 20_000, 30_000]);
        assert!(
            !ways.contains(&CopyStrategy::CooperativeCopy)
                && ways[400..].iter().all(|&way| way == CopyStrategy::SingleCopy)
        );
    }

    #[test]
    fn the_program_may_choose() {
        let rates = [9000, 10_000, 11_000, 12_000];
        let all = |bodies, copies, length| run(&mut CopyChooser::new(copies, true, bodies), length, 300, rates);
        for length in [200 << 10, 64 << 20] {
            assert!(all(Bodies::Copied, true, length).iter().all(|&way| way == CopyStrategy::SingleCopy));
            assert!(all(Bodies::CopiedByBoth, true, length).iter().all(|&way| way == CopyStrategy::CooperativeCopy));
            for (bodies, copies) in [(Bodies::Ring, true), (Bodies::Copied, false), (Bodies::CopiedByBoth, false)] {
                assert!(
                    all(bodies, copies, length)
                        .iter()
                        .all(|way| matches!(way, CopyStrategy::RingCached | CopyStrategy::RingNonTemporal))
                );
            }
        }
        let hidden = CopyChooser::new(true, true, Bodies::CopiedByBoth).want(1 << 20, false, 0);
        assert_eq!(hidden, Some(CopyStrategy::RingCached), "what its sender does not show");
    }

    #[test]
    fn messages_that_overlap_are_timed_together() {
        let mut choice = CopyChooser::new(true, true, Bodies::Measured);
        let (mut now, length, mut ways) = (0, 1 << 20, Vec::new());
        let mut under_way = std::collections::VecDeque::new();
        for _ in 0..4000 {
            while under_way.len() < 8 {
                under_way.push_back(choice.want(length, true, now).unwrap());
            }
            let way = under_way.pop_front().unwrap();
            now += length * 1000 / [5000, 1000, 8000, 16_000][way as usize];
            choice.landed(length, now, 1024);
            ways.push(way);
        }
        let right = ways[2500..].iter().filter(|&&way| way == CopyStrategy::CooperativeCopy).count();
        assert!(right > 1200, "{right} of 1500");
    }
}
