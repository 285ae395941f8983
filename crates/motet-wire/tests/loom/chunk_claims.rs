//! A copy that both ends share: every chunk is copied once, and what the sender has copied is there when it says so.

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
    /// Stand for the bytes of the chunks.
    chunks: [AtomicU32; CHUNKS as usize],
    /// The sender has rung.
    bell: AtomicU32,
}

/// The sender's part: claims what it can get, copies it, says so, and rings if nothing is left to claim.
fn assist(copy: &Copy, copy_id: u32) -> u32 {
    let mut done = 0;
    while let Some(chunk) = copy.claims.claim(copy_id, CHUNKS) {
        copy.chunks[chunk as usize].store(copy_id, Relaxed);
        done += 1;
        if copy.claims.report_assisted(copy_id, done, CHUNKS) {
            copy.bell.store(1, Relaxed);
        }
    }
    done
}

/// A copy that has begun, and the sender's thread.
fn begin() -> (Arc<Copy>, thread::JoinHandle<u32>) {
    let copy = Arc::new(Copy::default());
    copy.claims.prepare();
    copy.claims.begin(3);
    let sender = copy.clone();
    (copy, thread::spawn(move || assist(&sender, 3)))
}

#[test]
fn every_chunk_is_copied_once_and_seen() {
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
        assert!(!waits || copy.bell.load(Relaxed) == 1, "asleep, and nobody rings");
        assert_eq!((copy.claims.assisted(3), done), (Assisted::Chunks(done), CHUNKS - mine));
        assert!(copy.chunks.iter().all(|chunk| chunk.load(Relaxed) == 3), "said to be there");
        done as usize
    });
}

/// A receiver that gives up: what was claimed by then is all that the sender still touches.
#[test]
fn nothing_is_claimed_behind_the_end() {
    model(&[0, 1, 2], || {
        let (copy, sender) = begin();
        let claimed = copy.claims.close(3);
        assert_eq!(copy.claims.claim(3, CHUNKS), None);
        while copy.claims.assisted(3) != Assisted::Chunks(claimed) {
            thread::yield_now();
        }
        // The receiver's memory is its own again: the sender never learns of a copy that is over.
        copy.claims.begin(4);
        assert_eq!(sender.join().unwrap(), claimed);
        claimed as usize
    });
}
