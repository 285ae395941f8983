//! See `motet_fuzz::session`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::session::run(input));
