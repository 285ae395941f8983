//! `motet bench session`: sessions, groups and circuits (`docs/session.md`), beside the limits that they are built for.
//!
//! What it is: a part for each limit. Each starts a session of its own (`scene`) with the command `motet`, and members that are this executable as a
//! worker. Barriers and all-reduces take turns with those of Open MPI, on Motet's libfabric provider and on Open MPI's own transport.
//! What it is not: a test of contents; the tests of `motet-gatekeeper`, `motet-group` and `motet-cli` are that.

mod collectives;
mod directory;
mod etcd;
pub(crate) mod host_scene;
mod lifetimes;
mod modules;
mod on_hosts;
mod openings;
pub(crate) mod scene;
mod watched;

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::parts;
use crate::report::{Curve, Line};
use anyhow::Result;

/// The command line of `motet bench session`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// `motet up` until the session is there; `motet down`
    Up,
    /// A program's start with a gatekeeper, over its start without one
    Start,
    /// A node attaches and joins until the other members know
    Join,
    /// A circuit of 16 nodes is opened
    Circuit,
    /// 1000 openings by 16 processes that contend
    Contended,
    /// Barrier and all-reduce of 8 B on 2 and 8 ranks, beside Open MPI
    Collectives,
    /// The gatekeeper's processor time and memory while nothing happens
    Idle,
    /// The directory while 1000 nodes are attached
    Thousand,
    /// Messages of a circuit while `motet top` watches, over those that are not watched
    Watched,
    /// The gatekeeper is killed: how long until the directory is correct again
    Killed,
    /// A `multi` module is loaded and started on 16 nodes, over one node
    Modules,
    /// `motet up --hosts` on 8 test hosts
    UpHosts,
    /// A node attaches and joins until members on 8 test hosts know
    JoinHosts,
    /// Gatekeepers of 8 test hosts are killed
    KilledHosts,
    /// The etcd with the directory is killed and started again
    Etcd,
}

impl parts::Part for Part {
    fn word(self) -> &'static str {
        match self {
            Part::Up => "up",
            Part::Start => "start",
            Part::Join => "join",
            Part::Circuit => "circuit",
            Part::Contended => "contended",
            Part::Collectives => "collectives",
            Part::Idle => "idle",
            Part::Thousand => "thousand",
            Part::Watched => "watched",
            Part::Killed => "killed",
            Part::Modules => "modules",
            Part::UpHosts => "up-hosts",
            Part::JoinHosts => "join-hosts",
            Part::KilledHosts => "killed-hosts",
            Part::Etcd => "etcd",
        }
    }

    fn measure(self, bench: &Bench, _: &mut Vec<Curve>) -> Result<Vec<Line>> {
        match self {
            Part::Up => lifetimes::up(bench),
            Part::Start => lifetimes::start(bench),
            Part::Join => directory::join(bench),
            Part::Circuit => openings::circuit(bench),
            Part::Contended => openings::contended(bench),
            Part::Collectives => collectives::measure(bench),
            Part::Idle => directory::idle(bench),
            Part::Thousand => directory::thousand(bench),
            Part::Watched => watched::measure(bench),
            Part::Killed => lifetimes::killed(bench),
            Part::Modules => modules::measure(bench),
            Part::UpHosts => on_hosts::up(bench),
            Part::JoinHosts => on_hosts::join(bench),
            Part::KilledHosts => on_hosts::killed(bench),
            Part::Etcd => etcd::killed(bench),
        }
    }
}
