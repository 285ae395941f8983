//! Many channels and receives: what they cost, and that no cost grows quadratically.

use crate::simulation::{Simulation, TIGHT};
use motet_proto::message::channels::Channels;
use motet_proto::message::matching::{Selector, Source};
use motet_proto::message::{Limits, Mode, Reception, Sent, Table};

const COUNT: usize = 10_000;

#[test]
fn ten_thousand_channels_stay_cheap() {
    const { assert!(Channels::RECORD_BYTES + Table::<[u64; 3]>::SCOPE_BYTES <= 256, "a channel and its scope") };
    let limits = Limits { window: 8 << 20, channels: COUNT as u32, max_rendezvous: 100, ..TIGHT };
    let mut world = Simulation::new(7, limits, 4 << 20);
    exchange(&mut world);
    for _ in 0..COUNT {
        world.open(0, true).unwrap();
    }
    assert!(world.open(0, true).is_err(), "the peer's limit");
    exchange(&mut world);
    let open: Vec<usize> = (0..COUNT).filter(|&way| world.nodes[0].ways[way].open).collect();
    assert_eq!(open.len(), world.nodes[1].ways.len());
    let each = (world.nodes[1].link.bytes().0 + world.nodes[1].side.table.bytes()) / open.len();
    assert!(each <= 256 * 2, "{each} bytes, with the slack of growing");
    for &way in &open {
        assert_eq!(world.send(0, way, 1, 8, Mode::Automatic), Ok(Sent::Complete));
    }
    exchange(&mut world);
    for way in 0..world.nodes[1].ways.len() {
        let Reception::Matched(scope) = world.nodes[1].ways[way].reception else { panic!() };
        world.post(1, Selector { from: Source::One(scope), tag: 1, ignore: 0 }, 8);
    }
    assert!(world.unmatched.is_empty());
    for side in [0, 1] {
        while !world.nodes[side].ways.is_empty() {
            world.release(side, 0);
        }
    }
    exchange(&mut world);
    for node in &world.nodes {
        assert_eq!(node.link.counts(), [0; 3]);
        assert_eq!(node.link.bytes().0, 0, "an idle link holds nothing");
        assert!(node.side.table.bytes() < 20_000);
    }
    assert!(world.open(0, true).is_ok(), "the numbers are free again");
}

#[test]
fn ten_thousand_receives_match_in_the_worst_order() {
    let limits = Limits { window: 64 << 20, channels: 4, ..TIGHT };
    let mut world = Simulation::new(11, limits, 4 << 20);
    exchange(&mut world);
    while !world.nodes[0].ways.iter().any(|way| way.open) || world.nodes[1].ways.is_empty() {
        world.open(0, true).unwrap();
        exchange(&mut world);
    }
    let way = world.nodes[0].ways.iter().position(|way| way.open).unwrap();
    let Reception::Matched(scope) = world.nodes[1].ways[0].reception else { panic!() };
    let many = COUNT as u64;
    for ignore in [0, 0xff << 32] {
        for tag in 0..many {
            world.post(1, Selector { from: Source::One(scope), tag, ignore }, 8);
        }
        for tag in (0..many).rev() {
            assert_eq!(world.send(0, way, tag, 8, Mode::Automatic), Ok(Sent::Complete));
            if tag % 64 == 0 {
                exchange(&mut world);
            }
        }
    }
    exchange(&mut world);
    assert!(world.nodes[1].side.reads.is_empty() && world.nodes[1].side.table.is_empty());
}

fn exchange(world: &mut Simulation) {
    for _ in 0..3 {
        for side in [0, 1] {
            while world.flush(side, 8) {}
            while world.arrive(1 - side) {}
        }
    }
}
