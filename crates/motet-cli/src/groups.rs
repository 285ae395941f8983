//! `motet groups`: the groups of the session, their members, circuits and programs.

use clap::Args;
use motet_session::api::{Program, View};
use motet_session::circuits::Circuit;
use motet_session::client::Client;
use motet_session::hosts::Host;
use motet_session::notes::note;
use serde::Serialize;

use crate::exit_error::Outcome;
use crate::output::{self, Align, Table, count, sanitize};
use crate::session;

/// List the groups of the session, their programs, members and circuits
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// Only this group
    #[arg(value_name = "GROUP")]
    group: Option<String>,
}

/// A group.
#[derive(Serialize)]
struct Group {
    name: String,
    /// Its nodes: the programs that have joined by the API.
    view: Option<View>,
    /// The programs that were started in it.
    programs: Vec<Program>,
    /// The circuits that are open at any of its members.
    circuits: Vec<Circuit>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let client = session::client(&session::paths()?)?;
    let mut views = client.get::<Vec<View>>("/v1/groups")?;
    let programs = client.get::<Vec<Program>>("/v1/programs")?;
    let mut circuits = circuits(&client)?;
    let mut names: Vec<String> = views.iter().map(|view| view.group.clone()).collect();
    names.extend(programs.iter().filter_map(|program| program.group.clone()));
    names.sort();
    names.dedup();
    names.retain(|name| arguments.group.as_ref().is_none_or(|wanted| wanted == name));
    if let (Some(wanted), true) = (&arguments.group, names.is_empty()) {
        client.get::<View>(&format!("/v1/groups/{wanted}"))?; // fails with the reason
    }
    let groups: Vec<Group> = names
        .into_iter()
        .map(|name| Group {
            view: views.iter().position(|view| view.group == name).map(|at| views.swap_remove(at)),
            programs: programs.iter().filter(|program| program.group.as_ref() == Some(&name)).cloned().collect(),
            circuits: circuits.extract_if(.., |circuit| circuit.group == name).collect(),
            name,
        })
        .collect();
    if json {
        output::json(&groups)?;
    } else if groups.is_empty() {
        output::text("the session has no group; start one with `motet run --group NAME -- COMMAND`\n")?;
    } else {
        output::text(&groups.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(0)
}

/// The circuits of all hosts. A host that does not answer is named, and left out.
fn circuits(client: &Client) -> Outcome<Vec<Circuit>> {
    let hosts = client.get::<Vec<Host>>("/v1/hosts")?;
    let of_host = |host: Host| {
        client.get::<Vec<Circuit>>(&format!("/v1/hosts/{}/circuits", host.name)).unwrap_or_else(|error| {
            note(format_args!("host {}: {}", sanitize(&host.name, 64), sanitize(&error.to_string(), 200)));
            Vec::new()
        })
    };
    Ok(Circuit::of_hosts(hosts.into_iter().filter(|host| host.up).map(of_host)))
}

/// A circuit in one line, with the ranks at which it is not open.
fn line(circuit: &Circuit) -> String {
    let is_open = |rank: u32| circuit.members.iter().any(|member| member.rank == rank);
    let missing: Vec<_> = (0..circuit.size).filter(|rank| !is_open(*rank)).map(|rank| rank.to_string()).collect();
    let name = sanitize(&circuit.name, 64);
    let line = format!("circuit {name}: number {}, view {}, {} members", circuit.number, circuit.view, circuit.size);
    match &missing[..] {
        [] => line + "\n",
        missing => format!("{line}, not open at {}\n", sanitize(&missing.join(" "), 60)),
    }
}

fn text(group: &Group) -> String {
    let (number, members) = group.view.as_ref().map_or((0, &[][..]), |view| (view.number, &view.members));
    let (nodes, programs) = (count(members.len(), "node"), count(group.programs.len(), "program"));
    let mut text = format!("{}: {nodes} in view {number}, {programs}\n", group.name);
    let (right, left) = (Align::Right, Align::Left);
    let mut table = Table::new(&[("RANK", right), ("HOST", left), ("PID", right), ("NODE", left), ("COMMAND", left)]);
    let rank = |rank: Option<usize>| rank.map_or("-".to_owned(), |rank| rank.to_string());
    let command = |program: &Program| sanitize(&program.command.join(" "), 60);
    for (at, member) in members.iter().enumerate() {
        let program = group.programs.iter().find(|program| program.process == member.process);
        let node: String = member.node.chars().take(8).collect();
        let command = program.map_or_else(String::new, command);
        table.row(vec![rank(Some(at)), sanitize(&member.host, 64), member.process.pid.to_string(), node, command]);
    }
    let joined = |program: &Program| members.iter().any(|member| member.process == program.process);
    for program in group.programs.iter().filter(|program| !joined(program)) {
        let own = rank(program.rank.map(|rank| rank as usize));
        table.row(vec![
            own,
            sanitize(&program.host, 64),
            program.process.pid.to_string(),
            "-".to_owned(),
            command(program),
        ]);
    }
    text += &table.render();
    text.extend(group.circuits.iter().map(line));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use motet_session::circuits::CircuitMember;
    use motet_session::process::Process;

    #[test]
    fn circuit_is_one_line_whatever_its_name() {
        let process = Process { pid: 1, started: 1 };
        let member = |rank| CircuitMember { rank, node: String::new(), host: String::new(), process };
        let mut circuit = Circuit {
            group: "g".to_owned(),
            name: "halo".to_owned(),
            view: 4,
            number: 2,
            size: 2,
            members: vec![member(0), member(1)],
        };
        assert_eq!(line(&circuit), "circuit halo: number 2, view 4, 2 members\n");
        circuit.members.remove(0);
        circuit.name = "a\nb\u{1b}[2J".to_owned();
        let text = line(&circuit);
        assert!(text.ends_with(", not open at 0\n") && text.lines().count() == 1, "{text:?}");
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
