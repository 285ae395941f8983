//! The session of this user on this host, for the commands that use it.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use motet_session::SESSION_ID_VARIABLE;
use motet_session::api::Session;
use motet_session::client::{Client, ClientError};
use motet_session::launcher::PLACE_VARIABLES;
use motet_session::paths::SessionPaths;
use motet_sys::inherited::only_standard_descriptors;

use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};
use crate::gatekeeper::ANOTHER_RUNS;

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match error {
            ClientError::NotUp | ClientError::Refused(404, _) => NOT_FOUND,
            _ => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

/// The longest wait for a gatekeeper that another command starts at the same time.
const OTHER_LIMIT: Duration = Duration::from_secs(5);

/// The session that the environment names.
pub fn paths() -> Outcome<SessionPaths> {
    SessionPaths::from_env().map_err(|error| Failure::new(USAGE, error.to_string()))
}

/// A client of the gatekeeper. One that was killed is started again: its options show that the session has not ended.
pub fn client(paths: &SessionPaths) -> Outcome<Client> {
    let client = Client::of(paths)?;
    match client.get::<serde_json::Value>("/v1/session") {
        Ok(_) => Ok(client),
        Err(ClientError::NotUp) if paths.options().exists() => {
            start_gatekeeper(paths, &[], GatekeeperPlace::Background)?;
            Ok(client)
        }
        Err(error) => Err(error.into()),
    }
}

/// Where a gatekeeper runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatekeeperPlace {
    /// In a session of its own, until the session of Motet ends.
    Background,
    /// With this command: a signal to this command, or to its process group, ends the session.
    Front,
}

/// A session that has a gatekeeper.
#[derive(Debug)]
pub struct Started {
    /// The session.
    pub session: Session,
    /// The gatekeeper, unless another command has started it at the same time.
    pub child: Option<Child>,
}

/// Starts a gatekeeper, and waits until it listens.
pub fn start_gatekeeper(paths: &SessionPaths, arguments: &[&str], place: GatekeeperPlace) -> Outcome<Started> {
    let failed = |what: String| Failure::new(FAILED, what);
    let is_new = !paths.dir().exists();
    paths.create().map_err(|error| failed(error.to_string()))?;
    let log = std::fs::OpenOptions::new().create(true).append(true).mode(0o600).open(paths.log());
    let log = log.map_err(|error| failed(format!("{}: {error}", paths.log().display())))?;
    let own = std::env::current_exe().map_err(|error| failed(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(own);
    for variable in PLACE_VARIABLES {
        command.env_remove(variable); // nodes that the gatekeeper starts are not ranks of this job
    }
    let mut child = only_standard_descriptors(&mut command)
        .args(["gatekeeper", paths.name()])
        .args(arguments)
        .args((place == GatekeeperPlace::Front).then_some("--foreground"))
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .env(SESSION_ID_VARIABLE, "") // the gatekeeper of one session may be started in another one, and is none of its processes
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|error| failed(format!("cannot start the gatekeeper: {error}")))?;
    let mut line = String::new();
    let read = BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line);
    match line.trim_end() {
        "ready" if read.is_ok() => Ok(Started { session: Client::of(paths)?.get("/v1/session")?, child: Some(child) }),
        _ => {
            let status = child.wait().ok().and_then(|status| status.code());
            // Another command has started one at the same time.
            if status == Some(i32::from(ANOTHER_RUNS))
                && let Some(session) = wait_for_other(paths)
            {
                return Ok(Started { session, child: None });
            }
            let log = std::fs::read_to_string(paths.log()).unwrap_or_default();
            let why = log.lines().last().unwrap_or("it says nothing").trim_start_matches("motet: ");
            if is_new {
                paths.remove_unbegun();
            }
            Err(failed(format!("the gatekeeper does not start: {why}")))
        }
    }
}

/// The session, if its gatekeeper begins to answer within a moment.
fn wait_for_other(paths: &SessionPaths) -> Option<Session> {
    let began = Instant::now();
    while began.elapsed() < OTHER_LIMIT {
        if let Ok(session) = Client::of(paths).and_then(|client| client.get("/v1/session")) {
            return Some(session);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
