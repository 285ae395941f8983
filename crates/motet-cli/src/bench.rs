//! `motet bench`: measures this machine's floor, the engine, the sockets adapter and TCP in one run, by the crate `motet-bench`.

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};

/// Measure against this machine's own floor and TCP, in one run
#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    options: motet_bench::Options,
}

/// Measures and prints.
pub fn run(mut arguments: Arguments, json: bool) -> Outcome {
    arguments.options.run_options().json |= json;
    motet_bench::rows::chosen(&arguments.options.only).map_err(|e| Failure::new(USAGE, e.to_string()))?;
    if let Some(folder) = arguments.options.run_options().libdir.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::new(USAGE, format!("--libdir {}: no such folder", folder.display())));
    }
    motet_bench::run(&arguments.options, &["bench"]).map_err(|e| Failure::new(FAILED, format!("{e:#}")))?;
    Ok(0)
}
