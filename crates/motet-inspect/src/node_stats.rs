//! What the stats pages of nodes of messages ([`motet_wire::message::stats`]) say, read by [`crate::stats_table`].

use std::borrow::Cow;
use std::fs::File;
use std::mem::offset_of;

use motet_wire::message::stats::{COUNTS, LinkCount, LinkRow, MAX_ATTEMPTS, NodeFormat, StatsHead, word};
use motet_wire::stats_table::TableHead;
use serde::{Deserialize, Serialize};

use crate::drivers::{self, DriverVerdict};
use crate::quantity::bytes;
use crate::rate::Rate;
use crate::stats_table::{self, Bytes};

/// Bytes of a FIFO cell.
const CELL_BYTES: u64 = 64;

/// A node of messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageNode {
    /// The process of the node, in its own PID namespace.
    #[serde(skip)]
    pub process: u32,
    /// Its number, 32 hexadecimal digits.
    pub number: String,
    /// Its name on its host.
    pub name: String,
    /// The addresses of the node, separated by commas.
    pub address: String,
    /// Drivers that the node may use.
    pub drivers: Vec<String>,
    /// Links that are up, and links that are gone and not closed yet.
    pub links: Vec<MessageLink>,
    /// Number of links that have no row.
    pub links_not_listed: u32,
    /// Connection attempts that failed, by reason.
    pub failed_connects: Vec<FailedConnects>,
}

/// Connection attempts that failed for one reason.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FailedConnects {
    /// The reason code.
    pub reason: u32,
    /// The reason text.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub text: Cow<'static, str>,
    /// Number of attempts.
    pub count: u64,
}

/// A link of a node of messages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageLink {
    /// Its number in the node.
    pub link: u32,
    /// Whether the link is up.
    pub up: bool,
    /// Why the link is gone.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub gone: Option<Cow<'static, str>>,
    /// Whether this node is the connector of the link.
    pub connector: bool,
    /// The number of the node at the other end.
    pub peer: String,
    /// The name of the peer, if its stats page is visible.
    pub peer_name: Option<String>,
    /// The process of the peer, if known.
    pub peer_pid: Option<u32>,
    /// One verdict for each driver, the driver in use first.
    pub drivers: Vec<DriverVerdict>,
    /// Time at which the link came up, seconds since 1970.
    pub began: u64,
    /// Counts of messages by transport.
    pub counts: Counts,
    /// Bytes per second, from the second of two scans on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// Counts of a link. Counts of a transport that the link does not use are 0.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Counts {
    /// FIFO cells of 64 bytes sent, of all packets.
    pub cells_sent: u64,
    /// FIFO cells of 64 bytes received, of all packets.
    pub cells_received: u64,
    /// Bytes of long messages sent through the payload ring.
    pub ring_sent: u64,
    /// Bytes of long messages received through the payload ring.
    pub ring_received: u64,
    /// Bytes of frames sent.
    pub frames_sent: u64,
    /// Bytes of frames received.
    pub frames_received: u64,
    /// Number of times that a broken connection was replaced.
    pub reconnected: u64,
    /// Bodies received by single copy from the peer's memory.
    pub single_copy: u64,
    /// Bytes of the bodies received by single copy.
    pub single_copy_bytes: u64,
    /// Bodies received by single copy of which the peer copied a part.
    pub single_copy_by_both: u64,
    /// Bodies for which the system refused single copy.
    pub single_copy_refused: u64,
    /// Loaned messages that were read in the sender's memory.
    pub loans: u64,
    /// Receives in place that ended with a copy.
    pub loans_copied: u64,
    /// Open channels.
    pub channels: u64,
    /// Long messages that are being received.
    pub long_incoming: u64,
    /// Long messages that are being sent.
    pub long_outgoing: u64,
}

/// Reads a stats page. An error says what is wrong with the file.
pub fn read(file: &File) -> Result<MessageNode, String> {
    let (head, links) = stats_table::read::<NodeFormat, _>(file, |head, _, row| link(&row, &offered(head)))?;
    let head = Bytes(&head);
    let failed = (0..64).map(|code| (code as u32, head.u64(offset_of!(StatsHead, failed_connects) + 8 * code)));
    Ok(MessageNode {
        process: head.u32(offset_of!(TableHead, process)),
        number: number(&head, offset_of!(StatsHead, node)),
        name: text(&head, offset_of!(StatsHead, name), 64),
        address: text(&head, offset_of!(StatsHead, address), 256),
        drivers: offered(head).into_iter().filter(|word| *word != 0).map(driver).collect(),
        links,
        links_not_listed: head.u32(offset_of!(TableHead, not_listed)),
        failed_connects: failed
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| FailedConnects { reason, text: motet::reason::text(reason).into(), count })
            .collect(),
    })
}

/// The drivers that the node may use, as words.
fn offered(head: Bytes<'_>) -> [u64; 8] {
    std::array::from_fn(|n| head.u64(offset_of!(StatsHead, drivers) + 8 * n))
}

fn link(row: &Bytes<'_>, offered: &[u64]) -> Option<MessageLink> {
    let state = row.u32(offset_of!(LinkRow, state));
    if state != 1 && state != 2 {
        return None;
    }
    let connector = row.u32(offset_of!(LinkRow, is_connector)) == 1;
    let count = |which: LinkCount| row.u64(offset_of!(LinkRow, counts) + 8 * which as usize);
    const { assert!((LinkCount::CooperativeCopies as usize) < COUNTS) };
    let pid = row.u32(offset_of!(LinkRow, process));
    Some(MessageLink {
        link: row.u32(offset_of!(LinkRow, link)),
        up: state == 1,
        gone: (state == 2).then(|| motet::reason::text(row.u32(offset_of!(LinkRow, reason))).into()),
        connector,
        peer: number(row, offset_of!(LinkRow, peer)),
        peer_name: None,
        peer_pid: (pid != 0).then_some(pid),
        drivers: drivers_of(row, offered, connector),
        began: row.u64(offset_of!(LinkRow, up_since_s)),
        counts: Counts {
            cells_sent: count(LinkCount::CellsSent),
            cells_received: count(LinkCount::CellsReceived),
            ring_sent: count(LinkCount::RingBytesSent),
            ring_received: count(LinkCount::RingBytesReceived),
            frames_sent: count(LinkCount::FrameBytesSent),
            frames_received: count(LinkCount::FrameBytesReceived),
            reconnected: count(LinkCount::Reconnects),
            single_copy: count(LinkCount::SingleCopies),
            single_copy_by_both: count(LinkCount::CooperativeCopies),
            single_copy_bytes: count(LinkCount::SingleCopyBytes),
            single_copy_refused: count(LinkCount::SingleCopyRefused),
            loans: count(LinkCount::Loans),
            loans_copied: count(LinkCount::LoansCopied),
            channels: count(LinkCount::Channels),
            long_incoming: count(LinkCount::LongIncoming),
            long_outgoing: count(LinkCount::LongOutgoing),
        },
        rate: None,
    })
}

/// One verdict for each driver: the driver in use, drivers that failed to connect, then all others of this build.
fn drivers_of(row: &Bytes<'_>, offered: &[u64], connector: bool) -> Vec<DriverVerdict> {
    let current = row.u64(offset_of!(LinkRow, driver));
    let refused = (row.u32(offset_of!(LinkRow, failed_attempts)) as usize).min(MAX_ATTEMPTS);
    let refused: Vec<(u64, u64)> =
        (0..refused).map(|n| offset_of!(LinkRow, attempts) + 16 * n).map(|at| (row.u64(at), row.u64(at + 8))).collect();
    let why = match (connector, refused.is_empty()) {
        (false, _) => "the peer connected over it",
        (true, true) => "the fastest driver of the peer's address",
        (true, false) => "the fastest driver of the peer's address that could connect",
    };
    let mut verdicts = vec![DriverVerdict { driver: driver(current), in_use: true, reason: why.to_owned() }];
    for (tried, reason) in &refused {
        let reason = motet::reason::text(u32::try_from(*reason).unwrap_or(u32::MAX));
        verdicts.push(DriverVerdict { driver: driver(*tried), in_use: false, reason: reason.to_owned() });
    }
    for name in drivers::names() {
        let known = word(name);
        if known == current || refused.iter().any(|(tried, _)| *tried == known) {
            continue;
        }
        let reason = match (connector, offered.contains(&known)) {
            (_, false) => motet::reason::text(motet::reason::Reason::FORBIDDEN.0),
            (true, true) => "not tried: slower, or not in the peer's address",
            (false, true) => "the peer chose the driver; run `motet why` for the peer's process",
        };
        verdicts.push(DriverVerdict { driver: name.to_owned(), in_use: false, reason: reason.to_owned() });
    }
    verdicts
}

/// Text of at most `most` bytes, up to the first zero.
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
    /// Bytes sent and received, packet heads included. The copying side alone counts a single copy, so the sender's bytes lack those.
    pub fn bytes(&self) -> (u64, u64) {
        let cells = |cells: u64| cells.wrapping_mul(CELL_BYTES);
        let sent = cells(self.cells_sent).wrapping_add(self.ring_sent).wrapping_add(self.frames_sent);
        let received = cells(self.cells_received).wrapping_add(self.ring_received).wrapping_add(self.frames_received);
        (sent, received.wrapping_add(self.single_copy_bytes))
    }

    /// Lines of text for users, without counts that are 0.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.cells_sent > 0 || self.cells_received > 0 {
            lines.push(format!("FIFO: {} cells sent, {} received", self.cells_sent, self.cells_received));
        }
        if self.ring_sent > 0 || self.ring_received > 0 {
            let [sent, received] = [self.ring_sent, self.ring_received].map(bytes);
            lines.push(format!("payload ring, for pieces of long messages: {sent} sent, {received} received"));
        }
        if self.frames_sent > 0 || self.frames_received > 0 {
            let [sent, received] = [self.frames_sent, self.frames_received].map(bytes);
            lines.push(format!("frames: {sent} sent, {received} received"));
        }
        if self.reconnected > 0 {
            lines.push(format!("reconnected {} times after the connection broke", self.reconnected));
        }
        if self.single_copy > 0 {
            let size = bytes(self.single_copy_bytes);
            let both = match self.single_copy_by_both {
                0 => String::new(),
                both => format!(", {both} of them together with the peer"),
            };
            lines.push(format!("single copy from the peer's memory: {} received, {size}{both}", self.single_copy));
        }
        if self.single_copy_refused > 0 {
            let what = "received in pieces instead: the kernel does not let this process read the peer's memory";
            lines.push(format!("{} {what}", self.single_copy_refused));
        }
        if self.loans > 0 {
            lines.push(format!("loans: {} messages read in the sender's memory", self.loans));
        }
        if self.loans_copied > 0 {
            let why = "the message was short, outside the sender's pool, or could not be mapped";
            lines.push(format!("loans: {} receives in place ended with a copy: {why}", self.loans_copied));
        }
        let now = [
            (self.channels, "channels"),
            (self.long_incoming, "long messages incoming"),
            (self.long_outgoing, "outgoing"),
        ];
        let now: Vec<String> = now.iter().map(|(count, what)| format!("{count} {what}")).collect();
        lines.push(format!("at present: {}", now.join(", ")));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats_table::tests::{file, head};
    use motet_wire::message::stats::{ROWS, StatsPage};
    use motet_wire::stats_table::StatsFormat;

    #[test]
    fn stats_page_of_noise_is_shown_safely() {
        let mut bytes: Vec<u8> = (0..StatsPage::bytes(ROWS)).map(|n| (n * 31 % 251) as u8).collect();
        let front = head::<NodeFormat>(NodeFormat::VERSION, StatsPage::ROW as u32, ROWS as u32, ROWS as u32);
        bytes[..size_of::<TableHead>()].copy_from_slice(&front[..size_of::<TableHead>()]);
        for index in 0..ROWS {
            let at = StatsPage::bytes(index) + offset_of!(LinkRow, state);
            bytes[at..at + 4].copy_from_slice(&(1 + index as u32 % 2).to_ne_bytes());
        }
        let node = read(&file(&bytes, bytes.len() as u64)).unwrap();
        assert_eq!((node.process, node.links.len()), (7, ROWS));
        assert!(node.links.iter().all(|link| link.up != link.gone.is_some() && link.drivers[0].in_use));
        assert!(node.links.iter().all(|link| !link.counts.lines().is_empty()));
    }

    #[test]
    fn every_rejected_driver_has_a_reason() {
        let mut row = [0; StatsPage::ROW];
        let mut put = |at: usize, word: u64| row[at..at + 8].copy_from_slice(&word.to_ne_bytes());
        put(offset_of!(LinkRow, driver), word("tcp"));
        put(offset_of!(LinkRow, attempts), word("shm"));
        put(offset_of!(LinkRow, attempts) + 8, 4);
        row[offset_of!(LinkRow, failed_attempts)] = 1;
        let seen = drivers_of(&Bytes(&row), &[word("tcp"), word("shm")], true);
        assert_eq!((seen[0].driver.as_str(), seen[0].in_use, seen[1].driver.as_str()), ("tcp", true, "shm"));
        assert!(seen[1].reason.contains("another user") && !seen[1].in_use, "{seen:?}");
        row[offset_of!(LinkRow, failed_attempts)] = 0;
        let seen = drivers_of(&Bytes(&row), &[word("tcp")], false);
        assert!(seen.iter().any(|way| way.driver == "shm" && way.reason.contains("MOTET_DRIVERS")), "{seen:?}");
    }
}
