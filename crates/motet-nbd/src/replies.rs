//! Replies of a connection: they are collected, then sent at once.

use crate::wire::{ChunkKind, Request, append_chunk, append_simple_reply};
use std::io::{ErrorKind, IoSlice, Result, Write};
use std::ops::Range;

/// Bytes of a read that are looked at for zeroes at once.
const PIECE_BYTES: usize = 64 << 10;

/// A part of what is sent.
#[derive(Debug)]
enum Part {
    /// Of the headers.
    Head(Range<usize>),
    /// Of the data.
    Data(Range<usize>),
}

/// Replies that are sent together.
#[derive(Debug)]
pub struct Replies {
    structured: bool,
    heads: Vec<u8>,
    parts: Vec<Part>,
}

impl Replies {
    /// No replies yet.
    pub fn new(structured: bool) -> Self {
        Self { structured, heads: Vec::new(), parts: Vec::new() }
    }

    /// Adds the end of a request that returns no data; `error` 0: success.
    pub fn finish(&mut self, request: &Request, error: u32) {
        self.head(|heads| append_simple_reply(request.cookie, error, heads));
    }

    /// Adds the failure of a request that returns data.
    pub fn fail(&mut self, request: &Request, error: u32) {
        if self.structured {
            self.head(|heads| append_chunk(request.cookie, &ChunkKind::Error(error), true, heads));
        } else {
            self.finish(request, error);
        }
    }

    /// Adds the states of extents.
    pub fn status(&mut self, request: &Request, context: u32, extents: &[(u32, u32)]) {
        self.head(|heads| append_chunk(request.cookie, &ChunkKind::Status(context, extents), true, heads));
    }

    /// Adds what was read, or a part of it: `range` of `data`, which stands at `offset`. The client may want it in one piece.
    pub fn read(&mut self, request: &Request, offset: u64, data: &[u8], range: Range<usize>, is_last: bool) {
        if !self.structured {
            if offset == request.offset {
                self.finish(request, 0);
            }
            self.parts.push(Part::Data(range));
            return;
        }
        if range.is_empty() {
            return self.head(|heads| append_chunk(request.cookie, &ChunkKind::None, is_last, heads));
        }
        let whole = request.flags.contains(crate::wire::CommandFlags::DF);
        for (run, zero) in runs(data, &range, whole) {
            let at = offset + (run.start - range.start) as u64;
            let length = u32::try_from(run.len()).unwrap_or(0);
            let is_last = is_last && run.end == range.end;
            let kind = if zero { ChunkKind::Hole(at, length) } else { ChunkKind::Data(at, length) };
            self.head(|heads| append_chunk(request.cookie, &kind, is_last, heads));
            if !zero {
                self.parts.push(Part::Data(run));
            }
        }
    }

    fn head(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        let start = self.heads.len();
        append(&mut self.heads);
        let end = self.heads.len();
        match self.parts.last_mut() {
            Some(Part::Head(before)) => before.end = end,
            _ => self.parts.push(Part::Head(start..end)),
        }
    }

    /// Sends all, and is empty again.
    pub fn send(&mut self, mut stream: impl Write, data: &[u8]) -> Result<()> {
        let slice = |part: &Part| match part {
            Part::Head(range) => self.heads.get(range.clone()).unwrap_or(&[]),
            Part::Data(range) => data.get(range.clone()).unwrap_or(&[]),
        };
        let mut slices: Vec<_> = self.parts.iter().map(|part| IoSlice::new(slice(part))).collect();
        let mut rest = &mut slices[..];
        // Removes empty slices at the front.
        IoSlice::advance_slices(&mut rest, 0);
        while !rest.is_empty() {
            match stream.write_vectored(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(length) => IoSlice::advance_slices(&mut rest, length),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.heads.clear();
        self.parts.clear();
        Ok(())
    }
}

/// The runs of `range` that are zeroes, or that are not.
fn runs(data: &[u8], range: &Range<usize>, whole: bool) -> Vec<(Range<usize>, bool)> {
    let mut runs: Vec<(Range<usize>, bool)> = Vec::new();
    if whole {
        runs.push((range.clone(), false));
        return runs;
    }
    for start in range.clone().step_by(PIECE_BYTES) {
        let piece = start..range.end.min(start + PIECE_BYTES);
        let zero = data.get(piece.clone()).is_some_and(is_zero);
        match runs.last_mut() {
            Some((run, same)) if *same == zero => run.end = piece.end,
            _ => runs.push((piece, zero)),
        }
    }
    runs
}

/// Whether all bytes are zero. Data end the search at once.
fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::CommandFlags;

    fn read(length: u32) -> Request {
        Request { flags: CommandFlags::empty(), kind: 0, cookie: 9, offset: 1000, length }
    }

    #[test]
    fn zeroes_are_sent_as_holes() {
        let mut data = vec![0; 4 * PIECE_BYTES + 10];
        data[PIECE_BYTES] = 1;
        data[4 * PIECE_BYTES + 9] = 1;
        let range = 0..data.len();
        let found = runs(&data, &range, false);
        let p = PIECE_BYTES;
        let expected = [(0..p, true), (p..2 * p, false), (2 * p..4 * p, true), (4 * p..4 * p + 10, false)];
        assert_eq!(found, expected);
        assert_eq!(runs(&data, &range, true), [(range, false)]);
    }

    #[test]
    fn a_reply_is_sent_whole_through_a_stream_that_takes_little_at_once() {
        struct Trickle(Vec<u8>);
        impl Write for Trickle {
            fn write(&mut self, bytes: &[u8]) -> Result<usize> {
                let taken = bytes.len().min(7);
                self.0.extend_from_slice(&bytes[..taken]);
                Ok(taken)
            }
            fn flush(&mut self) -> Result<()> {
                Ok(())
            }
        }
        let data: Vec<u8> = (1..=100).collect();
        let mut replies = Replies::new(false);
        replies.read(&read(100), 1000, &data, 0..100, true);
        replies.fail(&read(1), 5);
        let mut sent = Trickle(Vec::new());
        replies.send(&mut sent, &data).expect("sent");
        let mut expected = Vec::new();
        append_simple_reply(9, 0, &mut expected);
        expected.extend_from_slice(&data);
        append_simple_reply(9, 5, &mut expected);
        assert_eq!(sent.0, expected);
    }
}
