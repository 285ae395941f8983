//! See `motet_fuzz::diag_answer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::diag_answer(input));
