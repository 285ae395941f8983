//! Ranks of MPI: what one has loaded tells whether its messages can go over Motet's provider of libfabric, and why not.
//!
//! Seen from outside, by the names of the files that are mapped: a library that only looks like one of these is taken for it.

use crate::mpi_env::Left;
use crate::process_scan::PROVIDER;
use crate::procfs;

/// How a rank stands to the provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// It has a node.
    Carried,
    /// It knows the provider and has no node.
    Declined,
    /// Its libfabric has not loaded the provider.
    Untold,
    /// It has no libfabric.
    WithoutFabric,
    /// `motet run` has told it nothing.
    Left(Left),
}

/// A line about a process that has loaded an MPI library; `None` for any other.
pub fn note(pid: u32, has_node: bool) -> Option<String> {
    let files = procfs::mapped(pid);
    let (library, way) = judge(files.iter().map(String::as_str), has_node, Left::of(pid))?;
    let what = match way {
        Way::Left(left) => return Some(format!("MPI ({library}): its own transport: {} (docs/mpi.md)", left.why())),
        Way::Carried => "its messages go over Motet's provider of libfabric: the node and its links below",
        Way::Declined => {
            "its libfabric has Motet's provider, but no domain of it is open: MPI's settings have chosen another way (docs/mpi.md)"
        }
        Way::Untold => {
            "its libfabric has not loaded Motet's provider: FI_PROVIDER_PATH does not name it, as `motet run` would"
        }
        Way::WithoutFabric => {
            "no libfabric is loaded, because it was built without or its settings leave it out: no provider can serve it; \
             messages go its own way, connections under the sockets voice"
        }
    };
    Some(format!("MPI ({library}): {what}"))
}

fn judge<'a>(
    files: impl Iterator<Item = &'a str> + Clone,
    has_node: bool,
    left: Option<Left>,
) -> Option<(&'a str, Way)> {
    let library =
        files.clone().find(|name| ["libmpi.so", "libmpich.so"].iter().any(|start| name.starts_with(start)))?;
    let has_provider = files.clone().any(|name| name == PROVIDER);
    let is_open_mpi = library.starts_with("libmpi.so.40");
    let way = match left.filter(|left| *left != Left::OpenMpi || is_open_mpi) {
        Some(left) if !(has_provider && has_node) => Way::Left(left),
        _ if has_provider => {
            if has_node {
                Way::Carried
            } else {
                Way::Declined
            }
        }
        _ if files.clone().any(|name| name.starts_with("libfabric.so")) => Way::Untold,
        _ => Way::WithoutFabric,
    };
    Some((library, way))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_rank_has_loaded_tells_its_way() {
        let judged =
            |files: &[&'static str], has_node| judge(files.iter().copied(), has_node, None).map(|(_, way)| way);
        assert_eq!(judged(&["libc.so.6", "libfabric.so.1", PROVIDER], true), None);
        assert_eq!(judged(&["libmpi.so.40.30.4", "libfabric.so.1", PROVIDER], true), Some(Way::Carried));
        assert_eq!(judged(&["libmpi.so.12", "libfabric.so.1", PROVIDER], false), Some(Way::Declined));
        assert_eq!(judged(&["libmpi.so.12", "libfabric.so.1"], false), Some(Way::Untold));
        assert_eq!(judged(&["libmpich.so.12", "libucp.so.0"], false), Some(Way::WithoutFabric));
        let left = |files: &[&'static str], has_node| {
            judge(files.iter().copied(), has_node, Some(Left::OneHost)).map(|(_, way)| way)
        };
        assert_eq!(left(&["libmpi.so.40.30.4", "libfabric.so.1"], false), Some(Way::Left(Left::OneHost)));
        assert_eq!(left(&["libmpi.so.40.30.4", "libfabric.so.1", PROVIDER], true), Some(Way::Carried));
        assert_eq!(left(&["libc.so.6"], false), None);
        let open = |library| judge([library].into_iter(), false, Some(Left::OpenMpi)).map(|(_, way)| way);
        assert_eq!(open("libmpi.so.40.30.4"), Some(Way::Left(Left::OpenMpi)));
        assert_eq!(open("libmpi.so.12"), Some(Way::WithoutFabric));
        assert_eq!(note(std::process::id(), false), None);
    }
}
