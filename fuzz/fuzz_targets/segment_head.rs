//! See `motet_fuzz::segment_head`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::segment_head(input));
