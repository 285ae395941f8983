//! Long fuzzing runs of `motet_fuzz::session`: the frames of a session over TCP.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::session::run(input));
