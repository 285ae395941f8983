//! See `motet_fuzz::ends`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::ends::run(input));
