//! Bandwidth and round trips beside plain TCP of the same shape. Not run with the tests:
//! `cargo test --release -p motet-driver-tcp --test frames -- --ignored --nocapture speed`
