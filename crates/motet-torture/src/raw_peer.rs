//! A peer made by hand: it meets a node properly, over memory of which it then writes every word itself.
//!
//! What it is not: it checks nothing, and knows of the protocol (docs/messages.md) no more than what is needed to get a channel.

use crate::HANG_LIMIT;
use motet::node::{Channel, LinkId, Node};
use motet_sys::memory;
use motet_sys::rustix::fd::{AsFd, OwnedFd};
use motet_sys::rustix::io;
use motet_sys::socket::{connect_abstract, eventfd, receive_with_fds, send_with_fds};
use std::time::{Duration, Instant};

/// Lines of a lane.
pub const CELLS: usize = 128;
/// Bytes of a lane: 384 of control, then lines of 64.
pub const FIFO_BYTES: usize = 384 + 64 * CELLS;
/// Both lanes and the lines of their rings, which are there from the beginning; then the rings.
pub const HEAD_BYTES: usize = (2 * FIFO_BYTES + 2 * 128).next_multiple_of(4096);
/// Everything.
pub const LINK_BYTES: usize = HEAD_BYTES + 2 * (1 << 20);
/// Where a node says that it sleeps.
const SLEEP_FLAG: usize = 256;
/// The first number that a node gives to a channel.
pub const FIRST_CHANNEL: u32 = 1 << 20;
/// A MESSAGE.
pub const MESSAGE: u8 = 2;

/// The name at which a node is met.
pub fn listener_name(node: &Node) -> Vec<u8> {
    format!("motet/node/{}/{}", motet_sys::thread::euid(), node.name().expect("a name")).into_bytes()
}

/// A good handshake, taken from a node that calls.
pub fn handshake() -> Vec<u8> {
    let name = format!("listener-{}-{:?}", std::process::id(), std::thread::current().id()).replace(['(', ')'], "-");
    let full = format!("motet/node/{}/{name}", motet_sys::thread::euid());
    let listener = motet_sys::socket::listen_abstract(full.as_bytes(), 1).expect("a name to listen at");
    let caller = Node::open("").expect("a node");
    let _ = caller.connect(&name, Some(Duration::from_millis(2)));
    let connection = motet_sys::socket::accept(&listener).expect("a caller");
    let mut bytes = vec![0; 100];
    let (length, _) = receive_with_fds::<2>(&connection, &mut bytes).expect("a handshake");
    bytes.truncate(length);
    bytes
}

/// Memory of so many bytes as a link has it.
pub fn sealed(size: usize) -> OwnedFd {
    memory::create_memfd("hostile", size, &[], HEAD_BYTES).expect("memory")
}

/// Such a peer. It goes when it is dropped.
#[derive(Debug)]
pub struct Peer {
    /// The link's memory: the lane to the node, the one from it, what belongs to their rings.
    pub file: OwnedFd,
    _connection: OwnedFd,
    _receive_doorbell: OwnedFd,
    doorbell: OwnedFd,
    /// Lines put.
    pub put: u64,
    /// Lines read. [`Peer::FORGED`]: something else was said of that, and nothing is said any more.
    pub read: u64,
}

impl Peer {
    /// See [`Peer::read`].
    pub const FORGED: u64 = u64::MAX;

    /// Meets a node that has no links.
    pub fn connect(node: &Node, handshake: &[u8]) -> (Self, LinkId) {
        let (file, receive_doorbell) = (sealed(LINK_BYTES), eventfd().expect("an eventfd"));
        let connection = connect_abstract(&listener_name(node)).expect("the door");
        send_with_fds(&connection, handshake, &[file.as_fd(), receive_doorbell.as_fd()]).expect("a handshake is taken");
        let began = Instant::now();
        let doorbell = loop {
            match receive_with_fds::<1>(&connection, &mut [0; 100]) {
                Ok((_, [doorbell])) => break doorbell.expect("the node's doorbell"),
                Err(_) => assert!(began.elapsed() < HANG_LIMIT, "not met"),
            }
            let _ = node.progress_until(|| false, Some(motet::node::deadline_in(50_000)));
        };
        let link = *node.links().expect("a node").first().expect("a link");
        (Self { file, _connection: connection, _receive_doorbell: receive_doorbell, doorbell, put: 0, read: 0 }, link)
    }

    /// The same, and opens a channel to a service.
    pub fn open(node: &Node, handshake: &[u8], service: u64) -> (Self, Channel) {
        let (mut peer, _) = Self::connect(node, handshake);
        // HELLO: the largest window that fits a credit's sum, 64 long messages, 64 channels, 256 requests. OPEN, as our number 7.
        peer.put_packet(1, &[&b"MtMs\x01\0\0\0\0\x40\0\0"[..], &[64, 0, 0, 0, 64, 0, 0, 0, 0, 1, 0, 0]].concat());
        peer.put_packet(11, &[&7u64.to_le_bytes()[..], &service.to_le_bytes()].concat());
        let channel = node.accept(service, Some(HANG_LIMIT)).expect("a channel");
        (peer, channel)
    }

    /// Writes anything anywhere.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        io::pwrite(&self.file, bytes, at as u64).expect("inside the memory");
    }

    /// Puts a packet of one line.
    pub fn put_packet(&mut self, kind: u8, bytes: &[u8]) {
        self.put_cell(bytes, bytes.len() as u64 | u64::from(kind) << 16);
    }

    /// Puts a line of which the upper half of the word is this: length 13 bits, lines that follow 3, kind 8, flags 8.
    pub fn put_cell(&mut self, bytes: &[u8], word: u64) {
        let at = 384 + self.put as usize % CELLS * 64;
        self.write(at + 8, bytes);
        self.put += 1;
        self.write(at, &((self.put & 0xffff_ffff) | word << 32).to_le_bytes());
        self.ring_doorbell();
    }

    /// Wakes the node, if it says that it sleeps.
    fn ring_doorbell(&self) {
        let mut asleep = [0; 4];
        io::pread(&self.file, &mut asleep, SLEEP_FLAG as u64).expect("inside the memory");
        if asleep != [0; 4] {
            self.write(SLEEP_FLAG, &[0; 4]);
            io::write(&self.doorbell, &1u64.to_ne_bytes()).expect("a doorbell");
        }
    }

    /// A message with so many bytes that are its headers, and a grant.
    pub fn put_message(&mut self, to: u32, headers: u16, grant: u16, tag: u64, bytes: &[u8]) {
        let packet = message(to, headers, grant, tag, bytes);
        self.put_packet(MESSAGE, &packet);
    }

    /// Reads what the node has put, and says so: what the first line of each MESSAGE has behind the tag.
    pub fn read(&mut self) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        if self.read == Self::FORGED {
            return messages;
        }
        loop {
            let mut line = [0; 64];
            let at = FIFO_BYTES + 384 + self.read as usize % CELLS * 64;
            io::pread(&self.file, &mut line, at as u64).expect("inside the memory");
            let word = u64::from_le_bytes(*line.first_chunk().expect("eight bytes"));
            if word as u32 != (self.read + 1) as u32 {
                break;
            }
            self.read += 1;
            let (kind, first) = ((word >> 48) as u8, word >> 63 == 0);
            if kind == MESSAGE && first {
                let length = (word >> 32) as usize & 0x1fff;
                messages.push(line.get(24..8 + length.min(56)).expect("a whole message").to_vec());
            }
        }
        self.write(FIFO_BYTES + 128, &self.read.to_le_bytes());
        messages
    }
}

/// The bytes of a message.
pub fn message(to: u32, headers: u16, grant: u16, tag: u64, bytes: &[u8]) -> Vec<u8> {
    [&to.to_le_bytes()[..], &headers.to_le_bytes(), &grant.to_le_bytes(), &tag.to_le_bytes(), bytes].concat()
}
