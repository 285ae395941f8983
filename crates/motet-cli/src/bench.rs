//! `motet bench`: this machine's floor, the engine, the sockets voice and plain TCP in one run. The measuring is `motet-bench`'s.

use crate::failure::{FAILED, Failure, Outcome};

/// Measure against this machine's own floor and plain TCP, in one run
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: motet_bench::Options,
}

/// Measures and prints.
pub fn run(mut arguments: Arguments, json: bool) -> Outcome {
    arguments.options.manner().json |= json;
    motet_bench::run(&arguments.options, &["bench"]).map_err(|e| Failure::new(FAILED, format!("{e:#}")))?;
    Ok(0)
}
