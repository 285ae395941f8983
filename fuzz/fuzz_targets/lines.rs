//! See `motet_fuzz::message::lines`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::message::lines::run(input));
