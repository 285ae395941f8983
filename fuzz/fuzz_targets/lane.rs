//! Long fuzzing runs of `motet_fuzz::lane`: both ends of a message FIFO whose memory a peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::lane::run(input));
