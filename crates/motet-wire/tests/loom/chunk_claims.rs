//! Chunk claims of a cooperative copy under loom: every chunk is copied once, and reported chunks are visible.

use super::model;
use loom::sync::Arc;
use loom::thread;
use motet_wire::message::fifo::chunk_claims::{Assisted, ChunkClaims};
use motet_wire::sync::AtomicU32;
use motet_wire::sync::Ordering::Relaxed;

const CHUNKS: u32 = 2;

#[derive(Default)]
struct Copy {
    claims: ChunkClaims,
    /// Represent the bytes of the chunks.
    chunks: [AtomicU32; CHUNKS as usize],
    /// 1: the sender has rung the receiver's doorbell.
    doorbell: AtomicU32,
}

/// The sender's part: claims chunks, copies and reports them, and rings the doorbell if no chunk is left to claim.
fn assist(copy: &Copy, copy_id: u32) -> u32 {
    let mut done = 0;
    while let Some(chunk) = copy.claims.claim(copy_id, CHUNKS) {
        copy.chunks[chunk as usize].store(copy_id, Relaxed);
        done += 1;
        if copy.claims.report_assisted(copy_id, done, CHUNKS) {
            copy.doorbell.store(1, Relaxed);
        }
    }
    done
}

/// A copy that has begun, and the thread of its sender.
fn begin() -> (Arc<Copy>, thread::JoinHandle<u32>) {
    let copy = Arc::new(Copy::default());
    copy.claims.prepare();
    copy.claims.begin(3);
    let sender = copy.clone();
    (copy, thread::spawn(move || assist(&sender, 3)))
}

#[test]
fn every_chunk_is_copied_once_and_visible() {
    model(&[0, 1, 2], || {
        let (copy, sender) = begin();
        let mut mine = 0;
        while let Some(chunk) = copy.claims.claim(3, CHUNKS) {
            assert_eq!(copy.chunks[chunk as usize].load(Relaxed), 0, "claimed twice");
            copy.chunks[chunk as usize].store(3, Relaxed);
            mine += 1;
        }
        let waits = copy.claims.assisted(3) != Assisted::Chunks(CHUNKS - mine);
        let done = sender.join().unwrap();
        assert!(!waits || copy.doorbell.load(Relaxed) == 1, "asleep, and not woken");
        assert_eq!((copy.claims.assisted(3), done), (Assisted::Chunks(done), CHUNKS - mine));
        assert!(copy.chunks.iter().all(|chunk| chunk.load(Relaxed) == 3), "reported as copied");
        done as usize
    });
}

/// A receiver closes a copy: the sender writes only the chunks that were claimed before.
#[test]
fn no_chunk_is_claimed_after_the_close() {
    model(&[0, 1, 2], || {
        let (copy, sender) = begin();
        let claimed = copy.claims.close(3);
        assert_eq!(copy.claims.claim(3, CHUNKS), None);
        while copy.claims.assisted(3) != Assisted::Chunks(claimed) {
            thread::yield_now();
        }
        // The receiver's memory is its own again, so it may begin another copy.
        copy.claims.begin(4);
        assert_eq!(sender.join().unwrap(), claimed);
        claimed as usize
    });
}
