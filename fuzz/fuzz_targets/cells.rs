//! Long fuzzing runs of `motet_fuzz::message::cells`: packets of one cell on the direct and on the general path, compared.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::message::cells::run(input));
