//! A peer that writes arbitrary packets: the link breaks, everything on it completes, and memory stays within the limits.

use crate::checking_owner::{ACCESSES, COPIES, REGION, SHARED, Wary};
use crate::prng::Prng;
use crate::seeds;
use crate::simulation::{LARGEST, Side, TIGHT, arrive_shortly};
use motet_proto::message::atomic::{Atomic, Datatype, Operation};
use motet_proto::message::matching::{PostOutcome, Receive, Selector, Source};
use motet_proto::message::packet::{Hello, RemoteAddress};
use motet_proto::message::regions::Revoked;
use motet_proto::message::{
    Get, Key, Limits, Link, Mode, Packets, ProtocolViolation, Put, Reception, Rights, Send, Update, credit,
};
use std::sync::atomic::Ordering::Relaxed;

/// An RMA step of the honest side.
fn remote_step(prng: &mut Prng, link: &mut Link, owner: &mut Wary, drain: &mut Drain, operation: u64) {
    let key = Key(u64::from(drain.words.first().copied().unwrap_or(1)));
    let offset = prng.below(100);
    match prng.below(8) {
        0 if owner.memory.keys.len() < 4 => {
            let name = owner.memory.next;
            owner.memory.next += 1;
            let rights = Rights(prng.below(8) as u8);
            // A known key: otherwise no access would succeed.
            let key = owner.memory.regions.register(name, REGION, rights, 0x100 + name).unwrap();
            owner.memory.keys.push(key);
            drain.words.extend([key.0 as u32, key.0 as u32, key.0 as u32]);
        }
        1 if !owner.memory.keys.is_empty() && prng.one_in(3) => {
            let key = owner.memory.keys.remove(0);
            if prng.one_in(2) {
                let _told = link.revoke(owner, key);
            }
            let name = (0..owner.memory.next).find(|name| {
                !owner.memory.revoked.contains(name)
                    && [Rights::GET, Rights::PUT, Rights::ATOMIC, Rights(0)]
                        .iter()
                        .any(|&right| owner.memory.regions.reach(key, right, 0, 0) == Ok(*name))
            });
            let name = name.expect("it is there");
            owner.memory.revoked.push(name);
            if owner.memory.regions.revoke(key) == Some(Revoked::Ended) {
                owner.memory.ended.push(name);
            }
        }
        2 => {
            owner.operations.push(operation);
            let length = if prng.one_in(2) { prng.below(5000) } else { prng.below(200) } as usize;
            let put =
                Put { key, offset, body: &[&vec![0; length]], operation, place: RemoteAddress { address: 5, key: 5 } };
            if link.put(drain, &put).is_err() {
                owner.operations.pop();
            }
        }
        3 => {
            owner.operations.push(operation);
            let (length, direct) = (prng.below(100), prng.one_in(2));
            let length = if prng.one_in(2) { length } else { 2900 + length };
            if link.get(drain, &Get { key, offset, length, operation, direct }).is_err() {
                owner.operations.pop();
            }
        }
        4 => {
            owner.operations.push(operation);
            let (kind, datatype, count) = (Operation::Sum, Datatype::U32, 2);
            let atomic = Atomic { operation: kind, datatype, count, operand: &[1; 8], compare: &[] };
            let fetch = prng.one_in(2);
            if link.atomic(drain, &Update { key, offset: offset / 4 * 4, atomic, fetch, operation }).is_err() {
                owner.operations.pop();
            }
        }
        5 => {
            owner.operations.push(operation);
            if link.fence(owner, operation).is_err() {
                owner.operations.pop();
            }
        }
        6 if !owner.memory.copies.is_empty() => {
            let request = owner.memory.copies.remove(0);
            link.copied_remote(owner, request.record, prng.one_in(2));
        }
        _ => {
            if let Some(key) = owner.memory.forgets.pop() {
                link.direct_access_stopped(key);
            }
        }
    }
}

/// Receives the packets of the honest side: the attacker knows the numbers in them.
#[derive(Debug, Default)]
struct Drain {
    words: Vec<u32>,
}

impl Packets for Drain {
    fn largest(&self) -> usize {
        LARGEST
    }

    fn room(&mut self) -> usize {
        1 << 20
    }

    fn put(&mut self, _: u8, parts: &[&[u8]]) -> bool {
        let bytes = parts.concat();
        for word in bytes.chunks_exact(4).take(7) {
            self.words.push(u32::from_le_bytes(word.try_into().unwrap()));
        }
        let many = self.words.len().saturating_sub(40);
        self.words.drain(..many);
        true
    }
}

/// An almost valid packet.
fn forge(prng: &mut Prng, words: &[u32], keys: &[Key]) -> (u8, Vec<u8>) {
    let kind = if prng.one_in(40) { prng.next() as u8 } else { 2 + prng.below(28) as u8 };
    let kind = if prng.one_in(3) { [15, 16, 17, 20, 21][prng.below(5) as usize] } else { kind };
    let word = |prng: &mut Prng| match prng.below(8) {
        0 => prng.next() as u32,
        1 => 0,
        2 => prng.below(6) as u32,
        3 => (1 + prng.below(3) as u32) << 20 | prng.below(4) as u32,
        4 => u32::MAX,
        _ if words.is_empty() => 1 << 20,
        _ => words[prng.below(words.len() as u64) as usize],
    };
    let mut packet = word(prng).to_le_bytes().to_vec();
    let own = [0, 0, 1, 2, 3, 8, 300, u64::from(prng.next() as u16)][prng.below(8) as usize] as u16;
    packet.extend(own.to_le_bytes());
    packet.extend((if prng.one_in(20) { prng.below(70_000) as u16 } else { 0 }).to_le_bytes());
    let length = match kind {
        2 | 5 => 8 + prng.below(100),
        3 => 24 + prng.below(100),
        4 => 40 + u64::from(own),
        6 | 11 | 12 | 22 | 27 | 28 => 8,
        15 | 17 => 16 + [8, 8, 16, 100, 0][prng.below(5) as usize],
        16 | 24 => 16,
        29 => 24,
        19 => [0, 8, 60][prng.below(3) as usize],
        20 => 40,
        21 => 24,
        23 => 8 + prng.below(100),
        _ => 0,
    };
    let length = if prng.one_in(30) { prng.below(LARGEST as u64) } else { length };
    while packet.len() < 8 + length as usize {
        let low = word(prng);
        let high = if prng.one_in(10) { word(prng) } else { 0 };
        packet.extend(low.to_le_bytes());
        packet.extend(high.to_le_bytes());
    }
    packet.truncate(8 + length as usize);
    if kind == 29 && packet.len() == 32 && !prng.one_in(4) {
        packet[..4].copy_from_slice(&(1u32 << 20).to_le_bytes());
        packet[16..24].copy_from_slice(&prng.below(5100).to_le_bytes());
    }
    if let (15 | 16 | 17 | 20 | 21, [key, ..]) = (kind, keys)
        && packet.len() >= 24
        && !prng.one_in(6)
    {
        let (to, own) = match kind {
            16 => (prng.below(258), 0),
            17 => (prng.below(5), prng.below(19) | prng.below(10) << 8),
            _ => ((1 + prng.below(3)) << 20 | prng.below(4), prng.below(2)),
        };
        packet[..4].copy_from_slice(&(to as u32).to_le_bytes());
        packet[4..6].copy_from_slice(&(own as u16).to_le_bytes());
        packet[8..16].copy_from_slice(&key.0.to_le_bytes());
        packet[16..24].copy_from_slice(&(8 * prng.below(130)).to_le_bytes());
        if packet.len() >= 32 && kind >= 20 {
            packet[24..32].copy_from_slice(&(1 + prng.below(2100)).to_le_bytes());
        }
    }
    (kind, packet)
}

fn attack(seed: u64) {
    let prng = &mut Prng(seed);
    let limits = Limits { channels: 4, ..TIGHT };
    let mut link = Link::new(0, limits, 0);
    let side = Side::new(seed);
    let (held, copies, offers, operations, memory) = Default::default();
    let mut owner = Wary { side, held, copies, offers, operations, memory };
    let mut drain = Drain::default();
    let hello = Hello { window: 500, max_rendezvous: 4, channels: 4, requests: 5 }.write();
    assert_eq!(link.arrived(&mut owner, 1, &hello, 0), Ok(()));
    for name in 0..2 {
        owner.memory.next += 1;
        let key = owner.memory.regions.register(name, REGION, Rights::ALL, 0x100 + name);
        owner.memory.keys.extend(key);
    }
    let mut ways = Vec::new();
    let mut next = 1;
    if prng.one_in(2) {
        // A valid beginning: a channel, and an RTS with an address.
        assert_eq!(link.arrived(&mut owner, 11, &[&77u32.to_le_bytes()[..], &[0; 12]].concat(), 0), Ok(()));
        let (channel, scope) = (owner.offers.remove(0), owner.side.table.add_scope(None).unwrap());
        link.accept_channel(channel, Reception::Matched(scope)).unwrap();
        link.flush(&mut drain, &mut owner, 3);
        ways.push((channel, scope));
        let (place, mode, body) = (RemoteAddress { address: 1 << 40, key: 0 }, Mode::Synchronous, [0; 5000]);
        let send = Send { channel, tag: 1, headers: &[], body: &[&body], mode, operation: next, place };
        assert!(matches!(link.send(&mut drain, &send), Ok(motet_proto::message::Sent::Pending(_))));
        owner.operations.push(next);
    }
    for _ in 0..400 {
        match prng.below(14) {
            0 => {
                let scope = owner.side.table.add_scope(None).unwrap();
                let reception = Reception::Matched(scope);
                match link.open(0, reception) {
                    Ok(channel) => ways.push((channel, scope)),
                    Err(_) => assert!(owner.side.table.remove_source(Source::One(scope))),
                }
            }
            1 if !owner.offers.is_empty() => {
                let channel = owner.offers.remove(0);
                let scope = owner.side.table.add_scope(None).unwrap();
                if link.accept_channel(channel, Reception::Matched(scope)).is_ok() {
                    ways.push((channel, scope));
                }
            }
            2 if !ways.is_empty() => {
                next += 1;
                let (channel, scope) = ways[prng.below(ways.len() as u64) as usize];
                if prng.one_in(2) {
                    owner.operations.push(next);
                    let selector = Selector { from: Source::One(scope), tag: 0, ignore: prng.next() };
                    match owner.side.table.post(selector, Receive { operation: next, capacity: 100, buffer: () }) {
                        PostOutcome::Posted(_) => {}
                        PostOutcome::Matched(held) => link.accept(&mut owner, held, next, 100),
                        PostOutcome::Ended(_) => drop(owner.operations.pop()),
                    }
                } else {
                    let length = prng.below(5000) as usize;
                    let body = vec![0; length];
                    let place = RemoteAddress { address: prng.below(2), key: prng.below(2) };
                    let mode = if prng.one_in(2) { Mode::Automatic } else { Mode::Synchronous };
                    let send = Send { channel, tag: 1, headers: &[], body: &[&body], mode, operation: next, place };
                    if let Ok(motet_proto::message::Sent::Pending(_)) = link.send(&mut drain, &send) {
                        owner.operations.push(next);
                    }
                }
            }
            3 if !owner.copies.is_empty() => {
                let request = owner.copies.remove(0);
                link.copied(&mut owner, request.record, prng.one_in(2));
            }
            4 if !owner.held.is_empty() => {
                let held = owner.held.remove(0);
                link.discard(held);
            }
            5 => drop(link.flush(&mut drain, &mut owner, 3)),
            6..=9 => {
                next += 1;
                remote_step(prng, &mut link, &mut owner, &mut drain, next);
            }
            _ => {
                let (kind, packet) = forge(prng, &drain.words, &owner.memory.keys);
                let broken = link.broken();
                let shortly = arrive_shortly(&mut link, &mut owner, (kind, &packet), 0);
                let result = if shortly { Ok(()) } else { link.arrived(&mut owner, kind, &packet, 0) };
                assert_eq!(link.broken(), result.err());
                assert!(broken.is_none() || result.is_err(), "broken for good");
            }
        }
        let (records, used) = link.bytes();
        let kept = owner.side.table.len().1 as u64;
        assert!(used as u64 <= limits.window && records < 60_000, "{records}");
        assert!(kept <= limits.window / credit::RECORD_BYTES as u64 + u64::from(limits.max_rendezvous));
    }
    link.reset(&mut owner, ProtocolViolation("enough"));
    for request in std::mem::take(&mut owner.copies) {
        link.copied(&mut owner, request.record, true);
    }
    for request in std::mem::take(&mut owner.memory.copies) {
        link.copied_remote(&mut owner, request.record, true);
    }
    assert!(owner.operations.is_empty(), "{:?}", owner.operations);
    for held in std::mem::take(&mut owner.held) {
        link.discard(held);
    }
    for (channel, _) in ways {
        let _gone = link.release(&mut owner, channel);
    }
    assert_eq!(link.requests(), [0, 0]);
    assert_eq!(owner.memory.ended.len(), owner.memory.revoked.len(), "revoked regions end");
    assert_eq!((link.counts(), owner.side.table.len()), ([0; 3], (0, 0)));
}

#[test]
fn forged_packets_break_only_their_link() {
    seeds(8000, attack);
    let reached = [&ACCESSES, &COPIES, &SHARED].map(|count| count.load(Relaxed));
    let one = std::env::var("MOTET_SEED").is_ok();
    assert!(one || reached[0] > 1000 && reached[1] > 100 && reached[2] > 50, "{reached:?}");
}

#[test]
fn random_bytes_break_only_their_link() {
    seeds(3000, |seed| {
        let prng = &mut Prng(seed);
        let (side, mut link) = (Side::new(seed), Link::new(0, TIGHT, 0));
        let (held, copies, offers, operations, memory) = Default::default();
        let mut owner = Wary { side, held, copies, offers, operations, memory };
        for _ in 0..20 {
            let bytes: Vec<u8> = (0..prng.below(LARGEST as u64)).map(|_| prng.next() as u8).collect();
            let kind = prng.next() as u8;
            assert!(!arrive_shortly(&mut link, &mut owner, (kind, &bytes), 0), "before the handshake");
            let _result = link.arrived(&mut owner, kind, &bytes, 0);
        }
    });
}
