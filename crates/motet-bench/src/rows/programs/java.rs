//! Java between two virtual machines: a selector, channels, java.net, and RMI with the registry of the JDK.

use super::{Plan, Target, called, missing};
use crate::Options;
use crate::bar::{Bar, ProgramKind};
use crate::bench::Bench;
use crate::jvm::{self, RMI_WARM_UP_MS, WARM_UP_MS};
use crate::place::Placement::Free;
use crate::report::{Line, Unit};
use crate::sandbox::Mode::{WithMotet, WithoutMotet};
use crate::sandbox::{Ready, Setup};
use anyhow::Result;
use motet_programs::servers;

/// Row `java`.
pub fn echo(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("java", "Java NIO and java.net echo", &["java", "javac"]) {
        return line;
    }
    let sandbox = jvm::compiled(bench)?;
    sandbox.place_servers(Free);
    let mut lines = Vec::new();
    for (kind, caller, name) in [
        ("nio", "nio", "Java NIO, a selector serves a channel"),
        ("nio", "select", "Java NIO, selectors at both ends"),
        ("net", "net", "java.net"),
    ] {
        let both = sandbox.both_say(&jvm::command(&sandbox, &["PingPong", "serve", kind]))?;
        let start = |setup: Setup| jvm::command(&sandbox, &["PingPong", "call", caller, both.port(setup.mode)]);
        let ask = |size: usize, how: &str| format!("{size} {} {how}", bench.ms * 2);
        let plan = Plan::new("java", format!("{name}, 64 B round trips"), Unit::Ns, Target::Times(15.0));
        let mut times = called(&sandbox, plan, start, &ask(64, "echo"), &format!("64 {WARM_UP_MS} echo"), |ns| ns);
        times[0].bar = (caller == "nio").then(|| Bar::round_trip(ProgramKind::Java));
        lines.extend(times);
        if caller != "select" {
            let plan = Plan::new("java", format!("{name}, 64 KiB writes"), Unit::GBs, Target::Times(8.0));
            let (question, first) = (ask(65536, "stream"), format!("65536 {WARM_UP_MS} stream"));
            let mut rates = called(&sandbox, plan, start, &question, &first, |ns| 65536.0 / ns);
            rates[0].bar = (caller == "nio").then(|| Bar::bandwidth(ProgramKind::Java));
            lines.extend(rates);
        }
    }
    Ok(lines)
}

/// Row `virtual-threads`: one for each connection, at both ends. They wait in an epoll set of epoll sets.
pub fn virtual_threads(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "JDK virtual threads, java.net";
    if let Some(line) = missing("virtual-threads", what, &["javac"]) {
        return line;
    }
    let Ok(java) = std::env::var(jvm::NEWER_JAVA) else {
        let why = format!("skipped: {} does not name a java of JDK 22 or later", jvm::NEWER_JAVA);
        return Ok(vec![Line::not_measured("virtual-threads", what, why)]);
    };
    let sandbox = jvm::compiled(bench)?;
    sandbox.place_servers(Free);
    let both = sandbox.both_say(&jvm::command_of(&java, &sandbox, &["PingPong", "serve", "virtual"]))?;
    let start =
        |setup: Setup| jvm::command_of(&java, &sandbox, &["PingPong", "call", "virtual", both.port(setup.mode)]);
    let mut lines = Vec::new();
    for (size, how, name, unit) in
        [(64, "echo", "64 B round trips", Unit::Ns), (65536, "stream", "64 KiB writes", Unit::GBs)]
    {
        let plan = Plan::new("virtual-threads", format!("{what}, {name}"), unit, Target::NeverSlower);
        let question = |ms: usize| format!("{size} {ms} {how}");
        let value = |ns: f64| if unit == Unit::Ns { ns } else { f64::from(size) / ns };
        lines.extend(called(&sandbox, plan, start, &question(bench.ms * 2), &question(WARM_UP_MS), value));
    }
    Ok(lines)
}

/// Row `rmi`.
pub fn rmi(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "Java RMI, calls with a number";
    if let Some(line) = missing("rmi", what, &["java", "javac", "rmiregistry"]) {
        return line;
    }
    let sandbox = jvm::compiled(bench)?;
    sandbox.place_servers(Free);
    let folder = sandbox.path("");
    // The registry only has the reference; calls go to the server.
    let registries = sandbox.both(|mode, port| {
        sandbox.server_with(mode, &servers::rmiregistry(port), &[("CLASSPATH", &folder)], Ready::Listens(port))
    })?;
    let serve = |mode| {
        sandbox.server(mode, &jvm::command(&sandbox, &["Remote", "serve", registries.port(mode)]), Ready::Says("bound"))
    };
    let _servers = [serve(WithoutMotet)?, serve(WithMotet)?];
    let plan = Plan::new("rmi", what, Unit::Ns, Target::Times(3.0));
    let start = |setup: Setup| jvm::command(&sandbox, &["PingPong", "call", "rmi", registries.port(setup.mode)]);
    let question = format!("8 {} echo", bench.ms * 2);
    Ok(called(&sandbox, plan, start, &question, &format!("8 {RMI_WARM_UP_MS} echo"), |ns| ns))
}
