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
