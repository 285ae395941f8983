//! `motet nbd`: a file of an export as a disk, for programs that speak NBD.

use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{ffi::OsString, io::ErrorKind};

use clap::Args;
use motet_files::client::Client;
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};
use crate::{children, names, output};

/// Longest name of the default socket, bytes, so that its path is one that a socket can have.
const MAX_SOCKET_NAME: usize = 64;

/// Serve a file of an export as a disk to programs that speak NBD, until SIGTERM or Ctrl-C
///
/// Prints the URI of the disk, for `qemu-img`, `nbdcopy`, `nbdfuse` and others. The connection is not encrypted: a TCP port is open to everybody who reaches it.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// The file: the name of an export of this host, and a path within it
    #[arg(value_name = "EXPORT:PATH")]
    file: OsString,

    /// The name by which clients ask for the disk; the empty name is good, too
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    export_name: String,

    /// Listen at this Unix socket [default: one in the user's private directory]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,

    /// Listen at this TCP address
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,

    /// Refuse changes
    #[arg(long)]
    read_only: bool,

    /// Fail requests that wait longer than this for a server of files that is away [default: wait]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    soft: Option<u64>,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let (export, path) = parts(&arguments.file)?;
    if arguments.export_name.len() > 4096 {
        return Err(Failure::new(USAGE, "the name of the disk is longer than 4096 bytes"));
    }
    let listen = match (&arguments.listen, &arguments.socket) {
        (Some(address), _) => Listen::Tcp(*address),
        (None, Some(path)) => Listen::Unix(path.clone()),
        (None, None) => Listen::Unix(default_socket(&arguments.file)?),
    };
    // Ignored signals (nohup) stay ignored.
    let ignored = children::ignored_signals();
    let caught = [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let mut signals = Signals::new(caught).map_err(|error| Failure::new(FAILED, error.to_string()))?;
    let limit = arguments.soft.map(Duration::from_secs);
    let opened = Client::named(&export, limit)
        .and_then(|client| ExportedFile::open(client, path.as_bytes(), arguments.read_only));
    let file = opened.map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        Failure::new(code, format!("cannot open {}: {error}", output::sanitize(&arguments.file.to_string_lossy(), 200)))
    })?;
    let disk = Export { name: arguments.export_name.clone(), blocks: Arc::new(file) };
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("cannot listen: {error}"));
    let server = Server::start(disk, &listen).map_err(failed)?;
    let uri = server.uri().map_err(failed)?;
    if json {
        output::json(&serde_json::json!({ "uri": uri }))?;
    } else {
        output::text(&format!("{uri}\n"))?;
    }
    signals.forever().next();
    // A second signal ends the process at once.
    std::thread::Builder::new()
        .name("motet-signals".to_owned())
        .spawn(move || {
            signals.forever().for_each(|signal| drop(signal_hook::low_level::emulate_default_handler(signal)))
        })
        .map_err(|error| Failure::new(FAILED, error.to_string()))?;
    drop(server);
    Ok(0)
}

/// The name of the export, and the path within it without leading slashes.
fn parts(file: &OsString) -> Outcome<(String, OsString)> {
    let bytes = file.as_bytes();
    let wrong = || Failure::new(USAGE, "say EXPORT:PATH: the name of an export, and a file within it");
    let colon = bytes.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
    let export = std::str::from_utf8(&bytes[..colon]).map_err(|_| wrong())?;
    names::check("export", export)?;
    let path = &bytes[colon + 1..];
    let path = &path[path.iter().position(|byte| *byte != b'/').ok_or_else(wrong)?..];
    Ok((export.to_owned(), OsString::from_vec(path.to_vec())))
}

/// The socket in the user's private directory for this file.
fn default_socket(file: &OsString) -> Outcome<PathBuf> {
    let directory = motet_session::paths::exports_folder().map_err(|error| Failure::new(FAILED, error.to_string()))?;
    let plain = |byte: &u8| if byte.is_ascii_alphanumeric() || b"-.".contains(byte) { char::from(*byte) } else { '_' };
    let name: String = file.as_bytes().iter().map(plain).collect();
    if name.len() > MAX_SOCKET_NAME {
        return Err(Failure::new(USAGE, "the name of the file is too long for a socket: choose one with --socket"));
    }
    Ok(directory.join(format!("{name}.nbd")))
}
