//! The pieces of a transfer by single copy, and which side copies which.

use motet_wire::sync::AtomicU64;
use motet_wire::sync::Ordering::Relaxed;

/// Largest piece of a copy that both sides make, bytes. Up to twice this size each side copies one half: more pieces only cost system calls.
pub(super) const MAX_PIECE_BYTES: usize = 2 << 20;

/// How a transfer is divided into pieces.
pub(super) struct Plan {
    pub(super) length: usize,
    pub(super) piece: usize,
}

impl Plan {
    /// The sender's plan. `None`: it exceeds what the receiver posted.
    pub(super) fn check(length: u64, piece: u64, posted: usize) -> Option<Self> {
        let (length, piece) = (usize::try_from(length).ok()?, usize::try_from(piece).ok()?);
        ((1..=posted).contains(&length) && (4096..=MAX_PIECE_BYTES.max(posted)).contains(&piece))
            .then_some(Self { length, piece })
    }

    /// The number of pieces.
    pub(super) fn pieces(&self) -> u64 {
        self.length.div_ceil(self.piece) as u64
    }

    /// Start and end of piece `n`, bytes.
    fn piece(&self, n: u64) -> Option<(usize, usize)> {
        let start = usize::try_from(n).ok()?.checked_mul(self.piece)?;
        (start < self.length).then(|| (start, (start + self.piece).min(self.length)))
    }
}

/// The pieces that this side has claimed. Their numbers ascend whatever the peer writes to the counter, so the loop over them ends.
#[derive(Default)]
pub(super) struct Claims {
    /// Pieces claimed.
    pub(super) count: u64,
    /// One past the last one.
    end: u64,
    /// One past the last one below `end` that the other side has claimed; 0: none.
    theirs: u64,
    /// The peer has set the counter back.
    pub(super) counter_ran_back: bool,
}

impl Claims {
    /// Claims the next piece: its start and end.
    pub(super) fn next(&mut self, plan: &Plan, next: &AtomicU64) -> Option<(usize, usize)> {
        let n = next.fetch_add(1, Relaxed);
        let piece = plan.piece(n)?;
        if n < self.end {
            self.counter_ran_back = true;
            return None;
        }
        if n > self.end {
            self.theirs = n;
        }
        self.count += 1;
        self.end = n + 1;
        Some(piece)
    }

    /// Bytes up to the first piece that is not finished. `claimed`: pieces claimed by both sides; `finished`: those of the other side that are
    /// finished. All pieces of this side are finished. At most one piece of the other side is in progress, its last one.
    pub(super) fn kept(&self, plan: &Plan, claimed: u64, finished: u64) -> usize {
        let theirs = if claimed > self.end { claimed } else { self.theirs };
        let first = if finished >= claimed.saturating_sub(self.count) { claimed } else { theirs.saturating_sub(1) };
        plan.piece(first).map_or(plan.length, |(start, _)| start)
    }
}
