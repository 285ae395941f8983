//! Long fuzzing runs of `motet_fuzz::files::file_message`: requests, answers and listings of remote files.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| motet_fuzz::files::file_message(input));
