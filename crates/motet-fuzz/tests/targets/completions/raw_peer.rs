//! A raw peer: it connects to a node correctly, then writes every word of the shared memory itself.

use super::Channel;
use motet_driver_shm::messages::handshake::Handshake;
use motet_engine::message::Node;
use motet_engine::message::transport::NodeId;
use motet_sys::rustix::fd::{AsFd, OwnedFd};
use motet_sys::rustix::io;
use motet_sys::socket::{connect_abstract, eventfd, receive_with_fds, send_with_fds};
use motet_sys::{clock, memory, thread};

/// Cells of a FIFO, and its bytes: the control words, then the cells.
const CELLS: usize = 64;
const FIFO_HEAD: usize = 384;
const FIFO_BYTES: usize = FIFO_HEAD + 64 * CELLS;
/// Bytes before the payload rings: both FIFOs and the control words of the rings.
const HEAD_BYTES: usize = (2 * FIFO_BYTES + 2 * 128).next_multiple_of(4096);
const RING: usize = 4096;
const LINK_BYTES: usize = HEAD_BYTES + 2 * RING;
/// Offset of the receiver's read position in a FIFO.
const CONSUMED: usize = 128;
/// The first id that a node gives to a channel.
pub const FIRST_CHANNEL: u32 = 1 << 20;
/// The packet kind MESSAGE.
pub const MESSAGE: u8 = 2;
/// Time limit of a connect, ns.
const HANG_LIMIT_NS: u64 = 20_000_000_000;

/// A raw peer. Dropping it closes the link.
pub struct Peer {
    /// The FIFO to the node, the FIFO from it, and their payload rings.
    file: OwnedFd,
    _files: [OwnedFd; 3],
    /// Cells put, and cells read.
    put: u64,
    read: u64,
}

impl Peer {
    /// Connects to a node and opens a channel to a service.
    pub fn open(node: &Node, service: u64, number: u8) -> (Self, Channel) {
        let file = memory::create_memfd("motet-completions", LINK_BYTES, &[], HEAD_BYTES).expect("memory");
        let receive_doorbell = eventfd().expect("an eventfd");
        let name = format!("motet/node/{}/{}", thread::euid(), node.name().expect("a name"));
        let connection = connect_abstract(name.as_bytes()).expect("the connection");
        let handshake =
            Handshake { node: NodeId([number; 16]), cells: CELLS as u32, ring: RING as u32, barrier: false };
        send_with_fds(&connection, &handshake.encode(), &[file.as_fd(), receive_doorbell.as_fd()])
            .expect("a handshake is taken");
        let until = clock::nanoseconds() + HANG_LIMIT_NS;
        let doorbell = loop {
            if let Ok((_, [doorbell])) = receive_with_fds::<1>(&connection, &mut [0; 100]) {
                break doorbell.expect("the node's doorbell");
            }
            assert!(clock::nanoseconds() < until, "not connected");
            let _ = node.progress_until(|| false, Some(clock::nanoseconds() + 20_000));
        };
        let mut peer = Self { file, _files: [connection, receive_doorbell, doorbell], put: 0, read: 0 };
        // HELLO: the largest window that a credit sum allows, 64 long messages, 64 channels, 256 requests. OPEN with our channel id 7.
        peer.packet(1, &[&b"MtMs\x01\0\0\0\0\x40\0\0"[..], &[64, 0, 0, 0, 64, 0, 0, 0, 0, 1, 0, 0]].concat());
        peer.packet(11, &[&7u64.to_le_bytes()[..], &service.to_le_bytes()].concat());
        let channel = node.accept(service, Some(until)).expect("a channel");
        (peer, channel)
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        io::pwrite(&self.file, bytes, at as u64).expect("inside the memory");
    }

    /// The offset of a write: mostly in the cells that the node reads next, or at the read positions.
    pub fn place(&self, at: u16) -> usize {
        let (at, which) = (usize::from(at) / 8, at % 8);
        match which {
            0 => at * 8 % LINK_BYTES,
            1 => FIFO_BYTES + CONSUMED + at % 2 * 8,
            2 => 2 * FIFO_BYTES + at % 32 * 8,
            _ => FIFO_HEAD + (self.put as usize + at / 8 + CELLS - 2) % CELLS * 64 + at % 8 * 8,
        }
    }

    /// Puts a packet of one cell.
    pub fn packet(&mut self, kind: u8, bytes: &[u8]) {
        self.line(bytes, bytes.len() as u64 | u64::from(kind) << 16);
    }

    /// Puts a cell with this upper half of its control word: length 13 bits, continuation cells 3, kind 8, flags 8.
    pub fn line(&mut self, bytes: &[u8], word: u64) {
        let at = FIFO_HEAD + self.put as usize % CELLS * 64;
        self.write(at + 8, bytes);
        self.put += 1;
        self.write(at, &((self.put & 0xffff_ffff) | word << 32).to_le_bytes());
    }

    /// Reads the cells that the node has put and publishes the read position. Returns what follows the grant in the first cell of each MESSAGE.
    pub fn read(&mut self) -> Vec<Vec<u8>> {
        let mut messages = Vec::new();
        for _ in 0..CELLS {
            let mut line = [0; 64];
            let at = FIFO_BYTES + FIFO_HEAD + self.read as usize % CELLS * 64;
            io::pread(&self.file, &mut line, at as u64).expect("inside the memory");
            let word = u64::from_le_bytes(*line.first_chunk().expect("eight bytes"));
            if word as u32 != (self.read + 1) as u32 {
                break;
            }
            self.read += 1;
            let (kind, first) = ((word >> 48) as u8, word >> 63 == 0);
            if kind == MESSAGE && first {
                let length = (word >> 32) as usize & 0x1fff;
                messages.push(line.get(16..8 + length.min(56)).unwrap_or_default().to_vec());
            }
        }
        self.write(FIFO_BYTES + CONSUMED, &self.read.to_le_bytes());
        messages
    }
}

/// Returns whether an offset is in the node's FIFO, where the result of a read depends on the node's progress.
pub fn is_in_node_fifo(at: usize) -> bool {
    (FIFO_BYTES + FIFO_HEAD - 7..2 * FIFO_BYTES).contains(&at)
}

/// The packet of a message.
pub fn message(to: u32, headers: u8, grant: u8, tag: u8, bytes: &[u8]) -> Vec<u8> {
    let (headers, grant, tag) = (u16::from(headers), u16::from(grant), u64::from(tag));
    [&to.to_le_bytes()[..], &headers.to_le_bytes(), &grant.to_le_bytes(), &tag.to_le_bytes(), bytes].concat()
}
