//! Long fuzzing runs of `motet_fuzz::fifo`: both ends of a message FIFO whose memory a peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::fifo::run(input));
