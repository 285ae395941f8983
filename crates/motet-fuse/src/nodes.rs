//! What the kernel knows of the export: numbers of files, each with the names under which it was found.
//!
//! The kernel speaks of numbers, the protocol of paths. A file has the number that it has on the server; the exported directory itself is 1.

use motet_files::protocol::{Attributes, Time};
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

/// The number of the exported directory.
pub const ROOT: u64 = 1;
/// Deepest path.
const MAX_DEPTH: usize = 2048;
/// Where the number of the device begins in numbers of files that are on another device than the exported directory.
const DEVICE_SHIFT: u32 = 48;

/// The content that the kernel may have cached: that of a file with these attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContentVersion {
    size: u64,
    modified: Time,
    changed: Time,
}

impl ContentVersion {
    /// The version of a file with these attributes.
    pub fn of(attributes: &Attributes) -> Self {
        Self { size: attributes.size, modified: attributes.modified, changed: attributes.changed }
    }
}

/// A name: the number of the directory, and the name in it.
pub type Name = (u64, OsString);

#[derive(Debug, Default)]
struct Node {
    /// How often the kernel has looked it up and not forgotten it.
    lookups: u64,
    /// Its names; none when all are removed and it is still open.
    names: Vec<Name>,
    /// Its device on the server, and its number there.
    identity: (u64, u64),
    /// Its type, as the upper bits of `st_mode`.
    kind: u32,
    cached: Option<ContentVersion>,
    /// The version whose attributes, and length, it got last.
    told: Option<ContentVersion>,
    /// Whether it is a directory with a default access list, and since when that is known.
    default_list: Option<(bool, Instant)>,
}

/// What has other paths after a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// These files, as far as the kernel knows them.
    Files([Option<u64>; 2]),
    /// What is in a directory.
    Directory,
}

/// The bits of a mode that say the type.
const TYPE_BITS: u32 = 0o170_000;
/// Those of a directory.
const DIRECTORY: u32 = 0o040_000;

/// All files that the kernel knows.
#[derive(Debug)]
pub struct Nodes {
    nodes: HashMap<u64, Node>,
    names: HashMap<Name, u64>,
    root: (u64, u64),
    /// Devices in the export other than that of the exported directory.
    devices: Vec<u64>,
}

impl Nodes {
    /// Only the exported directory, with these attributes.
    pub fn new(root: &Attributes) -> Self {
        let identity = (root.device, root.inode);
        let nodes = HashMap::from([(ROOT, Node { lookups: 1, identity, ..Node::default() })]);
        Self { nodes, names: HashMap::new(), root: identity, devices: Vec::new() }
    }

    /// The number of a file with these attributes.
    pub fn number(&mut self, attributes: &Attributes) -> u64 {
        if (attributes.device, attributes.inode) == self.root {
            return ROOT;
        }
        if attributes.device == self.root.0 {
            return attributes.inode;
        }
        let known = self.devices.iter().position(|&device| device == attributes.device);
        let index = known.unwrap_or_else(|| {
            self.devices.push(attributes.device);
            self.devices.len() - 1
        });
        attributes.inode ^ ((index as u64 + 1) << DEVICE_SHIFT)
    }

    /// The number of a file of the server, if the kernel knows it.
    pub fn known(&self, device: u64, inode: u64) -> Option<u64> {
        let number = if (device, inode) == self.root {
            ROOT
        } else if device == self.root.0 {
            inode
        } else {
            inode ^ ((self.devices.iter().position(|&known| known == device)? as u64 + 1) << DEVICE_SHIFT)
        };
        self.knows(number).then_some(number)
    }

    /// Whether the kernel knows a file of this number, or is about to.
    pub fn knows(&self, number: u64) -> bool {
        self.nodes.contains_key(&number)
    }

    /// The numbers of all files that the kernel knows.
    pub fn numbers(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    /// The directory and the name in it that a path leads to, as far as the kernel knows.
    pub fn name_at(&self, path: &[u8]) -> Option<(u64, OsString)> {
        let mut components = path.split(|&byte| byte == b'/').map(OsStr::from_bytes);
        let name = components.next_back()?;
        let directory = components.try_fold(ROOT, |directory, component| self.named(directory, component))?;
        self.named(directory, name).map(|_| (directory, name.to_owned()))
    }

    /// All names that the kernel knows, with the directories that they are in; those of directories only if asked for.
    pub fn all_names(&self, of_directories: bool) -> Vec<(u64, OsString)> {
        let is_directory = |number| self.nodes.get(number).is_some_and(|node| node.kind == DIRECTORY);
        let names = self.names.iter().filter(|(_, number)| of_directories || !is_directory(number));
        names.map(|(name, _)| name.clone()).collect()
    }

    /// The kernel gets to know a file under a name. Returns its number.
    pub fn found(&mut self, directory: u64, name: &OsStr, attributes: &Attributes) -> u64 {
        let number = self.listed(directory, name, attributes);
        // A file system uses the number of a removed file again, also before this process knows that the file is removed.
        if let Some(node) = self.nodes.get_mut(&number)
            && node.names.len() > 1
            && (attributes.links == 1 || node.kind == DIRECTORY)
        {
            let (own, others): (Vec<_>, Vec<_>) =
                node.names.drain(..).partition(|(other, text)| *other == directory && text == name);
            node.names = own;
            for other in &others {
                self.names.remove(other);
            }
        }
        number
    }

    /// The kernel gets to know a file by a listing, which may have been made a while ago. Returns its number.
    pub fn listed(&mut self, directory: u64, name: &OsStr, attributes: &Attributes) -> u64 {
        let number = self.number(attributes);
        let name = (directory, name.to_owned());
        let before = self.names.insert(name.clone(), number);
        if before != Some(number) {
            if let Some(before) = before {
                self.drop_name(before, &name);
            }
            self.nodes.entry(number).or_default().names.push(name);
        }
        let node = self.nodes.entry(number).or_default();
        node.lookups += 1;
        node.kind = attributes.mode & TYPE_BITS;
        node.identity = (attributes.device, attributes.inode);
        node.told = Some(ContentVersion::of(attributes));
        number
    }

    /// The kernel forgets a file, as often as it has looked it up `lookups` times.
    pub fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.nodes.get_mut(&number) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 && number != ROOT {
            for name in self.nodes.remove(&number).map(|node| node.names).unwrap_or_default() {
                self.names.remove(&name);
            }
        }
    }

    /// Whether a directory has a default access list. `None`: it is not known, or longer than `validity` ago.
    pub fn has_default_list(&self, number: u64, validity: Duration) -> Option<bool> {
        let (has_list, since) = self.nodes.get(&number)?.default_list?;
        (since.elapsed() < validity).then_some(has_list)
    }

    /// Notes whether a directory has a default access list. `None`: it is not known any more.
    pub fn note_default_list(&mut self, number: u64, has_list: Option<bool>) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.default_list = has_list.map(|has_list| (has_list, Instant::now()));
        }
    }

    /// The path of a file; `None`: it has no name any more.
    pub fn path(&self, number: u64) -> Option<Vec<u8>> {
        let mut components = Vec::new();
        let mut at = number;
        while at != ROOT {
            // A directory has one name. A file may have several, of which the kernel may have forgotten directories.
            let names = &self.nodes.get(&at)?.names;
            let (directory, name) = names.iter().find(|(directory, _)| self.nodes.contains_key(directory))?;
            components.push(name.as_bytes());
            if components.len() > MAX_DEPTH {
                return None;
            }
            at = *directory;
        }
        components.reverse();
        Some(components.join(&b'/'))
    }

    /// The names of a file. The exported directory has none: `None` stands for it.
    pub fn names(&self, number: u64) -> Vec<Option<Name>> {
        if number == ROOT {
            return vec![None];
        }
        self.nodes.get(&number).map(|node| node.names.iter().cloned().map(Some).collect()).unwrap_or_default()
    }

    /// The path of a file by one of its names, and its device and number on the server.
    pub fn path_by(&self, number: u64, name: Option<&Name>) -> Option<(Vec<u8>, (u64, u64))> {
        let identity = self.nodes.get(&number)?.identity;
        let path = match name {
            None => Vec::new(),
            Some((directory, name)) => self.path_in(*directory, name)?,
        };
        Some((path, identity))
    }

    /// A file has lost a name to another one, or the name is removed.
    pub fn lost(&mut self, number: u64, directory: u64, name: &OsStr) {
        if self.named(directory, name) == Some(number) {
            self.removed(directory, name);
        }
    }

    /// The path of a name in a directory.
    pub fn path_in(&self, directory: u64, name: &OsStr) -> Option<Vec<u8>> {
        let mut path = self.path(directory)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        Some(path)
    }

    /// The number of the file that has this name, if the kernel knows it.
    pub fn named(&self, directory: u64, name: &OsStr) -> Option<u64> {
        self.names.get(&(directory, name.to_owned())).copied()
    }

    /// A name is removed.
    pub fn removed(&mut self, directory: u64, name: &OsStr) {
        let name = (directory, name.to_owned());
        if let Some(number) = self.names.remove(&name) {
            self.drop_name(number, &name);
        }
    }

    /// A file has another name. With `exchange` the file that had it gets the name before.
    pub fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), exchange: bool) -> Moved {
        let (moved, replaced) = (self.named(from.0, from.1), self.named(to.0, to.1));
        let others = [moved, replaced.filter(|_| exchange)];
        let is_directory = |number: &u64| self.nodes.get(number).is_none_or(|node| node.kind == DIRECTORY);
        let has_directory = others.iter().flatten().any(is_directory);
        self.removed(from.0, from.1);
        self.removed(to.0, to.1);
        self.add_name(moved, to);
        if exchange {
            self.add_name(replaced, from);
        }
        if has_directory { Moved::Directory } else { Moved::Files(others) }
    }

    /// Notes the version of the content that the kernel has cached; returns whether it is the one before.
    pub fn cache(&mut self, number: u64, version: ContentVersion) -> bool {
        self.nodes.get_mut(&number).is_some_and(|node| node.cached.replace(version) == Some(version))
    }

    /// The kernel gets the attributes of this version, or forgets those of another one; returns whether it has had this one before.
    pub fn tell(&mut self, number: u64, version: ContentVersion) -> bool {
        self.nodes.get_mut(&number).is_some_and(|node| node.told.replace(version) == Some(version))
    }

    fn add_name(&mut self, number: Option<u64>, (directory, name): (u64, &OsStr)) {
        if let Some(number) = number
            && let Some(node) = self.nodes.get_mut(&number)
        {
            let name = (directory, name.to_owned());
            self.names.insert(name.clone(), number);
            node.names.push(name);
        }
    }

    fn drop_name(&mut self, number: u64, name: &Name) {
        if let Some(node) = self.nodes.get_mut(&number) {
            node.names.retain(|other| other != name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(inode: u64) -> Attributes {
        Attributes { device: 1, inode, ..Attributes::default() }
    }

    fn nodes() -> Nodes {
        Nodes::new(&attributes(100))
    }

    #[test]
    fn files_and_names_of_the_server_are_found() {
        let mut nodes = nodes();
        nodes.found(ROOT, name("dir"), &attributes(2));
        nodes.found(2, name("file"), &attributes(3));
        let elsewhere = nodes.found(2, name("mount"), &Attributes { device: 9, ..attributes(3) });
        assert_eq!((nodes.known(1, 100), nodes.known(1, 3), nodes.known(9, 3)), (Some(ROOT), Some(3), Some(elsewhere)));
        assert_eq!((nodes.known(1, 4), nodes.known(8, 3)), (None, None));
        assert_eq!(nodes.name_at(b"dir/file"), Some((2, OsString::from("file"))));
        assert_eq!((nodes.name_at(b"dir/other"), nodes.name_at(b"other/file"), nodes.name_at(b"")), (None, None, None));
        assert_eq!((nodes.numbers().len(), nodes.all_names(true).len()), (4, 3));
    }

    fn name(text: &str) -> &OsStr {
        OsStr::new(text)
    }

    #[test]
    fn paths_follow_renames_of_directories() {
        let mut nodes = nodes();
        let directory = nodes.found(ROOT, name("directory"), &attributes(2));
        let file = nodes.found(directory, name("file"), &attributes(3));
        assert_eq!(nodes.path(file).as_deref(), Some(&b"directory/file"[..]));
        nodes.renamed((ROOT, name("directory")), (ROOT, name("moved")), false);
        assert_eq!(nodes.path(file).as_deref(), Some(&b"moved/file"[..]));
        assert_eq!(nodes.path(ROOT).as_deref(), Some(&b""[..]));
    }

    #[test]
    fn a_file_with_two_names_has_a_path_as_long_as_one_is_left() {
        let mut nodes = nodes();
        let file = nodes.found(ROOT, name("a"), &attributes(2));
        assert_eq!(nodes.found(ROOT, name("b"), &attributes(2)), file);
        nodes.removed(ROOT, name("a"));
        assert_eq!(nodes.path(file).as_deref(), Some(&b"b"[..]));
        nodes.removed(ROOT, name("b"));
        assert_eq!(nodes.path(file), None);
        nodes.forget(file, 2);
        assert!(!nodes.nodes.contains_key(&file));
    }

    #[test]
    fn a_number_that_is_used_again_has_only_the_new_name() {
        let mut nodes = nodes();
        let one = Attributes { links: 1, ..attributes(2) };
        nodes.found(ROOT, name("removed"), &one);
        let number = nodes.found(ROOT, name("made"), &one);
        assert_eq!(nodes.path(number).as_deref(), Some(&b"made"[..]));
        // Only now its request is answered.
        nodes.removed(ROOT, name("removed"));
        assert_eq!(nodes.path(number).as_deref(), Some(&b"made"[..]));
        let directory = Attributes { links: 3, mode: 0o040_755, ..attributes(2) };
        assert_eq!(nodes.found(ROOT, name("directory"), &directory), number);
        assert_eq!((nodes.path(number).as_deref(), nodes.named(ROOT, name("made"))), (Some(&b"directory"[..]), None));
        // An old listing has the first name.
        nodes.listed(ROOT, name("removed"), &one);
        assert_eq!(nodes.path(number).as_deref(), Some(&b"directory"[..]));
    }

    #[test]
    fn a_name_that_another_file_has_now_is_not_the_first_ones() {
        let mut nodes = nodes();
        let before = nodes.found(ROOT, name("a"), &attributes(2));
        let after = nodes.found(ROOT, name("a"), &attributes(3));
        assert_eq!((nodes.path(before), nodes.path(after).as_deref()), (None, Some(&b"a"[..])));
        nodes.renamed((ROOT, name("a")), (ROOT, name("b")), false);
        let other = nodes.found(ROOT, name("a"), &attributes(4));
        nodes.renamed((ROOT, name("a")), (ROOT, name("b")), true);
        assert_eq!(nodes.path(other).as_deref(), Some(&b"b"[..]));
        assert_eq!(nodes.path(after).as_deref(), Some(&b"a"[..]));
    }

    #[test]
    fn numbers_of_two_devices_differ_and_the_export_is_the_root() {
        let mut nodes = nodes();
        let elsewhere = Attributes { device: 2, inode: 5, ..Attributes::default() };
        assert_ne!(nodes.number(&attributes(5)), nodes.number(&elsewhere));
        assert_eq!(nodes.number(&attributes(100)), ROOT);
    }
}
