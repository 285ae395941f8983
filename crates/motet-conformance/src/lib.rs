//! The conformance suite of drivers is in `tests/conformance.rs`. This library is empty.
#![forbid(unsafe_code)]
