//! `motet-bench`: the measurements alone. What it does is in the library, which `motet bench` calls too.
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
