//! Long fuzzing runs of `motet_fuzz::diag_answer`: the kernel's answers to sock_diag requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::diag_answer(input));
