//! `motet bench files`: remote files (`docs/files.md`) beside local ones and beside sshfs.
//!
//! What it is: a part for each way to the files. All files are on a tmpfs, so no disk is measured. A part starts the servers that it needs (`scene`) by the
//! command `motet`. What it is not: a test of contents; the tests of `motet-files`, `motet-fuse` and `motet-cli` are that.
//!
//! | part | what |
//! | --- | --- |
//! | `client` | the client of the front ends, by messages and by the directory itself, beside system calls on the folder |
//! | `managed` | completion queues and batches of a program, beside a mount, the preload object, one request at a time, and registration at each request |
//! | `mount` | fio on mounted exports, beside the folder, sshfs and libfuse's passthrough example |
//! | `sshfs` | an unmodified remote file system with and without `motet run` |
//! | `hosts` | two test hosts, beside TCP and sshfs |
//! | `stripes` | a file striped over two and four test hosts, beside one |
//! | `clients` | 1 to 184 clients that write |
//! | `preload` | what the preload object costs a program that opens no exported file |
//! | `blocks` | a file as a disk, beside nbdkit, and as a block device, beside a mounted file |
//! | `link` | a client and a disk between two test hosts, over a link of one rate |
//! | `nfs`, `smb`, `gluster` | unmodified file servers with and without `motet run` |
//! | `model` | where the time of a read goes: client, network, server, disk, each in storage, data, control; and the plots |

mod blocks;
mod client;
mod clients;
mod curves;
mod directport;
mod fio;
mod hosts;
mod link;
mod managed;
mod model;
mod mount;
mod passthrough;
mod preload;
pub(crate) mod scene;
mod shares;
mod sshfs;
mod stripes;

use crate::bench::Bench;
use crate::options::PartOptions;
use crate::parts;
use crate::report::{Curve, Line};
use anyhow::Result;

/// The command line of `motet bench files`.
pub type Options = PartOptions<Part>;

/// A part of the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// The client of the front ends, by messages and direct, beside the local folder
    Client,
    /// Completion queues and batches, beside a mounted export, the preload object and one request at a time
    Managed,
    /// fio on a mounted export, by messages and direct, beside the local folder and sshfs
    Mount,
    /// sshfs without encryption, with and without `motet run`
    Sshfs,
    /// A client and a mount on another test host, beside TCP and sshfs
    Hosts,
    /// A file striped over two and four test hosts, over links of one rate
    Stripes,
    /// 1, 8, 92 and 184 clients that write 64 KiB at a time
    Clients,
    /// The cost of the preload object for a program that opens no exported file
    Preload,
    /// A file as a disk, beside nbdkit and beside a mounted file
    Blocks,
    /// A client and a disk on another test host, over a link of one rate
    Link,
    /// NFS-Ganesha, with and without `motet run`
    Nfs,
    /// Samba, with and without `motet run`
    Smb,
    /// gluster, with and without `motet run`
    Gluster,
    /// The time of a read, by where it goes, and plots of reads and writes over their size
    Model,
}

impl parts::Part for Part {
    fn word(self) -> &'static str {
        match self {
            Part::Client => "client",
            Part::Managed => "managed",
            Part::Mount => "mount",
            Part::Sshfs => "sshfs",
            Part::Hosts => "hosts",
            Part::Stripes => "stripes",
            Part::Clients => "clients",
            Part::Preload => "preload",
            Part::Blocks => "blocks",
            Part::Link => "link",
            Part::Nfs => "nfs",
            Part::Smb => "smb",
            Part::Gluster => "gluster",
            Part::Model => "model",
        }
    }

    fn measure(self, bench: &Bench, curves: &mut Vec<Curve>) -> Result<Vec<Line>> {
        match self {
            Part::Client => client::measure(bench),
            Part::Managed => managed::measure(bench),
            Part::Mount => mount::measure(bench),
            Part::Sshfs => directport::measure(bench),
            Part::Hosts => hosts::measure(bench),
            Part::Stripes => stripes::measure(bench),
            Part::Clients => clients::measure(bench, curves),
            Part::Preload => preload::measure(bench),
            Part::Blocks => blocks::measure(bench),
            Part::Link => link::measure(bench),
            Part::Nfs => shares::ganesha(bench),
            Part::Smb => shares::samba(bench),
            Part::Gluster => shares::gluster(bench),
            Part::Model => model::measure(bench, curves),
        }
    }
}
