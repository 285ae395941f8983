//! `motet up` and `motet down`: the beginning and the end of a session.

use clap::Args;
use motet_session::api::{Program, Session, View};
use motet_session::client::{Client, ClientError};
use serde::Serialize;
use std::time::Duration;

use crate::exit_error::Outcome;
use crate::names;
use crate::output;
use crate::session;

/// Programs that end slowly delay the answer to `motet down`.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// Start a session: programs of `motet run` then belong to it, and can form groups
///
/// A gatekeeper runs in the background until `motet down`. It is not needed for the programs' data. MOTET_SESSION names a session other than `default`.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct UpArguments {
    /// The name of this host in the session
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// Address of the API for clients that know the session's key [default: 127.0.0.1, any port]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<std::net::SocketAddr>,
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
}

/// `motet up`.
pub fn up(arguments: &UpArguments, json: bool) -> Outcome {
    if let Some(host) = &arguments.host {
        names::check("host", host)?;
    }
    let paths = session::paths()?;
    let running = Client::of(&paths).and_then(|client| client.get::<Session>("/v1/session"));
    let already = running.is_ok();
    let about = match running {
        Ok(session) => session,
        Err(ClientError::NotUp) => {
            let listen = arguments.listen.map(|listen| listen.to_string());
            let mut options = Vec::new();
            options.extend(listen.iter().flat_map(|listen| ["--listen", listen]));
            options.extend(arguments.host.iter().flat_map(|host| ["--host", host]));
            session::start_gatekeeper(&paths, &options)?
        }
        Err(error) => return Err(error.into()),
    };
    let up = Up { already, key_file: paths.key().display().to_string(), session: about };
    if json {
        output::json(&up)?;
        return Ok(0);
    }
    let Session { name, host, gatekeeper, listen, .. } = &up.session;
    let state = if up.already { "is up already" } else { "is up" };
    let text = format!(
        "session {name} {state} on host {host}: gatekeeper {}\nAPI: http://{listen}/v1/session, with the key in {}\n",
        gatekeeper.pid, up.key_file
    );
    output::text(&text)?;
    Ok(0)
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
