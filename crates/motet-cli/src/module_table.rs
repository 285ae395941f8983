//! `motet modules`: the modules of all nodes of the session, and their logs.

use clap::Args;
use motet_session::hosts::Host;
use motet_session::modules::{MAX_LOG_BYTES, ModuleLog, ModuleStatus};
use motet_session::notes::note;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::exit_error::{Failure, NOT_FOUND, Outcome};
use crate::output::{self, Align, Table, sanitize};
use crate::session;

/// List the modules of all nodes of the session
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Only the modules of this name
    #[arg(value_name = "MODULE")]
    module: Option<String>,

    /// Only the modules of this node, by its identity or the start of it
    #[arg(long, value_name = "NODE")]
    node: Option<String>,

    /// Print the end of the module's log instead
    #[arg(long, requires = "module")]
    log: bool,

    /// At most so many bytes of it
    #[arg(long, value_name = "BYTES", default_value_t = MAX_LOG_BYTES, requires = "log")]
    tail: usize,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let client = session::client(&session::paths()?)?;
    let mut modules = Vec::new();
    let hosts = client.get::<Vec<Host>>("/v1/hosts")?;
    for host in hosts.iter().filter(|host| host.up) {
        match client.get::<Vec<ModuleStatus>>(&format!("/v1/hosts/{}/modules", host.name)) {
            Ok(mut known) => modules.append(&mut known),
            Err(error) => note(format_args!("the modules of host {} are not known: {error}", sanitize(&host.name, 64))),
        }
    }
    modules.retain(|module| {
        arguments.module.as_ref().is_none_or(|wanted| *wanted == module.name)
            && arguments.node.as_ref().is_none_or(|node| module.node.starts_with(node))
    });
    if let (Some(wanted), true) = (&arguments.module, modules.is_empty()) {
        return Err(Failure::new(NOT_FOUND, format!("no module {wanted:?} is loaded; motet modules lists them")));
    }
    if arguments.log {
        let mut logs = Vec::new();
        for module in &modules {
            let ModuleStatus { host, node, name, .. } = module;
            let path = format!("/v1/hosts/{host}/modules/{node}/{name}/log?tail={}", arguments.tail);
            logs.push((module, client.get::<ModuleLog>(&path)?));
        }
        return show_logs(&logs, json);
    }
    if json {
        output::json(&modules)?;
    } else if modules.is_empty() {
        output::text("no module is loaded; load one with `motet load FILE`\n")?;
    } else {
        output::text(&table(&modules))?;
    }
    Ok(0)
}

fn show_logs(logs: &[(&ModuleStatus, ModuleLog)], json: bool) -> Outcome {
    if json {
        let all: Vec<_> = logs
            .iter()
            .map(|(module, log)| serde_json::json!({ "node": module.node, "name": module.name, "log": log.text }))
            .collect();
        output::json(&all)?;
        return Ok(0);
    }
    for (module, log) in logs {
        if logs.len() > 1 {
            output::text(&format!("node {}:\n", sanitize(&module.node, 32)))?;
        }
        let lines: String = log.text.lines().map(|line| sanitize(line, usize::MAX) + "\n").collect();
        output::text(&lines)?;
    }
    Ok(0)
}

fn table(modules: &[ModuleStatus]) -> String {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("HOST", left),
        ("NODE", left),
        ("MODULE", left),
        ("DRIVER", left),
        ("STATE", left),
        ("FOR", right),
        ("PID", right),
        ("RESTARTS", right),
        ("LAST EXIT", left),
        ("REQUIRES", left),
    ]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for module in modules {
        table.row(vec![
            sanitize(&module.host, 64),
            module.node.chars().take(8).collect(),
            sanitize(&module.name, 64),
            sanitize(&module.driver, 64),
            module.state.word().to_owned(),
            format!("{} s", now.saturating_sub(module.since)),
            module.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            module.restarts.to_string(),
            module.last_exit.as_deref().map_or("-".to_owned(), |how| sanitize(how, 60)),
            sanitize(&module.requires.join(", "), 60),
        ]);
    }
    table.render()
}
