//! The end of a session: of the programs and files of this host, and of the other hosts.

use crate::context::Context;
use crate::programs;
use motet_session::process::Process;
use std::time::Duration;

/// The wait for the end of other hosts: their programs have a few seconds to end.
const OTHERS_LIMIT: Duration = Duration::from_secs(15);

/// Ends the session on all hosts but `except`. Returns the number of processes that have ended; the error names hosts that may not have ended.
pub async fn end_everywhere(context: &Context, spared: Option<Process>, except: Option<&str>) -> Result<usize, String> {
    if context.hosts.is_primary() {
        let others = context.hosts.linked().into_iter().filter(|host| Some(&host[..]) != except).collect();
        let (ended, failures) = end_others(context, others).await;
        let here = end_here(context, spared).await?;
        return if failures.is_empty() { Ok(ended + here) } else { Err(failures.join("; ")) };
    }
    // The primary ends all hosts but this one, because the process that wants the end is here.
    let path = format!("/v1/session?except={}", context.host);
    let elsewhere = match context.hosts.uplink(Duration::ZERO).await {
        Some((primary, _)) => end_host(context, &primary, &path).await,
        None => Err("the primary gatekeeper is not connected: run motet down on its host, too".to_owned()),
    };
    let here = end_here(context, spared).await?;
    Ok(elsewhere? + here)
}

async fn end_others(context: &Context, hosts: Vec<String>) -> (usize, Vec<String>) {
    let mut tasks = tokio::task::JoinSet::new();
    for host in hosts {
        let context = context.clone();
        tasks.spawn(async move { end_host(&context, &host, "/v1/session?only_here=true").await });
    }
    let (mut ended, mut failures) = (0, Vec::new());
    for result in tasks.join_all().await {
        match result {
            Ok(count) => ended += count,
            Err(failure) => failures.push(failure),
        }
    }
    (ended, failures)
}

async fn end_host(context: &Context, host: &str, path: &str) -> Result<usize, String> {
    let answer = context.hosts.open(host, "DELETE", path, Vec::new(), OTHERS_LIMIT).await;
    let answer = answer.map_err(|error| error.to_string())?;
    let status = answer.status;
    let body = answer.bytes(1 << 16, OTHERS_LIMIT).await.map_err(|error| format!("host {host}: {error}"))?;
    match status {
        200 => serde_json::from_slice(&body).map_err(|_| format!("host {host}: the answer is no number")),
        _ => Err(format!("host {host}: {}", String::from_utf8_lossy(&body))),
    }
}

/// Ends the session on this host: its programs, its files and this gatekeeper.
pub async fn end_here(context: &Context, spared: Option<Process>) -> Result<usize, String> {
    let ended = programs::end_all(&context.directory, &context.host, &context.live.members, spared).await;
    let cleared = context.directory.clear(&context.session_id, context.hosts.is_primary()).await;
    // The name of the folder is free before the answer, so that the next session can begin.
    let aside = context.paths.dir().with_extension(format!("ended-{}", std::process::id()));
    let moved = std::fs::rename(context.paths.dir(), &aside).and_then(|()| std::fs::remove_dir_all(&aside));
    context.end.send_replace(true);
    moved.map_err(|error| format!("the session's folder cannot be removed: {error}"))?;
    cleared.map_err(|error| format!("the session has ended, but keys of it are left: {error}"))?;
    Ok(ended)
}
