//! MPI ranks: whether the messages of a rank can use Motet's libfabric provider, and why not.
//!
//! Judged from outside by the names of mapped files, so any library with one of these names counts.

use crate::mpi_skip::SkipReason;
use crate::process_scan::PROVIDER;
use crate::procfs;

/// The transport of the messages of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MpiTransport {
    /// Motet's provider: the rank has a node.
    Motet,
    /// Another one: the provider is loaded, but the rank has no node.
    OtherTransport,
    /// Another one: its libfabric has not loaded the provider.
    NotLoaded,
    /// Another one: libfabric is not loaded.
    NoLibfabric,
    /// MPI's own: `motet run` has not configured it, for this reason.
    Own(SkipReason),
}

/// A line about a process with an MPI library; `None` for any other process.
pub fn note(pid: u32, has_node: bool) -> Option<String> {
    let files = procfs::mapped(pid);
    let (library, transport) = judge(files.iter().map(String::as_str), has_node, SkipReason::of(pid))?;
    let what = match transport {
        MpiTransport::Own(reason) => {
            return Some(format!("MPI ({library}): uses its own transport: {} (docs/mpi.md)", reason.why()));
        }
        MpiTransport::Motet => "its messages use Motet's libfabric provider; its node and links are below",
        MpiTransport::OtherTransport => {
            "its libfabric has loaded Motet's provider, but MPI's settings choose another transport (docs/mpi.md)"
        }
        MpiTransport::NotLoaded => {
            "its libfabric has not loaded Motet's provider: FI_PROVIDER_PATH does not name it; start it with `motet run`"
        }
        MpiTransport::NoLibfabric => {
            "it has loaded no libfabric: it was built without, or its settings exclude it; \
             its messages use its own transport, its connections the sockets adapter"
        }
    };
    Some(format!("MPI ({library}): {what}"))
}

fn judge<'a>(
    files: impl Iterator<Item = &'a str> + Clone,
    has_node: bool,
    reason: Option<SkipReason>,
) -> Option<(&'a str, MpiTransport)> {
    let library =
        files.clone().find(|name| ["libmpi.so", "libmpich.so"].iter().any(|start| name.starts_with(start)))?;
    let has_provider = files.clone().any(|name| name == PROVIDER);
    let is_open_mpi = library.starts_with("libmpi.so.40");
    let transport = match reason.filter(|reason| *reason != SkipReason::OpenMpi || is_open_mpi) {
        Some(reason) if !(has_provider && has_node) => MpiTransport::Own(reason),
        _ if has_provider => {
            if has_node {
                MpiTransport::Motet
            } else {
                MpiTransport::OtherTransport
            }
        }
        _ if files.clone().any(|name| name.starts_with("libfabric.so")) => MpiTransport::NotLoaded,
        _ => MpiTransport::NoLibfabric,
    };
    Some((library, transport))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaded_files_determine_the_transport_of_a_rank() {
        let judged = |files: &[&'static str], has_node| {
            judge(files.iter().copied(), has_node, None).map(|(_, transport)| transport)
        };
        assert_eq!(judged(&["libc.so.6", "libfabric.so.1", PROVIDER], true), None);
        assert_eq!(judged(&["libmpi.so.40.30.4", "libfabric.so.1", PROVIDER], true), Some(MpiTransport::Motet));
        assert_eq!(judged(&["libmpi.so.12", "libfabric.so.1", PROVIDER], false), Some(MpiTransport::OtherTransport));
        assert_eq!(judged(&["libmpi.so.12", "libfabric.so.1"], false), Some(MpiTransport::NotLoaded));
        assert_eq!(judged(&["libmpich.so.12", "libucp.so.0"], false), Some(MpiTransport::NoLibfabric));
        let reason = |files: &[&'static str], has_node| {
            judge(files.iter().copied(), has_node, Some(SkipReason::OneHost)).map(|(_, transport)| transport)
        };
        assert_eq!(
            reason(&["libmpi.so.40.30.4", "libfabric.so.1"], false),
            Some(MpiTransport::Own(SkipReason::OneHost))
        );
        assert_eq!(reason(&["libmpi.so.40.30.4", "libfabric.so.1", PROVIDER], true), Some(MpiTransport::Motet));
        assert_eq!(reason(&["libc.so.6"], false), None);
        let open =
            |library| judge([library].into_iter(), false, Some(SkipReason::OpenMpi)).map(|(_, transport)| transport);
        assert_eq!(open("libmpi.so.40.30.4"), Some(MpiTransport::Own(SkipReason::OpenMpi)));
        assert_eq!(open("libmpi.so.12"), Some(MpiTransport::NoLibfabric));
        assert_eq!(note(std::process::id(), false), None);
    }
}
