//! Servers that pass requests on to others: HAProxy in front of nginx, and nginx in front of PHP-FPM. A request crosses two connections.

use super::servers::{ONE_CLIENT_TARGET, start_nginx, wrk};
use super::{Plan, Target, missing, sandbox};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{Ready, Server};
use anyhow::Result;
use motet_programs::{free_port, servers, services};

/// Row `haproxy`: HTTP, with connections to both sides that stay open.
pub fn haproxy(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "HAProxy in front of nginx, keep-alive";
    if let Some(line) = missing("haproxy", what, &["haproxy", "nginx", "wrk"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    sandbox.file("small", "hello\n".repeat(10))?;
    sandbox.file("large", "x".repeat(100_000))?;
    let mut behind: Vec<Server> = Vec::new();
    let both = sandbox.both(|mode, port| {
        let inner = free_port()?;
        behind.push(start_nginx(&sandbox, mode, inner)?);
        let configuration = sandbox.file(&format!("{port}.haproxy"), services::haproxy(port.parse()?, inner))?;
        sandbox.server(mode, &["haproxy", "-db", "-f", &configuration], Ready::Listens(port))
    })?;
    let mut lines = Vec::new();
    for (page, name, connections, target) in [
        ("small", "60 B", "1", ONE_CLIENT_TARGET),
        ("small", "60 B", "32", Target::NeverSlower),
        ("large", "100 kB", "1", Target::NeverSlower),
        ("large", "100 kB", "32", Target::NeverSlower),
    ] {
        let plan = Plan::new("haproxy", format!("{what}, {name}, wrk c={connections}"), Unit::PerSecond, target);
        lines.extend(plan.measure(&sandbox, |setup| wrk(&sandbox, setup, both.port(setup.mode), page, connections)));
    }
    Ok(lines)
}

/// Row `php`: nginx and two workers, over connections that stay open.
pub fn php(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "PHP-FPM behind nginx, keep-alive";
    let Some(program) = servers::php_fpm() else {
        return Ok(vec![Line::not_measured("php", what, "skipped: php-fpm is not installed")]);
    };
    if let Some(line) = missing("php", what, &["nginx", "wrk"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let script = sandbox.file("answer.php", "<?php echo str_repeat(\"hello\\n\", 10);\n")?;
    let mut workers: Vec<Server> = Vec::new();
    let both = sandbox.both(|mode, port| {
        let fast = free_port()?;
        let own = sandbox.subfolder(port)?;
        let configuration = sandbox.file(&format!("{port}.fpm"), services::php_fpm(&own, fast))?;
        let words = [&program, "--nodaemonize", "--fpm-config", &configuration, "--prefix", &own];
        workers.push(sandbox.server(mode, &words, Ready::Listens(&fast.to_string()))?);
        let text = services::nginx_fastcgi(&own, port.parse()?, fast, &script, true);
        let configuration = sandbox.file(&format!("{port}.conf"), text)?;
        sandbox.server(mode, &servers::nginx(&own, &configuration), Ready::Listens(port))
    })?;
    let mut lines = Vec::new();
    for connections in ["1", "8"] {
        let title = format!("{what}, 60 B, wrk c={connections}");
        let plan = Plan::new("php", title, Unit::PerSecond, Target::NeverSlower);
        lines.extend(plan.measure(&sandbox, |setup| wrk(&sandbox, setup, both.port(setup.mode), "", connections)));
    }
    Ok(lines)
}
