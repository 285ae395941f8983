//! The bytes of several parts in a row: as words, kept in registers on the way, or as cells.
//!
//! Bytes that were copied one by one and are then loaded as a word wait for the store buffer; a packet of one cell would pay
//! more for that than for everything else. A longer one pays less than for words that are shifted together.

use super::CELL_PAYLOAD;

/// Hands the parts' bytes to `emit`, eight at a time in memory order, the last word filled up with zeros.
#[inline(always)]
pub(super) fn words(parts: &[&[u8]], mut emit: impl FnMut(u64)) {
    let (mut pending, mut bits) = (0u64, 0u32); // bytes that fill no word yet, and eight times their number
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

/// Hands the parts' bytes to `emit` in pieces of [`CELL_PAYLOAD`], the last one filled up with whatever.
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

/// What a shift by `bits` (0 to 63) to the left has pushed out.
#[inline(always)]
fn above(word: u64, bits: u32) -> u64 {
    (word >> 1) >> (63 - bits)
}

/// One to seven bytes as a word, by loads that overlap.
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
        fn words_are_the_bytes_in_a_row(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..30), 0..6)) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut bytes: Vec<u8> = Vec::new();
            super::words(&slices, |word| bytes.extend(word.to_ne_bytes()));
            let mut expected = parts.concat();
            prop_assert_eq!(bytes.len(), expected.len().next_multiple_of(8));
            expected.resize(bytes.len(), 0);
            prop_assert_eq!(bytes, expected);
        }

        #[test]
        fn lines_are_the_bytes_in_a_row(parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..5)) {
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
