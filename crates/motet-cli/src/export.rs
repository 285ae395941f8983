//! `motet export`: serves a directory, or one file as a disk, until a signal ends it.

use clap::Args;
use motet_files::client::Client;
use motet_files::exports;
use motet_files::server::{self, Group, Options, Server, Striping};
use motet_nbd::exported_file::ExportedFile;
use motet_session::notes;
use rustix::fs::Mode;
use std::fs::File;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::ending;
use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};
use crate::limits;
use crate::names;
use crate::nbd::{self, Disk};
use crate::output::{self, Align, Table};

/// Export a directory: programs of this user can use it here and on other hosts, until SIGTERM or Ctrl-C
///
/// Clients find it by its name: `motet mount NAME DIRECTORY`, `motet run --files NAME=DIRECTORY -- COMMAND`. A request is executed as this user; if
/// this is root, as the user whose program makes it.
/// A client that loses the server goes on when it is started again.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// The directory
    #[arg(value_name = "DIRECTORY", required_unless_present_any = ["list", "block"])]
    directory: Option<PathBuf>,

    /// Serve this file as a disk to programs that speak NBD, as `motet nbd` does; NAME is the name by which they ask for it
    #[arg(long, value_name = "FILE", conflicts_with_all = ["directory", "list", "no_direct", "stripe"])]
    block: Option<PathBuf>,

    /// With --block: listen at this Unix socket [default: one in the user's private directory]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["directory", "list", "listen"])]
    socket: Option<PathBuf>,

    /// With --block: attach the disk to this host as a block device, whose path is printed; needs root, and nbdfuse or nbd-client
    #[arg(long, conflicts_with_all = ["directory", "list", "listen"])]
    connect: bool,

    /// The name of the export [default: the last component of DIRECTORY or FILE]
    #[arg(long = "as", value_name = "NAME")]
    name: Option<String>,

    /// Refuse changes
    #[arg(long)]
    read_only: bool,

    /// Address to listen at for clients of other hosts [default: asked for by the session's gatekeeper when a client comes]
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Let programs of this host go through the server, too, instead of to the directory itself
    #[arg(long)]
    no_direct: bool,

    /// Stripe new files over this export and others, NAME or HOST:NAME, in this order. The others serve this one alone
    #[arg(long, value_name = "EXPORT", value_delimiter = ',')]
    stripe: Vec<String>,

    /// Bytes of a file in one export before the next one has its turn
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10, requires = "stripe")]
    stripe_unit: u32,

    /// Execute the requests of all users as root, when root exports; otherwise each is executed as its own user
    #[arg(long)]
    squash: bool,

    /// Use the page cache also for files that programs open with O_DIRECT, as NFS servers do
    #[arg(long, conflicts_with = "block")]
    ignore_o_direct: bool,

    /// What reads files that are open with O_DIRECT: io_uring while several reads are under way and where it is permitted, else threads (auto); threads alone; or
    /// io_uring, and fail without
    #[arg(long, value_name = "WAY", value_enum, default_value_t = Storage::Auto, conflicts_with = "block")]
    storage: Storage,

    /// Who may use the export on this host: `user`, this user; or `group:NAME`, also members of that group, as whom their requests are executed where root
    /// exports, else as this user. They name it USER@NAME, an export of root NAME
    #[arg(long, value_name = "WHO", default_value = "user", conflicts_with_all = ["block", "stripe"])]
    to: String,

    /// Show the exports of this host
    #[arg(long, conflicts_with_all = ["directory", "name", "read_only", "listen", "no_direct", "squash"])]
    list: bool,
}

/// What reads files that are open with O_DIRECT.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Storage {
    Auto,
    Threads,
    #[value(name = "io_uring")]
    IoUring,
}

impl From<Storage> for server::Storage {
    fn from(storage: Storage) -> Self {
        match storage {
            Storage::Auto => Self::Auto,
            Storage::Threads => Self::Threads,
            Storage::IoUring => Self::IoUring,
        }
    }
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    if let Some(file) = &arguments.block {
        return block(file, arguments, json);
    }
    let Some(directory) = &arguments.directory else { return list(json) };
    let shown = directory.display();
    let failed = |what: &str, error: std::io::Error| Failure::new(FAILED, format!("{what}: {error}"));
    let directory = directory.canonicalize().map_err(|error| failed(&shown.to_string(), error))?;
    let name = match &arguments.name {
        Some(name) => name.clone(),
        None => directory.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
    };
    if arguments.name.is_none() && name.is_empty() {
        return Err(Failure::new(USAGE, format!("{shown} has no name to export it under: use --as NAME")));
    }
    names::check("export", &name)?;
    for other in &arguments.stripe {
        names::check_export(other)?;
    }
    let ending = ending::Signals::new().map_err(|error| failed("signals", error))?;
    limits::prepare_to_serve().map_err(|error| failed("signals", error))?;
    // Clients have applied their own masks.
    rustix::process::umask(Mode::empty());
    let (read_only, listen) = (arguments.read_only, arguments.listen);
    let striping = (!arguments.stripe.is_empty())
        .then(|| Striping { unit: arguments.stripe_unit, others: arguments.stripe.clone() });
    let (direct, squash) = (!arguments.no_direct, arguments.squash);
    let (ignore_o_direct, storage, group) =
        (arguments.ignore_o_direct, arguments.storage.into(), members(&arguments.to)?);
    let options =
        Options { directory, read_only, listen, direct, striping, squash, ignore_o_direct, storage, group, name };
    let name = options.name.clone();
    let server = Server::start(options).map_err(|error| match error.raw_os_error() {
        Some(98) if listen.is_none() => Failure::new(FAILED, format!("export {name} is served already on this host")),
        _ => failed(&format!("export {name}"), error),
    })?;
    output::text(&format!("{shown} is exported as {name}; use it by: motet mount {name} DIRECTORY\n"))?;
    for other in arguments.stripe.iter().filter(|other| is_missing(other)) {
        notes::note(format!("there is no export {other} yet: new files cannot be used before there is"));
    }
    ending.wait();
    drop(server);
    Ok(0)
}

/// Whether no export has this name at present.
fn is_missing(export: &str) -> bool {
    let found = Client::named(export, Some(Duration::ZERO)).map(|client| client.close());
    found.is_err_and(|error| error.raw_os_error() == Some(2))
}

/// The group that may use an export.
fn members(to: &str) -> Outcome<Option<Group>> {
    match to.split_once(':') {
        None if to == "user" => Ok(None),
        Some(("group", name)) => {
            Group::find(name).map(Some).map_err(|error| Failure::new(USAGE, format!("--to {to}: {error}")))
        }
        _ => Err(Failure::new(USAGE, format!("--to {to}: use user or group:NAME"))),
    }
}

/// Serves a file as a disk.
fn block(file: &Path, arguments: &Arguments, json: bool) -> Outcome {
    let shown = file.display();
    let failed = |error: std::io::Error| {
        let code = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        Failure::new(code, format!("{shown}: {error}"))
    };
    let file = file.canonicalize().map_err(failed)?;
    let (Some(directory), Some(last)) = (file.parent(), file.file_name()) else {
        return Err(Failure::new(USAGE, format!("{shown} is no file")));
    };
    let name = arguments.name.clone().unwrap_or_else(|| last.to_string_lossy().into_owned());
    names::check("export", &name)?;
    let (socket, listen) = (arguments.socket.clone(), arguments.listen);
    let disk = Disk { shown: name.clone().into(), name: name.clone(), socket, listen, connect: arguments.connect };
    // The file alone is served: no path comes from a client.
    let open = || {
        let client = Client::of_directory(File::open(directory)?.into(), arguments.read_only)?;
        let why = "the file is on this host".to_owned();
        Ok((client.clone(), ExportedFile::open(client, last.as_bytes(), arguments.read_only)?, why))
    };
    nbd::serve(disk, &name, open, json)
}

fn list(json: bool) -> Outcome {
    let exports = exports::list(None).map_err(|error| Failure::new(FAILED, error.to_string()))?;
    if json {
        // The address contains a secret.
        let shown: Vec<_> =
            exports.into_iter().map(|export| exports::Info { address: String::new(), ..export }).collect();
        output::json(&shown)?;
        return Ok(0);
    }
    let mut table = Table::new(&[
        ("EXPORT", Align::Left),
        ("PID", Align::Right),
        ("DIRECTORY", Align::Left),
        ("ACCESS", Align::Left),
        ("CLIENTS", Align::Right),
        ("OPEN", Align::Right),
        ("LOCKS", Align::Right),
        ("REQUESTS", Align::Right),
        ("READ", Align::Right),
        ("WRITTEN", Align::Right),
        ("STORAGE", Align::Left),
    ]);
    for export in exports {
        table.row(vec![
            export.name,
            export.process.to_string(),
            output::sanitize(&export.directory, 60),
            if export.read_only { "read-only" } else { "read-write" }.to_owned(),
            export.clients.to_string(),
            export.open_files.to_string(),
            export.locks.to_string(),
            export.requests.to_string(),
            output::bytes(export.bytes_read),
            output::bytes(export.bytes_written),
            output::sanitize(&export.storage, 200),
        ]);
    }
    output::text(&table.render())?;
    Ok(0)
}
