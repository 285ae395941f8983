//! `motet up` and `motet down`: the beginning and the end of a session.

use clap::Args;
use motet_session::api::{Program, Session, View};
use motet_session::client::{Client, ClientError};
use motet_session::hosts::JoinConfig;
use motet_session::login;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;

use crate::directory_arguments::DirectoryArguments;
use crate::exit_error::{FAILED, Failure, Outcome};
use crate::hosts;
use crate::names;
use crate::output;
use crate::session;

/// Programs that end slowly delay the answer to `motet down`.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// Start a session: programs of `motet run` then belong to it, and can form groups
///
/// A gatekeeper runs in the background until `motet down`, on this host and on those of --hosts. It is not needed for the programs' data. MOTET_SESSION names a session other than `default`.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct UpArguments {
    /// The name of this host in the session
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Address to listen at for other hosts and for clients that know the session's key. One of the loopback interface is for plain HTTP, others are
    /// for TLS [default: 127.0.0.1, and with --hosts all addresses, any port]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Start a gatekeeper on each of these hosts, too, which join the session
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', conflicts_with = "join")]
    hosts: Vec<String>,

    /// The command that runs another one on host %h
    #[arg(long, value_name = "COMMAND", default_value = hosts::DEFAULT_AGENT, requires = "hosts")]
    agent: String,

    /// The program `motet` on the other hosts [default: the path of this one]
    #[arg(long, value_name = "PATH", requires = "hosts")]
    remote_motet: Option<String>,

    /// Join the session of another host, as described by standard input; `motet up --hosts` starts it so
    #[arg(long)]
    join: bool,

    #[command(flatten)]
    directory: DirectoryArguments,
}

/// End the session: its programs get SIGTERM, after 3 s SIGKILL
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct DownArguments {}

/// What `motet up` reports.
#[derive(Serialize)]
struct Up {
    session: Session,
    /// The session was up already.
    already: bool,
    key_file: String,
    /// The hosts that were started or were up already.
    hosts: Vec<hosts::Started>,
    /// The address of the dashboard, good for one login.
    dashboard: String,
}

/// `motet up`.
pub fn up(arguments: &UpArguments, json: bool) -> Outcome {
    for host in arguments.host.iter().chain(&arguments.hosts) {
        names::check("host", host)?;
    }
    let paths = session::paths()?;
    let running = Client::of(&paths).and_then(|client| client.get::<Session>("/v1/session"));
    let already = running.is_ok();
    if arguments.join {
        hosts::accept_join_config(&paths, already)?;
    }
    // Only the loopback interface may carry the key as it is.
    let (plain, remote) = match arguments.listen {
        Some(listen) if listen.ip().is_loopback() && arguments.hosts.is_empty() => (Some(listen), None),
        listen => (None, listen),
    };
    let about = match running {
        Ok(session) => session,
        Err(ClientError::NotUp) => {
            let listen = plain.map(|listen| listen.to_string());
            let mut options = Vec::new();
            options.extend(listen.iter().flat_map(|listen| ["--listen", listen]));
            options.extend(arguments.host.iter().flat_map(|host| ["--host", host]));
            let directory = arguments.directory.to_words()?;
            options.extend(directory.iter().map(String::as_str));
            let started = session::start_gatekeeper(&paths, &options);
            if started.is_err() && arguments.join {
                hosts::forget_join_config(&paths);
            }
            started?
        }
        Err(error) => return Err(error.into()),
    };
    let mut started = Vec::new();
    if !arguments.hosts.is_empty() || remote.is_some() {
        let client = Client::of(&paths)?;
        let config = client.post::<JoinConfig>("/v1/join", &serde_json::json!({ "listen": remote }));
        if config.is_err() && !already {
            client.delete("/v1/session")?; // a command that fails leaves nothing behind
        }
        let config = config?;
        let others: Vec<_> = arguments.hosts.iter().filter(|host| **host != about.host).cloned().collect();
        started = hosts::start(&others, &config, &arguments.agent, arguments.remote_motet.as_deref())?;
    }
    let failed = started.iter().filter(|host| host.error.is_some()).count();
    let dashboard = login::dashboard(&Client::of(&paths)?, &about.listen)?;
    let up = Up { already, key_file: paths.key().display().to_string(), session: about, hosts: started, dashboard };
    if json {
        output::json(&up)?;
    } else {
        output::text(&up.text())?;
    }
    match failed {
        0 => Ok(0),
        _ => Err(Failure::new(FAILED, format!("{failed} of {} hosts have not joined", up.hosts.len()))),
    }
}

impl Up {
    fn text(&self) -> String {
        let Session { name, host, gatekeeper, listen, .. } = &self.session;
        let state = if self.already { "is up already" } else { "is up" };
        let mut text = format!("session {name} {state} on host {host}: gatekeeper {}\n", gatekeeper.pid);
        text += &format!("API: http://{listen}/v1/session, with the key in {}\n", self.key_file);
        text += &format!("dashboard: {}\n", self.dashboard);
        for started in &self.hosts {
            let host = output::sanitize(&started.host, 64);
            text += &match &started.error {
                None => format!("host {host} is up\n"),
                Some(error) => format!("host {host} is not up: {}\n", output::sanitize(error, 400)),
            };
        }
        text
    }
}

/// `motet down`.
pub fn down(_: &DownArguments, json: bool) -> Outcome {
    let paths = session::paths()?;
    let client = session::client(&paths)?;
    let name = client.get::<Session>("/v1/session")?.name;
    let programs = client.get::<Vec<Program>>("/v1/programs")?.len();
    let groups = client.get::<Vec<View>>("/v1/groups")?.len();
    client.within(DOWN_LIMIT).delete("/v1/session")?;
    if json {
        output::json(&serde_json::json!({ "session": name, "programs": programs, "groups": groups }))?;
    } else {
        output::text(&format!("session {name} has ended: {programs} programs, {groups} groups\n"))?;
    }
    Ok(0)
}
