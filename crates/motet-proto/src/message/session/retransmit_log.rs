//! The retransmission log: frames that were put and are not acknowledged.
//!
//! Whole frames, one after the other, in blocks, from which they are sent and, after a break, sent again. This is the one copy that
//! exactly-once delivery costs: the sender's memory is free when `put` returns, and what the kernel has taken cannot be read back from
//! a broken connection. Blocks are reused, so that they stay in a cache. The log knows neither rails nor time.

use super::MAX_UNACKED_BYTES;
use super::frame::HEADER_BYTES;
use std::collections::VecDeque;
use std::io::IoSlice;

/// First block of a log that holds little, and of one that holds much.
const SMALL_BLOCK_BYTES: usize = 4 << 10;
const LARGE_BLOCK_BYTES: usize = 256 << 10;
/// Large blocks kept for reuse: enough for a full log. Otherwise each acknowledgement would return memory to the system, which zeroes
/// it again for the next put. An idle session keeps none.
const MAX_SPARE_BLOCKS: usize = MAX_UNACKED_BYTES as usize / LARGE_BLOCK_BYTES;
/// Distance of the frame boundaries at which rails take turns.
const RUN_BYTES: u64 = 128 << 10;

#[derive(Debug)]
struct Block {
    /// Position of the first byte.
    base: u64,
    /// Whole frames; never longer than the initial capacity.
    bytes: Vec<u8>,
}

impl Block {
    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }
}

/// The log of one direction.
#[derive(Debug, Default)]
pub(super) struct RetransmitLog {
    blocks: VecDeque<Block>,
    spare: Vec<Vec<u8>>,
    /// Boundaries of frames, at least [`RUN_BYTES`] apart, beyond `front`.
    marks: VecDeque<u64>,
    /// Everything before this position is acknowledged.
    front: u64,
    /// Position of the next frame.
    end: u64,
}

impl RetransmitLog {
    pub(super) fn front(&self) -> u64 {
        self.front
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> u64 {
        self.end - self.front
    }

    /// Appends a frame.
    pub(super) fn append(&mut self, header: [u8; HEADER_BYTES], parts: &[&[u8]], payload: usize) {
        let size = HEADER_BYTES + payload;
        if self.blocks.back().is_none_or(|b| b.bytes.capacity() - b.bytes.len() < size) {
            self.grow(size);
        }
        // `grow` has added a block where there was none.
        let Some(block) = self.blocks.back_mut() else { return };
        block.bytes.extend_from_slice(&header);
        for part in parts {
            block.bytes.extend_from_slice(part);
        }
        self.end += size as u64;
        let last = self.marks.back().copied().unwrap_or(self.front);
        if self.end - last >= RUN_BYTES {
            self.marks.push_back(self.end);
        }
    }

    #[cold]
    fn grow(&mut self, size: usize) {
        let bytes = if self.kept() == 0 && size <= SMALL_BLOCK_BYTES {
            Vec::with_capacity(SMALL_BLOCK_BYTES)
        } else {
            self.spare
                .pop()
                .filter(|b| b.capacity() >= size)
                .unwrap_or_else(|| Vec::with_capacity(LARGE_BLOCK_BYTES.max(size)))
        };
        // An empty small block would otherwise stay at the front.
        if self.kept() == 0 {
            self.blocks.clear();
        }
        self.blocks.push_back(Block { base: self.end, bytes });
    }

    /// Everything before `to` is acknowledged.
    pub(super) fn release(&mut self, to: u64) {
        self.front = to;
        while self.marks.front().is_some_and(|mark| *mark <= to) {
            self.marks.pop_front();
        }
        while self.blocks.len() > 1 && self.blocks[0].end() <= to {
            if let Some(mut block) = self.blocks.pop_front()
                && block.bytes.capacity() >= LARGE_BLOCK_BYTES
                && self.spare.len() < MAX_SPARE_BLOCKS
            {
                block.bytes.clear();
                self.spare.push(block.bytes);
            }
        }
        if let Some(block) = self.blocks.front_mut()
            && block.end() <= to
        {
            block.base = to;
            block.bytes.clear();
        }
    }

    /// Releases memory that an idle session does not need.
    pub(super) fn trim(&mut self) {
        self.spare = Vec::new();
        if self.kept() == 0 {
            self.blocks.clear();
            self.marks = VecDeque::new();
        }
    }

    /// The end of a run that begins at `from`.
    pub(super) fn run(&self, from: u64) -> u64 {
        self.marks.iter().copied().find(|mark| *mark > from).unwrap_or(self.end)
    }

    /// The bytes of a range as slices, as many as `out` holds. Returns the number of slices.
    pub(super) fn pieces<'a>(&'a self, from: u64, to: u64, out: &mut [IoSlice<'a>]) -> usize {
        let mut first = self.blocks.len();
        while first > 0 && self.blocks[first - 1].end() > from {
            first -= 1;
        }
        let mut n = 0;
        for block in self.blocks.iter().skip(first).take(out.len()) {
            if block.base >= to {
                break;
            }
            let begin = from.saturating_sub(block.base) as usize;
            let end = (to.min(block.end()) - block.base) as usize;
            out[n] = IoSlice::new(&block.bytes[begin..end]);
            n += 1;
        }
        n
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.blocks.iter().map(|b| b.bytes.capacity()).sum::<usize>()
            + self.spare.iter().map(Vec::capacity).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &RetransmitLog, from: u64, to: u64) -> Vec<u8> {
        let mut out = [IoSlice::new(&[]); 64];
        let n = log.pieces(from, to, &mut out);
        out[..n].iter().flat_map(|piece| piece.iter().copied()).collect()
    }

    #[test]
    fn kept_bytes_can_be_read_from_any_position() {
        let mut log = RetransmitLog::default();
        let mut all = Vec::new();
        let mut released = 0;
        for i in 0..3000u32 {
            let body = vec![i as u8; (i * 37 % 2000) as usize];
            let header = [i as u8 ^ 0x55; HEADER_BYTES];
            let (a, b) = body.split_at(body.len() / 3);
            log.append(header, &[a, b], body.len());
            all.extend_from_slice(&header);
            all.extend_from_slice(&body);
            assert_eq!(log.end(), all.len() as u64);
            if i % 100 == 99 {
                let from = released + (all.len() as u64 - released) / 2;
                assert_eq!(read(&log, from, log.end()), all[from as usize..], "after {i}");
                assert!(log.run(from) > from && log.run(from) <= log.end());
                released = if i % 500 == 499 { log.end() } else { from };
                log.release(released);
                assert_eq!(log.kept(), all.len() as u64 - released);
            }
        }
        log.release(log.end());
        log.trim();
        assert_eq!(log.memory(), 0);
    }

    #[test]
    fn ping_pong_uses_one_small_block() {
        let mut log = RetransmitLog::default();
        for _ in 0..10_000 {
            log.append([0; HEADER_BYTES], &[&[1; 50]], 50);
            log.release(log.end());
        }
        assert_eq!(log.memory(), SMALL_BLOCK_BYTES);
    }
}
