//! See `motet_fuzz::slot`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::slot::run(input));
