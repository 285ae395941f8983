//! Long fuzzing runs of `motet_fuzz::node_address`: the address of a node.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::node_address(input));
