//! Two words beside a ring by which both ends share one copy: each chunk of a long message is claimed by one of them.
//!
//! What it is: the receiver begins ([`ChunkClaims::begin`]), both claim chunks in order, the sender says how many of its own are copied, and
//! the receiver ends it. What it is not: it copies nothing, and knows of no memory; who has not heard that something began claims
//! nothing, so the receiver may do all of it alone.
//!
//! A copy_id tells one copy from those before; the receiver never uses one again as long as it is told apart by 32 bits. What the sender
//! writes here cannot hurt the receiver more than the bytes that it sends: a chunk that it says it has copied is its to fill.

use crate::sync::{AtomicU64, Ordering, fence};

/// The words. On a line of their own: they are touched once for each chunk, by both.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct ChunkClaims {
    /// Stamp 32, chunks claimed 32: changed by both.
    claimed: AtomicU64,
    /// Stamp 32, FAILED 1, chunks copied by the sender 31: the sender's, once the receiver has begun.
    assisted: AtomicU64,
}

/// The receiver's: how far the other is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Assisted {
    /// It has copied so many chunks.
    Chunks(u32),
    /// It could not.
    Failed,
}

const FAILED: u64 = 1 << 31;
/// More chunks than any message has: nothing is left to claim.
const CLOSED: u64 = u32::MAX as u64;

impl ChunkClaims {
    /// None, ready for use.
    pub fn prepare(&self) {
        self.claimed.store(CLOSED, Ordering::Relaxed);
        self.assisted.store(0, Ordering::Release);
    }

    /// The receiver begins a copy.
    pub fn begin(&self, copy_id: u32) {
        let copy_id = u64::from(copy_id) << 32;
        self.assisted.store(copy_id, Ordering::Relaxed);
        // edge: begin -> claim (the sender's word is new)
        self.claimed.store(copy_id, Ordering::Release);
    }

    /// The next chunk of so many, if one is left and this is the copy under way.
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

    /// The receiver lets nobody claim any more; so many were.
    pub fn close(&self, copy_id: u32) -> u32 {
        let closed = u64::from(copy_id) << 32 | CLOSED;
        // A word of another copy is the peer's invention.
        match self.claimed.swap(closed, Ordering::AcqRel) {
            word if (word >> 32) as u32 == copy_id => word as u32,
            _ => 0,
        }
    }

    /// The sender has copied so many, of so many in all. True: none is left to claim, so the receiver may wait for this.
    #[must_use]
    pub fn report_assisted(&self, copy_id: u32, done: u32, chunks: u32) -> bool {
        // edge: help -> helped (the bytes are there)
        self.assisted.store(u64::from(copy_id) << 32 | u64::from(done) & (FAILED - 1), Ordering::Release);
        // edge: help <-> claim (whoever claims the last one looks for what is said here, or we see that it has)
        fence(Ordering::SeqCst);
        let word = self.claimed.load(Ordering::Relaxed);
        (word >> 32) as u32 == copy_id && word as u32 >= chunks
    }

    /// The sender cannot: what it has claimed is not there.
    pub fn report_failed(&self, copy_id: u32) {
        self.assisted.store(u64::from(copy_id) << 32 | FAILED, Ordering::Release);
    }

    /// What the sender has done of this copy.
    pub fn assisted(&self, copy_id: u32) -> Assisted {
        // edge: help <-> claim
        fence(Ordering::SeqCst);
        // edge: help -> helped
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
    fn each_chunk_is_claimed_once_and_only_of_the_copy_under_way() {
        let claims = ChunkClaims::default();
        claims.prepare();
        assert_eq!((claims.claim(0, 9), claims.claim(1, 9)), (None, None), "nothing has begun");
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
    fn whatever_stands_there_is_survived() {
        let claims = ChunkClaims::default();
        for word in [0, 1, u64::MAX, FAILED, 5 << 32 | CLOSED, 5 << 32 | (CLOSED - 1)] {
            claims.claimed.store(word, Ordering::Release);
            claims.assisted.store(word, Ordering::Release);
            assert!(claims.claim(5, 100).is_none_or(|chunk| chunk < 100));
            let _ = (claims.assisted(5), claims.close(5));
        }
    }
}
