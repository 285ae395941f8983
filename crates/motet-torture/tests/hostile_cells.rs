//! Peers that write garbage into the FIFOs of a node, between messages and while they are received: every call ends on the direct path as on the
//! general one, nothing outside of the bounds is read or written, and others are served as before.
#![forbid(unsafe_code)]

use motet::node::{Channel, CompletionOptions, Error, Mode, Node, OperationMemory, Outgoing, RecvFrom, Serve, Status};
use motet_torture::random::Random;
use motet_torture::raw_peer::{FIFO_BYTES, FIRST_CHANNEL, MESSAGE, Peer, handshake, message};
use motet_torture::{HANG_LIMIT, forget_all, seconds, seed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const SERVICE: u64 = 1;
/// Messages exchanged before the garbage.
const MESSAGES_BEFORE_GARBAGE: u64 = 12;
/// A time limit that does not wait.
const NOW: Option<Duration> = Some(Duration::ZERO);
const BUFFER: usize = 70_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    /// Blocking receives, and bodies of one part.
    Direct,
    /// Posted receives, and bodies of two parts.
    General,
}

/// The result of a call.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Sent(Result<(), Error>),
    Got(Result<(u64, Vec<u8>, Vec<u8>), Error>),
    Read(Vec<Vec<u8>>),
}

/// A node whose calls take one path.
struct Victim {
    node: Node,
    path: Path,
}

/// Its link to a raw peer.
struct Link<'a> {
    node: &'a Node,
    path: Path,
    peer: Peer,
    channel: Channel,
}

impl Victim {
    fn new(path: Path) -> Self {
        let node = Node::open("").unwrap();
        node.serve(SERVICE, Serve::Queue).unwrap();
        Self { node, path }
    }

    fn connect(&self, handshake: &[u8]) -> Link<'_> {
        let (peer, channel) = Peer::open(&self.node, handshake, SERVICE);
        let mut link = Link { node: &self.node, path: self.path, peer, channel };
        for tag in 0..MESSAGES_BEFORE_GARBAGE {
            link.peer.put_message(FIRST_CHANNEL, 0, 0, tag, &tag.to_le_bytes());
            assert_eq!(link.receive(), End::Got(Ok((tag, Vec::new(), tag.to_le_bytes().to_vec()))));
            assert_eq!(link.send(tag, 0, 8), End::Sent(Ok(())));
            assert_eq!(link.peer.read().len(), 1);
        }
        link
    }

    /// Disconnects the link and serves another peer.
    fn serves_other_peers(&self) {
        forget_all(&self.node);
        let other_node = Node::open("").unwrap();
        std::thread::scope(|scope| {
            let there = scope.spawn(|| self.node.accept(SERVICE, Some(HANG_LIMIT)).unwrap());
            let link = other_node.connect(&self.node.name().unwrap(), Some(HANG_LIMIT)).unwrap();
            let here = other_node.open_channel(link, SERVICE, Serve::Queue, Some(HANG_LIMIT)).unwrap();
            let there = there.join().unwrap();
            for tag in 0..MESSAGES_BEFORE_GARBAGE {
                other_node.send(here, tag, b"friend", Some(HANG_LIMIT)).unwrap();
                assert_eq!(self.node.receive(there, &mut [0; 8], Some(HANG_LIMIT)).unwrap().tag, tag);
            }
            self.node.disconnect(there.link).unwrap();
        });
        forget_all(&self.node);
    }
}

impl Link<'_> {
    fn receive(&self) -> End {
        let from = RecvFrom::Channel(self.channel);
        End::Got(match self.path {
            Path::Direct => {
                let (mut headers, mut buffer) = (Vec::new(), vec![0; BUFFER]);
                let got = self.node.receive_with(from, 0, u64::MAX, &mut headers, &mut buffer, NOW);
                got.map(|got| (got.tag, headers, buffer[..got.length].to_vec()))
            }
            Path::General => self.receive_posted(from),
        })
    }

    fn receive_posted(&self, from: RecvFrom) -> Result<(u64, Vec<u8>, Vec<u8>), Error> {
        let memory = OperationMemory::Owned(vec![0; BUFFER]);
        let operation = self.node.post(from, 0, u64::MAX, memory, CompletionOptions::default())?;
        let end = self.node.wait_for(operation, Some(motet::node::deadline_in(0))).or_else(|error| {
            assert_eq!(error, Error::TimedOut);
            self.node.cancel_receive(operation)?;
            self.node.wait_for(operation, None)
        })?;
        match end.status {
            Status::Done => Ok((end.tag, end.headers, end.memory.unwrap()[..end.length as usize].to_vec())),
            Status::Cancelled => Err(Error::TimedOut),
            status => {
                let gone = self.node.link_info(self.channel.link).ok().and_then(|info| info.gone);
                Err(Error::of_status(status, gone).unwrap())
            }
        }
    }

    fn send(&self, tag: u64, headers: usize, body: usize) -> End {
        let content = [tag as u8; 256];
        let outgoing = Outgoing { channel: self.channel, tag, headers: &content[..headers], mode: Mode::Inject };
        let (first, second) = content[..body].split_at(body / 2);
        End::Sent(match self.path {
            Path::Direct => self.node.send_with(&outgoing, &[&content[..body]], NOW),
            Path::General => self.node.send_with(&outgoing, &[first, second], NOW),
        })
    }

    /// Receives until an error.
    fn drain(&self, ends: &mut Vec<End>) {
        loop {
            let end = self.receive();
            let over = matches!(end, End::Got(Err(_)));
            ends.push(end);
            if over {
                return;
            }
        }
    }

    /// One random step; both nodes draw the same numbers.
    fn step(&mut self, random: &mut Random, ends: &mut Vec<End>) {
        match random.below(16) {
            0..9 => {
                let (headers, length) = (random.below(12), 12 + random.below(29));
                let bytes: Vec<u8> = (0..length).map(|_| random.number() as u8).collect();
                self.peer.put_message(FIRST_CHANNEL, headers as u16, 0, random.below(5), &bytes);
                self.drain(ends);
            }
            9..14 => {
                // Messages of one cell, because the two paths divide longer ones differently.
                let (headers, body) = (random.below(20) as usize, random.below(20) as usize);
                ends.push(self.send(random.below(5), headers, body));
                ends.push(End::Read(self.peer.read()));
            }
            _ => {
                garbage(random, &mut self.peer);
                self.drain(ends);
            }
        }
    }
}

/// Packets that an honest peer never puts, or not at this point.
fn garbage(random: &mut Random, peer: &mut Peer) {
    let bytes: Vec<u8> = (0..40).map(|_| if random.once_in(3) { random.number() as u8 } else { 0 }).collect();
    let length = random.below(41);
    let body = &bytes[..length as usize];
    match random.below(12) {
        0 => peer.put_message(random.number() as u32, 0, 0, 1, body),
        1 => peer.put_message(FIRST_CHANNEL + random.below(3) as u32, 0, 0, 1, body),
        2 => peer.put_message(FIRST_CHANNEL, random.below(300) as u16, 0, 1, body),
        3 => peer.put_message(FIRST_CHANNEL, 0, random.number() as u16, 1, body),
        4 => peer.put_message(FIRST_CHANNEL, 0, 1 + random.below(4) as u16, 1, body), // possibly credit that is due
        // Length, continuation count and flags that do not fit the packet. Bytes in the ring are those that the cell claims.
        5..8 => {
            let packet = message(FIRST_CHANNEL, 0, 0, 1, body);
            let said = if random.once_in(2) { packet.len() as u64 } else { random.below(8192) };
            let (more, flags) = (random.below(8) * random.below(2), random.below(256) * random.below(2));
            peer.put_cell(&packet, said | more << 13 | u64::from(MESSAGE) << 16 | flags << 24);
        }
        // A packet of another kind. No long message begins, because its receive would wait for the rest.
        8 | 9 => {
            let kind = [0, 1, 5, 6, 7, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 40, 255][random.below(18) as usize];
            peer.put_packet(kind, &bytes[..8 * random.below(6) as usize]);
        }
        // A wrong stamp: of a cell of the previous lap, of a later one, of none.
        10 => {
            let at = 384 + peer.put as usize % 128 * 64;
            let stamp = [peer.put.wrapping_sub(127), peer.put + 2, random.number()][random.below(3) as usize];
            peer.write(at, &(stamp & 0xffff_ffff | 24 << 32 | u64::from(MESSAGE) << 48).to_le_bytes());
        }
        // A read position beyond what was put.
        _ => {
            peer.write(FIFO_BYTES + 128, &(random.number() | 1 << 40).to_le_bytes());
            peer.read = Peer::FORGED;
        }
    }
}

#[test]
fn garbage_ends_calls_of_both_paths_alike() {
    let (good, seed) = (handshake(), seed());
    let victims = [Path::Direct, Path::General].map(Victim::new);
    let until = Instant::now() + seconds(4);
    let (mut links, mut broken) = (0u64, 0);
    while Instant::now() < until {
        let ends = victims.each_ref().map(|victim| {
            let mut random = Random(seed.wrapping_add(links));
            let (mut link, mut ends) = (victim.connect(&good), Vec::new());
            let id = link.channel.link;
            let gone = |ends: &[End]| {
                ends.iter().any(|end| matches!(end, End::Got(Err(Error::Lost(_))) | End::Sent(Err(Error::Lost(_)))))
            };
            for _ in 0..random.below(60) {
                link.step(&mut random, &mut ends);
                if gone(&ends) || link.peer.read == Peer::FORGED {
                    break;
                }
            }
            // A forged read position is noticed when the FIFO seems full. After how many sends depends on packets that the node has put for itself.
            while link.peer.read == Peer::FORGED && !gone(&ends) {
                ends.extend(Some(link.send(1, 0, 8)).filter(|end| matches!(end, End::Sent(Err(Error::Lost(_))))));
            }
            let info = victim.node.link_info(id).unwrap();
            assert!(info.bytes.iter().sum::<usize>() < 16 << 20, "{:?}", info.bytes);
            drop(link);
            victim.serves_other_peers();
            (ends, info.gone)
        });
        let [direct, general] = &ends;
        assert_eq!(direct, general, "link {links}");
        broken += u64::from(direct.1.is_some());
        links += 1;
    }
    println!("{links} links, {broken} of them broken by what was written");
    assert!(broken > links / 8 && broken < links);
}

/// Control words change while the node reads them.
#[test]
fn garbage_written_during_a_call_does_no_harm() {
    let (good, mut random) = (handshake(), Random(seed()));
    let victim = Victim::new(Path::Direct);
    let until = Instant::now() + seconds(3);
    let (mut links, mut broken, mut got) = (0, 0, 0u64);
    while Instant::now() < until {
        let mut link = victim.connect(&good);
        let file = link.peer.file.try_clone().unwrap();
        let (over, seed) = (AtomicBool::new(false), random.number());
        std::thread::scope(|scope| {
            let over = &over;
            let mut dice = Random(seed);
            // The control words of the next cells, with their lengths and channels.
            scope.spawn(move || {
                for _ in 0..4000 {
                    let at = match dice.below(64) {
                        0 => FIFO_BYTES + 128 * (1 + dice.below(2)) as usize,
                        _ => 384 + 64 * dice.below(128) as usize + 8 * dice.below(4) as usize + 4,
                    };
                    let value = [0, 24, 56, 57, 255, 1 << 20, 8 << 16 | 24, u32::MAX][dice.below(8) as usize];
                    let value = if dice.once_in(4) { dice.number() as u32 } else { value };
                    let _ = motet_sys::rustix::io::pwrite(&file, &value.to_le_bytes(), at as u64);
                }
                over.store(true, Ordering::Relaxed);
            });
            let (mut headers, mut buffer) = (Vec::new(), [0xee; 64]);
            while !over.load(Ordering::Relaxed) {
                link.peer.put_message(FIRST_CHANNEL, 3, 0, 5, &[0x5a; 24]);
                let from = RecvFrom::Channel(link.channel);
                let received = link.node.receive_with(from, 0, u64::MAX, &mut headers, &mut buffer[..32], NOW);
                got += u64::from(received.is_ok());
                assert!(headers.len() <= 256 && buffer[32..] == [0xee; 32], "nothing outside of the buffer is written");
                let sent = link.send(1, 4, 8);
                link.peer.read();
                if let (Err(Error::Lost(_)), End::Sent(Err(_))) = (received, sent) {
                    break;
                }
            }
            // A message that has begun stays incomplete; its receive ends when the peer closes.
        });
        links += 1;
        broken += u64::from(victim.node.link_info(link.channel.link).unwrap().gone.is_some());
        drop(link);
        victim.serves_other_peers();
    }
    println!("{links} links, {broken} of them broken by what was written; {got} messages");
    assert!(broken > 0 && got > 0);
}
