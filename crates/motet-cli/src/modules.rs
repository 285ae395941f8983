//! `motet load`, `start`, `stop` and `unload`: operations on modules.

use clap::Args;
use motet_session::modules::{ModuleRequest, Operation, Outcome as NodeOutcome};
use std::path::PathBuf;
use std::time::Duration;

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::names;
use crate::output::{self, sanitize};
use crate::session;

/// Loading at all members of a group, undone if one fails, may take as long as several operations.
const LIMIT: Duration = Duration::from_secs(300);

/// Where an operation happens.
#[derive(Debug, Args)]
struct Place {
    /// On every node of this group
    #[arg(long, value_name = "GROUP", conflicts_with = "node")]
    on: Option<String>,

    /// On this node of the host, by its identity or the start of it [default: the host's default node, or the group that the module is for]
    #[arg(long, value_name = "NODE")]
    node: Option<String>,

    /// On this host of the session [default: the own one]
    #[arg(long, value_name = "HOST", conflicts_with = "on")]
    host: Option<String>,
}

impl Place {
    /// A path of the API on the host.
    fn path(&self, rest: &str) -> Outcome<String> {
        match &self.host {
            Some(host) => {
                names::check("host", host)?;
                Ok(format!("/v1/hosts/{host}/{rest}"))
            }
            None => Ok(format!("/v1/{rest}")),
        }
    }
}

/// Load a module into a node, or into every node of a group
///
/// Modules that it requires are loaded before it. If one of them cannot be loaded, at any node, none is.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct LoadArguments {
    /// The descriptor, a TOML or XML file
    #[arg(value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    descriptor: PathBuf,

    #[command(flatten)]
    place: Place,

    /// Start it, too
    #[arg(long)]
    start: bool,
}

/// Start a module, after the modules that it requires
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct StartArguments {
    /// The module's name
    #[arg(value_name = "MODULE")]
    module: String,

    #[command(flatten)]
    place: Place,
}

/// Stop a module
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct StopArguments {
    /// The module's name
    #[arg(value_name = "MODULE")]
    module: String,

    #[command(flatten)]
    place: Place,

    /// Stop the modules that require it first
    #[arg(long)]
    cascade: bool,
}

/// Unload a module; one that runs is stopped first
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct UnloadArguments {
    /// The module's name
    #[arg(value_name = "MODULE")]
    module: String,

    #[command(flatten)]
    place: Place,

    /// Unload the modules that require it first
    #[arg(long)]
    cascade: bool,
}

/// `motet load`.
pub fn load(arguments: &LoadArguments, json: bool) -> Outcome {
    let shown = arguments.descriptor.display();
    let unusable = |why: &dyn std::fmt::Display| Failure::new(USAGE, format!("{shown}: {why}"));
    let path = arguments.descriptor.canonicalize().map_err(|error| unusable(&error))?;
    let descriptor = path.to_str().ok_or_else(|| unusable(&"its path is no UTF-8 text"))?.to_owned();
    request(&arguments.place, Operation::Load { descriptor, start: arguments.start }, json)
}

/// `motet start`.
pub fn start(arguments: &StartArguments, json: bool) -> Outcome {
    let module = checked(&arguments.module)?;
    request(&arguments.place, Operation::Start { module }, json)
}

/// `motet stop`.
pub fn stop(arguments: &StopArguments, json: bool) -> Outcome {
    let module = checked(&arguments.module)?;
    request(&arguments.place, Operation::Stop { module, cascade: arguments.cascade }, json)
}

/// `motet unload`.
pub fn unload(arguments: &UnloadArguments, json: bool) -> Outcome {
    let module = checked(&arguments.module)?;
    request(&arguments.place, Operation::Unload { module, cascade: arguments.cascade }, json)
}

fn checked(module: &str) -> Outcome<String> {
    names::check("module", module)?;
    Ok(module.to_owned())
}

/// Asks the gatekeeper, and reports what came of it at each node.
fn request(place: &Place, operation: Operation, json: bool) -> Outcome {
    let client = session::client(&session::paths()?)?.within(LIMIT);
    let done = operation.done();
    let outcomes = match &place.node {
        Some(node) => {
            names::check("node", node)?;
            vec![client.post::<NodeOutcome>(&place.path(&format!("nodes/{node}/modules"))?, &operation)?]
        }
        None => {
            place.on.as_ref().map_or(Ok(()), |group| names::check("group", group))?;
            let request = ModuleRequest { on: place.on.clone(), operation };
            client.post::<Vec<NodeOutcome>>(&place.path("modules")?, &request)?
        }
    };
    if json {
        output::json(&outcomes)?;
    } else {
        output::text(&report(&outcomes, done))?;
    }
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.error.is_some()).collect();
    match failed.first() {
        None => Ok(0),
        Some(first) => {
            // What was only undone is not the reason.
            let reason =
                failed.iter().find(|outcome| outcome.error.as_deref() != Some("unloaded again")).unwrap_or(first);
            let why = sanitize(reason.error.as_deref().unwrap_or_default(), 1024);
            let text = match (reason.rank, failed.len()) {
                (None, _) => why,
                (Some(rank), 1) => format!("rank {rank}: {why}"),
                (Some(rank), all) => format!("rank {rank}: {why} ({all} nodes failed or were undone)"),
            };
            Err(Failure::new(FAILED, text))
        }
    }
}

/// One line for each node where the operation has succeeded; one for all, if they are alike.
fn report(outcomes: &[NodeOutcome], done: &str) -> String {
    let mut lines = Vec::<(String, Vec<String>)>::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.error.is_none()) {
        let text = match &outcome.changed[..] {
            [] => format!("{} was {done} already", sanitize(&outcome.module, 64)),
            changed => format!("{done}: {}", sanitize(&changed.join(", "), 1024)),
        };
        let rank = outcome.rank.map(|rank| rank.to_string()).unwrap_or_default();
        match lines.iter_mut().find(|(known, _)| *known == text) {
            Some((_, ranks)) => ranks.push(rank),
            None => lines.push((text, vec![rank])),
        }
    }
    let with_ranks = |(text, ranks): &(String, Vec<String>)| match &ranks[..] {
        [rank] if rank.is_empty() => format!("{text}\n"),
        [rank] => format!("{text} (rank {rank})\n"),
        ranks => format!("{text} ({} nodes)\n", ranks.len()),
    };
    lines.iter().map(with_ranks).collect()
}
