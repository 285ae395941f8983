//! `motet bench globus`: GridFTP over the driver of Globus XIO and under `motet run`, beside TCP (`docs/globus.md`).
//!
//! What it is: the unmodified `globus-gridftp-server` and `globus-url-copy`, without authentication, on this host and on two test hosts. What it is not: a test of
//! contents; the tests of `motet-tests` are that.
//!
//! | part | what |
//! | --- | --- |
//! | `servers` | server to server on one host: files on a tmpfs, and without files |
//! | `client` | a client's download on one host |
//! | `hosts` | server to server between two test hosts |

mod hosts;
mod servers;
mod site;

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::parts;
use crate::report::{Curve, Line};
use anyhow::Result;

/// The command line of `motet bench globus`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Server to server on one host, over the driver and under motet run, beside TCP
    Servers,
    /// A client's download on one host under motet run, beside TCP
    Client,
    /// Server to server between two test hosts, over the driver, beside TCP
    Hosts,
}

impl parts::Part for Part {
    fn word(self) -> &'static str {
        match self {
            Part::Servers => "servers",
            Part::Client => "client",
            Part::Hosts => "hosts",
        }
    }

    fn measure(self, bench: &Bench, _: &mut Vec<Curve>) -> Result<Vec<Line>> {
        match self {
            Part::Servers => servers::third_party(bench),
            Part::Client => servers::download(bench),
            Part::Hosts => hosts::measure(bench),
        }
    }
}
