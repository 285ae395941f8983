//! The other hosts of a session: `motet up --hosts` runs an agent for each, such as ssh, which runs `motet up --join` there.
//!
//! What a host needs to join passes through the agent's standard input, because it holds the session's key.

use motet_session::hosts::{Host, JoinConfig};
use motet_session::paths::{NAME_VARIABLE, SessionPaths};
use motet_session::private_file::write_private;
use serde::Serialize;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::exit_error::{FAILED, Failure, Outcome, USAGE};
use crate::output::{self, Align, Table};
use crate::session;

/// The agent that is used unless another one is named.
pub const DEFAULT_AGENT: &str = "ssh -o BatchMode=yes %h";
/// Agents that run at a time.
const MAX_AGENTS: usize = 32;
/// The wait for one agent: it connects, and starts a gatekeeper.
const AGENT_LIMIT: Duration = Duration::from_secs(30);
/// The longest join configuration, bytes.
const MAX_CONFIG_BYTES: u64 = 64 << 10;
/// The longest output of an agent that is kept, bytes.
const MAX_OUTPUT_BYTES: u64 = 16 << 10;

/// What has become of a host.
#[derive(Debug, Serialize)]
pub struct Started {
    /// The host.
    pub host: String,
    /// Why it has not joined.
    pub error: Option<String>,
}

// ---- on the host that is joined -------------------------------------------------------------------------------------

/// Starts a gatekeeper on each host; returns when all have joined, or failed.
pub fn start(hosts: &[String], config: &JoinConfig, agent: &str, remote_motet: Option<&str>) -> Outcome<Vec<Started>> {
    let words = shlex::split(agent).filter(|words| !words.is_empty());
    let words = words.ok_or_else(|| Failure::new(USAGE, format!("--agent {agent:?}: quotes do not match")))?;
    let own =
        std::env::current_exe().map_err(|error| Failure::new(FAILED, format!("cannot find this program: {error}")))?;
    let motet = remote_motet.map_or_else(|| own.to_string_lossy().into_owned(), str::to_owned);
    // A remote shell would take it apart.
    if !motet.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._+-@%".contains(&byte)) {
        let why =
            format!("the path {motet:?} has characters that a remote shell changes: name another with --remote-motet");
        return Err(Failure::new(USAGE, why));
    }
    let mut started: Vec<Started> = Vec::new();
    for hosts in hosts.chunks(MAX_AGENTS) {
        let (sender, results) = mpsc::channel();
        for host in hosts {
            let (sender, host) = (sender.clone(), host.clone());
            let mut command = agent_command(&words, &host, &motet, &config.session);
            let config = JoinConfig { host: Some(host.clone()), ..config.clone() };
            std::thread::spawn(move || {
                let error = run_agent(&mut command, &config).err();
                let _ = sender.send(Started { host, error });
            });
        }
        drop(sender);
        started.extend(results);
    }
    started.sort_by_key(|one| hosts.iter().position(|host| *host == one.host));
    Ok(started)
}

/// The command that starts a gatekeeper on a host.
fn agent_command(words: &[String], host: &str, motet: &str, session: &str) -> Command {
    let mut words = words.iter().map(|word| word.replace("%h", host));
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).args(["env", &format!("{NAME_VARIABLE}={session}"), motet, "--json", "up", "--join"]);
    // A group of its own: what the agent has started ends with it.
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    command
}

/// Runs an agent to its end. The error says why the host has not joined.
fn run_agent(command: &mut Command, config: &JoinConfig) -> Result<(), String> {
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", command.get_program().to_string_lossy()))?;
    let text = serde_json::to_vec(config).map_err(|error| error.to_string())?;
    if let Some(mut input) = child.stdin.take() {
        let _ = input.write_all(&text); // an agent that ends early says why
    }
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let errors = std::thread::spawn(move || err.map(text_of).unwrap_or_default());
    let output = std::thread::spawn(move || out.map(text_of).unwrap_or_default());
    let until = Instant::now() + AGENT_LIMIT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let group = rustix::process::Pid::from_child(&child);
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                let _ = child.wait();
                return Err(format!("no end after {} s", AGENT_LIMIT.as_secs()));
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    let errors = errors.join().unwrap_or_default();
    let output = output.join().unwrap_or_default();
    let last = |text: &str| text.lines().rev().find(|line| !line.trim().is_empty()).map(str::to_owned);
    let why = last(&errors).or_else(|| last(&output)).unwrap_or_else(|| status.to_string());
    Err(why.trim_start_matches("motet: ").to_owned())
}

fn text_of(mut from: impl Read) -> String {
    let mut text = Vec::new();
    let _ = from.by_ref().take(MAX_OUTPUT_BYTES).read_to_end(&mut text);
    let _ = std::io::copy(&mut from, &mut std::io::sink());
    String::from_utf8_lossy(&text).into_owned()
}

// ---- on the host that joins -----------------------------------------------------------------------------------------

/// Reads a join configuration from standard input.
pub fn read_join_config() -> Outcome<JoinConfig> {
    let mut text = Vec::new();
    let read = std::io::stdin().take(MAX_CONFIG_BYTES).read_to_end(&mut text);
    read.map_err(|error| Failure::new(FAILED, format!("standard input: {error}")))?;
    JoinConfig::parse(&text).map_err(|error| Failure::new(USAGE, error))
}

/// Keeps a join configuration for the gatekeeper.
pub fn accept_join_config(paths: &SessionPaths, config: &JoinConfig, is_up: bool) -> Outcome<()> {
    let failed = |what: &str| Failure::new(FAILED, what.to_owned());
    let text = serde_json::to_vec(config).map_err(|error| failed(&error.to_string()))?;
    if config.session != paths.name() {
        return Err(failed(&format!("the configuration is of session {}, this is {}", config.session, paths.name())));
    }
    let joined = std::fs::read(paths.join_config()).ok().and_then(|text| JoinConfig::parse(&text).ok());
    match joined {
        Some(joined) if joined.key == config.key => {}
        None if !is_up && !paths.journal().exists() => {}
        _ => return Err(failed("another session of this name is up on this host: end it with motet down")),
    }
    paths.create().map_err(|error| failed(&error.to_string()))?;
    for (path, text) in [(paths.join_config(), &text[..]), (paths.key(), config.key.as_bytes())] {
        let written = write_private(&path, text);
        written.map_err(|error| failed(&format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// Removes what [`accept_join_config`] has kept, and the folder: this host has not joined.
pub fn forget_join_config(paths: &SessionPaths) {
    paths.remove_unbegun();
}

// ---- the list ---------------------------------------------------------------------------------------------------------

/// List the hosts of the session
#[derive(Debug, clap::Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {}

/// The command.
pub fn list(_: &Arguments, json: bool) -> Outcome {
    let client = session::client(&session::paths()?)?;
    let hosts = client.get::<Vec<Host>>("/v1/hosts")?;
    if json {
        output::json(&hosts)?;
        return Ok(0);
    }
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[("HOST", left), ("GATEKEEPER", right), ("STATE", left), ("", left)]);
    for host in hosts {
        let state = if host.up { "up" } else { "not connected" };
        let role = if host.primary { "primary" } else { "" };
        let cells = [output::sanitize(&host.name, 64), host.gatekeeper.pid.to_string(), state.into(), role.into()];
        table.row(cells.to_vec());
    }
    output::text(&table.render())?;
    Ok(0)
}
