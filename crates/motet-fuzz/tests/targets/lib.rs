//! Every parser of bytes that a peer or a user's file controls, as a function of a byte string: it must return for any input.
//!
//! What it is: the targets ([`TARGETS`]), their seeds, and a small repeatable mutator for a bounded run on the stable toolchain (`tests/bounded.rs`,
//! `scripts/fuzz-short`). What it is not: a fuzzer; `fuzz/` passes the same functions to cargo-fuzz for long runs.
#![deny(unsafe_code)] // but for completions/receive_memory.rs: memory that receives fill

pub mod completions;
pub mod fifo;
pub mod files;
pub mod gatekeeper;
pub mod message;
pub mod mutate;
pub mod nbd;
pub mod payload_ring;
pub mod rsr;
pub mod session;
pub mod slot;

use motet_config::profile::{Machine, Profile};
use motet_driver_shm::messages::handshake::{Answer, Handshake};
use motet_driver_shm::streams::offer::{Offer, REFUSAL_BYTES, Refusal};
use motet_engine::message::regions::segments::SegmentMsg;
use motet_engine::message::transport::{NodeId, Secret};
use motet_engine::reason::Reason;
use motet_runtime::descriptor::{self, Fault, Format};
use motet_sys::{sock_diag, sock_list};
use motet_wire::stream::segment::{Geometry, HEAD_WORDS};

/// A target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, as in `fuzz/fuzz_targets`.
    pub name: &'static str,
    /// Parses an input; must return for any.
    pub run: fn(&[u8]),
    /// Well-formed inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Number of inputs of a bounded run.
    pub rounds: u64,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "segment_head", run: segment_head, seeds: segment_seeds, rounds: 200_000 },
    Target { name: "offer", run: offer, seeds: offer_seeds, rounds: 200_000 },
    Target { name: "segment_message", run: segment_message, seeds: segment_message_seeds, rounds: 200_000 },
    Target { name: "shm_handshake", run: shm_handshake, seeds: shm_handshake_seeds, rounds: 200_000 },
    Target { name: "node_address", run: node_address, seeds: node_address_seeds, rounds: 200_000 },
    Target { name: "diag_answer", run: diag_answer, seeds: diag_seeds, rounds: 200_000 },
    Target { name: "profile", run: profile, seeds: profile_seeds, rounds: 50_000 },
    Target { name: "slot", run: slot::run, seeds: slot::seeds, rounds: 500_000 },
    Target { name: "fifo", run: fifo::run, seeds: fifo::seeds, rounds: 200_000 },
    Target { name: "message", run: message::run, seeds: message::seeds, rounds: 200_000 },
    Target { name: "cells", run: message::cells::run, seeds: message::cells::seeds, rounds: 50_000 },
    Target { name: "payload_ring", run: payload_ring::run, seeds: payload_ring::seeds, rounds: 200_000 },
    Target { name: "completions", run: completions::run, seeds: completions::seeds, rounds: 10_000 },
    Target { name: "descriptor", run: descriptor, seeds: descriptor_seeds, rounds: 50_000 },
    Target { name: "file_message", run: files::file_message, seeds: files::file_message_seeds, rounds: 200_000 },
    Target { name: "request", run: rsr::request, seeds: rsr::request_seeds, rounds: 200_000 },
    Target { name: "link_frame", run: gatekeeper::link_frame, seeds: gatekeeper::link_frame_seeds, rounds: 200_000 },
    Target { name: "node_line", run: gatekeeper::node_line, seeds: gatekeeper::node_line_seeds, rounds: 100_000 },
    Target { name: "nbd", run: nbd::run, seeds: nbd::seeds, rounds: 200_000 },
    Target { name: "session", run: session::run, seeds: session::seeds, rounds: 200_000 },
];

/// The descriptor of a module, in both forms.
pub fn descriptor(input: &[u8]) {
    for (format, _) in Format::ALL {
        match descriptor::parse(format, input) {
            Ok(known) => {
                assert!(
                    known.units.iter().all(|unit| !unit.split('/').any(|part| part == "..")),
                    "no unit leaves its folder"
                );
                assert!(known.dependencies().iter().all(|name| name.len() <= 64 && !name.contains('/')));
                assert!(!known.units.is_empty());
            }
            Err(Fault(why)) => assert!(!why.contains('\n') && why.len() <= 1024, "one line: {why:?}"),
        }
    }
}

fn descriptor_seeds() -> Vec<Vec<u8>> {
    let toml = "name = \"mesh\"\ndriver = \"exec\"\nrequires = [\"base\"]\nunits = [\"./mesh\"]\n\
                [attributes]\narguments = [\"-n\", 4]\nrestart = \"always\"\nSIZE = 64\n";
    let xml = "<defmod name=\"mesh\" driver=\"shared\"><!-- x --><attr label=\"SIZE\">64</attr>\
               <requires>base gas</requires><unit>mesh.so</unit></defmod>";
    let package = "name='all'\ndriver='multi'\nunits=['a','b']\nattributes.group='fluid'\n";
    let java =
        "<defmod name=\"j\" driver=\"java\"><attr label=\"class\"><![CDATA[a.B]]></attr><unit>j.jar</unit></defmod>";
    [toml, xml, package, java].map(|text| text.as_bytes().to_vec()).to_vec()
}

/// The control messages about shared segments.
pub fn segment_message(input: &[u8]) {
    let Some(message) = SegmentMsg::decode(input) else { return };
    assert_eq!(SegmentMsg::decode(&message.encode()), Some(message));
    if let SegmentMsg::Announced { number, address, length, .. } = message {
        assert!(number != 0 && address != 0 && length != 0 && address.checked_add(length).is_some());
    }
}

fn segment_message_seeds() -> Vec<Vec<u8>> {
    let shown = SegmentMsg::Announced { number: 1, writable: true, address: 1 << 40, length: 64 << 20 };
    [shown, SegmentMsg::Withdrawn { number: 1 }].map(|message| message.encode().to_vec()).to_vec()
}

/// The handshake of two nodes on one host, and its answer.
pub fn shm_handshake(input: &[u8]) {
    if let Ok(handshake) = Handshake::decode(input) {
        // Reserved bytes are not kept, so the encoded form may differ from the input.
        assert_eq!(Handshake::decode(&handshake.encode()), Ok(handshake));
    }
    let answer = Answer::decode(input);
    assert_eq!(Answer::decode(&answer.encode()), answer);
}

fn shm_handshake_seeds() -> Vec<Vec<u8>> {
    let handshake = Handshake { node: NodeId([7; 16]), cells: 128, ring: 65536, barrier: true };
    let answers = [Ok(NodeId([9; 16])), Err(Reason::OTHER_USER)].map(|answer| Answer(answer).encode().to_vec());
    [&answers[..], &[handshake.encode().to_vec()]].concat()
}

/// The head of a segment, after the size of its file.
pub fn segment_head(input: &[u8]) {
    let Some((size, head)) = input.split_first_chunk::<8>() else { return };
    let Some(head) = head.first_chunk::<{ HEAD_WORDS * 8 }>() else { return };
    let size = u64::from_le_bytes(*size);
    let Ok((geometry, _)) = Geometry::check(head, size) else { return };
    assert_eq!(geometry.bytes() as u64, size, "a geometry that fits its file");
    assert!(geometry.slot(geometry.slots).is_err());
    let last = geometry.slot(geometry.slots - 1).expect("a slot of the segment");
    assert!((last + motet_wire::stream::slot::Slot::size(geometry.ring)) as u64 <= size, "every slot is in the file");
    assert!((geometry.bulk(geometry.slots - 1) + 2 * geometry.bulk) as u64 <= size, "and so do its large rings");
}

/// A well-formed head, after the matching file size.
fn segment(slots: usize, ring: usize, bulk: usize) -> Vec<u8> {
    let geometry = Geometry { slots, ring, bulk };
    [&(geometry.bytes() as u64).to_le_bytes()[..], &geometry.encode([6; 16])].concat()
}

fn segment_seeds() -> Vec<Vec<u8>> {
    vec![segment(1, 4096, 0), segment(64, 65536, 1 << 22), segment(1024, 1 << 24, 1 << 26)]
}

/// The offer of a segment and slot for a stream, and its refusal.
pub fn offer(input: &[u8]) {
    if let Ok(offer) = Offer::decode(input) {
        assert_eq!(Offer::decode(&offer.encode()), Ok(offer), "what was understood comes back as it was");
    }
    let refusal = Refusal::decode(input);
    assert_eq!(Refusal::decode(&refusal.encode()), refusal, "and so does a refusal");
    assert!(Refusal::parse(input).is_none_or(|known| known == refusal && input.len() >= REFUSAL_BYTES - 4));
}

fn offer_seeds() -> Vec<Vec<u8>> {
    let offer = Offer { netns: 1, offerer: 2, target: 3, slot: 4, nonce: [5; 16] };
    vec![offer.encode().to_vec(), offer.encode()[..40].to_vec(), Vec::new()]
}

/// The address of a node, as given by a peer or a user.
pub fn node_address(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let Some((secret, address)) = Secret::split(text) else { return };
    assert!(address.len() <= text.len());
    if let Some(secret) = secret {
        assert_eq!(Secret::split(&secret.prefix_to(address)), Some((Some(secret), address)), "it comes back as it was");
        assert!(!format!("{secret:?}").contains(&text[..16]), "and is not shown");
    }
}

fn node_address_seeds() -> Vec<Vec<u8>> {
    let secret = Secret { caller: 0x0123_4567_89ab_cdef, answer: u64::MAX };
    let with = ["10.0.0.1:4000", "[fd00::1]:1", "", "a@b"].map(|address| secret.prefix_to(address).into_bytes());
    [&with[..], &[b"10.0.0.1:4000".to_vec(), b"@".to_vec()]].concat()
}

/// The kernel's answers to sock_diag requests for one socket and for all.
pub fn diag_answer(input: &[u8]) {
    let mut bytes = 0;
    let _ = sock_list::parse_messages(input, &mut |message| {
        bytes += message.len();
        let _ = sock_list::parse_tcp_connection(message);
        if let Some(holder) = sock_list::parse_name_holder(message) {
            assert!(holder.name.len() < message.len());
        }
    });
    assert!(bytes <= input.len());
    if let Ok(Some(found)) = sock_diag::decode(input) {
        assert!(input.len() >= 88, "{found:?} out of too few bytes");
    }
}

fn diag_seeds() -> Vec<Vec<u8>> {
    let message = |kind: u16, length: usize| {
        let mut bytes = vec![0u8; length];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes
    };
    vec![message(20, 88), message(20, 200), message(2, 36), message(2, 20), message(3, 16)]
}

/// The profile of a machine.
pub fn profile(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    if let Ok(profile) = Profile::parse(text) {
        assert_eq!(
            Profile::parse(&profile.render(&[])).as_ref(),
            Ok(&profile),
            "what was understood comes back as it was"
        );
        assert!(profile.settings().all(|(_, size)| (1..=1 << 40).contains(&size)), "sizes within bounds");
    }
}

fn profile_seeds() -> Vec<Vec<u8>> {
    let machine = Machine { processor: "P".into(), cpus: 2, kernel: "6.1".into() };
    let full = Profile {
        machine,
        measured: 1,
        floor: Some(50),
        single_copy_min: Some(2 << 20),
        single_copy_min_far: Some(512 << 10),
        half_copy_min: Some(1 << 20),
    };
    let near = Profile { single_copy_min_far: None, ..full.clone() };
    let bare = Profile { floor: None, single_copy_min: None, half_copy_min: None, ..near.clone() };
    vec![
        full.render(&["a note".into()]).into(),
        near.render(&[]).into(),
        bare.render(&[]).into(),
        b"format = 2".to_vec(),
        Vec::new(),
    ]
}
