//! The streams with bytes that the peer may not have read. Every sleep (invariant 6) needs them, so they are found without a look at all streams.

use super::{Engine, Handle, Local, STREAMS_PER_CHUNK};
use motet_wire::stream::record::StreamRecord;
use std::sync::atomic::Ordering;

impl Engine {
    /// Notes that the peer may have bytes to read.
    #[inline(always)]
    pub fn mark_unread(&self, handle: Handle, local: &Local) {
        if !local.unread.load(Ordering::Relaxed) {
            local.unread.store(true, Ordering::Relaxed);
            let index = (handle >> 32) as usize - 1;
            let word = index / STREAMS_PER_CHUNK;
            self.unread[word].fetch_or(1 << (index % STREAMS_PER_CHUNK), Ordering::SeqCst); // edge: UNREAD
            self.unread_words[word / 64].fetch_or(1 << (word % 64), Ordering::SeqCst); // edge: UNREAD
            self.any_unread.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a peer may have unread bytes of this process.
    #[inline(always)]
    pub fn any_unread(&self) -> bool {
        self.any_unread.load(Ordering::Relaxed) != 0
    }

    /// Calls `each` for every stream with bytes that the peer may not have read; it returns true if there are still such bytes.
    #[inline]
    pub fn sweep_unread(&self, mut each: impl FnMut(Handle, &StreamRecord, &Local) -> bool) {
        if self.any_unread.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (at, words) in self.unread_words.iter().enumerate() {
            for word in bits(words.load(Ordering::Relaxed)).map(|word| at * 64 + word) {
                // Cleared before the word is read: a mark that this reader misses sets the bit again.
                words.fetch_and(!(1 << (word % 64)), Ordering::SeqCst); // edge: UNREAD
                self.sweep_word(word, &mut each);
            }
        }
    }

    fn sweep_word(&self, at: usize, each: &mut impl FnMut(Handle, &StreamRecord, &Local) -> bool) {
        let word = &self.unread[at];
        // edge: UNREAD
        for bit in bits(word.load(Ordering::SeqCst)) {
            let index = at * STREAMS_PER_CHUNK + bit;
            let (Some(record), Some(local)) = (self.stats_file.row(index), self.local(index)) else { continue };
            // Cleared first: a send meanwhile sets it again.
            if word.fetch_and(!(1 << bit), Ordering::Relaxed) >> bit & 1 == 1 {
                self.any_unread.fetch_sub(1, Ordering::Relaxed);
                local.unread.store(false, Ordering::Relaxed);
                // Read before the wire: a handle that is good under the lock belongs to the wire.
                let handle = local.handle.load(Ordering::Acquire);
                if handle != 0 && each(handle, record, local) {
                    self.mark_unread(handle, local);
                }
            }
        }
    }
}

/// The numbers of the bits that are set.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}
