//! See `motet_fuzz::ring`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::ring::run(input));
