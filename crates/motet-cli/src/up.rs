//! `motet up` and `motet down`: the beginning and the end of a session.

use clap::Args;
use motet_session::api::{Containers, Program, Session, View};
use motet_session::client::{Client, ClientError};
use motet_session::hosts::JoinConfig;
use motet_session::login;
use motet_session::paths::SessionPaths;
use serde::Serialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::containers_argument::ContainersArgument;
use crate::directory_arguments::DirectoryArguments;
use crate::exit_error::{FAILED, Failure, Outcome};
use crate::foreground::Front;
use crate::hosts;
use crate::names;
use crate::output;
use crate::session::{self, GatekeeperPlace, Started};
use crate::step::{self, Exchange, Published, Role, Step};

/// Programs that end slowly delay the answer to `motet down`.
const DOWN_LIMIT: Duration = Duration::from_secs(30);

/// Start a session: programs of `motet run` then belong to it, and can form groups
///
/// A gatekeeper runs in the background until `motet down`, on this host and on those of --hosts. It is not needed for the programs' data. MOTET_SESSION names a session other than `default`. As a task of a Slurm step (`srun --mpi=pmi2 --ntasks-per-node=1 motet up &`), the command stays in front, and each host of the step has a gatekeeper.
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

    /// Whether containers of one host share memory if they see the session's folder [default: same-uid]
    #[arg(long, value_name = "POLICY")]
    containers: Option<ContainersArgument>,

    /// Stay until the session ends; SIGTERM, SIGINT and SIGHUP end it. The default in a task of a Slurm step
    #[arg(long)]
    foreground: bool,

    /// Return when the session is up, also in a task of a Slurm step
    #[arg(long, conflicts_with = "foreground")]
    background: bool,

    /// In a Slurm step: a folder that all hosts see. The hosts get the session's key by a file of mode 600 in it instead of by the step's PMI
    #[arg(long, value_name = "FOLDER")]
    shared: Option<PathBuf>,
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
    /// The command stays in front until the session ends; the step of Slurm that it does so for, if it has not been told to.
    #[serde(skip_serializing_if = "Option::is_none")]
    foreground: Option<String>,
}

/// `motet up`.
pub fn up(arguments: &UpArguments, json: bool) -> Outcome {
    for host in arguments.host.iter().chain(&arguments.hosts) {
        names::check("host", host)?;
    }
    let paths = session::paths()?;
    let step = Step::of_process().filter(|_| !arguments.background);
    // A host that an agent starts, or hosts that are named, are not those of the step.
    match step.as_ref().filter(|_| !arguments.join && arguments.hosts.is_empty()) {
        Some(step) => in_step(arguments, json, &paths, step),
        None => {
            let config = if arguments.join { Some(hosts::read_join_config()?) } else { None };
            let reason = step.map(|step| step.reason()).or(arguments.foreground.then(|| "--foreground".to_owned()));
            let front = if reason.is_some() { Some(Front::note_signals()?) } else { None };
            let begun = begin(arguments, &paths, config.as_ref(), None, front.is_some())?;
            let Begun { about, already, child } = begun;
            let started = add_hosts(arguments, &paths, &about, already)?;
            report(json, &paths, about, already, started, reason)?;
            front.map_or(Ok(0), |front| front.wait(&paths, child))
        }
    }
}

/// The command as a task of a Slurm step: the first task of each host starts its gatekeeper, and all tasks stay until the session ends.
fn in_step(arguments: &UpArguments, json: bool, paths: &SessionPaths, step: &Step) -> Outcome {
    let exchange = step.exchange(arguments.shared.as_deref())?;
    match step.role() {
        Role::First => {
            let host = step.host.as_deref();
            let ready = begin(arguments, paths, None, host, true).and_then(|begun| {
                let config = exchange.is_some().then(|| join_config(arguments, paths, begun.already)).transpose()?;
                Ok((begun, config))
            });
            let what = match &ready {
                Ok((_, config)) => config.clone().map(Published::Join),
                Err(failure) => Some(Published::Failed(failure.message.clone())),
            };
            let published = match (exchange, what) {
                (Some(exchange), Some(what)) => exchange.publish(&what),
                _ => Ok(None),
            };
            let (Begun { about, already, child }, _) = ready?;
            let _file = published?;
            let front = Front::note_signals()?;
            report(json, paths, about, already, Vec::new(), Some(step.reason()))?;
            front.wait(paths, child)
        }
        Role::OfHost => {
            let config = exchange.map(Exchange::published).transpose()?;
            let Begun { about, child, .. } = begin(arguments, paths, config.as_ref(), step.host.as_deref(), true)?;
            let front = Front::note_signals()?;
            if !json {
                output::text(&format!("host {} is up\n", about.host))?;
            }
            front.wait(paths, child)
        }
        Role::Waits => {
            exchange.map_or(Ok(()), Exchange::take_part)?;
            let began = Instant::now();
            while Client::of(paths).and_then(|client| client.get::<Session>("/v1/session")).is_err() {
                if began.elapsed() > step::LIMIT {
                    let why = format!("the gatekeeper of this host is not up within {} s", step::LIMIT.as_secs());
                    return Err(Failure::new(FAILED, why));
                }
                std::thread::sleep(step::PAUSE);
            }
            Front::note_signals()?.wait(paths, None)
        }
    }
}

/// A session that is up on this host.
struct Begun {
    about: Session,
    already: bool,
    /// The gatekeeper, if this command has started it.
    child: Option<Child>,
}

/// Starts the gatekeeper of this host unless it is up. `config`: the session to join; `host`: the name of this host unless the arguments have one.
fn begin(
    arguments: &UpArguments,
    paths: &SessionPaths,
    config: Option<&JoinConfig>,
    host: Option<&str>,
    in_front: bool,
) -> Outcome<Begun> {
    let running = Client::of(paths).and_then(|client| client.get::<Session>("/v1/session"));
    if let Some(config) = config {
        hosts::accept_join_config(paths, config, running.is_ok())?;
    }
    match running {
        Ok(about) => {
            if arguments.containers.is_some_and(|wanted| Containers::from(wanted) != about.containers) {
                let why = "the session is up with another policy for containers: end it with motet down first";
                return Err(Failure::new(FAILED, why));
            }
            Ok(Begun { about, already: true, child: None })
        }
        Err(ClientError::NotUp) => {
            let mut options = Vec::new();
            let listen = plain_and_remote(arguments).0.map(|listen| listen.to_string());
            options.extend(listen.iter().flat_map(|listen| ["--listen", listen]));
            let host = arguments.host.as_deref().or(host);
            options.extend(host.iter().flat_map(|host| ["--host", host]));
            let containers = arguments.containers.map(ContainersArgument::word);
            options.extend(containers.iter().flat_map(|policy| ["--containers", policy]));
            let directory = arguments.directory.to_words()?;
            options.extend(directory.iter().map(String::as_str));
            let place = if in_front { GatekeeperPlace::Front } else { GatekeeperPlace::Background };
            let started = session::start_gatekeeper(paths, &options, place);
            if started.is_err() && config.is_some() {
                hosts::forget_join_config(paths);
            }
            let Started { session: about, child } = started?;
            Ok(Begun { about, already: false, child })
        }
        Err(error) => Err(error.into()),
    }
}

/// The address for clients of this host, and that for other hosts: only the loopback interface may carry the key as it is.
fn plain_and_remote(arguments: &UpArguments) -> (Option<SocketAddr>, Option<SocketAddr>) {
    let has_others = !arguments.hosts.is_empty()
        || Step::of_process().is_some_and(|step| step.has_others() && !arguments.background);
    match arguments.listen {
        Some(listen) if listen.ip().is_loopback() && !has_others => (Some(listen), None),
        listen => (None, listen),
    }
}

/// What other hosts need to join. If this host cannot give it, it does not keep a session that it has just started.
fn join_config(arguments: &UpArguments, paths: &SessionPaths, already: bool) -> Outcome<JoinConfig> {
    let client = Client::of(paths)?;
    let (_, listen) = plain_and_remote(arguments);
    let config = client.post::<JoinConfig>("/v1/join", &serde_json::json!({ "listen": listen }));
    if config.is_err() && !already {
        client.delete("/v1/session")?; // a command that fails leaves nothing behind
    }
    Ok(config?)
}

/// Starts the gatekeepers of the hosts that the arguments name.
fn add_hosts(
    arguments: &UpArguments,
    paths: &SessionPaths,
    about: &Session,
    already: bool,
) -> Outcome<Vec<hosts::Started>> {
    let (_, remote) = plain_and_remote(arguments);
    if arguments.hosts.is_empty() && remote.is_none() {
        return Ok(Vec::new());
    }
    let config = join_config(arguments, paths, already)?;
    let others: Vec<_> = arguments.hosts.iter().filter(|host| **host != about.host).cloned().collect();
    hosts::start(&others, &config, &arguments.agent, arguments.remote_motet.as_deref())
}

/// Prints what is up.
fn report(
    json: bool,
    paths: &SessionPaths,
    session: Session,
    already: bool,
    hosts: Vec<hosts::Started>,
    foreground: Option<String>,
) -> Outcome {
    let failed = hosts.iter().filter(|host| host.error.is_some()).count();
    let dashboard = login::dashboard(&Client::of(paths)?, &session.listen)?;
    let up = Up { already, key_file: paths.key().display().to_string(), session, hosts, dashboard, foreground };
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
        if self.session.containers == Containers::Off {
            text += "containers share no memory\n";
        }
        for started in &self.hosts {
            let host = output::sanitize(&started.host, 64);
            text += &match &started.error {
                None => format!("host {host} is up\n"),
                Some(error) => format!("host {host} is not up: {}\n", output::sanitize(error, 400)),
            };
        }
        if let Some(reason) = &self.foreground {
            text += &format!("stays in front ({reason}): the session ends with this command\n");
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
        let ended = [output::count(programs, "program"), output::count(groups, "group")].join(", ");
        output::text(&format!("session {name} has ended: {ended}\n"))?;
    }
    Ok(0)
}
