//! The default node of a host: a process of `motet node` that the gatekeeper starts when the first module is loaded.
//!
//! It is a program of the session like any other: it lives on when the gatekeeper dies, and ends with the session.

use crate::context::Context;
use motet_session::SESSION_ID_VARIABLE;
use motet_session::modules::DEFAULT_NODE;
use motet_session::notes::note;
use motet_session::paths::{DIR_VARIABLE, NAME_VARIABLE};
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tokio::sync::oneshot;

/// The longest wait for the node to attach.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The arguments by which a default node is known among the session's programs.
const ARGUMENTS: [&str; 2] = ["node", "--default"];

/// The identity of the default node, which is started if there is none.
pub async fn find_or_start(context: &Context) -> Result<String, String> {
    let modules = &context.nodes.shared().modules;
    let _only = modules.starting.lock().await;
    if let Some(node) = modules.resolve(DEFAULT_NODE) {
        return Ok(node);
    }
    let attached = modules.wait_for(|modules| modules.resolve(DEFAULT_NODE));
    let attached = tokio::time::timeout(START_LIMIT, attached);
    let late = |_| format!("the default node does not attach within {} s", START_LIMIT.as_secs());
    // One that a gatekeeper before this one has started is about to attach again.
    if is_running(context).await {
        return attached.await.map_err(late);
    }
    let ended = start(context).map_err(|error| format!("the default node cannot be started: {error}"))?;
    tokio::select! {
        node = attached => node.map_err(late),
        status = ended => {
            let log = std::fs::read_to_string(context.paths.node_log()).unwrap_or_default();
            let last = log.lines().last().unwrap_or("it says nothing").trim_start_matches("motet: ");
            let status = status.map_or_else(|_| "it cannot be waited for".to_owned(), |status| status.to_string());
            Err(format!("the default node does not start ({status}): {last}"))
        }
    }
}

async fn is_running(context: &Context) -> bool {
    let programs = context.directory.programs().await.unwrap_or_default();
    programs.iter().any(|program| {
        program.host == context.host
            && program.command.get(1..) == Some(&ARGUMENTS.map(str::to_owned)[..])
            && program.process.is_running()
    })
}

/// Starts the process, under Motet. The receiver gets its end.
fn start(context: &Context) -> io::Result<oneshot::Receiver<ExitStatus>> {
    let log = OpenOptions::new().create(true).append(true).mode(0o600).open(context.paths.node_log())?;
    let own = std::env::current_exe()?;
    let sessions = context.paths.dir().parent().ok_or(io::ErrorKind::NotFound)?;
    let mut child = Command::new(&own)
        .args(["run", "--"])
        .arg(&own)
        .args(ARGUMENTS)
        .current_dir("/")
        .env(NAME_VARIABLE, context.paths.name())
        .env(DIR_VARIABLE, sessions)
        .env(SESSION_ID_VARIABLE, &context.session_id)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()?;
    let (sender, ended) = oneshot::channel();
    std::thread::Builder::new().name("motet-node".to_owned()).spawn(move || {
        if let Ok(status) = child.wait() {
            note(format_args!("the default node has ended: {status}"));
            let _ = sender.send(status);
        }
    })?;
    Ok(ended)
}
