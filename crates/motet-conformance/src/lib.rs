//! What every driver must do, as tests: see `tests/conformance.rs`. Nothing is in the library itself.
#![forbid(unsafe_code)]
