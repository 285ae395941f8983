//! Long fuzzing runs of `motet_fuzz::completions`: messages for posted receives, delivered from FIFO cells that a peer writes.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::completions::run(input));
