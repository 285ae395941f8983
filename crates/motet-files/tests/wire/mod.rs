//! A client that speaks the protocols of session, link and files itself, over a plain TCP connection, and can break each of them.

use motet_files::protocol::{
    Answer, Operation, Reply, Request, SERVICE, SessionKey, VERSION, answer_tag, append, data_tag, parse_answer,
    request_tag,
};
use motet_proto::message::packet::{Head, Hello, Kind, LongHeader, RemoteAddress};
use motet_proto::message::session::MAX_PACKET_BYTES;
use motet_proto::message::session::frame::{FrameKind, HEADER_BYTES, Header};
use motet_proto::message::session::handshake::{HANDSHAKE_BYTES, Handshake, HandshakeOp};
use motet_proto::message::slab::SlabId;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The number that this side gives its channel.
const CHANNEL: u32 = 1 << 20;
/// What an ordinary client allows its server.
pub const ORDINARY: Hello = Hello { window: 1 << 16, max_rendezvous: 256, channels: 16, requests: 0 };

/// The connection.
pub struct Wire {
    stream: TcpStream,
    /// Position of the next frame.
    pub put: u64,
    /// Bytes of numbered frames that have arrived.
    pub taken: u64,
    /// The server's number of the channel.
    pub channel: u32,
    /// It says goodbye, so that the server does not wait for it to come back.
    polite: bool,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.polite {
            let header = Header {
                what: FrameKind::Goodbye,
                kind: 0,
                length: 0,
                position: self.put as u32,
                acknowledged: self.taken as u32,
            };
            self.raw(&header.encode());
        }
    }
}

/// The part of an address that is for TCP.
pub fn tcp_part(address: &str) -> String {
    address.split(',').find(|part| part.starts_with("tcp://")).expect("an address for TCP").to_owned()
}

impl Wire {
    /// Connects to the node at this address, and begins a link that allows the server as much as `hello` says.
    pub fn connect(address: &str, hello: Hello) -> Self {
        let address = tcp_part(address);
        let (secret, place) = address["tcp://".len()..].split_once('@').expect("a secret");
        let mut stream = TcpStream::connect(place).expect("a connection");
        stream.set_nodelay(true).expect("the option");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("the option");
        let random = || std::array::from_fn(|_| rand_byte());
        let handshake = Handshake {
            op: HandshakeOp::New,
            epoch: 0,
            node: random(),
            session: random(),
            expected: 0,
            secret: u64::from_str_radix(&secret[..16], 16).expect("digits"),
            largest: MAX_PACKET_BYTES as u32,
            port: 0,
        };
        stream.write_all(&handshake.encode()).expect("sent");
        let mut answer = [0; HANDSHAKE_BYTES];
        stream.read_exact(&mut answer).expect("an answer");
        assert_eq!(Handshake::decode(&answer).expect("a handshake").op, HandshakeOp::Admitted);
        let mut wire = Self { stream, put: 0, taken: 0, channel: 0, polite: true };
        wire.packet(Kind::Hello, &hello.write());
        wire.packet(Kind::Open, &Head { to: SlabId(CHANNEL), own: 0, grant: 0 }.write_word(SERVICE));
        while wire.channel == 0 {
            let (kind, packet) = wire.next().expect("the channel is accepted");
            if kind == Kind::Accept as u8 {
                wire.channel = u32::try_from(word(&packet, 8)).expect("a number");
            }
        }
        wire
    }

    /// Connects, and begins a session.
    pub fn attached(address: &str) -> (Self, SessionKey) {
        let mut wire = Self::connect(address, ORDINARY);
        let key = wire.attach();
        (wire, key)
    }

    /// Begins a session.
    pub fn attach(&mut self) -> SessionKey {
        self.request(0, 0, 0, Operation::Attach { version: VERSION, resume: None });
        match self.answer(0) {
            Some(Ok(Reply::Attached { key, .. })) => key,
            answer => panic!("{answer:?}"),
        }
    }

    /// Writes bytes to the connection. The server may have ended it.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// A frame at a position, without a change of this side's own one.
    pub fn frame_at(&self, position: u64, kind: u8, payload: &[u8]) -> Vec<u8> {
        let header = Header {
            what: FrameKind::Packet,
            kind,
            length: payload.len() as u32,
            position: position as u32,
            acknowledged: self.taken as u32,
        };
        [&header.encode()[..], payload].concat()
    }

    /// Sends a packet.
    pub fn packet(&mut self, kind: Kind, payload: &[u8]) {
        let frame = self.frame_at(self.put, kind as u8, payload);
        self.put += frame.len() as u64;
        self.raw(&frame);
    }

    /// The packet of a message that is whole.
    pub fn message_packet(&self, tag: u64, body: &[u8]) -> Vec<u8> {
        [&self.head().write_word(tag)[..], body].concat()
    }

    /// Sends a message in one packet.
    pub fn message(&mut self, tag: u64, body: &[u8]) {
        let packet = self.message_packet(tag, body);
        self.packet(Kind::Message, &packet);
    }

    /// The bytes of a request.
    pub fn request_bytes(slot: u16, sequence: u32, data: u32, operation: Operation<'_>) -> Vec<u8> {
        let mut bytes = Vec::new();
        append(&Request { slot, sequence, data, identity: None, operation }, &mut bytes);
        bytes
    }

    /// Sends a request.
    pub fn request(&mut self, slot: u16, sequence: u32, data: u32, operation: Operation<'_>) {
        self.message(request_tag(slot), &Self::request_bytes(slot, sequence, data, operation));
    }

    /// Announces data of the request in a slot: `length` bytes, under a number of this side.
    pub fn announce_data(&mut self, slot: u16, length: u64, number: u32) {
        self.announce(data_tag(slot), length, number);
    }

    /// Announces a message: `length` bytes, under a number of this side.
    pub fn announce(&mut self, tag: u64, length: u64, number: u32) {
        let long = LongHeader { tag, length, number: SlabId(CHANNEL | number) };
        let packet = long.write_at(self.head(), RemoteAddress::default());
        self.packet(Kind::Rts, &packet);
    }

    /// Begins a message of `length` bytes with the first ones.
    pub fn begin(&mut self, tag: u64, length: u64, number: u32, first: &[u8]) {
        let long = LongHeader { tag, length, number: SlabId(CHANNEL | number) };
        let packet = [&long.write(self.head())[..], first].concat();
        self.packet(Kind::First, &packet);
    }

    /// Sends a part of the data that were announced under a number.
    pub fn piece(&mut self, number: u32, at: u64, bytes: &[u8]) {
        let head = Head { to: SlabId(CHANNEL | number), own: 0, grant: 0 }.write_word(at);
        self.packet(Kind::Piece, &[&head[..], bytes].concat());
    }

    /// The head of packets to the channel.
    pub fn head(&self) -> Head {
        Head { to: SlabId(self.channel), own: 0, grant: 0 }
    }

    /// The next packet: its kind and its bytes. `None`: the server has ended the connection, or says goodbye.
    pub fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            let mut header = [0; HEADER_BYTES];
            self.exactly(&mut header)?;
            let header = Header::decode(&header, MAX_PACKET_BYTES).expect("a frame");
            let mut payload = vec![0; header.length as usize];
            self.exactly(&mut payload)?;
            if header.is_numbered() {
                self.taken += header.size() as u64;
            }
            match header.what {
                FrameKind::Packet => return Some((header.kind, payload)),
                FrameKind::Goodbye => return None,
                _ => {}
            }
        }
    }

    fn exactly(&mut self, into: &mut [u8]) -> Option<()> {
        match self.stream.read_exact(into) {
            Ok(()) => Some(()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                panic!("the server neither answers nor ends the connection")
            }
            Err(_) => None,
        }
    }

    /// Waits for the request to send data, and returns up to where.
    pub fn clear_to_send(&mut self) -> Option<u64> {
        loop {
            let (kind, packet) = self.next()?;
            if kind == Kind::Cts as u8 {
                return Some(word(&packet, 8));
            }
        }
    }

    /// The answer in a slot, which fits one packet. `None`: the server has ended the connection.
    pub fn answer(&mut self, slot: u16) -> Option<Result<Reply, i32>> {
        loop {
            let (kind, packet) = self.next()?;
            if kind == Kind::Message as u8 && word(&packet, 8) == answer_tag(slot) {
                let length = usize::from(u16::from_le_bytes([packet[4], packet[5]]));
                let Answer { result, .. } = parse_answer(&packet[16..16 + length]).expect("an answer");
                return Some(result);
            }
        }
    }

    /// Ends the connection without a goodbye, as a host that fails does.
    pub fn break_off(mut self) {
        self.polite = false;
    }

    /// Whether the server ends the connection, after whatever it has sent before.
    pub fn is_ended(&mut self) -> bool {
        while self.next().is_some() {}
        true
    }
}

fn word(packet: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(packet[at..at + 8].try_into().expect("eight bytes"))
}

/// A byte that differs between clients and runs.
fn rand_byte() -> u8 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0) as u8
}
