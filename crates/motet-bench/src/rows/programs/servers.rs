//! nginx, PostgreSQL and memcached with their own load generators.

use super::{Plan, Target, missing, number_after, sandbox};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{Ready, SETUPS};
use anyhow::{Context, Result};
use motet_programs::servers;
use motet_sys::rustix::process::Signal;

/// The targets with one client, and with many.
const ONE_CLIENT_TARGET: Target = Target::Times(1.3);
const MANY_CLIENTS_TARGET: Target = Target::NeverSlower;

/// Row `nginx`: one worker, which runs as the same user as `wrk`.
pub fn nginx(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("nginx", "nginx and wrk, keep-alive", &["nginx", "wrk"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let folder = sandbox.path("");
    sandbox.file("small", "hello\n".repeat(10))?;
    let both = sandbox.both(|mode, port| {
        // Each has its own pid and temporary files.
        let own = format!("{folder}{port}/");
        std::fs::create_dir(&own)?;
        motet_programs::give_away(own.as_ref())?;
        let text = servers::nginx_configuration(&own, port.parse()?, 1, "on")
            .replace(&format!("root {own}"), &format!("root {folder}"));
        let configuration = sandbox.file(&format!("{port}.conf"), text)?;
        sandbox.server(mode, &servers::nginx(&own, &configuration), Ready::Listens(port))
    })?;
    let mut lines = Vec::new();
    for (connections, target) in [("1", ONE_CLIENT_TARGET), ("32", MANY_CLIENTS_TARGET)] {
        let plan = Plan::new("nginx", format!("nginx, keep-alive, wrk c={connections}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| {
            let url = format!("http://127.0.0.1:{}/small", both.port(setup.mode));
            // wrk counts whole seconds. When it is interrupted it reports what it has done so far.
            let seconds = format!("{:.2}", bench.ms as f64 * 4e-3);
            let limited = ["timeout", "--preserve-status", "-s", "INT", &seconds];
            let reported = sandbox
                .client(setup, &[&limited[..], &["wrk", "-t", "1", "-c", connections, "-d", "30s", &url]].concat())?;
            number_after(&reported, "Requests/sec:")
        }));
    }
    Ok(lines)
}

/// Row `postgresql`: a process for each connection.
pub fn postgresql(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "PostgreSQL, pgbench -S over TCP";
    if ["initdb", "postgres", "pgbench"].iter().any(|name| servers::postgresql_program(name).is_none()) {
        return Ok(vec![Line::not_measured("postgresql", what, "skipped: postgresql is not installed")]);
    }
    let sandbox = sandbox(bench)?;
    let pgbench = servers::postgresql_program("pgbench").context("no pgbench")?;
    let without_motet = SETUPS[1];
    let both = sandbox.both(|mode, port| {
        let data = sandbox.path(&format!("data-{mode:?}"));
        sandbox.client(without_motet, &servers::postgresql_data(&data).context("no initdb")?)?;
        let words = servers::postgresql(&data, port).context("no postgres")?;
        let mut server = sandbox.server(mode, &words, Ready::Says("ready to accept connections"))?;
        server.signal = Signal::INT; // the fast shutdown
        sandbox.client(
            without_motet,
            &[&pgbench, "-h", "127.0.0.1", "-p", port, "-U", "tester", "-i", "-q", "postgres"],
        )?;
        Ok(server)
    })?;
    let mut lines = Vec::new();
    for (clients, transactions, target) in [("1", 6000, ONE_CLIENT_TARGET), ("8", 1500, MANY_CLIENTS_TARGET)] {
        let transactions = (if bench.quick { transactions / 4 } else { transactions }).to_string();
        let plan = Plan::new("postgresql", format!("{what}, c={clients}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| {
            let at = [&pgbench, "-h", "127.0.0.1", "-p", both.port(setup.mode), "-U", "tester"];
            let how = ["-S", "-n", "-M", "prepared", "-c", clients, "-t", &transactions, "postgres"];
            number_after(&sandbox.client(setup, &[&at[..], &how].concat())?, "tps =")
        }));
    }
    Ok(lines)
}

/// Row `memcached`, with `memcslap` of libmemcached, which has a thread and a connection for each client.
pub fn memcached(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("memcached", "memcached and memcslap, GET", &["memcached", "memcslap"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let both = sandbox.both(|mode, port| sandbox.server(mode, &servers::memcached(port), Ready::Listens(port)))?;
    let mut lines = Vec::new();
    for (clients, keys, target) in [(1, 10_000, ONE_CLIENT_TARGET), (32, 400, MANY_CLIENTS_TARGET)] {
        let keys = if bench.quick { keys / 4 } else { keys };
        let plan = Plan::new("memcached", format!("memcached GET, c={clients}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| {
            let server = format!("--servers=127.0.0.1:{}", both.port(setup.mode));
            let how = [format!("--concurrency={clients}"), format!("--execute-number={keys}")];
            let reported = sandbox.client(setup, &["memcslap", "--test=get", &server, &how[0], &how[1]])?;
            let line = reported.lines().find(|line| line.contains("keys by")).context("memcslap reports no gets")?;
            Ok(number_after(line, "get")? / number_after(line, "threads:")?)
        }));
    }
    Ok(lines)
}
