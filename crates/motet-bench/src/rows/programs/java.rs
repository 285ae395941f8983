//! The machine's Java: a selector, channels and java.net between two virtual machines; calls over RMI with the stock registry.

use super::{Asked, Plan, called, missing, words};
use crate::Options;
use crate::bench::Bench;
use crate::overview::{Bar, Program};
use crate::report::{Line, Unit};
use crate::stage::Mode::{Motet, WithoutMotet};
use crate::stage::{Ready, Stage, Way};
use anyhow::Result;
use motet_programs::servers;

const SOURCES: [(&str, &str); 2] = [
    ("PingPong.java", include_str!("../../../../../tests/bench/PingPong.java")),
    ("Remote.java", include_str!("../../../../../tests/programs/java/Remote.java")),
];

/// The programs, compiled.
pub fn compiled(bench: &Bench) -> Result<Stage<'_>> {
    let stage = Stage::new(bench)?;
    let mut all = vec!["javac".to_owned(), "-d".to_owned(), stage.path("")];
    for (name, text) in SOURCES {
        all.push(stage.file(name, text)?);
    }
    stage.build(&all)?;
    Ok(stage)
}

/// What starts one of them.
pub fn java(stage: &Stage<'_>, more: &[&str]) -> Vec<String> {
    let folder = stage.path("");
    let all = ["java", "-Xshare:auto", "-Xmx128m", "-Djava.rmi.server.hostname=127.0.0.1", "-cp", &folder];
    words(&[&all, more].concat())
}

/// So long until the compiler of a virtual machine is done with the loop over a socket, or with all that lies under a remote call, ms.
pub const COMPILED: usize = 1000;
const COMPILED_RMI: usize = 4000;

/// Row `java`.
pub fn echo(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("java", "Java NIO and java.net echo", &["java", "javac"]) {
        return line;
    }
    let stage = compiled(bench)?;
    let mut lines = Vec::new();
    for (kind, caller, name) in [
        ("nio", "nio", "Java NIO, a selector serves a channel"),
        ("nio", "select", "Java NIO, selectors at both ends"),
        ("net", "net", "java.net"),
    ] {
        let both = stage.both_say(&java(&stage, &["PingPong", "serve", kind]))?;
        let start = |way: Way| java(&stage, &["PingPong", "call", caller, both.port(way.mode)]);
        let ask = |size: usize, how: &str| format!("{size} {} {how}", bench.ms * 2);
        let plan = Plan::new("java", format!("{name}, 64 B round trips"), Unit::Ns, Asked::Times(15.0));
        let line = called(&stage, plan, start, &ask(64, "echo"), &format!("64 {COMPILED} echo"), |ns| ns);
        lines.push(if caller == "nio" { line.bar(Bar::round_trip(Program::Java)) } else { line });
        if caller != "select" {
            let plan = Plan::new("java", format!("{name}, 64 KiB writes"), Unit::GBs, Asked::Times(8.0));
            let (question, first) = (ask(65536, "stream"), format!("65536 {COMPILED} stream"));
            let line = called(&stage, plan, start, &question, &first, |ns| 65536.0 / ns);
            lines.push(if caller == "nio" { line.bar(Bar::bandwidth(Program::Java)) } else { line });
        }
    }
    Ok(lines)
}

/// Row `rmi`.
pub fn rmi(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "Java RMI, calls with a number";
    if let Some(line) = missing("rmi", what, &["java", "javac", "rmiregistry"]) {
        return line;
    }
    let stage = compiled(bench)?;
    let folder = stage.path("");
    // The registry keeps the reference alone; calls go to the server itself.
    let registries = stage.both(|mode, port| {
        stage.server_with(mode, &servers::rmiregistry(port), &[("CLASSPATH", &folder)], Ready::Listens(port))
    })?;
    let serve =
        |mode| stage.server(mode, &java(&stage, &["Remote", "serve", registries.port(mode)]), Ready::Says("bound"));
    let _servers = [serve(WithoutMotet)?, serve(Motet)?];
    let plan = Plan::new("rmi", what, Unit::Ns, Asked::Times(3.0));
    let start = |way: Way| java(&stage, &["PingPong", "call", "rmi", registries.port(way.mode)]);
    let question = format!("8 {} echo", bench.ms * 2);
    Ok(vec![called(&stage, plan, start, &question, &format!("8 {COMPILED_RMI} echo"), |ns| ns)])
}
