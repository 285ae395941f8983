//! Claims on the chunks of a cooperative copy: two words beside a payload ring by which both ends share the copy of one long message.
//!
//! What it is: the receiver begins a copy ([`ChunkClaims::begin`]), both ends claim chunks in order, the sender reports how many of its chunks are
//! copied, and the receiver closes the copy. What it is not: it copies nothing and has no addresses. A sender that does not take part claims
//! nothing, and the receiver copies everything itself.
//!
//! A copy id tells a copy from earlier ones; the receiver increments it, so it is unique among 2^32 copies. The sender can do no more harm here
//! than with the bytes that it sends: it is allowed to fill every chunk that it reports as copied.

use crate::sync::{AtomicU64, Ordering, fence};

/// The words. On a cache line of their own, as both ends access them once for each chunk.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ChunkClaims {
    /// Copy id 32 bits, chunks claimed 32 bits. Written by both ends.
    claimed: AtomicU64,
    /// Copy id 32 bits, FAILED 1 bit, chunks copied by the sender 31 bits. Written by the sender after the receiver has begun the copy.
    assisted: AtomicU64,
}

/// What the sender has reported of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assisted {
    /// The sender has copied this number of chunks.
    Chunks(u32),
    /// The sender could not copy a chunk that it has claimed.
    Failed,
}

/// Bit of `assisted`: the sender could not copy.
const FAILED: u64 = 1 << 31;
/// A number of claimed chunks that is larger than any message has: nothing is left to claim.
const CLOSED: u64 = u32::MAX as u64;

impl ChunkClaims {
    /// Resets both words: no copy is under way.
    pub fn prepare(&self) {
        self.claimed.store(CLOSED, Ordering::Relaxed);
        self.assisted.store(0, Ordering::Release);
    }

    /// Receiver: begins a copy.
    pub fn begin(&self, copy_id: u32) {
        let copy_id = u64::from(copy_id) << 32;
        self.assisted.store(copy_id, Ordering::Relaxed);
        // edge: begin -> claim (the sender's word is reset)
        self.claimed.store(copy_id, Ordering::Release);
    }

    /// Claims the next of `chunks` chunks. `None` if none is left or `copy_id` is not the copy under way.
    pub fn claim(&self, copy_id: u32, chunks: u32) -> Option<u32> {
        // edge: begin -> claim
        let mut word = self.claimed.load(Ordering::Acquire);
        loop {
            let next = word as u32;
            if (word >> 32) as u32 != copy_id || next >= chunks {
                return None;
            }
            match self.claimed.compare_exchange_weak(word, word + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(next),
                Err(now) => word = now,
            }
        }
    }

    /// Receiver: ends the claims of a copy, and returns the number of chunks that were claimed.
    pub fn close(&self, copy_id: u32) -> u32 {
        let closed = u64::from(copy_id) << 32 | CLOSED;
        // Only a peer that breaks the protocol writes the id of another copy.
        match self.claimed.swap(closed, Ordering::AcqRel) {
            word if (word >> 32) as u32 == copy_id => word as u32,
            _ => 0,
        }
    }

    /// Sender: reports that it has copied `done` of `chunks` chunks. True: no chunk is left to claim, so the receiver may be waiting for this.
    #[must_use]
    pub fn report_assisted(&self, copy_id: u32, done: u32, chunks: u32) -> bool {
        // edge: assist -> assisted (the copied bytes)
        self.assisted.store(u64::from(copy_id) << 32 | u64::from(done) & (FAILED - 1), Ordering::Release);
        // edge: assist <-> claim (the end that claims the last chunk sees this report, or this end sees the claim)
        fence(Ordering::SeqCst);
        let word = self.claimed.load(Ordering::Relaxed);
        (word >> 32) as u32 == copy_id && word as u32 >= chunks
    }

    /// Sender: reports that it cannot copy a chunk that it has claimed.
    pub fn report_failed(&self, copy_id: u32) {
        self.assisted.store(u64::from(copy_id) << 32 | FAILED, Ordering::Release);
    }

    /// Receiver: what the sender has reported of this copy.
    pub fn assisted(&self, copy_id: u32) -> Assisted {
        // edge: assist <-> claim
        fence(Ordering::SeqCst);
        // edge: assist -> assisted
        let word = self.assisted.load(Ordering::Acquire);
        match word {
            _ if (word >> 32) as u32 != copy_id => Assisted::Chunks(0),
            _ if word & FAILED != 0 => Assisted::Failed,
            _ => Assisted::Chunks(word as u32),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn chunk_is_claimed_once_and_only_of_the_current_copy() {
        let claims = ChunkClaims::default();
        claims.prepare();
        assert_eq!((claims.claim(0, 9), claims.claim(1, 9)), (None, None), "no copy has begun");
        claims.begin(7);
        assert_eq!((claims.claim(7, 2), claims.claim(6, 2), claims.claim(7, 2)), (Some(0), None, Some(1)));
        assert_eq!(
            (claims.claim(7, 2), claims.assisted(7), claims.assisted(8)),
            (None, Assisted::Chunks(0), Assisted::Chunks(0))
        );
        assert!(claims.report_assisted(7, 1, 2));
        assert_eq!((claims.assisted(7), claims.close(7), claims.claim(7, 9)), (Assisted::Chunks(1), 2, None));
        claims.begin(8);
        assert!(!claims.report_assisted(8, 0, 1));
        assert_eq!(
            (claims.assisted(8), claims.assisted(7), claims.claim(8, 1)),
            (Assisted::Chunks(0), Assisted::Chunks(0), Some(0))
        );
        claims.report_failed(8);
        assert_eq!(claims.assisted(8), Assisted::Failed);
    }

    #[test]
    fn arbitrary_words_are_tolerated() {
        let claims = ChunkClaims::default();
        for word in [0, 1, u64::MAX, FAILED, 5 << 32 | CLOSED, 5 << 32 | (CLOSED - 1)] {
            claims.claimed.store(word, Ordering::Release);
            claims.assisted.store(word, Ordering::Release);
            assert!(claims.claim(5, 100).is_none_or(|chunk| chunk < 100));
            let _ = (claims.assisted(5), claims.close(5));
        }
    }
}
