//! `motet nbd`: a file of an export as a disk, for programs that speak NBD.

use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{ffi::OsString, io::ErrorKind};

use clap::Args;
use motet_files::client::Client;
use motet_files::uses::{self, Announced};
use motet_nbd::blocks::Blocks;
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};

use crate::exit_error::{FAILED, Failure, NOT_FOUND, Outcome, USAGE};
use crate::kernel_disk::{KernelDisk, Target};
use crate::{ending, limits, names, output};

/// Longest name of the default socket, bytes, so that its path is one that a socket can have.
const MAX_SOCKET_NAME: usize = 64;

/// Serve a file of an export as a disk to programs that speak NBD, until SIGTERM or Ctrl-C
///
/// Prints the URI of the disk, for `qemu-img`, `nbdcopy`, `nbdfuse` and others. The connection is not encrypted: a TCP port is open to everybody who reaches it.
#[derive(Debug, Args)]
#[command(after_help = crate::exit_error::AFTER_HELP)]
pub struct Arguments {
    /// The file: the name of an export, and a path within it; HOST:EXPORT:PATH if several hosts of the session have the export
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

    /// Attach the disk to this host as a block device, whose path is printed, until SIGTERM or Ctrl-C; needs root, and nbdfuse or nbd-client
    #[arg(long, conflicts_with = "listen")]
    connect: bool,

    /// Refuse changes
    #[arg(long)]
    read_only: bool,

    /// Read and write the file past the page caches of this host and of the server's
    #[arg(long)]
    o_direct: bool,

    /// Fail requests that wait longer than this for a server of files that is away [default: wait]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    soft: Option<u64>,
}

/// A disk to serve.
#[derive(Debug)]
pub struct Disk {
    /// What it is, for messages and for the name of its default socket.
    pub shown: OsString,
    /// The name by which clients ask for it.
    pub name: String,
    /// A Unix socket to listen at.
    pub socket: Option<PathBuf>,
    /// A TCP address to listen at.
    pub listen: Option<SocketAddr>,
    /// Attach it to this host as a block device; not with a TCP address.
    pub connect: bool,
}

/// The command.
pub fn run(arguments: &Arguments, json: bool) -> Outcome {
    let (export, path) = parts(&arguments.file)?;
    let disk = Disk {
        shown: arguments.file.clone(),
        name: arguments.export_name.clone(),
        socket: arguments.socket.clone(),
        listen: arguments.listen,
        connect: arguments.connect,
    };
    let limit = arguments.soft.map(Duration::from_secs);
    let open = || {
        let client = Client::named(&export, limit)?;
        let why = uses::why(&client, &export);
        let open = if arguments.o_direct { ExportedFile::open_past_cache } else { ExportedFile::open };
        Ok((client.clone(), open(client, path.as_bytes(), arguments.read_only)?, why))
    };
    serve(disk, &export, open, json)
}

/// Serves a disk until a signal comes. `open` returns the client, the file, and why the client uses the directory itself or messages.
pub fn serve(
    disk: Disk,
    export: &str,
    open: impl FnOnce() -> std::io::Result<(Client, ExportedFile, String)>,
    json: bool,
) -> Outcome {
    if disk.name.len() > 4096 {
        return Err(Failure::new(USAGE, "the name of the disk is longer than 4096 bytes"));
    }
    let listen = match (disk.listen, disk.socket) {
        (Some(address), _) => Listen::Tcp(address),
        (None, Some(path)) => Listen::Unix(path),
        (None, None) => Listen::Unix(default_socket(&disk.shown)?),
    };
    let ending = ending::Signals::new().map_err(|error| Failure::new(FAILED, error.to_string()))?;
    limits::prepare_to_serve().map_err(|error| Failure::new(FAILED, error.to_string()))?;
    let (client, file, why) = open().map_err(|error| {
        let code = if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { FAILED };
        Failure::new(code, format!("cannot open {}: {error}", output::sanitize(&disk.shown.to_string_lossy(), 200)))
    })?;
    let (name, read_only) = (disk.name.clone(), file.is_read_only());
    let served = Export { name: disk.name, blocks: Arc::new(file) };
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("cannot listen: {error}"));
    let server = Server::start(served, &listen).map_err(failed)?;
    let uri = server.uri().map_err(failed)?;
    let attached = match &listen {
        Listen::Unix(socket) if disk.connect => {
            Some(KernelDisk::connect(&Target { uri: &uri, socket, name: &name, read_only })?)
        }
        _ => None,
    };
    let device = attached.as_ref().map(KernelDisk::device);
    match (json, device) {
        (true, None) => output::json(&serde_json::json!({ "uri": uri }))?,
        (true, Some(device)) => output::json(&serde_json::json!({ "uri": uri, "device": device }))?,
        (false, None) => output::text(&format!("{uri}\n"))?,
        (false, Some(device)) => output::text(&format!("{}\n", device.display()))?,
    }
    // Without it the disk works, and is not listed.
    let announced = Announced::start(client, "nbd", export, &uri, &why);
    ending.wait();
    let detached = attached.map(KernelDisk::disconnect);
    drop(announced);
    drop(server);
    detached.transpose()?;
    Ok(0)
}

/// The export, NAME or HOST:NAME, and the path within it without leading slashes. A path that contains a colon begins with a slash.
fn parts(file: &OsString) -> Outcome<(String, OsString)> {
    let bytes = file.as_bytes();
    let wrong =
        || Failure::new(USAGE, "say EXPORT:PATH or HOST:EXPORT:PATH: the name of an export, and a file within it");
    let first = bytes.iter().position(|byte| *byte == b':').ok_or_else(wrong)?;
    let second = bytes[first + 1..].iter().position(|byte| *byte == b':').map(|at| first + 1 + at);
    let with_host = second.and_then(|end| Some((std::str::from_utf8(&bytes[..end]).ok()?, end)));
    let with_host = with_host.filter(|(export, _)| names::check_export(export).is_ok());
    let (export, end) = match with_host {
        Some(found) => found,
        None => (std::str::from_utf8(&bytes[..first]).map_err(|_| wrong())?, first),
    };
    names::check_export(export)?;
    let path = &bytes[end + 1..];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_an_export_and_perhaps_a_host() {
        let split = |text: &str| parts(&text.into()).map(|(export, path)| (export, path.into_string().unwrap())).ok();
        let expected = |export: &str, path: &str| Some((export.to_owned(), path.to_owned()));
        assert_eq!(split("results:disk"), expected("results", "disk"));
        assert_eq!(split("a:results://x/disk"), expected("a:results", "x/disk"));
        assert_eq!(split("results:/x:disk"), expected("results", "x:disk"));
        assert_eq!(split("results:x/y:disk"), expected("results", "x/y:disk"));
        assert_eq!(split("a:results:x:disk"), expected("a:results", "x:disk"));
        for wrong in ["disk", "results:", "a:results:", "../x:disk", "results:/"] {
            assert_eq!(split(wrong), None, "{wrong}");
        }
    }
}
