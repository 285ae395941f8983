//! `motet dashboard`: the address of the session's dashboard, with a token that is good for one login.

use clap::Args;
use motet_session::api::Session;
use motet_session::login;

use crate::exit_error::Outcome;
use crate::output;
use crate::session;

/// Print the address of the session's dashboard, good for one login
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {}

/// The command.
pub fn run(_: &Arguments, json: bool) -> Outcome {
    let client = session::client(&session::paths()?)?;
    let listen = client.get::<Session>("/v1/session")?.listen;
    let dashboard = login::dashboard(&client, &listen)?;
    if json {
        output::json(&serde_json::json!({ "dashboard": dashboard }))?;
    } else {
        output::text(&format!("dashboard: {dashboard}\n"))?;
    }
    Ok(0)
}
