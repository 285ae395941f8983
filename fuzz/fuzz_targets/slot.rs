//! Long fuzzing runs of `motet_fuzz::slot`: the slot of a stream whose memory a peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::slot::run(input));
