//! `motet node`: a process of the session that begins empty and lives from modules.

use clap::Args;
use motet_runtime::node::{Ender, ModuleNode, Options};
use motet_session::{GROUP_VARIABLE, RANK_VARIABLE, SESSION_ID_VARIABLE};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::capped_log;
use crate::children;
use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome};
use crate::launch::Launch;
use crate::names;
use crate::session;

/// Run a node of the session that begins empty and lives from modules, until SIGTERM or `motet down`
///
/// Modules are loaded into it by `motet load --node` with its identity, or `--on` with its group. Without a module for it, it only waits.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Join this group [default: the one of `motet run --group`]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,

    /// Ask for this rank in the group
    #[arg(long, value_name = "N", requires = "group")]
    rank: Option<u32>,

    /// It is the host's default node; the gatekeeper says so
    #[arg(long, hide = true)]
    default: bool,
}

/// The command. Prints the node's identity once it is attached.
pub fn run(arguments: &Arguments) -> Outcome {
    let failed = |error: &dyn std::fmt::Display| Failure::new(FAILED, error.to_string());
    // Programs of modules get nothing that this process has inherited.
    motet_sys::inherited::close_on_exec();
    let variable = |name: &str| std::env::var(name).ok();
    let group = match &arguments.group {
        Some(group) => Some((group.clone(), arguments.rank)),
        None => {
            variable(GROUP_VARIABLE).map(|group| (group, variable(RANK_VARIABLE).and_then(|rank| rank.parse().ok())))
        }
    };
    if let Some((group, _)) = &group {
        names::check("group", group)?;
    }
    let paths = session::paths()?;
    let about = session::client(&paths)?.get::<motet_session::api::Session>("/v1/session")?;
    if variable(SESSION_ID_VARIABLE).as_deref() != Some(about.id.as_str()) {
        // Started without `motet run`: the session does not know this process yet.
        let place = group.as_ref().map(|(group, rank)| (group.as_str(), *rank));
        let launch = Launch::of_session().ok_or_else(|| Failure::new(NOT_FOUND, "the session has just ended"))?;
        let mut command = std::process::Command::new("motet");
        command.arg("node");
        if !launch.register(std::process::id(), &command, place) {
            return Err(Failure::new(NOT_FOUND, "the session has just ended"));
        }
    }
    // Ignored signals (nohup) stay ignored.
    let ignored = children::ignored_signals();
    let caught = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let signals = Signals::new(caught).map_err(|error| failed(&error))?;
    let own = std::env::current_exe().map_err(|error| failed(&error))?;
    let launcher = vec![own.into_os_string(), "run".into(), "--".into()];
    let options = Options { paths, group, is_default: arguments.default, launcher };
    let node = ModuleNode::attach(options).map_err(|error| failed(&error))?;
    end_by_signal(signals, node.ender()).map_err(|error| failed(&error))?;
    crate::output::text(&format!("{}\n", node.id()))?;
    if arguments.default {
        capped_log::keep_small().map_err(|error| failed(&error))?;
    }
    node.run().map_err(|error| failed(&error))?;
    Ok(0)
}

/// Ends the node at the first signal, in a thread; a second one ends the process at once.
fn end_by_signal(mut signals: Signals, ender: Ender) -> std::io::Result<()> {
    let wait = move || {
        let mut seen = 0;
        for signal in signals.forever() {
            seen += 1;
            match seen {
                1 => ender.end(),
                _ => drop(signal_hook::low_level::emulate_default_handler(signal)),
            }
        }
    };
    std::thread::Builder::new().name("motet-signals".to_owned()).spawn(wait).map(drop)
}
