//! Gathers the bytes of several parts: as words, which stay in registers, or as cells, which are assembled in memory.
//!
//! A word that is loaded after its bytes were stored one by one waits for the store buffer. For a packet of one cell this stall would cost more
//! than all the rest, so its words are shifted together in registers. For a longer packet the stall costs less than the shifts.

use super::CELL_PAYLOAD;

/// Passes the bytes of the parts to `emit`, eight at a time in memory order. The last word is filled up with zeros.
#[inline(always)]
pub(super) fn words(parts: &[&[u8]], mut emit: impl FnMut(u64)) {
    let (mut pending, mut bits) = (0u64, 0u32); // bytes of an incomplete word, and their number times eight
    for part in parts {
        let mut rest = *part;
        if bits == 0 {
            let (chunks, behind) = rest.as_chunks();
            chunks.iter().for_each(|chunk| emit(u64::from_ne_bytes(*chunk)));
            rest = behind;
        }
        while let Some((chunk, behind)) = rest.split_first_chunk() {
            let word = u64::from_le_bytes(*chunk);
            emit((pending | word << bits).to_le());
            (pending, rest) = (above(word, bits), behind);
        }
        if !rest.is_empty() {
            let word = short(rest);
            pending |= word << bits;
            bits += 8 * rest.len() as u32;
            if bits >= 64 {
                emit(pending.to_le());
                bits -= 64;
                pending = word >> (8 * rest.len() as u32 - bits);
            }
        }
    }
    if bits > 0 {
        emit(pending.to_le());
    }
}

/// Passes the bytes of the parts to `emit` in blocks of [`CELL_PAYLOAD`]. The last block is filled up with unspecified bytes.
#[inline(always)]
pub(super) fn cells(parts: &[&[u8]], mut emit: impl FnMut(&[u8; CELL_PAYLOAD])) {
    let (mut cell, mut filled) = ([0; CELL_PAYLOAD], 0);
    for part in parts {
        let mut rest = *part;
        while !rest.is_empty() {
            if filled == 0
                && let Some((whole, behind)) = rest.split_first_chunk()
            {
                emit(whole);
                rest = behind;
                continue;
            }
            let (now, behind) = rest.split_at(rest.len().min(CELL_PAYLOAD - filled));
            cell[filled..][..now.len()].copy_from_slice(now);
            (filled, rest) = (filled + now.len(), behind);
            if filled == CELL_PAYLOAD {
                emit(&cell);
                filled = 0;
            }
        }
    }
    if filled > 0 {
        emit(&cell);
    }
}

/// The bits that a shift of `word` to the left by `bits` (0 to 63) pushes out.
#[inline(always)]
fn above(word: u64, bits: u32) -> u64 {
    (word >> 1) >> (63 - bits)
}

/// One to seven bytes as a word, by overlapping loads.
#[inline(always)]
fn short(bytes: &[u8]) -> u64 {
    let n = bytes.len();
    if let (Some(low), Some(high)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        return u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << (8 * (n - 4));
    }
    let byte = |at: usize| u64::from(bytes[at]) << (8 * at);
    byte(0) | byte(n / 2) | byte(n - 1)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn words_equal_concatenated_parts(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..6)) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut bytes: Vec<u8> = Vec::new();
            super::words(&slices, |word| bytes.extend(word.to_ne_bytes()));
            let mut expected = parts.concat();
            prop_assert_eq!(bytes.len(), expected.len().next_multiple_of(8));
            expected.resize(bytes.len(), 0);
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn cells_equal_concatenated_parts(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..5)) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut bytes: Vec<u8> = Vec::new();
            super::cells(&slices, |cell| bytes.extend(cell));
            let expected = parts.concat();
            prop_assert_eq!(bytes.len(), expected.len().next_multiple_of(super::CELL_PAYLOAD));
            bytes.truncate(expected.len());
            prop_assert_eq!(bytes, expected);
        }
    }
}
