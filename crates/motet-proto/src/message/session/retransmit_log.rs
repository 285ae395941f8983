//! The retransmission log: frames that were put and are not acknowledged.
//!
//! Frames, one after the other, in blocks, from which they are sent and, after a break, sent again. This is the one copy that
//! exactly-once delivery costs: the sender's memory is free when `put` returns, and what the kernel has taken cannot be read back from
//! a broken connection. Blocks are reused, so that they stay in a cache. A payload that is a range of a file is kept by name only, and read
//! whenever it is sent. The log knows neither rails nor time.

use super::MAX_UNACKED_BYTES;
use super::frame::HEADER_BYTES;
use crate::message::FileRange;
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
    /// Whole frames, or what is before a range of a file; never longer than the initial capacity.
    bytes: Vec<u8>,
    /// The block is this range, and has no bytes.
    file: Option<FileRange>,
}

impl Block {
    fn end(&self) -> u64 {
        self.base + self.file.as_ref().map_or(self.bytes.len() as u64, FileRange::len)
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
    /// Ranges of files that are kept.
    files: usize,
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
        if self.blocks.back().is_none_or(|b| b.file.is_some() || b.bytes.capacity() - b.bytes.len() < size) {
            self.grow(size);
        }
        // `grow` has added a block where there was none.
        let Some(block) = self.blocks.back_mut() else { return };
        block.bytes.extend_from_slice(&header);
        for part in parts {
            block.bytes.extend_from_slice(part);
        }
        self.note_frame(size as u64);
    }

    /// Appends a frame whose payload ends with a range of a file.
    pub(super) fn append_file(&mut self, header: [u8; HEADER_BYTES], head: &[u8], file: FileRange) {
        let (size, length) = (HEADER_BYTES + head.len(), file.len());
        if self.blocks.back().is_none_or(|b| b.file.is_some() || b.bytes.capacity() - b.bytes.len() < size) {
            self.grow(size);
        }
        let Some(block) = self.blocks.back_mut() else { return };
        block.bytes.extend_from_slice(&header);
        block.bytes.extend_from_slice(head);
        let base = self.end + size as u64;
        self.blocks.push_back(Block { base, bytes: Vec::new(), file: Some(file) });
        self.files += 1;
        self.note_frame(size as u64 + length);
    }

    fn note_frame(&mut self, size: u64) {
        self.end += size;
        let last = self.marks.back().copied().unwrap_or(self.front);
        if self.end - last >= RUN_BYTES {
            self.marks.push_back(self.end);
        }
    }

    #[cold]
    fn grow(&mut self, size: usize) {
        // Between ranges of files there are only the heads of frames.
        let is_small = self.kept() == 0 || self.blocks.back().is_some_and(|block| block.file.is_some());
        let bytes = if is_small && size <= SMALL_BLOCK_BYTES {
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
        self.blocks.push_back(Block { base: self.end, bytes, file: None });
    }

    /// Everything before `to` is acknowledged.
    pub(super) fn release(&mut self, to: u64) {
        self.front = to;
        while self.marks.front().is_some_and(|mark| *mark <= to) {
            self.marks.pop_front();
        }
        while self.blocks.len() > 1 && self.blocks[0].end() <= to {
            let Some(mut block) = self.blocks.pop_front() else { break };
            self.files -= usize::from(block.file.is_some());
            if block.bytes.capacity() >= LARGE_BLOCK_BYTES && self.spare.len() < MAX_SPARE_BLOCKS {
                block.bytes.clear();
                self.spare.push(block.bytes);
            }
        }
        if let Some(block) = self.blocks.front_mut()
            && block.end() <= to
        {
            block.base = to;
            block.bytes.clear();
            self.files -= usize::from(block.file.take().is_some());
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

    /// Whether ranges of files are kept.
    pub(super) fn has_files(&self) -> bool {
        self.files > 0
    }

    /// The index of the block with the byte at a position.
    fn index_of(&self, position: u64) -> usize {
        let mut first = self.blocks.len();
        while first > 0 && self.blocks[first - 1].end() > position {
            first -= 1;
        }
        first
    }

    /// What is left of the range of a file at a position, up to `to`. `None`: there is none.
    pub(super) fn file_at(&self, from: u64, to: u64) -> Option<FileRange> {
        let block = self.blocks.get(self.index_of(from)).filter(|block| block.base <= from && from < to)?;
        let file = block.file.as_ref()?;
        Some(file.part(from - block.base, to.min(block.end()) - from))
    }

    /// The bytes of a range as slices, as many as `out` holds, up to a range of a file. Returns the number of slices.
    pub(super) fn pieces<'a>(&'a self, from: u64, to: u64, out: &mut [IoSlice<'a>]) -> usize {
        let mut n = 0;
        for block in self.blocks.iter().skip(self.index_of(from)).take(out.len()) {
            if block.base >= to || block.file.is_some() {
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
    fn ranges_of_files_are_kept_by_name() {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        let mut log = RetransmitLog::default();
        log.append([1; HEADER_BYTES], &[&[2; 50]], 50);
        for number in 0..4 {
            log.append_file([3; HEADER_BYTES], &[4; 16], FileRange::new(file(), number * 1000, 1000).unwrap());
        }
        log.append([5; HEADER_BYTES], &[&[6; 10]], 10);
        let (first, frame) = (HEADER_BYTES as u64 + 50, HEADER_BYTES as u64 + 16 + 1000);
        assert_eq!(log.end(), first + 4 * frame + HEADER_BYTES as u64 + 10);
        assert_eq!(read(&log, 0, log.end()).len() as u64, first + 32, "up to the file");
        let begin = first + 32;
        let at = |from| log.file_at(from, log.end()).map(|part| (part.offset(), part.len()));
        assert_eq!(
            (at(begin - 1), at(begin), at(begin + 999), at(begin + 1000)),
            (None, Some((0, 1000)), Some((999, 1)), None)
        );
        assert_eq!(log.file_at(begin + 10, begin + 30).map(|part| (part.offset(), part.len())), Some((10, 20)));
        assert_eq!(at(begin + 2 * frame + 5), Some((2005, 995)));
        assert_eq!(read(&log, begin + 1000, log.end()), [&[3; HEADER_BYTES][..], &[4; 16]].concat());
        assert!(log.memory() < 5 * SMALL_BLOCK_BYTES + 1, "{}", log.memory());
        log.release(begin + 3 * frame + 500);
        assert_eq!(log.file_at(begin + 3 * frame + 500, log.end()).map(|part| part.offset()), Some(3500));
        assert_eq!(read(&log, begin + 3 * frame + 1000, log.end()), [&[5; HEADER_BYTES][..], &[6; 10]].concat());
        log.release(log.end());
        log.append_file([3; HEADER_BYTES], &[4; 16], FileRange::new(file(), 0, 5).unwrap());
        log.release(log.end());
        log.append([1; HEADER_BYTES], &[&[2; 50]], 50);
        assert_eq!(read(&log, log.front(), log.end()).len(), HEADER_BYTES + 50);
        assert!(!log.has_files());
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
