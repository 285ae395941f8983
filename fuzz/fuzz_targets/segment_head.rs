//! Long fuzzing runs of `motet_fuzz::segment_head`: the head of a segment.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::segment_head(input));
