//! `motet`: the command line.
//!
//! What it is: `run` starts a program under Motet; `ps`, `top` and `why` read the node files and stats pages of running processes;
//! `doctor` and `config` show what this machine and these settings allow; `tune` and `bench` measure. `up` starts a session, whose gatekeeper is the only
//! daemon; `groups`, `load`, `modules`, `down` and others are its clients. `node` is a process that lives from modules.
//!
//! What it is not: part of a running program. It never connects to a program and never maps its memory: node files are read with
//! `pread` and parsed as bytes that any process may have written.
//!
//! A new subcommand is a module with `Arguments` and `run`, a line in [`Command`] and a line in [`dispatch`].
#![forbid(unsafe_code)]
// Output that cannot be written is no reason to end: see `output` and `motet_session::notes`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod bench;
mod capped_log;
mod children;
mod config;
mod containers_argument;
mod dashboard;
mod directory_arguments;
mod doctor;
mod ending;
mod exit_error;
mod export;
mod file_ways;
mod files;
mod foreground;
mod gatekeeper;
mod generate;
mod globus;
mod groups;
mod host_files;
mod hosts;
mod kernel_disk;
mod launch;
mod libraries;
mod limits;
mod module_table;
mod modules;
mod mount;
mod mount_points;
mod mount_server;
mod mpi_env;
mod mpi_hosts;
mod mpi_launcher;
mod names;
mod nbd;
mod node;
mod output;
mod pmi;
mod private_mount;
mod probe;
mod ps;
mod run;
mod sandbox;
mod sanitizers;
mod session;
mod stats;
mod step;
mod terminal_end;
mod top;
mod trial_exchange;
mod tune;
mod up;
mod watched;
mod why;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use exit_error::{Failure, Outcome};

/// One engine under every communication library: the fastest path for each pair of processes, for unmodified programs
#[derive(Debug, Parser)]
#[command(name = "motet", version, max_term_width = 100, after_help = exit_error::AFTER_HELP)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true)]
struct Cli {
    /// Print JSON instead of text
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Arguments),
    Ps(ps::Arguments),
    Top(top::Arguments),
    Why(why::Arguments),
    Up(up::UpArguments),
    Groups(groups::Arguments),
    Hosts(hosts::Arguments),
    Dashboard(dashboard::Arguments),
    Load(modules::LoadArguments),
    Start(modules::StartArguments),
    Stop(modules::StopArguments),
    Unload(modules::UnloadArguments),
    Modules(module_table::Arguments),
    Node(node::Arguments),
    Export(export::Arguments),
    Mount(mount::Arguments),
    Umount(mount::UmountArguments),
    Nbd(nbd::Arguments),
    Down(up::DownArguments),
    Bench(bench::Arguments),
    Tune(tune::Arguments),
    Doctor(doctor::Arguments),
    Config(config::Arguments),
    #[command(hide = true)]
    Gatekeeper(gatekeeper::Arguments),
    #[command(hide = true)]
    Generate(generate::Arguments),
    #[command(hide = true)]
    Probe(probe::Arguments),
    #[command(hide = true)]
    ServeMount(mount_server::Arguments),
    #[command(hide = true)]
    WithParent(kernel_disk::WithParentArguments),
}

fn dispatch(command: Command, json: bool) -> Outcome {
    match command {
        Command::Run(arguments) => run::run(&arguments, json),
        Command::Ps(arguments) => ps::run(&arguments, json),
        Command::Top(arguments) => top::run(&arguments, json),
        Command::Why(arguments) => why::run(&arguments, json),
        Command::Up(arguments) => up::up(&arguments, json),
        Command::Dashboard(arguments) => dashboard::run(&arguments, json),
        Command::Groups(arguments) => groups::run(&arguments, json),
        Command::Hosts(arguments) => hosts::list(&arguments, json),
        Command::Load(arguments) => modules::load(&arguments, json),
        Command::Start(arguments) => modules::start(&arguments, json),
        Command::Stop(arguments) => modules::stop(&arguments, json),
        Command::Unload(arguments) => modules::unload(&arguments, json),
        Command::Modules(arguments) => module_table::run(&arguments, json),
        Command::Node(arguments) => node::run(&arguments),
        Command::Export(arguments) => export::run(&arguments, json),
        Command::Mount(arguments) => mount::mount(&arguments),
        Command::Umount(arguments) => mount::umount(&arguments),
        Command::Nbd(arguments) => nbd::run(&arguments, json),
        Command::Down(arguments) => up::down(&arguments, json),
        Command::Gatekeeper(arguments) => gatekeeper::run(&arguments),
        Command::Bench(arguments) => bench::run(arguments, json),
        Command::Tune(arguments) => tune::run(&arguments, json),
        Command::Doctor(arguments) => doctor::run(&arguments, json),
        Command::Config(arguments) => config::run(&arguments, json),
        Command::Generate(arguments) => generate::run(&arguments, Cli::command()),
        Command::Probe(arguments) => probe::run(&arguments),
        Command::ServeMount(arguments) => mount_server::run(&arguments),
        Command::WithParent(arguments) => kernel_disk::with_parent(&arguments),
    }
}

fn main() -> std::process::ExitCode {
    let parsed = Cli::command().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let outcome = match parsed {
        Ok(cli) => dispatch(cli.command, cli.json),
        Err(e) => exit_error::usage(&e),
    };
    match outcome {
        Ok(code) => code.into(),
        Err(Failure { code, message }) => {
            motet_session::notes::note(message);
            code.into()
        }
    }
}
