//! See `motet_fuzz::greeting`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::greeting(input));
