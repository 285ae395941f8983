//! The fast path of a whole message: which receive gets it, and the cost of an unexpected message.

use crate::sequences::{any, connected, exchange};
use crate::simulation::{Simulation, arrive_shortly};
use motet_proto::message::matching::Selector;
use motet_proto::message::packet::{Head, Kind};
use motet_proto::message::{Limits, Mode};

/// Handles the next packet for side 1 by the fast path alone.
fn arrive(world: &mut Simulation) -> bool {
    let (kind, bytes, due) = world.transports[0].packets.pop_front().expect("a packet");
    let node = &mut world.nodes[1];
    let taken = arrive_shortly(&mut node.link, &mut node.side, (kind, &bytes), world.now);
    if !taken {
        world.transports[0].packets.push_front((kind, bytes, due));
    }
    taken
}

/// Credit in use, and the number of receives and messages that wait.
fn state(world: &Simulation) -> (usize, (u32, u32)) {
    (world.nodes[1].link.bytes().1, world.nodes[1].side.table.len())
}

#[test]
fn message_goes_to_the_oldest_matching_receive() {
    let mut world = connected(Limits { window: 4000, ..crate::sequences::WIDE });
    let first = Selector { tag: 1, ignore: 0, ..any(&world, 1) };
    world.send(0, 0, 2, 8, Mode::Inject).unwrap();
    world.post(1, first, 100);
    world.post(1, any(&world, 1), 100);
    assert!(arrive(&mut world), "the second receive's");
    exchange(&mut world);
    assert_eq!(state(&world), (0, (1, 0)));
    world.send(0, 0, 1, 8, Mode::Inject).unwrap();
    assert!(arrive(&mut world));
    assert_eq!(state(&world), (0, (0, 0)));
    // Its space is granted again: otherwise credit would not suffice.
    for _ in 0..200 {
        world.post(1, any(&world, 1), 100);
        world.send(0, 0, 3, 8, Mode::Inject).unwrap();
        assert!(arrive(&mut world));
        world.flush(1, 8);
        while world.arrive(0) {}
    }
}

#[test]
fn unexpected_message_keeps_its_credit_until_received() {
    let mut world = connected(Limits { window: 4000, ..crate::sequences::WIDE });
    let other = Selector { tag: 1, ignore: 0, ..any(&world, 1) };
    world.post(1, other, 100);
    for kept in 1..=5 {
        world.send(0, 0, 2, 8, Mode::Inject).unwrap();
        assert!(arrive(&mut world));
        assert_eq!(state(&world), (kept * 5 * 64, (1, kept as u32)), "the receive asks for another tag");
    }
    for left in (0..5).rev() {
        world.post(1, any(&world, 1), 100);
        assert_eq!(state(&world), (left * 5 * 64, (1, left as u32)));
    }
    exchange(&mut world);
    world.send(0, 0, 1, 8, Mode::Inject).unwrap();
    assert!(arrive(&mut world));
    assert_eq!(state(&world), (0, (0, 0)));
}

#[test]
fn prepared_send_equals_the_general_send() {
    let mut world = connected(Limits { window: 1000, ..crate::sequences::WIDE });
    let (channel, node) = (world.nodes[0].ways[0].channel, &mut world.nodes[0]);
    let to = node.link.outgoing(channel).expect("an open channel");
    let mut gone = 0;
    while let Some(going) = node.link.prepare_send(to, 7, 8, 16) {
        assert_eq!(Head::from_word(going.words[0]).own, 8);
        assert_eq!(going.words[1], 7);
        node.link.mark_sent(going);
        gone += 1;
    }
    assert_eq!(gone, 1000 / 64 / 5, "as many as credit covers");
    assert!(node.link.prepare_send(to, 7, 0, 8).is_none());
    assert_eq!(Kind::Message as u8, 2);
    node.link.close(channel).unwrap();
    assert!(node.link.outgoing(channel).is_none(), "nothing can be sent on it");
}
