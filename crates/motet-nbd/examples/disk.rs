//! An export and a disk in it, each in a process of its own. Both end with their standard input.
//!
//! ```text
//! disk export NAME FOLDER         exports a folder
//! disk export-direct NAME FOLDER  the same; processes of this host may use the folder itself
//! disk serve NAME PATH SOCKET     serves a file of it as a disk
//! ```

use motet_files::client::Client;
use motet_files::server::{Options, Server as FileServer};
use motet_nbd::exported_file::ExportedFile;
use motet_nbd::negotiation::Export;
use motet_nbd::server::{Listen, Server};
use std::io::{Error, ErrorKind, Read, Result, stdin};
use std::sync::Arc;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [kind @ ("export" | "export-direct"), name, folder] => {
            let direct = kind == "export-direct";
            let options = Options { name: name.into(), directory: folder.into(), direct, ..Options::default() };
            let _server = FileServer::start(options)?;
            until_end_of_input()
        }
        ["serve", name, path, socket] => {
            let client = Client::named(name, None)?;
            let file = ExportedFile::open(client, path.as_bytes(), false)?;
            let export = Export { name: String::new(), blocks: Arc::new(file) };
            let server = Server::start(export, &Listen::Unix(socket.into()))?;
            println!("{}", server.uri()?);
            until_end_of_input()
        }
        _ => Err(Error::new(ErrorKind::InvalidInput, "say export NAME FOLDER, or serve NAME PATH SOCKET")),
    }
}

fn until_end_of_input() -> Result<()> {
    stdin().read_to_end(&mut Vec::new()).map(drop)
}
