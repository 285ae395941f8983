//! Long fuzzing runs of `motet_fuzz::shm_handshake`: the handshake of two nodes on one host.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::shm_handshake(input));
