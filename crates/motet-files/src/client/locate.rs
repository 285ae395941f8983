//! Where a client finds the server of an export.

use crate::Result;
use crate::exports::{self, Query, members};
use motet::node::{Node, NodeOptions, options};
use motet_session::api::{ExportAddress, Session};
use motet_session::client::{Client, ClientError};
use motet_session::hosts::Host;
use motet_session::paths::SessionPaths;
use rustix::io::Errno;

/// How a server is found, each time a client connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// By its name on this host, otherwise on the other hosts of the session; `HOST:NAME` on that host; `USER@NAME` of another user of this host, whose server
    /// admits this one's group. Root's need no `USER@`.
    Name(String),
    /// At this address, which contains a secret.
    Address(String),
}

impl Source {
    /// The address of the server at present.
    ///
    /// It may contain a ticket ([`members::split_ticket`]).
    pub fn address(&self) -> Result<String> {
        match self {
            Self::Address(address) => Ok(address.clone()),
            Self::Name(name) if members::is_of_user(name) => Ok(members::ask(name)?.address),
            Self::Name(name) => match name.split_once(':') {
                Some((host, name)) => {
                    let client = session()?;
                    let hosts: Vec<Host> = client.get("/v1/hosts").map_err(as_io)?;
                    if !hosts.iter().any(|known| known.name == host) {
                        return Err(Errno::NOENT.into());
                    }
                    on_host(&client, host, name)
                }
                None => match exports::ask(name, &Query::default()) {
                    Ok(found) => Ok(found.info.address),
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => match of_root(name) {
                        Err(error) if error.kind() == std::io::ErrorKind::NotFound => in_session(name),
                        found => found,
                    },
                    Err(error) => Err(error),
                },
            },
        }
    }
}

impl Source {
    /// A node that connects there.
    pub fn node(&self) -> Result<Node> {
        let other_users = matches!(self, Self::Name(name) if !name.contains(':'));
        Node::with(&NodeOptions { other_users, ..options("", None) }).map_err(crate::engine_error)
    }
}

/// The export of this name that root has for others.
fn of_root(name: &str) -> Result<String> {
    if rustix::process::getuid().is_root() {
        return Err(Errno::NOENT.into());
    }
    Ok(members::ask(&format!("0@{name}"))?.address)
}

fn session() -> Result<Client> {
    let paths = SessionPaths::from_env().map_err(|error| std::io::Error::other(error.to_string()))?;
    Client::of(&paths).map_err(as_io)
}

/// The export of this name on the other hosts of the session. There must be one.
fn in_session(name: &str) -> Result<String> {
    let client = session()?;
    let own: Session = client.get("/v1/session").map_err(as_io)?;
    let hosts: Vec<Host> = client.get("/v1/hosts").map_err(as_io)?;
    let mut found = Vec::new();
    for host in hosts.into_iter().filter(|host| host.up && host.name != own.host) {
        match on_host(&client, &host.name, name) {
            Ok(address) => found.push((host.name, address)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    match found.len() {
        0 => Err(Errno::NOENT.into()),
        1 => Ok(found.swap_remove(0).1),
        _ => {
            let hosts: Vec<_> = found.iter().map(|(host, _)| format!("{host}:{name}")).collect();
            Err(std::io::Error::other(format!("several hosts have it: choose one of {}", hosts.join(", "))))
        }
    }
}

fn on_host(client: &Client, host: &str, name: &str) -> Result<String> {
    let answer: ExportAddress = client.get(&format!("/v1/hosts/{host}/export-addresses/{name}")).map_err(as_io)?;
    Ok(answer.address)
}

/// Without a session, or without the export, there is none of this name.
fn as_io(error: ClientError) -> std::io::Error {
    match error {
        ClientError::NotUp | ClientError::Refused(404, _) => Errno::NOENT.into(),
        error => std::io::Error::other(error.to_string()),
    }
}
