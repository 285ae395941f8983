//! Long fuzzing runs of `motet_fuzz::nbd`: what a client of an NBD server sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::nbd::run(input));
