//! Long fuzzing runs of `motet_fuzz::descriptor`: the descriptor of a module.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::descriptor(input));
