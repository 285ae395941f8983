//! The choice of how the bodies of long messages are transferred to this side of a link, by the measured rates of earlier messages.
//!
//! There are four strategies. For each class of lengths the one with the highest measured rate is used. Only the receiver can time a message
//! from its request to its last byte, so the receiver chooses and the sender follows. A *review* tries all strategies again from time to time,
//! because the best one depends on the CPUs that run the two processes and on whether the program reuses its buffers.
//!
//! Rates are measured over *stretches*: messages of one class and strategy that overlap in time. This module copies nothing.

use super::BodyPath;
use motet_proto::copy_mode::mb_per_s;

/// How the body of a long message is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyStrategy {
    /// Through the payload ring; the sender stores through its caches.
    RingCached,
    /// Through the payload ring; the sender stores around its caches (non-temporal stores).
    RingNonTemporal,
    /// Copied once, by the receiver, out of the sender's memory.
    SingleCopy,
    /// Copied once, one part by the receiver and the rest by the sender.
    CooperativeCopy,
}

/// All strategies, in the order of the arrays that have one element for each.
const STRATEGIES: [CopyStrategy; 4] =
    [CopyStrategy::RingCached, CopyStrategy::RingNonTemporal, CopyStrategy::SingleCopy, CopyStrategy::CooperativeCopy];
/// Shortest length of each class but the first, bytes.
const CLASS_MIN_BYTES: [u64; 3] = [1 << 20, 4 << 20, 16 << 20];
/// The class of messages whose senders give no address of the body.
const NO_ADDRESS_CLASS: usize = CLASS_MIN_BYTES.len() + 1;
/// The class of the longest messages, which begins with single copies: no cache holds such a message.
const LONGEST_CLASS: usize = 3;
/// Bytes after which the rate of a stretch is noted although messages are still under way.
const STRETCH_BYTES: u64 = 32 << 20;
/// Stretches between two reviews: at first (`FIRST_INTERVAL`), after a fall of the rate and for class `LONGEST_CLASS`
/// (`CHANGED_INTERVAL`), and at most (`MAX_INTERVAL`).
const FIRST_INTERVAL: u32 = 4;
const CHANGED_INTERVAL: u32 = 16;
const MAX_INTERVAL: u32 = 1024;
/// Reviews that leave out a strategy that has reached less than half of the best rate.
const LEFT_OUT_REVIEWS: u8 = 7;
/// Stretches of a strategy that a review measures; the fastest one counts.
const STRETCHES_PER_STRATEGY: u32 = 2;
/// Stretches in a row below half of the usual rate that start a review. Fewer of them may be the time slice of another process.
const FALLS_BEFORE_REVIEW: u32 = 3;
/// Bytes transferred by [`CopyStrategy::RingCached`] before it is measured: more than the ring, so that its cache lines are where they are used.
const SETTLING_BYTES: u64 = 4 << 20;

/// The chooser of one side of a link, with the measured rates of the long messages that it has received.
#[derive(Debug, Default)]
pub struct CopyChooser {
    classes: Option<Box<[Class; NO_ADDRESS_CLASS + 1]>>,
    /// Messages under way; `foreign`: those of them that began before the current stretch.
    active: u32,
    foreign: u32,
    /// The current stretch: its class and strategy; `began`: the clock's ticks at its begin; `bytes`: bytes received since.
    current: Option<(usize, CopyStrategy)>,
    began: u64,
    bytes: u64,
    /// The link has only one strategy, so nothing is chosen. The fields `no_*` exclude strategies that the link or the program rules out.
    is_fixed: bool,
    no_ring: bool,
    no_copy: bool,
    no_assist: bool,
    /// [`CopyStrategy::SingleCopy`] may be chosen even if the sender can help.
    may_copy_alone: bool,
}

impl CopyChooser {
    /// A chooser for a link. `copies`: the sender's memory can be read from this process. `assists`: the sender may help to copy. `body_path`: what the
    /// program has chosen.
    pub fn new(copies: bool, assists: bool, body_path: BodyPath) -> Self {
        let no_ring = copies && matches!(body_path, BodyPath::SingleCopy | BodyPath::CooperativeCopy);
        let (no_copy, no_assist) =
            (!copies || body_path == BodyPath::Ring, !assists || body_path == BodyPath::SingleCopy);
        Self {
            no_ring,
            no_copy,
            no_assist,
            may_copy_alone: body_path != BodyPath::CooperativeCopy || no_assist,
            ..Self::default()
        }
    }

    /// A chooser for a link that has only one strategy.
    pub fn none() -> Self {
        Self { is_fixed: true, ..Self::default() }
    }

    /// Chooses the strategy of a message of `length` bytes that begins at `now` (ticks). `has_address`: the sender has given the body's address. `None`:
    /// there is nothing to choose.
    pub fn choose(&mut self, length: u64, has_address: bool, now: u64) -> Option<CopyStrategy> {
        if self.is_fixed {
            return None;
        }
        let at = if has_address {
            CLASS_MIN_BYTES.iter().filter(|&&least| length >= least).count()
        } else {
            NO_ADDRESS_CLASS
        };
        let strategies = self.strategies(at);
        let strategy = self.classes.get_or_insert_with(Box::default)[at].strategy(at, strategies);
        if self.current != Some((at, strategy)) || self.active == 0 {
            (self.current, self.foreign) = (Some((at, strategy)), self.active);
            (self.began, self.bytes) = (now, 0);
        }
        self.active += 1;
        Some(strategy)
    }

    /// Notes that a message of `length` bytes has been received at `now` (ticks).
    pub fn note_received(&mut self, length: u64, now: u64, ticks_per_1024ns: u64) {
        if self.is_fixed {
            return;
        }
        self.active = self.active.saturating_sub(1);
        if self.foreign > 0 {
            self.foreign -= 1;
            (self.began, self.bytes) = (now, 0);
            return;
        }
        self.bytes += length;
        if self.active > 0 && self.bytes < STRETCH_BYTES {
            return;
        }
        let rate = mb_per_s(self.bytes, now.wrapping_sub(self.began), ticks_per_1024ns);
        if let Some((at, strategy)) = self.current {
            let strategies = self.strategies(at);
            let Some(classes) = &mut self.classes else { return };
            classes[at].note(strategy, rate, self.bytes, strategies);
        }
        (self.began, self.bytes) = (now, 0);
    }

    /// Excludes single copies: the system refuses to read the sender's memory.
    pub fn exclude_copies(&mut self) {
        self.no_copy = true;
    }

    /// Excludes cooperative copies: the sender cannot write into the memory of this process.
    pub fn exclude_assist(&mut self) {
        self.no_assist = true;
    }

    /// Whether the strategy that was chosen last is being measured in a review.
    pub fn is_measuring(&self) -> bool {
        let class = self.current.and_then(|(at, _)| self.classes.as_ref().map(|classes| &classes[at]));
        class.is_some_and(|class| class.review.is_some())
    }

    /// The strategies that may be chosen for a class, in the order of [`STRATEGIES`].
    fn strategies(&self, class: usize) -> [bool; 4] {
        let copies = !self.no_copy && class != NO_ADDRESS_CLASS;
        let ring = !self.no_ring || !copies;
        [ring, ring, copies && (self.may_copy_alone || self.no_assist), copies && !self.no_assist]
    }
}

/// What is known of the messages of one class of lengths.
#[derive(Debug, Default)]
struct Class {
    /// The strategy in use; `None` before the first message.
    best: Option<CopyStrategy>,
    /// Its average rate, MB/s; `falls`: stretches in a row that were below half of it.
    rate: u32,
    falls: u32,
    /// Stretches since the last review; `interval`: stretches from one review to the next.
    since: u32,
    interval: u32,
    review: Option<Review>,
    /// For each strategy, the number of further reviews that leave it out.
    left_out: [u8; STRATEGIES.len()],
}

/// A review: each strategy that is available and not left out is measured in turn.
#[derive(Debug, Default)]
struct Review {
    /// The strategies to be measured.
    strategies: [bool; STRATEGIES.len()],
    /// The review was started by a fall of the rate.
    fell: bool,
    /// The index of the strategy that is measured at present.
    at: usize,
    /// The highest rate of each strategy, MB/s.
    rates: [u32; STRATEGIES.len()],
    /// For the strategy that is measured: bytes that do not count yet; `samples`: stretches that have counted.
    settling: u64,
    samples: u32,
}

impl Class {
    fn strategy(&mut self, at: usize, strategies: [bool; 4]) -> CopyStrategy {
        if let Some(review) = &self.review {
            return STRATEGIES[review.at];
        }
        let allowed = |strategy: &CopyStrategy| strategies[*strategy as usize];
        let first = if at == LONGEST_CLASS {
            [CopyStrategy::CooperativeCopy, CopyStrategy::SingleCopy]
        } else {
            [CopyStrategy::RingCached; 2]
        };
        self.interval = self.interval.max(if at == LONGEST_CLASS { CHANGED_INTERVAL } else { FIRST_INTERVAL });
        let best = self.best.filter(allowed).or_else(|| first.into_iter().chain(STRATEGIES).find(allowed));
        *self.best.insert(best.unwrap_or(CopyStrategy::RingCached))
    }

    /// Notes the rate (MB/s) of a stretch of `bytes` bytes, and starts or ends a review if that is due.
    fn note(&mut self, strategy: CopyStrategy, rate: u32, bytes: u64, strategies: [bool; 4]) {
        if let Some(review) = &mut self.review {
            if strategy == STRATEGIES[review.at] && review.note(rate, bytes) {
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
        let fell = self.falls >= FALLS_BEFORE_REVIEW && self.since >= CHANGED_INTERVAL;
        if fell || self.since >= self.interval {
            self.begin(fell, strategies);
        }
    }

    /// Starts a review. After a fall of the rate (`fell`) no strategy is left out.
    fn begin(&mut self, fell: bool, mut strategies: [bool; STRATEGIES.len()]) {
        for (may, left_out) in strategies.iter_mut().zip(&mut self.left_out) {
            *may &= fell || *left_out == 0;
            *left_out = left_out.saturating_sub(1);
        }
        let mut review = Review { strategies, fell, ..Review::default() };
        if review.go_to(0) {
            self.review = Some(review);
        }
    }

    /// Ends the review: the fastest strategy is used if it is more than one eighth faster than the one in use.
    fn decide(&mut self) {
        let Some(Review { strategies, rates, fell, .. }) = self.review.take() else { return };
        let before = self.best.unwrap_or(CopyStrategy::RingCached);
        let best = STRATEGIES.into_iter().max_by_key(|&strategy| rates[strategy as usize]).unwrap_or(before);
        let (best_rate, current_rate) = (rates[best as usize], rates[before as usize]);
        let changes = best != before && best_rate > current_rate + current_rate / 8;
        self.interval = match (changes, fell) {
            (true, true) => CHANGED_INTERVAL,
            (false, true) => self.interval,
            (true, false) => self.interval * 2,
            (false, false) => self.interval * 4,
        };
        self.interval = self.interval.min(MAX_INTERVAL);
        if changes {
            self.best = Some(best);
        }
        for at in (0..STRATEGIES.len()).filter(|&at| strategies[at]) {
            self.left_out[at] = if rates[at] < best_rate / 2 { LEFT_OUT_REVIEWS } else { 0 };
        }
        (self.rate, self.falls, self.since) = (if changes { best_rate } else { current_rate }, 0, 0);
    }
}

impl Review {
    /// Goes on with the first strategy from index `from` on that is to be measured. False: there is none.
    fn go_to(&mut self, from: usize) -> bool {
        let Some(at) = (from..STRATEGIES.len()).find(|&at| self.strategies[at]) else { return false };
        // Only the ring has cache lines that must move to where they are used.
        let settling = match STRATEGIES[at] {
            CopyStrategy::RingCached => SETTLING_BYTES,
            CopyStrategy::RingNonTemporal => 1,
            CopyStrategy::SingleCopy | CopyStrategy::CooperativeCopy => 0,
        };
        (self.at, self.settling, self.samples) = (at, settling, 0);
        true
    }

    /// Notes a stretch. True: every strategy has been measured.
    fn note(&mut self, rate: u32, bytes: u64) -> bool {
        if self.settling > 0 {
            self.settling = self.settling.saturating_sub(bytes);
            return false;
        }
        let known = &mut self.rates[self.at];
        *known = rate.max(*known);
        self.samples += 1;
        let too_slow = *known < self.rates.iter().copied().max().unwrap_or(0) / 2;
        (self.samples >= STRETCHES_PER_STRATEGY || too_slow) && !self.go_to(self.at + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `count` messages one after the other, each strategy at its rate (MB/s). Returns the strategy of each message.
    fn run(chooser: &mut CopyChooser, length: u64, count: usize, rates: [u64; 4]) -> Vec<CopyStrategy> {
        let mut now = 0;
        let mut one = || {
            let strategy = chooser.choose(length, true, now).unwrap();
            now += length * 1000 / rates[strategy as usize];
            chooser.note_received(length, now, 1024);
            strategy
        };
        (0..count).map(|_| one()).collect()
    }

    #[test]
    fn fastest_strategy_of_any_kind_is_chosen() {
        for length in [300 << 10, 2 << 20, 4 << 20, 64 << 20] {
            for fastest in STRATEGIES {
                let mut chooser = CopyChooser::new(true, true, BodyPath::Measured);
                let mut rates = [5000, 6000, 4000, 5500];
                rates[fastest as usize] = 12_000;
                let strategies = run(&mut chooser, length, 2000, rates);
                let wrong = strategies[200..].iter().filter(|&&strategy| strategy != fastest).count();
                assert!(wrong < 100, "{fastest:?} of {length} bytes: {wrong} with another strategy");
            }
        }
    }

    #[test]
    fn changed_rates_are_noticed_within_60_messages() {
        let mut chooser = CopyChooser::new(true, true, BodyPath::Measured);
        run(&mut chooser, 4 << 20, 5000, [20_000, 5000, 9000, 9500]);
        let strategies = run(&mut chooser, 4 << 20, 60, [2000, 5000, 9000, 9500]);
        assert!(
            matches!(strategies[40..], [CopyStrategy::SingleCopy, ..] | [CopyStrategy::CooperativeCopy, ..]),
            "{strategies:?}"
        );
    }

    #[test]
    fn small_gain_or_excluded_strategy_changes_nothing() {
        let mut chooser = CopyChooser::new(true, true, BodyPath::Measured);
        let strategies = run(&mut chooser, 2 << 20, 500, [10_000, 1000, 10_500, 10_900]);
        assert!(
            strategies[30..60].contains(&CopyStrategy::RingCached)
                && strategies[450..].iter().all(|&strategy| strategy == CopyStrategy::RingCached)
        );
        let mut chooser = CopyChooser::new(false, true, BodyPath::Measured);
        let strategies = run(&mut chooser, 64 << 20, 500, [10_000, 1000, 20_000, 30_000]);
        assert!(
            strategies
                .iter()
                .all(|strategy| matches!(strategy, CopyStrategy::RingCached | CopyStrategy::RingNonTemporal))
        );
        let mut chooser = CopyChooser::new(true, true, BodyPath::Measured);
        chooser.exclude_assist();
        let strategies = run(&mut chooser, 64 << 20, 500, [10_000, 1000, 20_000, 30_000]);
        assert!(
            !strategies.contains(&CopyStrategy::CooperativeCopy)
                && strategies[400..].iter().all(|&strategy| strategy == CopyStrategy::SingleCopy)
        );
    }

    #[test]
    fn body_path_of_the_program_is_followed() {
        let rates = [9000, 10_000, 11_000, 12_000];
        let all = |body_path, copies, length| run(&mut CopyChooser::new(copies, true, body_path), length, 300, rates);
        for length in [200 << 10, 64 << 20] {
            assert!(
                all(BodyPath::SingleCopy, true, length).iter().all(|&strategy| strategy == CopyStrategy::SingleCopy)
            );
            assert!(
                all(BodyPath::CooperativeCopy, true, length)
                    .iter()
                    .all(|&strategy| strategy == CopyStrategy::CooperativeCopy)
            );
            for (body_path, copies) in
                [(BodyPath::Ring, true), (BodyPath::SingleCopy, false), (BodyPath::CooperativeCopy, false)]
            {
                assert!(
                    all(body_path, copies, length)
                        .iter()
                        .all(|strategy| matches!(strategy, CopyStrategy::RingCached | CopyStrategy::RingNonTemporal))
                );
            }
        }
        let hidden = CopyChooser::new(true, true, BodyPath::CooperativeCopy).choose(1 << 20, false, 0);
        assert_eq!(hidden, Some(CopyStrategy::RingCached), "a body without an address");
    }

    #[test]
    fn overlapping_messages_are_timed_together() {
        let mut chooser = CopyChooser::new(true, true, BodyPath::Measured);
        let (mut now, length, mut strategies) = (0, 1 << 20, Vec::new());
        let mut under_way = std::collections::VecDeque::new();
        for _ in 0..4000 {
            while under_way.len() < 8 {
                under_way.push_back(chooser.choose(length, true, now).unwrap());
            }
            let strategy = under_way.pop_front().unwrap();
            now += length * 1000 / [5000, 1000, 8000, 16_000][strategy as usize];
            chooser.note_received(length, now, 1024);
            strategies.push(strategy);
        }
        let right = strategies[2500..].iter().filter(|&&strategy| strategy == CopyStrategy::CooperativeCopy).count();
        assert!(right > 1200, "{right} of 1500");
    }
}
