//! Long fuzzing runs of `motet_fuzz::segment_message`: the control messages about shared segments.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::segment_message(input));
