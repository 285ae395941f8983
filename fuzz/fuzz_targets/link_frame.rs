//! Long fuzzing runs of `motet_fuzz::gatekeeper::link_frame`: the frames of a link between two gatekeepers.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::gatekeeper::link_frame(input));
