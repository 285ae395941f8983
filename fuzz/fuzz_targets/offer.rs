//! Long fuzzing runs of `motet_fuzz::offer`: the offer of a segment and slot for a stream.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::offer(input));
