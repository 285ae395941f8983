//! `motet-bench`: the bench as a command of its own. `motet bench` calls the same library.
#![forbid(unsafe_code)]

use clap::Parser;

/// Measures Motet against the machine's own floor and against plain TCP, as ratios of one run.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: motet_bench::Options,
}

fn main() -> std::process::ExitCode {
    match motet_bench::run(&Arguments::parse().options, &[]) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("motet-bench: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
