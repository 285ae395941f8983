//! See `motet_fuzz::profile`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::profile(input));
