//! Message brokers, which run on their own runtimes: NATS in Go, RabbitMQ in Erlang. A message goes to the broker and back to its sender.

use super::{Plan, Target, called, missing, sandbox, words};
use crate::Options;
use crate::bench::Bench;
use crate::report::{Line, Unit};
use crate::sandbox::{Mode, Ready, Sandbox, Server, Setup};
use anyhow::Result;
use motet_programs::{find, free_port, servers};

/// Row `nats`.
pub fn nats(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "NATS, a message of 64 B from publishing to receiving, in Python";
    if let Some(line) = missing("nats", what, &["nats-server", "python3"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    through(&sandbox, ("nats", what, "nats"), |mode, port| {
        sandbox.server(mode, &["nats-server", "-a", "127.0.0.1", "-p", port], Ready::Listens(port))
    })
}

/// Row `rabbitmq`.
pub fn rabbitmq(bench: &Bench, _: &Options) -> Result<Vec<Line>> {
    let what = "RabbitMQ, a message of 64 B from publishing to receiving, in Python";
    if let Some(line) = missing("rabbitmq", what, &["epmd", "python3"]) {
        return line;
    }
    let sandbox = sandbox(bench)?;
    let python = find("python3").unwrap_or_default().to_string_lossy().into_owned();
    let Some(server) = servers::rabbitmq().filter(|_| sandbox.build(&[&python, "-c", "import pika"]).is_ok()) else {
        let why = "skipped: rabbitmq-server or python3-pika is not installed";
        return Ok(vec![Line::not_measured("rabbitmq", what, why)]);
    };
    through(&sandbox, ("rabbitmq", what, "amqp"), |mode, port| {
        let own = sandbox.subfolder(port)?;
        let environment = servers::rabbitmq_environment(&own, port.parse()?, [free_port()?, free_port()?]);
        let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, value.as_str())).collect();
        sandbox.server_with(mode, &[&server], &environment, Ready::Listens(port))
    })
}

/// Measures one broker, without and with Motet.
fn through(
    sandbox: &Sandbox<'_>,
    (row, what, protocol): (&str, &str, &str),
    start: impl FnMut(Mode, &str) -> Result<Server>,
) -> Result<Vec<Line>> {
    let script = sandbox.file("brokers.py", include_str!("../../../../../tests/bench/brokers.py"))?;
    let both = sandbox.both(start)?;
    let plan = Plan::new(row, what, Unit::Ns, Target::NeverSlower);
    let call = |setup: Setup| words(&["python3", &script, protocol, both.port(setup.mode)]);
    Ok(called(sandbox, plan, call, &format!("64 {}", sandbox.bench.ms * 2), "", |ns| ns))
}
