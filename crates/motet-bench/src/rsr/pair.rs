//! Two processes of this executable, one that serves and one that measures, each on a CPU of its own.

use crate::bench::Bench;
use crate::files::scene;
use crate::hosts::Hosts;
use crate::pair::Process;
use crate::place::Placement;
use anyhow::Result;
use std::cell::RefCell;

/// The most data in one packet, bytes: the default.
pub const ONE_PACKET: usize = motet_rsr::MAX_ONE_PACKET;

/// The two processes. They end when this is dropped.
pub struct Pair {
    caller: RefCell<Process>,
    _server: Process,
}

impl Pair {
    /// Starts them. `reception`: that of both; `one_packet`: the most data in one packet, bytes.
    pub fn start(bench: &Bench, reception: &str, one_packet: usize) -> Result<Self> {
        Self::start_at(bench, reception, one_packet, None)
    }

    /// Starts them on two test hosts.
    pub fn start_on(bench: &Bench, reception: &str, hosts: &Hosts) -> Result<Self> {
        Self::start_at(bench, reception, ONE_PACKET, Some(hosts))
    }

    fn start_at(bench: &Bench, reception: &str, one_packet: usize, hosts: Option<&Hosts>) -> Result<Self> {
        let worker = bench.worker(&["rsr"]);
        let worker = hosts.map_or(worker.clone(), |hosts| hosts.spread(worker));
        let [server_cpu, caller_cpu] = bench.cpus.of(Placement::Two, 0);
        let one_packet = one_packet.to_string();
        let mut command = worker.command(0, "serve");
        command.args([reception, &one_packet]).args(hosts.map(Hosts::address));
        let mut server = Process::start(command, &bench.cpus, server_cpu)?;
        let start = server.line()?;
        let mut command = worker.command(1, "call");
        command.args([reception, &one_packet, &start]);
        let caller = RefCell::new(Process::start(command, &bench.cpus, caller_cpu)?);
        Ok(Self { caller, _server: server })
    }

    /// The median time of one operation, ns.
    pub fn ask(&self, question: &str) -> Result<f64> {
        Ok(scene::ask(&mut self.caller.borrow_mut(), question)?[0])
    }
}
