//! Reading the sheets of nodes of messages ([`motet_wire::message::stats`]), which any process may have made, and may be changing now.
//!
//! As with node files ([`crate::stream_stats`]) nothing is mapped: copies are taken apart by the offsets of the format's own structures, and
//! what a sheet says is shown, never followed.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;

use motet_wire::message::stats::{
    BYTES, COUNTS, Count, HEAD, MAGIC, NAME, REFUSED, ROW, ROWS, Row, SheetHead, VERSION, word,
};
use serde::Serialize;

use crate::drivers;
use crate::output::bytes;
use crate::stream_stats::Bytes;

/// The link of such a file's descriptor in /proc.
pub fn is_link(target: &Path) -> bool {
    target.to_str().and_then(|t| t.strip_prefix("/memfd:")).and_then(|t| t.strip_suffix(" (deleted)")) == Some(NAME)
}

/// A node of messages.
#[derive(Debug, Clone, Serialize)]
pub struct MessageNode {
    /// The process whose it is, in its own PID namespace.
    #[serde(skip)]
    pub process: u32,
    /// Its number, 32 hexadecimal digits.
    pub number: String,
    /// Its name on its host.
    pub name: String,
    /// Ways to it.
    pub address: String,
    /// Drivers that it may use.
    pub drivers: Vec<String>,
    /// Links, up or gone and not closed yet.
    pub links: Vec<MessageLink>,
    /// Links that have no row.
    pub unshown: u32,
    /// Calls that failed in the end, by reason.
    pub failed: Vec<Failed>,
}

/// Calls that failed.
#[derive(Debug, Clone, Serialize)]
pub struct Failed {
    /// Code.
    pub reason: u32,
    /// Text.
    pub text: &'static str,
    /// How many.
    pub count: u64,
}

/// A link of such a node.
#[derive(Debug, Clone, Serialize)]
pub struct MessageLink {
    /// Its number in the node.
    pub link: u32,
    /// Whether it is up.
    pub up: bool,
    /// Why it is gone.
    pub gone: Option<&'static str>,
    /// Whether this node has called.
    pub called: bool,
    /// The node at the other end.
    pub peer: String,
    /// Its name, when that node was seen.
    pub peer_name: Option<String>,
    /// Its process, where known.
    pub peer_pid: Option<u32>,
    /// One for each driver, that in use first.
    pub drivers: Vec<Way>,
    /// When it came up, seconds since 1970.
    pub began: u64,
    /// How messages went.
    pub counts: Counts,
}

/// What became of one driver for a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Way {
    /// Its name.
    pub driver: String,
    /// Whether the link is its.
    pub in_use: bool,
    /// Why, or why not.
    pub reason: String,
}

/// Counts of a link; those of a medium that it does not have are 0.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Counts {
    /// Lines of 64 bytes put on the lane, of all packets.
    pub lines_sent: u64,
    /// And taken.
    pub lines_received: u64,
    /// Bytes of long messages through the ring beside the lane.
    pub ring_sent: u64,
    /// See there.
    pub ring_received: u64,
    /// Bytes of frames.
    pub frames_sent: u64,
    /// See there.
    pub frames_received: u64,
    /// Times that the connection was made anew.
    pub reconnected: u64,
    /// Bodies received by one copy out of the peer's memory.
    pub single_copy: u64,
    /// Their bytes.
    pub single_copy_bytes: u64,
    /// Of these, bodies of which the peer has copied some.
    pub single_copy_by_both: u64,
    /// Bodies for which the system refused that.
    pub single_copy_refused: u64,
    /// Messages that were read in the sender's memory.
    pub lent: u64,
    /// Receives in place that ended with a copy.
    pub lent_copied: u64,
    /// Channels now.
    pub channels: u64,
    /// Long messages coming now.
    pub long_coming: u64,
    /// Long messages going now.
    pub long_going: u64,
}

/// Reads a sheet; `None`: it is none that this program knows.
pub fn read(file: &File) -> Option<MessageNode> {
    let size = file.metadata().ok()?.len();
    let mut head = vec![0; size_of::<SheetHead>()];
    file.read_exact_at(&mut head, 0).ok()?;
    let head = Bytes(&head);
    let known = head.u64(offset_of!(SheetHead, magic)) == MAGIC
        && head.u32(offset_of!(SheetHead, version)) == VERSION
        && head.u32(offset_of!(SheetHead, row)) as usize == ROW
        && size == BYTES as u64;
    if !known {
        return None;
    }
    let used = (head.u32(offset_of!(SheetHead, used)) as usize).min(ROWS);
    let mut rows = vec![0; used * ROW];
    file.read_exact_at(&mut rows, HEAD as u64).ok()?;
    let offered: Vec<u64> = (0..8).map(|n| head.u64(offset_of!(SheetHead, drivers) + 8 * n)).collect();
    let failed = (0..64).map(|code| (code as u32, head.u64(offset_of!(SheetHead, failed) + 8 * code)));
    Some(MessageNode {
        process: head.u32(offset_of!(SheetHead, process)),
        number: number(&head, offset_of!(SheetHead, node)),
        name: text(&head, offset_of!(SheetHead, name), 64),
        address: text(&head, offset_of!(SheetHead, address), 256),
        drivers: offered.iter().filter(|word| **word != 0).map(|word| driver(*word)).collect(),
        links: rows.chunks_exact(ROW).filter_map(|row| link(&Bytes(row), &offered)).collect(),
        unshown: head.u32(offset_of!(SheetHead, unshown)),
        failed: failed
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| Failed { reason, text: motet::reason::text(reason), count })
            .collect(),
    })
}

fn link(row: &Bytes<'_>, offered: &[u64]) -> Option<MessageLink> {
    let state = row.u32(offset_of!(Row, state));
    if state != 1 && state != 2 {
        return None;
    }
    let called = row.u32(offset_of!(Row, called)) == 1;
    let count = |which: Count| row.u64(offset_of!(Row, counts) + 8 * which as usize);
    const { assert!((Count::Helped as usize) < COUNTS) };
    let pid = row.u32(offset_of!(Row, process));
    Some(MessageLink {
        link: row.u32(offset_of!(Row, link)),
        up: state == 1,
        gone: (state == 2).then(|| motet::reason::text(row.u32(offset_of!(Row, reason)))),
        called,
        peer: number(row, offset_of!(Row, peer)),
        peer_name: None,
        peer_pid: (pid != 0).then_some(pid),
        drivers: ways(row, offered, called),
        began: row.u64(offset_of!(Row, began)),
        counts: Counts {
            lines_sent: count(Count::LinesOut),
            lines_received: count(Count::LinesIn),
            ring_sent: count(Count::RingOut),
            ring_received: count(Count::RingIn),
            frames_sent: count(Count::FramesOut),
            frames_received: count(Count::FramesIn),
            reconnected: count(Count::Again),
            single_copy: count(Count::Copied),
            single_copy_by_both: count(Count::Helped),
            single_copy_bytes: count(Count::CopiedBytes),
            single_copy_refused: count(Count::CopyRefused),
            lent: count(Count::Lent),
            lent_copied: count(Count::LentCopied),
            channels: count(Count::Channels),
            long_coming: count(Count::LongIn),
            long_going: count(Count::LongOut),
        },
    })
}

/// The driver in use, those that were tried in vain, then all others that this build has.
fn ways(row: &Bytes<'_>, offered: &[u64], called: bool) -> Vec<Way> {
    let current = row.u64(offset_of!(Row, driver));
    let refused = (row.u32(offset_of!(Row, refused)) as usize).min(REFUSED);
    let refused: Vec<(u64, u64)> =
        (0..refused).map(|n| offset_of!(Row, ways) + 16 * n).map(|at| (row.u64(at), row.u64(at + 8))).collect();
    let why = match (called, refused.is_empty()) {
        (false, _) => "the peer has called by this way",
        (true, true) => "the fastest way of the peer's address",
        (true, false) => "the fastest way of the peer's address that could be had",
    };
    let mut ways = vec![Way { driver: driver(current), in_use: true, reason: why.to_owned() }];
    for (tried, reason) in &refused {
        let reason = motet::reason::text(u32::try_from(*reason).unwrap_or(u32::MAX));
        ways.push(Way { driver: driver(*tried), in_use: false, reason: reason.to_owned() });
    }
    for name in drivers::names() {
        let known = word(name);
        if known == current || refused.iter().any(|(tried, _)| *tried == known) {
            continue;
        }
        let reason = match (called, offered.contains(&known)) {
            (_, false) => motet::reason::text(motet::reason::Reason::FORBIDDEN.0),
            (true, true) => "slower, or the address that was called has no such way; not tried",
            (false, true) => "the peer has chosen: `motet why` of its process tells",
        };
        ways.push(Way { driver: name.to_owned(), in_use: false, reason: reason.to_owned() });
    }
    ways
}

/// Text of so many bytes at most, up to the first zero.
fn text(bytes: &Bytes<'_>, at: usize, most: usize) -> String {
    let part = bytes.0.get(at..at + most).unwrap_or_default();
    let end = part.iter().position(|byte| *byte == 0).unwrap_or(part.len());
    String::from_utf8_lossy(&part[..end]).into_owned()
}

fn driver(word: u64) -> String {
    text(&Bytes(&word.to_le_bytes()), 0, 8)
}

fn number(bytes: &Bytes<'_>, at: usize) -> String {
    bytes.0.get(at..at + 16).unwrap_or_default().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Counts {
    /// For people: a line each, of what there was.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.lines_sent > 0 || self.lines_received > 0 {
            lines.push(format!("lane: {} lines sent, {} received", self.lines_sent, self.lines_received));
        }
        if self.ring_sent > 0 || self.ring_received > 0 {
            let [sent, received] = [self.ring_sent, self.ring_received].map(bytes);
            lines.push(format!("ring, for pieces of long messages: {sent} sent, {received} received"));
        }
        if self.frames_sent > 0 || self.frames_received > 0 {
            let [sent, received] = [self.frames_sent, self.frames_received].map(bytes);
            lines.push(format!("frames: {sent} sent, {received} received"));
        }
        if self.reconnected > 0 {
            lines.push(format!("the connection broke and was made anew {} times", self.reconnected));
        }
        if self.single_copy > 0 {
            let size = bytes(self.single_copy_bytes);
            let both = match self.single_copy_by_both {
                0 => String::new(),
                both => format!(", {both} of them with the peer's help"),
            };
            lines.push(format!("single copy out of the peer's memory: {} received, {size}{both}", self.single_copy));
        }
        if self.single_copy_refused > 0 {
            let what = "fetched in pieces instead: the kernel does not let this process read the peer's memory";
            lines.push(format!("{} {what}", self.single_copy_refused));
        }
        if self.lent > 0 {
            lines.push(format!("loans: {} messages read where the sender had put them", self.lent));
        }
        if self.lent_copied > 0 {
            let why = "they were short, not in the sender's pool, or could not be seen";
            lines.push(format!("{} receives in place ended with a copy: {why}", self.lent_copied));
        }
        let now = [(self.channels, "channels"), (self.long_coming, "long messages coming"), (self.long_going, "going")];
        let now: Vec<String> = now.iter().map(|(count, what)| format!("{count} {what}")).collect();
        lines.push(format!("now: {}", now.join(", ")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file(contents: &[u8], size: u64) -> File {
        let file = File::from(memfd_create("test", MemfdFlags::CLOEXEC).unwrap());
        file.write_all_at(contents, 0).unwrap();
        file.set_len(size).unwrap();
        file
    }

    fn head(version: u32, row: u32, used: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        for word in [version, row, ROWS as u32, used, 7, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn what_is_no_sheet_is_refused() {
        let (row, size) = (ROW as u32, BYTES as u64);
        assert!(read(&file(&head(VERSION, row, 0), size)).is_some());
        for (bytes, size) in [
            (vec![], 0),
            (vec![], size),
            (head(VERSION, row, 0), size - 1),
            (head(VERSION + 1, row, 0), size),
            (head(VERSION, 0, 0), size),
            (head(VERSION, row, 0)[..12].to_vec(), 12),
        ] {
            assert!(read(&file(&bytes, size)).is_none());
        }
    }

    #[test]
    fn a_sheet_of_noise_is_shown_and_harmless() {
        let mut bytes: Vec<u8> = (0..BYTES).map(|n| (n * 31 % 251) as u8).collect();
        let front = head(VERSION, ROW as u32, u32::MAX);
        bytes[..front.len()].copy_from_slice(&front);
        for index in 0..ROWS {
            let at = HEAD + index * ROW + offset_of!(Row, state);
            bytes[at..at + 4].copy_from_slice(&(1 + index as u32 % 2).to_ne_bytes());
        }
        let node = read(&file(&bytes, BYTES as u64)).unwrap();
        assert_eq!((node.process, node.links.len()), (7, ROWS));
        assert!(node.links.iter().all(|link| link.up != link.gone.is_some() && link.drivers[0].in_use));
        assert!(node.links.iter().all(|link| !link.counts.lines().is_empty()));
    }

    #[test]
    fn ways_in_vain_have_their_reason_and_the_rest_has_one_too() {
        let mut row = [0; ROW];
        let mut put = |at: usize, word: u64| row[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        put(offset_of!(Row, driver), word("tcp"));
        put(offset_of!(Row, ways), word("shm"));
        put(offset_of!(Row, ways) + 8, 4);
        row[offset_of!(Row, refused)] = 1;
        let seen = ways(&Bytes(&row), &[word("tcp"), word("shm")], true);
        assert_eq!((seen[0].driver.as_str(), seen[0].in_use, seen[1].driver.as_str()), ("tcp", true, "shm"));
        assert!(seen[1].reason.contains("another user") && !seen[1].in_use, "{seen:?}");
        row[offset_of!(Row, refused)] = 0;
        let seen = ways(&Bytes(&row), &[word("tcp")], false);
        assert!(seen.iter().any(|way| way.driver == "shm" && way.reason.contains("MOTET_DRIVERS")), "{seen:?}");
    }
}
