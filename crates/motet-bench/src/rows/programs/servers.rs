//! nginx, PostgreSQL, MariaDB and memcached with their own load generators.

use super::{Plan, Target, missing, number_after, sandbox};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{Mode, Ready, SETUPS, Sandbox, Server, Setup};
use anyhow::{Context, Result};
use motet_programs::servers;
use motet_sys::rustix::process::Signal;

/// The targets with one client, and with many.
pub(super) const ONE_CLIENT_TARGET: Target = Target::Times(1.3);
const MANY_CLIENTS_TARGET: Target = Target::NeverSlower;

/// Row `nginx`: one worker, which runs as the same user as `wrk`.
pub fn nginx(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    if let Some(line) = missing("nginx", "nginx and wrk, keep-alive", &["nginx", "wrk"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    sandbox.file("small", "hello\n".repeat(10))?;
    let both = sandbox.both(|mode, port| start_nginx(&sandbox, mode, port.parse()?))?;
    let mut lines = Vec::new();
    for (connections, target) in [("1", ONE_CLIENT_TARGET), ("32", MANY_CLIENTS_TARGET)] {
        let plan = Plan::new("nginx", format!("nginx, keep-alive, wrk c={connections}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| wrk(&sandbox, setup, both.port(setup.mode), "small", connections)));
    }
    Ok(lines)
}

/// nginx with one worker, which serves the files of the sandbox's folder. Its pid and temporary files are in a folder of its own.
pub(super) fn start_nginx(sandbox: &Sandbox<'_>, mode: Mode, port: u16) -> Result<Server> {
    let (own, folder) = (sandbox.subfolder(&port.to_string())?, sandbox.path(""));
    let text = servers::nginx_configuration(&own, port, 1, "on");
    let text = text.replace(&format!("root {own}"), &format!("root {folder}"));
    let configuration = sandbox.file(&format!("{port}.conf"), text)?;
    sandbox.server(mode, &servers::nginx(&own, &configuration), Ready::Listens(&port.to_string()))
}

/// Requests a second that wrk reports for one page.
pub(super) fn wrk(sandbox: &Sandbox<'_>, setup: Setup, port: &str, page: &str, connections: &str) -> Result<f64> {
    number_after(&wrk_report(sandbox, setup, port, page, connections)?, "Requests/sec:")
}

/// What wrk reports for one page.
pub(super) fn wrk_report(
    sandbox: &Sandbox<'_>,
    setup: Setup,
    port: &str,
    page: &str,
    connections: &str,
) -> Result<String> {
    let url = format!("http://127.0.0.1:{port}/{page}");
    // wrk counts whole seconds. When it is interrupted it reports what it has done so far.
    let seconds = format!("{:.2}", sandbox.bench.load_ms() as f64 * 1e-3);
    let limited = ["timeout", "--preserve-status", "-s", "INT", &seconds];
    sandbox.client(setup, &[&limited[..], &["wrk", "-t", "1", "-c", connections, "-d", "30s", &url]].concat())
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
    for (clients, transactions, target) in [(1, 6000, ONE_CLIENT_TARGET), (8, 1500, MANY_CLIENTS_TARGET)] {
        let (transactions, count) = (bench.load(clients, transactions).to_string(), clients.to_string());
        let plan = Plan::new("postgresql", format!("{what}, c={clients}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| {
            let at = [&pgbench, "-h", "127.0.0.1", "-p", both.port(setup.mode), "-U", "tester"];
            let how = ["-S", "-n", "-M", "prepared", "-c", &count, "-t", &transactions, "postgres"];
            number_after(&sandbox.client(setup, &[&at[..], &how].concat())?, "tps =")
        }));
    }
    Ok(lines)
}

/// Row `mariadb`: a thread for each connection. The load generator is MariaDB's own.
pub fn mariadb(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "MariaDB, selects by key over TCP";
    if let Some(line) = missing("mariadb", what, &["mariadbd", "mariadb-install-db", "mysqlslap"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let both = sandbox.both(|mode, port| {
        let data = sandbox.path(&format!("data-{mode:?}"));
        sandbox.client(SETUPS[1], &servers::mariadb_data(&data))?;
        sandbox.server(mode, &servers::mariadb(&data, port), Ready::Says("ready for connections"))
    })?;
    let mut lines = Vec::new();
    for (clients, queries, target) in [(1, 8000, ONE_CLIENT_TARGET), (8, 8000, MANY_CLIENTS_TARGET)] {
        let queries = bench.load(clients, queries);
        let plan = Plan::new("mariadb", format!("{what}, c={clients}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| {
            let at = ["mysqlslap", "--no-defaults", "-h", "127.0.0.1", "-P", both.port(setup.mode), "-u", "root"];
            let how = [
                "--create=create table t (a int primary key, b varchar(60)); insert into t values (7, repeat('x', 60))",
                "--delimiter=;",
                "--query=select b from t where a = 7",
                &format!("--concurrency={clients}"),
                &format!("--number-of-queries={queries}"),
            ];
            let reported = sandbox.client(setup, &[&at[..], &how].concat())?;
            Ok(f64::from(queries) / number_after(&reported, "Average number of seconds to run all queries:")?)
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
    for (clients, keys, target) in [(1, 10_000, ONE_CLIENT_TARGET), (32, 1000, MANY_CLIENTS_TARGET)] {
        let keys = bench.load(clients, keys);
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
