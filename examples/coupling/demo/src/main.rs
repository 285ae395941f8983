//! `coupling-demo`: the command line. The library does the work.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use coupling_demo::case::{Case, Layout};
use coupling_demo::children::catch_interrupts;
use coupling_demo::compare::compare;
use coupling_demo::field::Field;
use coupling_demo::report::{self, Report};
use coupling_demo::run::Runner;
use coupling_demo::{picture, validate};

/// Runs the coupled heat transfer example, and compares runs without Motet with runs with Motet.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Directory of the built codes
    #[arg(long, global = true, env = "COUPLING_BUILD", default_value = "build/coupling")]
    build: PathBuf,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run one case
    Run {
        /// The case file
        #[arg(long)]
        case: PathBuf,
        /// Ranks of the gas code (default: as the case says)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        fluid: Option<u32>,
        /// Ranks of the wall code (default: as the case says)
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
        solid: Option<u32>,
        /// A command to put before the naming service and mpirun, e.g. 'motet run --'
        #[arg(long, default_value = "")]
        under: String,
        /// Directory for results, fields and logs (default: a temporary one)
        #[arg(long)]
        output: Option<PathBuf>,
        /// Print the results as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the cases without Motet and with Motet, alternating, and write a report
    Compare {
        /// The motet program; without it only runs without Motet are made
        #[arg(long)]
        motet: Option<PathBuf>,
        /// Directory of the report
        #[arg(long, default_value = "report")]
        out: PathBuf,
        /// Repetitions each way
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
        repetitions: u16,
        /// Directory of the case files
        #[arg(long, default_value = "examples/coupling/cases")]
        cases: PathBuf,
    },
}

fn main() -> std::process::ExitCode {
    match act(Arguments::parse()) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("coupling-demo: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn act(arguments: Arguments) -> Result<()> {
    catch_interrupts()?;
    let runner = Runner::without_prefix(&arguments.build)?;
    match arguments.command {
        Verb::Run { case, fluid, solid, under, output, json } => {
            let case = Case::read(&case)?;
            let asked = case.layout();
            let layout = Layout { fluid: fluid.unwrap_or(asked.fluid), solid: solid.unwrap_or(asked.solid) };
            let temporary = tempfile::tempdir()?;
            let directory = output.unwrap_or_else(|| temporary.path().to_path_buf());
            let outcome = runner.under(&under)?.run(&case, layout, &directory)?;
            if json {
                println!("{}", serde_json::to_string_pretty(&outcome)?);
                return Ok(());
            }
            let gas = &outcome.fluid;
            println!("{}: gas on {} x wall on {} ranks", case.name()?, layout.fluid, layout.solid);
            println!("  whole run         {:.3} s", outcome.run_seconds);
            println!("  time steps        {:.3} s", gas.wall_seconds);
            println!(
                "  in coupling calls {:.3} s, of which the wall's own steps {:.3} s",
                gas.coupling_seconds, gas.solve_seconds
            );
            println!("  calls             {}, boundary values {:.3} MB", gas.calls, gas.bytes / 1e6);
            println!("  CPU time          {:.3} s", outcome.cpu_seconds());
            println!(
                "  energy balances   gas {:.1e}, wall {:.1e}, interface {:.1e} (relative errors)",
                gas.balance_error(),
                outcome.solid.balance_error(),
                outcome.interface_error()
            );
            println!("  checksums         {}", outcome.checksums().join(" "));
            Ok(())
        }
        Verb::Compare { motet, out, repetitions, cases } => {
            make_report(&runner, motet.as_deref(), &out, usize::from(repetitions), &cases)
        }
    }
}

fn make_report(runner: &Runner, motet: Option<&Path>, out: &Path, repetitions: usize, cases: &Path) -> Result<()> {
    let runs = out.join("runs");
    std::fs::create_dir_all(&runs).with_context(|| format!("cannot make {}", runs.display()))?;
    let read = |name: &str| Case::read(&cases.join(format!("{name}.toml")));
    let mut compared = Vec::new();
    let pair = Layout { fluid: 1, solid: 1 };
    let alone = read("chatty")?.on(pair, "chatty-pair", "10 000 exchanges of 16 values, one rank each");
    // The chatty case first, as it shows the time of a call.
    for case in [read("chatty")?, alone, read("demo")?, read("heavy")?] {
        let comparison = compare(runner, motet, &case, repetitions, &runs)?;
        print!("{}", report::terminal(std::slice::from_ref(&comparison)));
        compared.push(comparison);
    }
    eprintln!("validating against exact solutions");
    let slab = validate::slab(runner, &read("validate-slab")?, Layout { fluid: 1, solid: 1 }, &runs.join("slab"))?;
    let grid = validate::grid_convergence(runner, &read("validate-kirchhoff")?, &runs.join("grid"))?;
    let time = validate::time_convergence(runner, &read("demo")?, &runs.join("time"))?;

    eprintln!("drawing");
    let demo = compared.iter().find(|case| case.case == "demo").context("the case demo was not run")?;
    let [gas, wall] = ["fluid", "solid"].map(|code| Field::read_last(&demo.directory, code));
    picture::temperature(&out.join("temperature.png"), &demo.title, &gas?, &wall?)?;
    for kind in ["png", "svg"] {
        picture::convergence(&out.join(format!("convergence.{kind}")), &grid, &time)?;
        picture::comparison(&out.join(format!("comparison.{kind}")), &compared)?;
    }
    let report = Report { cases: compared, repetitions, slab, grid, time };
    report::write(out, &report)?;
    println!("\nreport: {}", out.join("index.html").display());
    if let Some(case) = report.cases.iter().find(|case| !case.identical) {
        anyhow::bail!("the runs of case {} did not give the same bits", case.case);
    }
    Ok(())
}
