//! Long fuzzing runs of `motet_fuzz::greeting`: the handshake of two nodes on one host.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::greeting(input));
