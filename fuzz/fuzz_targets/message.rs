//! Long fuzzing runs of `motet_fuzz::message`: the packets of a message link.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::message::run(input));
