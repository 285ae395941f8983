//! Startpoints: references to endpoints, which can be sent anywhere.
//!
//! A startpoint is plain data. It holds the addresses of its nodes, so it works in any process that can reach them; links are made when a request
//! is sent. The addresses contain the nodes' secrets: who has a startpoint may use it, and connect to its nodes.
//!
//! Bytes, all numbers little-endian: `MS`, version 1, length of the driver's name; number of endpoints (2); the driver's name; for each endpoint the
//! node (16), the endpoint (8), the length of the node's address (2) and the address.

use crate::buffer::{Buffer, Reader};
use crate::format::Malformed;
use crate::wire::{ENDPOINT_BITS, REPLY_TAG};
use motet::node::NodeId;
use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Most endpoints of a startpoint.
pub const MAX_ENDPOINTS: usize = 256;
/// Longest address of a node, bytes.
pub const MAX_ADDRESS: usize = 1024;
/// Longest name of a driver, bytes.
const MAX_DRIVER: usize = 16;
/// Longest startpoint, bytes.
pub const MAX_BYTES: usize = HEAD + MAX_DRIVER + MAX_ENDPOINTS * (TARGET_HEAD + MAX_ADDRESS);
const MAGIC: [u8; 3] = *b"MS\x01";
const HEAD: usize = 6;
const TARGET_HEAD: usize = 26;
/// What the text of a startpoint begins with.
const TEXT: &str = "motet-startpoint:";

/// A node, as others reach it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct NodeAddress {
    pub id: NodeId,
    /// The drivers with their addresses, in order: `shm://…,tcp://…`. Contains the secret.
    pub address: Box<str>,
}

/// An endpoint on a node.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Target {
    pub node: Arc<NodeAddress>,
    /// The endpoint's number, or that of a reply.
    pub endpoint: u64,
}

/// A reference to one endpoint, or to several: a request then goes to each of them.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Startpoint {
    pub(crate) targets: Vec<Target>,
    pub(crate) driver: Option<Box<str>>,
}

impl Startpoint {
    pub(crate) fn to(target: Target) -> Self {
        Self { targets: vec![target], driver: None }
    }

    /// Number of endpoints.
    pub fn endpoints(&self) -> usize {
        self.targets.len()
    }

    /// Adds the endpoints of another startpoint that this one does not have yet. Fails beyond [`MAX_ENDPOINTS`].
    pub fn bind(&mut self, other: &Self) -> Result<(), Malformed> {
        let known: HashSet<&Target> = self.targets.iter().collect();
        let new: Vec<Target> = other.targets.iter().filter(|target| !known.contains(target)).cloned().collect();
        if self.targets.len() + new.len() > MAX_ENDPOINTS {
            return Err(Malformed("too many endpoints for a startpoint"));
        }
        self.targets.extend(new);
        Ok(())
    }

    /// A startpoint for each endpoint, with this one's driver.
    pub fn split(&self) -> Vec<Self> {
        let one = |target: &Target| Self { targets: vec![target.clone()], driver: self.driver.clone() };
        self.targets.iter().map(one).collect()
    }

    /// Chooses the driver, such as `tcp`, by which requests go; `None`: the first that both nodes have and that works for the pair. The choice
    /// travels with the startpoint.
    pub fn choose(&mut self, driver: Option<&str>) -> Result<(), Malformed> {
        if driver.is_some_and(|driver| !is_driver(driver.as_bytes())) {
            return Err(Malformed("no name of a driver"));
        }
        self.driver = driver.map(Box::from);
        Ok(())
    }

    /// The chosen driver.
    pub fn chosen(&self) -> Option<&str> {
        self.driver.as_deref()
    }

    /// The drivers by which each endpoint can be reached, in the order in which its node publishes them.
    pub fn protocols(&self) -> Vec<Vec<&str>> {
        self.targets.iter().map(|target| parts(&target.node.address).map(|(driver, _)| driver).collect()).collect()
    }

    /// Its bytes. They contain secrets.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD + self.targets.len() * 256);
        self.append_to(&mut bytes);
        bytes
    }

    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        let driver = self.driver.as_deref().unwrap_or("");
        bytes.extend_from_slice(&MAGIC);
        bytes.push(driver.len() as u8);
        bytes.extend_from_slice(&(self.targets.len() as u16).to_le_bytes());
        bytes.extend_from_slice(driver.as_bytes());
        for target in &self.targets {
            bytes.extend_from_slice(&target.node.id.0);
            bytes.extend_from_slice(&target.endpoint.to_le_bytes());
            bytes.extend_from_slice(&(target.node.address.len() as u16).to_le_bytes());
            bytes.extend_from_slice(target.node.address.as_bytes());
        }
    }

    /// The startpoint of these bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Malformed> {
        const SHORT: Malformed = Malformed("a startpoint that is cut short");
        let (head, mut rest) = bytes.split_first_chunk::<HEAD>().ok_or(SHORT)?;
        let [magic @ .., driver, low, high] = *head;
        let (driver, count) = (usize::from(driver), usize::from(u16::from_le_bytes([low, high])));
        if magic != MAGIC {
            return Err(Malformed("no startpoint, or one of another version"));
        }
        if driver > MAX_DRIVER || count == 0 || count > MAX_ENDPOINTS {
            return Err(Malformed("a startpoint with no endpoint, too many endpoints, or a wrong driver"));
        }
        let mut take = |length: usize| {
            let (taken, after) = rest.split_at_checked(length).ok_or(SHORT)?;
            rest = after;
            Ok::<_, Malformed>(taken)
        };
        let driver = match take(driver)? {
            [] => None,
            name if is_driver(name) => std::str::from_utf8(name).ok().map(Box::from),
            _ => return Err(Malformed("no name of a driver")),
        };
        let mut targets: Vec<Target> = Vec::new();
        for _ in 0..count {
            let head: &[u8; TARGET_HEAD] = take(TARGET_HEAD)?.try_into().map_err(|_| SHORT)?;
            let (Some((id, rest)), [.., low, high]) = (head.split_first_chunk::<16>(), head) else { return Err(SHORT) };
            let endpoint = rest.first_chunk::<8>().copied().map(u64::from_le_bytes).ok_or(SHORT)?;
            let address = take(usize::from(u16::from_le_bytes([*low, *high])))?;
            if endpoint & !(ENDPOINT_BITS | REPLY_TAG) != 0 {
                return Err(Malformed("an endpoint's number that is too large"));
            }
            if address.is_empty() || address.len() > MAX_ADDRESS || !address.iter().all(u8::is_ascii_graphic) {
                return Err(Malformed("a wrong address of a node"));
            }
            let address = std::str::from_utf8(address).map_err(|_| Malformed("a wrong address of a node"))?;
            let same = targets.last().map(|target| &target.node);
            let node = match same.filter(|node| node.id.0 == *id && *node.address == *address) {
                Some(node) => node.clone(),
                None => Arc::new(NodeAddress { id: NodeId(*id), address: address.into() }),
            };
            targets.push(Target { node, endpoint });
        }
        if rest.is_empty() { Ok(Self { targets, driver }) } else { Err(Malformed("more bytes than a startpoint has")) }
    }

    /// Its text, of letters, digits and `: - _`. It contains secrets.
    pub fn to_text(&self) -> String {
        let bytes = self.to_bytes();
        let mut text = String::with_capacity(TEXT.len() + bytes.len().div_ceil(3) * 4);
        text.push_str(TEXT);
        for chunk in bytes.chunks(3) {
            let word = chunk.iter().enumerate().fold(0, |word, (at, byte)| word | u32::from(*byte) << (16 - 8 * at));
            let letters = (0..=chunk.len()).map(|at| LETTERS[(word >> (18 - 6 * at) & 63) as usize] as char);
            text.extend(letters);
        }
        text
    }
}

/// The letters of base64url (RFC 4648, section 5).
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

impl FromStr for Startpoint {
    type Err = Malformed;

    /// The startpoint of a text, which may stand between white space.
    fn from_str(text: &str) -> Result<Self, Malformed> {
        const WRONG: Malformed = Malformed("no text of a startpoint");
        let letters = text.trim_ascii().strip_prefix(TEXT).ok_or(WRONG)?.as_bytes();
        if letters.len() > MAX_BYTES.div_ceil(3) * 4 || letters.len() % 4 == 1 {
            return Err(WRONG);
        }
        let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 3);
        for chunk in letters.chunks(4) {
            let mut word = 0;
            for (at, letter) in chunk.iter().enumerate() {
                let value = match letter {
                    b'A'..=b'Z' => letter - b'A',
                    b'a'..=b'z' => letter - b'a' + 26,
                    b'0'..=b'9' => letter - b'0' + 52,
                    b'-' => 62,
                    b'_' => 63,
                    _ => return Err(WRONG),
                };
                word |= u32::from(value) << (18 - 6 * at);
            }
            let [_, all @ ..] = word.to_be_bytes();
            let (these, beyond) = all.split_at(chunk.len() - 1);
            if beyond.iter().any(|byte| *byte != 0) {
                return Err(WRONG); // a startpoint has one text
            }
            bytes.extend_from_slice(these);
        }
        Self::from_bytes(&bytes)
    }
}

impl fmt::Debug for Startpoint {
    /// Without addresses and endpoints, which are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<String> = self.targets.iter().map(|target| format!("{:?}", target.node)).collect();
        f.debug_struct("Startpoint").field("nodes", &nodes).field("driver", &self.driver).finish()
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}…", u32::from_be_bytes([self.id.0[0], self.id.0[1], self.id.0[2], self.id.0[3]]))
    }
}

impl Buffer<'_> {
    /// Puts a startpoint. The receiver may use it, and send it on.
    pub fn put_startpoint(&mut self, startpoint: &Startpoint) -> &mut Self {
        self.put_array(&startpoint.to_bytes())
    }
}

impl Reader<'_> {
    /// Gets a startpoint.
    pub fn get_startpoint(&mut self) -> Result<Startpoint, Malformed> {
        let mut after = self.clone();
        let startpoint = Startpoint::from_bytes(after.get_block()?)?;
        *self = after;
        Ok(startpoint)
    }
}

/// The drivers of an address with their own addresses; a name without a driver belongs to shared memory.
pub(crate) fn parts(address: &str) -> impl Iterator<Item = (&str, &str)> {
    address.split(',').map(|part| (part.split_once("://").map_or("shm", |(driver, _)| driver), part))
}

fn is_driver(name: &[u8]) -> bool {
    (1..=MAX_DRIVER).contains(&name.len())
        && name.iter().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Startpoint {
        let node = |id: u8, address: &str| Arc::new(NodeAddress { id: NodeId([id; 16]), address: address.into() });
        let mut start = Startpoint::to(Target { node: node(1, "shm://a,tcp://10.0.0.1:7/secretsecret"), endpoint: 77 });
        start.bind(&Startpoint::to(Target { node: node(2, "tcp://10.0.0.2:7/other"), endpoint: 5 })).unwrap();
        start.choose(Some("tcp")).unwrap();
        start
    }

    #[test]
    fn bytes_and_text_are_read_as_they_were_written() {
        let start = example();
        assert_eq!(Startpoint::from_bytes(&start.to_bytes()), Ok(start.clone()));
        assert_eq!(format!(" {}\n", start.to_text()).parse(), Ok(start.clone()));
        assert_eq!(start.protocols(), [vec!["shm", "tcp"], vec!["tcp"]]);
        assert_eq!(start.split().iter().map(Startpoint::endpoints).sum::<usize>(), 2);
        let mut twice = start.clone();
        twice.bind(&start).unwrap();
        assert_eq!(twice, start);
    }

    #[test]
    fn each_part_of_the_bytes_is_needed() {
        let (bytes, text) = (example().to_bytes(), example().to_text());
        for cut in 0..bytes.len() {
            assert!(Startpoint::from_bytes(&bytes[..cut]).is_err(), "{cut}");
        }
        assert!(Startpoint::from_bytes(&[&bytes[..], b"x"].concat()).is_err());
        assert!(text[1..].parse::<Startpoint>().is_err());
        assert!(format!("{text}=").parse::<Startpoint>().is_err());
        assert!(text.replace('T', "é").parse::<Startpoint>().is_err());
    }

    #[test]
    fn debugging_shows_no_secret() {
        let shown = format!("{:?}", example());
        assert!(!shown.contains("secret") && !shown.contains("77") && !shown.contains("10.0.0"), "{shown}");
    }
}
