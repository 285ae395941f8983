//! Long fuzzing runs of `motet_fuzz::payload_ring`: the payload ring beside a FIFO whose memory a peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::payload_ring::run(input));
