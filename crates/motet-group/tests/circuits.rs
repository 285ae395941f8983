//! Circuits between nodes of one process, and between processes that may be killed.
#![forbid(unsafe_code)]

mod scene;

use motet_group::{Error, Membership, op};
use motet_session::paths::SessionPaths;
use scene::{LIMIT, Member, Session, as_members};
use std::io::BufRead;
use std::time::{Duration, Instant};

fn numbers(length: usize, seed: u64) -> Vec<u64> {
    (0..length as u64).map(|at| at.wrapping_mul(seed + 1)).collect()
}

#[test]
fn messages_and_collectives_work_for_any_size() {
    for size in [1, 2, 3, 4, 5, 8] {
        let session = Session::start();
        as_members(&session, size, |member| {
            let circuit = member.open("all");
            let (rank, size) = (circuit.rank(), circuit.size());
            circuit.barrier().unwrap();
            for length in [0, 1, 100, 10_000, 1 << 20] {
                let mut bytes = if rank == size - 1 { vec![7; length] } else { vec![0; length] };
                circuit.broadcast(size - 1, &mut bytes).unwrap();
                assert!(bytes == vec![7; length]);
            }
            for length in [1, 3, 1000, 100_000] {
                let sum: Vec<u64> = (0..length as u64).map(|at| (1..=size as u64).map(|f| at * f).sum()).collect();
                let mut values = numbers(length, rank as u64);
                circuit.all_reduce(&mut values, op::sum).unwrap();
                assert!(values == sum, "{length} values");
                for root in 0..size {
                    let mut values = numbers(length, rank as u64);
                    circuit.reduce(root, &mut values, op::sum).unwrap();
                    assert!(rank != root || values == sum);
                }
            }
            let mut ends = [rank as f64];
            circuit.all_reduce(&mut ends, op::max).unwrap();
            assert_eq!(ends, [(size - 1) as f64]);
            let all = circuit.gather(0, &vec![rank as u8; rank * 10], 1000).unwrap();
            if rank == 0 {
                assert!(all.iter().enumerate().all(|(from, bytes)| *bytes == vec![from as u8; from * 10]));
            }
            if size > 1 {
                circuit.send((rank + 1) % size, 9, &[rank as u8]).unwrap();
                let mut byte = [0];
                let received = circuit.receive_any(9, &mut byte).unwrap();
                assert_eq!((received.from, byte[0] as usize), ((rank + size - 1) % size, (rank + size - 1) % size));
            }
            circuit.barrier().unwrap();
        });
    }
}

/// Processes, and the circuits that each opens under names of its own, and all under shared names.
const CONTENDERS: u32 = 16;
const OWN_OPENINGS: usize = 63;
const SHARED_OPENINGS: usize = 8;

#[test]
fn contended_openings_are_the_same_in_all_processes() {
    let session = Session::start();
    let mut children: Vec<_> = (0..CONTENDERS).map(|rank| session.child("contend", rank)).collect();
    let lists: Vec<String> = children
        .iter_mut()
        .map(|(_, output)| output.lines().map(Result::unwrap).find(|line| line.starts_with("opened: ")).unwrap())
        .collect();
    for (mut child, _) in children {
        assert!(child.wait().unwrap().success());
    }
    assert!(lists.iter().all(|list| *list == lists[0]), "the same circuits in the same order");
    let names: Vec<_> = lists[0].split_whitespace().skip(1).collect();
    let expected = CONTENDERS as usize * OWN_OPENINGS + SHARED_OPENINGS + 1;
    assert!(expected > 1000 && names.len() == expected, "{} circuits: none is lost", names.len());
    let distinct: std::collections::HashSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), expected, "none is opened twice");
}

/// The part of one process.
fn contend(member: &Member, rank: u32) {
    for number in 0..OWN_OPENINGS {
        drop(member.open(&format!("{rank}.{number}")));
        if number < SHARED_OPENINGS {
            drop(member.open(&format!("shared.{number}")));
        }
    }
    // All have opened all of theirs.
    let end = member.open("end");
    end.barrier().unwrap();
    let circuits = member.group.circuits();
    assert!(circuits.iter().map(|(number, _)| *number).eq(1..=circuits.len() as u64));
    let names: Vec<_> = circuits.into_iter().map(|(_, name)| name).collect();
    println!("opened: {}", names.join(" "));
    end.barrier().unwrap();
}

#[test]
fn neighbours_have_links_to_neighbours_only() {
    const SIZE: u32 = 64;
    let session = Session::start();
    as_members(&session, SIZE, |member| {
        let circuit = member.open("ring");
        let (rank, size) = (circuit.rank(), circuit.size());
        for round in 0..10 {
            circuit.send((rank + 1) % size, round, &[1]).unwrap();
            circuit.receive((rank + size - 1) % size, round, &mut [0]).unwrap();
            circuit.send((rank + size - 1) % size, round, &[1]).unwrap();
            circuit.receive((rank + 1) % size, round, &mut [0]).unwrap();
        }
        let peers: std::collections::HashSet<_> =
            member.node.links().unwrap().into_iter().map(|link| member.node.link_info(link).unwrap().peer.0).collect();
        assert!(peers.len() <= 2, "{} peers", peers.len());
    });
}

#[test]
fn circuit_of_a_killed_process_fails_and_another_one_works() {
    let session = Session::start();
    let near = session.member(Some(0));
    let (mut child, mut output) = session.child("echo", 1);
    let other = session.member(Some(2));
    near.group.wait_for_members(3, Some(LIMIT)).unwrap();
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let circuit = near.open("c");
    let theirs = other.open("c");
    assert_eq!(circuit.number(), theirs.number());
    circuit.send(1, 1, b"x").unwrap();
    assert_eq!(circuit.receive(1, 1, &mut [0; 8]).unwrap().length, 1);
    let killed = Instant::now();
    child.kill().unwrap();
    child.wait().unwrap();
    let error = circuit.receive(1, 1, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, Error::MemberGone), "{error}");
    println!("the receive failed after {:?}", killed.elapsed());
    assert!(matches!(circuit.receive_any(1, &mut [0; 8]), Err(Error::MemberGone)));
    assert!(matches!(circuit.send(1, 1, b"x"), Err(Error::MemberGone)));
    // The other member is still there, on this circuit and on a new one.
    circuit.send(2, 5, b"ab").unwrap();
    assert_eq!(theirs.receive(0, 5, &mut [0; 8]).unwrap().length, 2);
    other.group.wait_for(|view| view.members.len() == 2, Some(LIMIT)).unwrap();
    let (again, theirs) = (near.open("c"), other.open("c"));
    assert!(again.number() > circuit.number());
    assert_eq!((again.number(), again.size(), theirs.size()), (theirs.number(), 2, 2));
    std::thread::scope(|scope| {
        scope.spawn(|| theirs.barrier().unwrap());
        again.barrier().unwrap();
    });
}

/// Cuts the link between two nodes, as an outage of the network does that the gatekeepers do not notice.
fn cut(near: &Member, far: &Member) {
    let peer = far.node.id().unwrap();
    let links = near.node.links().unwrap();
    let cut: Vec<_> = links.into_iter().filter(|link| near.node.link_info(*link).unwrap().peer == peer).collect();
    assert!(!cut.is_empty());
    cut.into_iter().for_each(|link| near.node.disconnect(link).unwrap());
}

fn is_gone<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::MemberGone))
}

#[test]
fn pair_whose_link_is_lost_fails_at_both_ends_for_good() {
    let session = Session::start();
    let [near, far] = [0, 1].map(|rank| session.member(Some(rank)));
    near.group.wait_for_members(2, Some(LIMIT)).unwrap();
    let (circuit, theirs) = (near.open("c"), far.open("c"));
    for number in 0..3 {
        circuit.send(1, 1, &[number]).unwrap();
    }
    theirs.send(0, 1, b"y").unwrap();
    let mut byte = [0];
    theirs.receive(0, 1, &mut byte).unwrap();
    cut(&near, &far);
    // No later message follows those that may be missing.
    assert!(is_gone(circuit.send(1, 1, &[9])) && is_gone(circuit.send(1, 1, &[9])), "a second life");
    for number in 1..3 {
        theirs.receive(0, 1, &mut byte).unwrap();
        assert_eq!(byte, [number], "what has arrived is there");
    }
    assert!(is_gone(theirs.receive_within(Some(0), 1, &mut byte, LIMIT)));
    assert!(is_gone(theirs.receive_within(None, 1, &mut byte, LIMIT)));
    assert!(is_gone(theirs.send(0, 1, b"z")) && is_gone(theirs.send_active(0, 1, b"z")));
    // Both are in the view, and meet again on another circuit.
    let (circuit, theirs) = (near.open("d"), far.open("d"));
    circuit.send(1, 1, b"a").unwrap();
    theirs.receive(0, 1, &mut byte).unwrap();
    theirs.send(0, 1, b"b").unwrap();
    circuit.receive(1, 1, &mut byte).unwrap();
}

#[test]
fn collectives_fail_at_all_members_when_two_have_lost_each_other() {
    let session = Session::start();
    let members = [0, 1, 2].map(|rank| session.member(Some(rank)));
    members[0].group.wait_for_members(3, Some(LIMIT)).unwrap();
    let circuits = [0, 1, 2].map(|rank: usize| members[rank].open("c"));
    let barriers = || {
        std::thread::scope(|scope| {
            let all = circuits.each_ref().map(|circuit| scope.spawn(|| circuit.barrier()));
            all.map(|one| one.join().unwrap())
        })
    };
    assert!(barriers().iter().all(Result::is_ok));
    cut(&members[0], &members[1]);
    assert!(barriers().into_iter().all(is_gone));
    // Messages of other pairs go on.
    circuits[2].send(0, 1, b"x").unwrap();
    assert_eq!(circuits[0].receive(2, 1, &mut [0; 8]).unwrap().length, 1);
}

fn signal(child: &std::process::Child, name: &str) {
    assert!(std::process::Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn member_that_is_stopped_delays_no_send_to_another_one() {
    let session = Session::start();
    let near = session.member(Some(0));
    let (mut child, mut output) = session.child("echo", 1);
    let other = session.member(Some(2));
    let mut line = String::new();
    while !line.contains("ready") {
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let (circuit, theirs) = (near.open("c"), other.open("c"));
    signal(&child, "-STOP");
    let is_stopped = || std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap().contains(") T ");
    while !is_stopped() {
        std::thread::yield_now();
    }
    let (began, done) = (std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        let to_stopped = scope.spawn(|| {
            began.wait();
            let sent = circuit.send(1, 1, b"x");
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            sent
        });
        began.wait();
        // The other thread is within its attempt by then, or it is not: neither may matter.
        std::thread::sleep(Duration::from_millis(50));
        circuit.send(2, 5, b"ab").unwrap();
        assert_eq!(theirs.receive(0, 5, &mut [0; 8]).unwrap().length, 2);
        assert!(!done.load(std::sync::atomic::Ordering::SeqCst), "the first message to a member opens a channel");
        signal(&child, "-CONT");
        to_stopped.join().unwrap().unwrap();
    });
    assert_eq!(circuit.receive(1, 1, &mut [0; 8]).unwrap().length, 1);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn late_member_leaves_older_circuits_alone() {
    let session = Session::start();
    let (first, second) = (session.member(Some(0)), session.member(Some(1)));
    first.group.wait_for_members(2, Some(LIMIT)).unwrap();
    let before = first.open("c");
    let late = session.member(Some(2));
    assert_eq!(second.open("c").number(), before.number(), "the circuit is as good as before");
    let newer = late.open("c");
    assert_eq!((newer.size(), newer.rank()), (3, 2));
    let began = Instant::now();
    while first.group.circuits().len() < 2 {
        assert!(began.elapsed() < LIMIT);
    }
    assert_eq!(first.open("c").number(), newer.number());
    assert_eq!(before.size(), 2);
}

#[test]
fn circuits_survive_a_gatekeeper_that_is_killed() {
    let mut session = Session::start();
    let members = [0, 1].map(|rank| session.member(Some(rank)));
    members[0].group.wait_for_members(2, Some(LIMIT)).unwrap();
    let circuits = [members[0].open("c"), members[1].open("c")];
    let view = members[0].group.view().unwrap().number;
    let exchange = || {
        circuits[0].send(1, 1, b"abc").unwrap();
        assert_eq!(circuits[1].receive(0, 1, &mut [0; 8]).unwrap().length, 3);
    };
    exchange();
    session.kill();
    exchange();
    // An opening that begins while there is no gatekeeper is known to all once there is one.
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| members[1].group.open("later", Some(LIMIT)).map(|circuit| circuit.number()));
        std::thread::sleep(Duration::from_millis(50));
        session.start_again();
        assert_eq!(members[0].open("later").number(), opening.join().unwrap().unwrap());
    });
    exchange();
    members[0].group.wait_for(|now| now.number > view, Some(LIMIT)).unwrap();
    assert_eq!(members[0].open("c").number(), circuits[0].number(), "no member has gone");
}

#[test]
fn handles_of_one_circuit_share_its_numbering() {
    let session = Session::start();
    as_members(&session, 2, |member| {
        let kept = member.open("c");
        for round in 0..20u64 {
            // One member keeps its handle, the other one opens the circuit each time.
            let again = (kept.rank() == 1).then(|| member.open("c"));
            let circuit = again.as_ref().unwrap_or(&kept);
            assert_eq!(circuit.number(), kept.number());
            let mut values = [round];
            circuit.all_reduce(&mut values, op::sum).unwrap();
            assert_eq!(values, [2 * round]);
        }
        kept.barrier().unwrap();
    });
}

#[test]
fn collectives_fail_at_all_members_when_one_is_killed() {
    let session = Session::start();
    let (mut child, _output) = session.child("collective", 3);
    let all_have_opened = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        let members: Vec<_> = [0, 1, 2, 4, 5, 6, 7]
            .map(|rank| {
                let (session, all_have_opened) = (&session, &all_have_opened);
                scope.spawn(move || {
                    let member = session.member(Some(rank));
                    member.group.wait_for_members(8, Some(LIMIT)).unwrap();
                    let circuit = member.open("c");
                    circuit.barrier().unwrap();
                    all_have_opened.wait();
                    loop {
                        let result = circuit.all_reduce(&mut [1u64; 20_000], op::sum).and_then(|()| circuit.barrier());
                        let result = result.and_then(|()| circuit.broadcast(3, &mut [0; 100_000]));
                        if let Err(error) = result {
                            assert!(matches!(error, Error::MemberGone), "{error}");
                            break;
                        }
                    }
                    // Those that are left go on among themselves.
                    member.group.wait_for(|view| view.members.len() == 7, Some(LIMIT)).unwrap();
                    let circuit = member.open("c");
                    let mut count = [1u64];
                    circuit.all_reduce(&mut count, op::sum).unwrap();
                    assert_eq!(count, [7]);
                    circuit.barrier().unwrap();
                })
            })
            .into();
        all_have_opened.wait();
        std::thread::sleep(Duration::from_millis(100));
        child.kill().unwrap();
        child.wait().unwrap();
        members.into_iter().for_each(|member| member.join().unwrap());
    });
}

#[test]
fn member_that_leaves_and_joins_again_is_a_new_one() {
    let session = Session::start();
    let near = session.member(Some(0));
    let mut far = session.member(Some(1));
    near.group.wait_for_members(2, Some(LIMIT)).unwrap();
    let (circuit, theirs) = (near.open("c"), far.open("c"));
    circuit.send(1, 1, b"x").unwrap();
    theirs.receive(0, 1, &mut [0; 8]).unwrap();
    for _ in 0..5 {
        let joined = far.membership.join("g", Some(1)).unwrap();
        std::mem::replace(&mut far.group, joined).leave().unwrap();
        far.group = far.membership.join("g", Some(1)).unwrap();
        far.group.wait_for_members(2, Some(LIMIT)).unwrap();
    }
    assert!(matches!(theirs.receive(0, 1, &mut [0; 8]), Err(Error::MemberGone)));
    assert!(matches!(circuit.receive(1, 1, &mut [0; 8]), Err(Error::MemberGone)));
    let began = Instant::now();
    let (again, theirs) = loop {
        // Until both have the last view they may open a circuit that ends at once.
        let both = (near.open("c"), far.open("c"));
        if both.0.number() == both.1.number() && both.0.send(1, 1, b"y").is_ok() {
            break both;
        }
        assert!(began.elapsed() < LIMIT);
    };
    assert!(again.number() > circuit.number());
    assert_eq!(theirs.receive(0, 1, &mut [0; 8]).unwrap().length, 1);
}

#[test]
fn leaving_while_other_threads_send_ends_their_calls() {
    let session = Session::start();
    for _ in 0..20 {
        let (near, far) = (session.member(Some(0)), session.member(Some(1)));
        near.group.wait_for_members(2, Some(LIMIT)).unwrap();
        let (circuit, theirs) = (near.open("c"), far.open("c"));
        std::thread::scope(|scope| {
            scope.spawn(|| while circuit.send(1, 1, b"x").is_ok() {});
            scope.spawn(|| while theirs.receive(0, 1, &mut [0; 8]).is_ok() {});
            far.membership.join("g", None).unwrap().leave().unwrap();
            near.membership.join("g", None).unwrap().leave().unwrap();
        });
    }
}

#[test]
fn member_that_leaves_while_the_gatekeeper_is_away_is_out() {
    let mut session = Session::start();
    let (near, far) = (session.member(Some(0)), session.member(Some(1)));
    near.group.wait_for_members(2, Some(LIMIT)).unwrap();
    session.kill();
    let Member { node, group, membership } = &far;
    let joined = membership.join("g", Some(1)); // it is in the group as far as it knows
    assert!(joined.is_ok() && group.view().is_ok());
    joined.unwrap().leave().unwrap();
    session.start_again();
    near.group.wait_for(|view| view.members.len() == 1, Some(LIMIT)).unwrap();
    near.open("alone").barrier().unwrap();
    node.progress().unwrap();
}

#[test]
fn nodes_do_not_drift_into_the_next_session() {
    let mut session = Session::start();
    let member = session.member(Some(0));
    session.kill();
    std::fs::remove_dir_all(session.paths.dir()).unwrap();
    session.start_again();
    let error = member.group.wait_for(|_| false, Some(LIMIT)).unwrap_err();
    assert!(matches!(error, Error::Session(_) | Error::Invalid(_)), "{error}");
    let fresh = session.member(Some(1));
    assert_eq!(fresh.group.view().unwrap().members.len(), 1);
    fresh.open("c").barrier().unwrap();
}

#[test]
fn calls_that_cannot_work_say_why() {
    let session = Session::start();
    let member = session.member(None);
    let circuit = member.open("c");
    let why = |result: Result<(), Error>| result.unwrap_err().to_string();
    assert_eq!(why(circuit.send(1, 0, b"")), "there is no rank 1: the circuit has 1");
    assert_eq!(why(circuit.broadcast(3, &mut [])), "there is no rank 3: the circuit has 1");
    assert!(why(member.group.open("", None).map(drop)).contains("1 to 256 bytes"));
    assert!(matches!(circuit.receive_within(None, 1, &mut [0], Duration::from_millis(5)), Err(Error::TimedOut)));
    let limit = Some(Duration::from_millis(5));
    assert!(matches!(member.group.wait_for_members(2, limit), Err(Error::TimedOut)));
    let nowhere = SessionPaths::within(&session.paths.dir().join("nowhere"), "x").unwrap();
    assert!(why(Membership::attach_to(&member.node, &nowhere).map(drop)).contains("motet up"));
}

/// The roles of the processes that the tests start: this test binary itself.
#[test]
#[ignore = "a role of the other tests"]
fn child() {
    let rank = std::env::var("MOTET_TEST_RANK").unwrap().parse().unwrap();
    let member = Member::attach(&SessionPaths::of("test").unwrap(), Some(rank));
    let role = std::env::var("MOTET_TEST_ROLE").unwrap();
    let size = match &role[..] {
        "collective" => 8,
        "contend" => CONTENDERS as usize,
        _ => 3,
    };
    member.group.wait_for_members(size, Some(LIMIT)).unwrap();
    if role == "contend" {
        println!(); // what the test harness has written is on this line
        return contend(&member, rank);
    }
    let circuit = member.open("c");
    println!("ready");
    if role == "collective" {
        circuit.barrier().unwrap();
        loop {
            circuit.all_reduce(&mut [1u64; 20_000], op::sum).and_then(|()| circuit.barrier()).unwrap();
            circuit.broadcast(3, &mut [0; 100_000]).unwrap();
        }
    }
    let mut buffer = [0; 64];
    while let Ok(received) = circuit.receive_any(1, &mut buffer) {
        circuit.send(received.from, 1, &buffer[..received.length]).unwrap();
    }
}
