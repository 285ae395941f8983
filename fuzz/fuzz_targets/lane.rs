//! See `motet_fuzz::lane`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::lane::run(input));
