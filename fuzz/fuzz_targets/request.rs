//! Long fuzzing runs of `motet_fuzz::rsr::request`: heads, startpoints and data of remote service requests.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::rsr::request(input));
