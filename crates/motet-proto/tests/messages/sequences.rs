//! Messages: one property at a time, in the smallest exchange that shows it.

use crate::simulation::{LARGEST, Name, Side, Simulation, TIGHT, Transport};
use motet_proto::message::header_stack::Stack;
use motet_proto::message::matching::{Scope, Selector, Source};
use motet_proto::message::packet::{self, Kind};
use motet_proto::message::{Limits, Link, Mode, Packets, Reception, Rejected, Send, Sent, Status};

pub const WIDE: Limits = Limits {
    window: 1 << 20,
    max_rendezvous: 100,
    channels: 20_000,
    ahead: 4000,
    max_pulls: 4,
    reserve: 0,
    eager: 4000,
    requests: 64,
};
const ANY_TAG: u64 = u64::MAX;

/// Two links with one open channel, for receives.
pub fn connected(limits: Limits) -> Simulation {
    for seed in 0.. {
        let mut world = Simulation::new(seed, limits, 1 << 20);
        exchange(&mut world);
        world.open(0, true).unwrap();
        exchange(&mut world);
        if world.nodes[1].ways.len() == 1 {
            return world;
        }
    }
    unreachable!()
}

/// Exchanges packets until nothing is in progress.
pub fn exchange(world: &mut Simulation) {
    for _ in 0..4 {
        for side in [0, 1] {
            while world.flush(side, 8) {}
            while world.arrive(1 - side) {}
        }
    }
}

fn scope(world: &Simulation, side: usize) -> Scope {
    let Reception::Matched(scope) = world.nodes[side].ways[0].reception else { panic!("a channel for receives") };
    scope
}

pub fn any(world: &Simulation, side: usize) -> Selector {
    Selector { from: Source::One(scope(world, side)), tag: 0, ignore: ANY_TAG }
}

fn kinds(lane: &Transport) -> Vec<u8> {
    lane.packets.iter().map(|packet| packet.0).collect()
}

#[test]
fn short_message_with_headers_is_one_packet_of_one_cell() {
    let mut world = connected(WIDE);
    let mut stack = Stack::default();
    for layer in 0..5_u64 {
        assert!(stack.push(&layer.to_le_bytes()[..4]));
    }
    let (channel, operation, place) = (world.nodes[0].ways[0].channel, 1, packet::RemoteAddress::default());
    let send = Send {
        channel,
        tag: 5,
        headers: stack.as_bytes(),
        body: &[&[1; 12], &[2; 8]],
        mode: Mode::Inject,
        operation,
        place,
    };
    assert_eq!(world.nodes[0].link.send(&mut world.transports[0], &send), Ok(Sent::Complete));
    assert_eq!(world.transports[0].packets.len(), 1);
    assert_eq!(world.transports[0].packets[0].1.len(), 56);
    let whole = Send { body: &[&[0; LARGEST - packet::MESSAGE_HEAD_BYTES - 20]], ..send };
    assert_eq!(world.nodes[0].link.send(&mut world.transports[0], &whole), Ok(Sent::Complete));
    let more = Send { body: &[&[0; LARGEST - packet::MESSAGE_HEAD_BYTES - 19]], ..send };
    assert_eq!(world.nodes[0].link.send(&mut world.transports[0], &more), Err(Rejected::TooLong));
}

#[test]
fn grants_are_carried_by_packets_of_the_other_direction() {
    let mut world = connected(WIDE);
    let put = world.transports[1].put;
    for _ in 0..50 {
        let selector = any(&world, 1);
        world.post(1, selector, 100);
        assert_eq!(world.send(0, 0, 0, 8, Mode::Automatic), Ok(Sent::Complete));
        exchange(&mut world);
        let selector = any(&world, 0);
        world.post(0, selector, 100);
        assert_eq!(world.send(1, 0, 0, 8, Mode::Automatic), Ok(Sent::Complete));
        assert_ne!(world.transports[1].packets[0].1[6..8], [0, 0], "a grant");
        exchange(&mut world);
    }
    assert_eq!(world.transports[1].put - put, 50, "replies alone");
}

#[test]
fn two_sides_that_only_send_do_not_deadlock() {
    let limits = Limits { max_rendezvous: 0, ..TIGHT };
    let mut world = connected(limits);
    let mut sent = [0; 2];
    for round in 0..20 {
        for side in [0, 1] {
            while world.send(side, 0, round, 8, Mode::Automatic) == Ok(Sent::Complete) {
                sent[side] += 1;
            }
            assert_eq!(world.send(side, 0, round, 8, Mode::Automatic), Err(Rejected::WouldBlock));
        }
        exchange(&mut world);
        for side in [0, 1] {
            // Less than half of the window is in use: a grant is sent only on request.
            for _ in 0..3 {
                let selector = any(&world, side);
                world.post(side, selector, 8);
            }
        }
        let before = [0, 1].map(|side| world.nodes[side].side.unblocked);
        exchange(&mut world);
        for side in [0, 1] {
            assert!(world.nodes[side].side.unblocked > before[side], "round {round}");
        }
    }
    assert!(sent.iter().all(|&sent| sent >= 18 + 19 * 3), "{sent:?}");
}

#[test]
fn rejected_sender_asks_once() {
    let mut world = connected(Limits { max_rendezvous: 0, ..TIGHT });
    while world.send(0, 0, 0, 8, Mode::Automatic).is_ok() {}
    exchange(&mut world);
    let put = world.transports[0].put;
    for _ in 0..100 {
        assert_eq!(world.send(0, 0, 0, 8, Mode::Automatic), Err(Rejected::WouldBlock));
        exchange(&mut world);
    }
    assert_eq!(world.transports[0].put, put);
}

#[test]
fn message_without_credit_uses_rendezvous() {
    let mut world = connected(TIGHT);
    while world.send(0, 0, 0, 8, Mode::Inject).is_ok() {}
    let sent = world.send(0, 0, 1, 8, Mode::Automatic);
    assert!(matches!(sent, Ok(Sent::Pending(_))));
    exchange(&mut world);
    let selector = Selector { ignore: 0, tag: 1, ..any(&world, 1) };
    world.post(1, selector, 8);
    while !world.nodes[1].side.copies.is_empty() {
        world.copy(1, true);
    }
    exchange(&mut world);
    assert!(world.nodes[0].side.sends.is_empty(), "it has overtaken unmatched messages");
}

#[test]
fn short_messages_overtake_long_ones() {
    let mut world = connected(Limits { reserve: 600, eager: 100, ..WIDE });
    world.transports[0].most = 2000;
    let selector = any(&world, 1);
    world.post(1, selector, 1 << 20);
    let announced = loop {
        let announced = world.send(0, 0, 0, 1 << 20, Mode::Synchronous);
        if world.transports[0].packets.back().unwrap().1[32..40] == [0; 8] {
            break announced; // to be requested by CTS
        }
        world.arrive(1);
        world.copy(1, true);
        let selector = any(&world, 1);
        world.post(1, selector, 1 << 20);
    };
    assert!(matches!(announced, Ok(Sent::Pending(_))));
    for _ in 0..50 {
        while world.arrive(1) {}
        world.flush(1, 8);
        while world.arrive(0) {}
        world.flush(0, usize::MAX);
        assert!(kinds(&world.transports[0]).contains(&(Kind::Piece as u8)), "pieces are in flight");
        // A short message is sent at once, behind a bounded number of bytes of long messages.
        assert!(world.send(0, 0, 1, 8, Mode::Inject).is_ok());
        assert!(world.transports[0].bytes <= 2000);
        let selector = Selector { ignore: 0, tag: 1, ..any(&world, 1) };
        world.post(1, selector, 8);
    }
}

#[test]
fn cancelled_rendezvous_completes_once() {
    let mut world = connected(WIDE);
    let Ok(Sent::Pending(number)) = world.send(0, 0, 0, 9, Mode::Synchronous) else { panic!("a rendezvous") };
    assert!(world.nodes[0].link.cancel(number));
    exchange(&mut world);
    assert!(world.nodes[0].side.sends.is_empty() && world.nodes[1].side.table.is_empty());
    assert!(!world.nodes[0].link.cancel(number), "it is gone");
}

#[test]
fn channel_closed_by_both_frees_its_number_at_once() {
    let mut world = connected(Limits { channels: 1, ..WIDE });
    world.release(1, 0);
    while world.flush(1, 8) {}
    while world.arrive(0) {}
    world.release(0, 0);
    while world.flush(0, 8) {}
    world.open(0, true).unwrap();
    while world.flush(0, 8) {}
    while world.arrive(1) {} // the end and the next beginning, and nothing was put in between
    assert_eq!(world.nodes[1].link.broken(), None);
    assert_eq!(world.nodes[0].link.counts()[0], 1);
}

/// A message of node 0 that node 1 loans to its program.
fn lent(world: &mut Simulation) -> u64 {
    loop {
        let operation = world.next + 1;
        assert!(matches!(world.send(0, 0, 0, 3000, Mode::Synchronous), Ok(Sent::Pending(_))));
        let selector = any(world, 1);
        world.post(1, selector, 3000);
        exchange(world);
        if !world.nodes[1].side.copies.is_empty() {
            world.lend(1);
            return operation;
        }
    }
}

#[test]
fn loaned_message_is_free_once_released() {
    let mut world = connected(WIDE);
    let operation = lent(&mut world);
    exchange(&mut world);
    assert!(world.nodes[1].side.reads.is_empty(), "the receive has ended");
    assert!(world.nodes[0].side.sends.contains_key(&operation), "the send has not");
    assert_eq!([0, 1].map(|side| world.nodes[side].link.counts()), [[1, 0, 1], [1, 1, 0]]);
    world.give_back(1);
    world.flush(1, 0);
    assert_eq!(kinds(&world.transports[1]), [Kind::Fin as u8]);
    exchange(&mut world);
    assert!(!world.nodes[0].side.sends.contains_key(&operation));
    assert_eq!([0, 1].map(|side| world.nodes[side].link.counts()), [[1, 0, 0]; 2]);
}

#[test]
fn loan_holds_no_channel_and_cannot_be_cancelled() {
    let mut world = connected(WIDE);
    let operation = lent(&mut world);
    let number = motet_proto::message::slab::SlabId(1 << 20);
    world.nodes[0].link.cancel(number);
    for _ in 0..3 {
        assert!(world.send(0, 0, 0, 3000, Mode::Synchronous).is_ok());
        let selector = any(&world, 1);
        world.post(1, selector, 3000);
        exchange(&mut world);
        while !world.nodes[1].side.copies.is_empty() {
            world.copy(1, true);
        }
        exchange(&mut world);
    }
    assert_eq!(world.nodes[0].side.sends.keys().copied().collect::<Vec<_>>(), [operation]);
    world.release(1, 0);
    world.release(0, 0);
    exchange(&mut world);
    assert_eq!(world.nodes[1].link.counts(), [0, 1, 0], "the channel is gone, the loan is not");
    world.give_back(1);
    exchange(&mut world);
    assert_eq!([0, 1].map(|side| world.nodes[side].link.counts()), [[0; 3]; 2]);
}

#[test]
fn end_of_link_ends_loans_on_both_sides() {
    for side in [0, 1] {
        let mut world = connected(WIDE);
        let operation = lent(&mut world);
        world.break_link(side);
        assert_eq!(world.nodes[0].side.sends.contains_key(&operation), side == 1);
        assert_eq!(world.nodes[1].link.counts()[1], u32::from(side == 0));
        world.give_back(1);
        world.break_link(1 - side);
        assert!(world.nodes[0].side.sends.is_empty());
        assert_eq!(world.nodes[1].link.counts()[1..], [0; 2]);
    }
}

#[test]
fn messages_sent_before_the_end_are_received_after_it() {
    let mut world = connected(WIDE);
    let channel = world.nodes[0].ways[0].channel;
    assert!(world.send(0, 0, 0, 8, Mode::Automatic).is_ok() && world.send(0, 0, 0, 3000, Mode::Automatic).is_ok());
    world.nodes[0].link.close(channel).unwrap();
    assert_eq!(world.send(0, 0, 0, 8, Mode::Automatic), Err(Rejected::Closed));
    exchange(&mut world);
    assert!(world.send(1, 0, 0, 8, Mode::Automatic).is_ok(), "the other half is open");
    for _ in 0..2 {
        let selector = any(&world, 1);
        assert!(world.nodes[1].side.table.peek(selector).is_some());
        world.post(1, selector, 3000);
    }
    assert!(world.nodes[1].side.reads.is_empty());
    let receive = motet_proto::message::matching::Receive { operation: 1, capacity: 1, buffer: () };
    let selector = any(&world, 1);
    let ended = world.nodes[1].side.table.post(selector, receive);
    assert!(matches!(ended, motet_proto::message::matching::PostOutcome::Ended(Status::Closed)));
}

/// Two peers of one process, each over a link of its own.
#[test]
fn any_source_receive_takes_messages_of_all_links() {
    let mut server = Side::new(1);
    let context = server.table.add_context().unwrap();
    let mut clients = [0, 1].map(|source| {
        let (there, here) = (Link::new(0, WIDE, 0), Link::new(source, WIDE, 0));
        (
            there,
            Side::new(2),
            here,
            Transport { most: 1 << 20, ..Transport::default() },
            Transport { most: 1 << 20, ..Transport::default() },
        )
    });
    let mut channels = Vec::new();
    for (there, side, here, up, down) in &mut clients {
        for _ in 0..4 {
            there.flush(up, side, 9);
            here.flush(down, &mut server, 9);
            while let Some((kind, packet, _)) = up.packets.pop_front() {
                here.arrived(&mut server, kind, &packet, 0).unwrap();
            }
            while let Some((kind, packet, _)) = down.packets.pop_front() {
                there.arrived(side, kind, &packet, 0).unwrap();
            }
            while let Some((channel, _)) = server.events.pop_front() {
                let scope = server.table.add_scope(Some(context)).unwrap();
                here.accept_channel(channel, Reception::Matched(scope)).unwrap();
            }
            if there.is_hello_received() && there.counts()[0] == 0 {
                channels.push(there.open(0, Reception::Handler).unwrap());
            }
        }
    }
    let (mode, operation, place) = (Mode::Automatic, 0, packet::RemoteAddress::default());
    for round in 0..4 {
        let way = round % 2;
        let (there, _, here, up, _) = &mut clients[way];
        let name = Name { way: way as u64, sequence: round as u64 };
        let (headers, body) = (name.write(), name.body(8));
        let channel = channels[way];
        let send = Send { channel, tag: 3, headers: &headers, body: &[&body], mode, operation, place };
        assert_eq!(there.send(up, &send), Ok(Sent::Complete));
        let (kind, packet, _) = up.packets.pop_front().unwrap();
        here.arrived(&mut server, kind, &packet, 0).unwrap();
    }
    let anyone = Selector { from: Source::Any(context), tag: 3, ignore: 0 };
    for round in 0..4 {
        let held = server.table.claim(anyone).unwrap();
        assert_eq!((held.source as usize, Name::read(held.headers()).sequence), (round % 2, round as u64));
        clients[round % 2].2.discard(held);
    }
    assert!(server.table.is_empty() && clients.iter().all(|client| client.2.bytes().1 == 0));
}

#[test]
fn idle_link_reports_since_when() {
    let mut world = connected(WIDE);
    assert_eq!(world.nodes[0].link.idle_since(), None, "a channel is open");
    world.now = 500;
    for side in [0, 1] {
        while !world.nodes[side].ways.is_empty() {
            world.release(side, 0);
        }
    }
    exchange(&mut world);
    world.now = 900;
    assert_eq!([0, 1].map(|side| world.nodes[side].link.idle_since()), [Some(500); 2]);
}

#[test]
fn transport_supports_the_smallest_required_packet() {
    assert!(Transport::default().largest() >= packet::MIN_PACKET_BYTES);
}
