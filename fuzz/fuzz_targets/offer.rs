//! See `motet_fuzz::offer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::offer(input));
