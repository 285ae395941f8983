//! A raw peer: it connects to a node correctly, then writes every word of the shared memory itself.
//!
//! What it is not: it checks nothing, and knows only as much of the protocol (docs/messages.md) as it needs to get a channel.

use crate::HANG_LIMIT;
use motet::node::{Channel, LinkId, Node};
use motet_sys::memory;
use motet_sys::rustix::fd::{AsFd, OwnedFd};
use motet_sys::rustix::io;
use motet_sys::socket::{connect_abstract, eventfd, receive_with_fds, send_with_fds};
use std::time::{Duration, Instant};

/// Cells of a FIFO.
pub const CELLS: usize = 128;
/// Bytes of a FIFO: 384 of control, then cells of 64 bytes.
pub const FIFO_BYTES: usize = 384 + 64 * CELLS;
/// Bytes before the payload rings: both FIFOs and the control words of the rings. These pages exist from the beginning.
pub const HEAD_BYTES: usize = (2 * FIFO_BYTES + 2 * 128).next_multiple_of(4096);
/// Bytes of a link's memory.
pub const LINK_BYTES: usize = HEAD_BYTES + 2 * (1 << 20);
/// Offset of the word in which a node says that it sleeps.
const SLEEP_FLAG: usize = 256;
/// The first id that a node gives to a channel.
pub const FIRST_CHANNEL: u32 = 1 << 20;
/// The packet kind MESSAGE.
pub const MESSAGE: u8 = 2;

/// The socket name at which a node accepts connections.
pub fn listener_name(node: &Node) -> Vec<u8> {
    format!("motet/node/{}/{}", motet_sys::thread::euid(), node.name().expect("a name")).into_bytes()
}

/// A valid handshake, recorded from a node that connects.
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

/// Sealed memory of `size` bytes, as a link uses it.
pub fn sealed(size: usize) -> OwnedFd {
    memory::create_memfd("hostile", size, &[], HEAD_BYTES).expect("memory")
}

/// A raw peer. Dropping it closes the link.
#[derive(Debug)]
pub struct Peer {
    /// The link's memory: the FIFO to the node, the FIFO from it, and their payload rings.
    pub file: OwnedFd,
    _connection: OwnedFd,
    _receive_doorbell: OwnedFd,
    doorbell: OwnedFd,
    /// Cells put so far.
    pub put: u64,
    /// Cells read so far, or [`Peer::FORGED`]: the peer has written another read position and writes no further ones.
    pub read: u64,
}

impl Peer {
    /// The value of `read` after the peer has written a wrong read position.
    pub const FORGED: u64 = u64::MAX;

    /// Connects to a node without links.
    pub fn connect(node: &Node, handshake: &[u8]) -> (Self, LinkId) {
        let (file, receive_doorbell) = (sealed(LINK_BYTES), eventfd().expect("an eventfd"));
        let connection = connect_abstract(&listener_name(node)).expect("the node's socket");
        send_with_fds(&connection, handshake, &[file.as_fd(), receive_doorbell.as_fd()]).expect("a handshake is taken");
        let began = Instant::now();
        let doorbell = loop {
            match receive_with_fds::<1>(&connection, &mut [0; 100]) {
                Ok((_, [doorbell])) => break doorbell.expect("the node's doorbell"),
                Err(_) => assert!(began.elapsed() < HANG_LIMIT, "not connected"),
            }
            let _ = node.progress_until(|| false, Some(motet::node::deadline_in(50_000)));
        };
        let link = *node.links().expect("a node").first().expect("a link");
        (Self { file, _connection: connection, _receive_doorbell: receive_doorbell, doorbell, put: 0, read: 0 }, link)
    }

    /// Connects and opens a channel to a service.
    pub fn open(node: &Node, handshake: &[u8], service: u64) -> (Self, Channel) {
        let (mut peer, _) = Self::connect(node, handshake);
        // HELLO: the largest window that a credit sum allows, 64 long messages, 64 channels, 256 requests. OPEN with our channel id 7.
        peer.put_packet(1, &[&b"MtMs\x01\0\0\0\0\x40\0\0"[..], &[64, 0, 0, 0, 64, 0, 0, 0, 0, 1, 0, 0]].concat());
        peer.put_packet(11, &[&7u64.to_le_bytes()[..], &service.to_le_bytes()].concat());
        let channel = node.accept(service, Some(HANG_LIMIT)).expect("a channel");
        (peer, channel)
    }

    /// Writes bytes at any offset.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        io::pwrite(&self.file, bytes, at as u64).expect("inside the memory");
    }

    /// Puts a packet of one cell.
    pub fn put_packet(&mut self, kind: u8, bytes: &[u8]) {
        self.put_cell(bytes, bytes.len() as u64 | u64::from(kind) << 16);
    }

    /// Puts a cell with this upper half of its control word: length 13 bits, continuation cells 3, kind 8, flags 8.
    pub fn put_cell(&mut self, bytes: &[u8], word: u64) {
        let at = 384 + self.put as usize % CELLS * 64;
        self.write(at + 8, bytes);
        self.put += 1;
        self.write(at, &((self.put & 0xffff_ffff) | word << 32).to_le_bytes());
        self.ring_doorbell();
    }

    /// Wakes the node if it says that it sleeps.
    fn ring_doorbell(&self) {
        let mut asleep = [0; 4];
        io::pread(&self.file, &mut asleep, SLEEP_FLAG as u64).expect("inside the memory");
        if asleep != [0; 4] {
            self.write(SLEEP_FLAG, &[0; 4]);
            io::write(&self.doorbell, &1u64.to_ne_bytes()).expect("a doorbell");
        }
    }

    /// Puts a message whose first `headers` bytes are headers, with a grant of credit.
    pub fn put_message(&mut self, to: u32, headers: u16, grant: u16, tag: u64, bytes: &[u8]) {
        let packet = message(to, headers, grant, tag, bytes);
        self.put_packet(MESSAGE, &packet);
    }

    /// Reads the cells that the node has put and publishes the read position. Returns what follows the tag in the first cell of each MESSAGE.
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

/// The packet of a message.
pub fn message(to: u32, headers: u16, grant: u16, tag: u64, bytes: &[u8]) -> Vec<u8> {
    [&to.to_le_bytes()[..], &headers.to_le_bytes(), &grant.to_le_bytes(), &tag.to_le_bytes(), bytes].concat()
}
