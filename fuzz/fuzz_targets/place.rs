//! Long fuzzing runs of `motet_fuzz::place`: the address of a node.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::place(input));
