//! Long fuzzing runs of `motet_fuzz::profile`: the profile of a machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::profile(input));
