//! Long fuzzing runs of `motet_fuzz::gatekeeper::node_line`: the lines between a node and its gatekeeper.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::gatekeeper::node_line(input));
