//! The processes that `ps`, `top` and `why` show: those of every host of the session, or without a session those of this host.

use std::time::Duration;

use motet_inspect::process_scan::Process;
use motet_inspect::recent;
use motet_inspect::report::HostReport;
use motet_inspect::sampler::Sampler;
use motet_session::api::Session;
use motet_session::client::{Client, ClientError};
use motet_session::hosts::Host;
use motet_session::notes::note;
use serde::Serialize;

use crate::output::sanitize;

/// A gatekeeper that takes longer does not keep the commands from showing this host.
const LIMIT: Duration = Duration::from_secs(3);

/// Where the processes come from.
#[derive(Debug)]
pub enum Source {
    /// The gatekeepers of a session.
    Session(Client),
    /// This command's own scans.
    Here(Sampler),
}

/// A process with the host that it is on.
#[derive(Debug, Serialize)]
pub struct HostProcess {
    /// The host's name in the session; without a session there is none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// The process.
    #[serde(flatten)]
    pub process: Process,
}

impl Source {
    /// The session that the environment names if it is up, else this host.
    pub fn from_env() -> Self {
        let client = motet_session::paths::SessionPaths::from_env().ok().and_then(|paths| Client::of(&paths).ok());
        match client.map(|client| client.within(LIMIT)) {
            Some(client) => match client.get::<Session>("/v1/session") {
                Ok(_) => Self::Session(client),
                Err(ClientError::NotUp) => Self::Here(Sampler::default()),
                Err(error) => {
                    note(format!("{error}; this is what this host itself shows"));
                    Self::Here(Sampler::default())
                }
            },
            None => Self::Here(Sampler::default()),
        }
    }

    /// The processes now, once.
    pub fn once(&mut self) -> Vec<HostReport> {
        match self {
            Self::Session(client) => of_session(client),
            Self::Here(_) => vec![HostReport::of("", recent::scan())],
        }
    }

    /// The processes now, with rates since the last call, or in a session since the gatekeeper's last look.
    pub fn again(&mut self) -> Vec<HostReport> {
        match self {
            Self::Session(client) => of_session(client),
            Self::Here(sampler) => vec![HostReport::of("", sampler.sample())],
        }
    }
}

/// The reports of all hosts of a session. A host that does not answer is named, and left out.
fn of_session(client: &Client) -> Vec<HostReport> {
    let hosts = match client.get::<Vec<Host>>("/v1/hosts") {
        Ok(hosts) => hosts,
        Err(error) => {
            note(error.to_string());
            return Vec::new();
        }
    };
    let report = |host: Host| match client.get::<HostReport>(&format!("/v1/hosts/{}/processes", host.name)) {
        Ok(report) => Some(report),
        Err(error) => {
            note(format!("host {}: {}", sanitize(&host.name, 64), sanitize(&error.to_string(), 200)));
            None
        }
    };
    hosts.into_iter().filter_map(report).collect()
}

/// Whether a table needs a column for the host.
pub fn several(reports: &[HostReport]) -> bool {
    reports.len() > 1
}

/// All processes of all hosts.
pub fn processes(reports: Vec<HostReport>) -> Vec<HostProcess> {
    let of = |report: HostReport| {
        let host = report.host;
        report.processes.into_iter().map(move |process| HostProcess { host: host.clone(), process })
    };
    reports.into_iter().flat_map(of).collect()
}
