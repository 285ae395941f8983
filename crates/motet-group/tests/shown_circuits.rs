//! What a real gatekeeper shows of the circuits of real nodes.
#![forbid(unsafe_code)]

mod scene;

use motet_session::circuits::Circuit;
use motet_session::client::Client;
use motet_session::paths::SessionPaths;
use scene::{LIMIT, Member, Session};
use std::io::BufRead;
use std::time::{Duration, Instant};

/// The circuits by name: the view, the size, and the ranks of the members at which it is open.
fn shown(session: &Session) -> Vec<(String, u64, u32, Vec<u32>)> {
    let circuits = Client::of(&session.paths).unwrap().get::<Vec<Circuit>>("/v1/circuits").unwrap();
    let about = |circuit: Circuit| {
        let ranks = circuit.members.iter().map(|member| member.rank).collect();
        (circuit.name, circuit.view, circuit.size, ranks)
    };
    circuits.into_iter().map(about).collect()
}

fn until_shown(session: &Session, expected: &[(&str, u64, u32, &[u32])]) {
    let began = Instant::now();
    loop {
        let now = shown(session);
        let words: Vec<_> = now.iter().map(|(name, view, size, ranks)| (&name[..], *view, *size, &ranks[..])).collect();
        if words == expected {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{now:?} is never {expected:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn circuits_are_shown_from_their_opening_to_their_end() {
    let mut session = Session::start();
    let members = [0, 1].map(|rank| session.member(Some(rank)));
    let (mut child, mut output) = session.child("member", 2);
    let view = members[0].group.wait_for_members(3, Some(LIMIT)).unwrap().number;
    let halo = members[1].open("halo");
    until_shown(&session, &[("halo", view, 3, &[0, 1, 2])]);
    // The gatekeeper begins again, and learns of it again.
    session.kill();
    session.start_again();
    until_shown(&session, &[("halo", view, 3, &[0, 1, 2])]);
    // A circuit without one of its members ends where the program has no handle.
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    until_shown(&session, &[("halo", view, 3, &[1])]);
    drop(halo);
    until_shown(&session, &[]);
    // What is opened then is another circuit, of a later view. Leaving the group ends it at one member.
    let next = members[0].group.wait_for_members(2, Some(LIMIT)).unwrap().number;
    let _again = [members[0].open("halo"), members[1].open("halo")];
    assert!(next > view);
    until_shown(&session, &[("halo", next, 2, &[0, 1])]);
    members[0].group.leave().unwrap();
    until_shown(&session, &[("halo", next, 2, &[1])]);
    drop(members);
    until_shown(&session, &[]);
}

/// The role of the process that the test starts: this test binary itself.
#[test]
#[ignore = "a role of the other test"]
fn child() {
    let rank = std::env::var("MOTET_TEST_RANK").unwrap().parse().unwrap();
    let member = Member::attach(&SessionPaths::of("test").unwrap(), Some(rank));
    member.group.wait_for_members(3, Some(LIMIT)).unwrap();
    println!("ready");
    let circuit = member.open("halo");
    let _ = circuit.receive(0, 1, &mut []);
}
