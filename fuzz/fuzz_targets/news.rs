//! Long fuzzing runs of `motet_fuzz::news`: the control messages about shared segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::news(input));
