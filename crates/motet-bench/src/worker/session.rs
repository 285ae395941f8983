//! Members of a session that measure: nodes that join, circuits that are opened, and what goes over them.
//!
//! `--worker session ROLE RANK SIZE …`: the session is that of the environment. Rank 0 prints the figures of the role in one line.

use super::number;
use crate::session::scene::GROUP;
use crate::stats::median;
use anyhow::{Context, Result, bail, ensure};
use motet::node::Node;
use motet_group::{Circuit, Group, Membership, op};
use motet_session::api::ToNode;
use motet_session::attach::{Attachment, Event};
use motet_session::paths::SessionPaths;
use motet_sys::clock::nanoseconds;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// Nothing takes so long.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Calls that are timed together.
const BLOCK: u32 = 100;
/// Nodes of a group while many are attached.
const CROWD_GROUP: usize = 50;

/// Runs a role.
pub fn run(words: &[&str]) -> Result<()> {
    let (&[role, rank, size], more) = words.split_first_chunk().context("ROLE RANK SIZE")?;
    let (rank, size) = (number(rank)?, number(size)?);
    match (role, more) {
        ("join", [count]) => join(number(count)?),
        ("visit", [count]) => visit(rank, size, number(count)?),
        ("witness", []) => witness(rank, size),
        ("open", [count]) => open(&Member::join(rank, size)?, number(count)?),
        ("contend", [count]) => contend(&Member::join(rank, size)?, number(count)?),
        ("collective", [ms]) => collective(&Member::join(rank, size)?, number(ms)?),
        ("pingpong", [ms]) => ping_pong(&Member::join(rank, size)?, number(ms)?),
        ("ring", []) => ring(&Member::join(rank, size)?),
        ("attach", [count]) => attach(rank, number(count)?),
        ("operations", [group, count]) => operations(group, number(count)?),
        _ => bail!("no such role: {}", words.join(" ")),
    }
}

/// A node in the group.
struct Member {
    group: Group,
    rank: usize,
    _membership: Membership,
}

impl Member {
    /// Joins, and waits for the others.
    fn join(rank: usize, size: usize) -> Result<Self> {
        let node = Arc::new(Node::open("")?);
        let membership = Membership::attach(&node)?;
        let group = membership.join(GROUP, Some(rank as u32))?;
        group.wait_for_members(size, LIMIT)?;
        Ok(Self { group, rank, _membership: membership })
    }

    fn open(&self, name: &str) -> Result<Circuit> {
        Ok(self.group.open(name, LIMIT)?)
    }

    fn print(&self, figures: &[f64]) {
        if self.rank == 0 {
            print(figures);
        }
    }
}

fn print(figures: &[f64]) {
    println!("{}", figures.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

/// A member of this process watches a node that attaches and joins.
fn join(count: usize) -> Result<()> {
    let watching = Member::join(0, 1)?;
    let mut times = Vec::new();
    for _ in 0..count {
        let before = watching.group.view()?.number;
        let node = Arc::new(Node::open("")?);
        let began = Instant::now();
        let membership = Membership::attach(&node)?;
        membership.join(GROUP, None)?;
        watching.group.next_view(before, LIMIT)?;
        times.push(ms(began));
        drop(membership);
        watching.group.wait_for(|view| view.members.len() == 1, LIMIT)?;
    }
    print(&[median(&times)]);
    Ok(())
}

/// Nodes of this process attach and join one after the other, while a member of each host watches. Prints for each: the number of the view that it is in, when
/// it began, and when it had the view, ns by the monotonic clock.
fn visit(rank: usize, size: usize, count: usize) -> Result<()> {
    let watching = Member::join(rank, size)?;
    watching.open("all")?.barrier()?; // every witness looks
    for _ in 0..count {
        let before = watching.group.view()?.number;
        let node = Arc::new(Node::open("")?);
        let began = nanoseconds();
        let membership = Membership::attach(&node)?;
        membership.join(GROUP, None)?;
        let view = watching.group.next_view(before, LIMIT)?;
        println!("{} {began} {}", view.number, nanoseconds());
        std::thread::sleep(Duration::from_millis(20)); // the other hosts have it before it changes again
        drop(membership);
        watching.group.wait_for(|view| view.members.len() == size, LIMIT)?;
    }
    Ok(())
}

/// Prints each view's number and when it came, until standard input ends.
fn witness(rank: usize, size: usize) -> Result<()> {
    let member = Member::join(rank, size)?;
    let ended = input_ended();
    let mut number = member.group.view()?.number;
    member.open("all")?.barrier()?;
    while !ended.load(Ordering::Relaxed) {
        match member.group.next_view(number, Some(Duration::from_millis(100))) {
            Ok(view) => {
                println!("{} {}", view.number, nanoseconds());
                number = view.number;
            }
            Err(motet_group::Error::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// All members open a circuit at once.
fn open(member: &Member, count: usize) -> Result<()> {
    let first = member.open("first")?;
    let mut times = Vec::new();
    for number in 0..count {
        first.barrier()?;
        let began = Instant::now();
        let circuit = member.open(&number.to_string())?;
        let mut slowest = [ms(began)];
        drop(circuit);
        first.all_reduce(&mut slowest, op::max)?;
        times.push(slowest[0]);
    }
    member.print(&[median(&times)]);
    Ok(first.barrier()?)
}

/// Each member opens circuits of names of its own as fast as it can.
fn contend(member: &Member, count: usize) -> Result<()> {
    let first = member.open("first")?;
    first.barrier()?;
    let began = Instant::now();
    for number in 0..count {
        member.open(&format!("{}.{number}", member.rank))?;
    }
    first.barrier()?;
    let each = ms(began) / (count * first.size()) as f64;
    // A member may not have the last circuits of others yet; it has them before this one.
    member.open("last")?.barrier()?;
    let list = member.group.circuits();
    let mut hasher = DefaultHasher::new();
    list.hash(&mut hasher);
    let (mut least, mut most) = ([hasher.finish()], [hasher.finish()]);
    first.all_reduce(&mut least, op::min)?;
    first.all_reduce(&mut most, op::max)?;
    member.print(&[each, list.len() as f64, f64::from(u8::from(least == most))]);
    Ok(first.barrier()?)
}

/// The median time of a call, ns, over blocks until rank 0 says that the time is over.
fn timed(circuit: &Circuit, limit: Duration, call: impl Fn() -> Result<(), motet_group::Error>) -> Result<f64> {
    let (began, mut times, mut go) = (Instant::now(), Vec::new(), [1]);
    while go == [1] {
        let start = Instant::now();
        for _ in 0..BLOCK {
            call()?;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(BLOCK));
        go = [u8::from(began.elapsed() < limit || times.len() < 5)];
        circuit.broadcast(0, &mut go)?;
    }
    Ok(median(&times))
}

fn collective(member: &Member, ms: usize) -> Result<()> {
    let circuit = member.open("collective")?;
    let limit = Duration::from_millis(ms as u64);
    timed(&circuit, limit / 4, || circuit.barrier())?;
    let barrier = timed(&circuit, limit, || circuit.barrier())?;
    let all_reduce = timed(&circuit, limit, || circuit.all_reduce(&mut [1u64], op::sum))?;
    member.print(&[barrier, all_reduce]);
    Ok(circuit.barrier()?)
}

/// The mean time of one way: what interrupts the ends counts.
fn ping_pong(member: &Member, ms: usize) -> Result<()> {
    let circuit = member.open("pingpong")?;
    circuit.barrier()?;
    let (other, mut bytes, mut count) = (1 - member.rank, [0; 8], 0u64);
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(ms as u64) || member.rank == 1 {
        for _ in 0..BLOCK {
            if member.rank == 0 {
                circuit.send(other, 1, &bytes)?;
                circuit.receive(other, 1, &mut bytes)?;
            } else {
                circuit.receive(other, 1, &mut bytes)?;
                circuit.send(other, 1, &bytes)?;
            }
        }
        count += u64::from(BLOCK);
        let mut go = [u8::from(began.elapsed() < Duration::from_millis(ms as u64))];
        circuit.broadcast(0, &mut go)?;
        if go == [0] {
            break;
        }
    }
    member.print(&[began.elapsed().as_nanos() as f64 / (2 * count) as f64]);
    Ok(circuit.barrier()?)
}

/// Passes messages around until standard input ends at all members.
fn ring(member: &Member) -> Result<()> {
    let circuit = member.open("ring")?;
    circuit.barrier()?;
    println!("ready");
    let ended = input_ended();
    let (rank, size) = (circuit.rank(), circuit.size());
    for round in 0u32.. {
        let mut got = [0; 4];
        circuit.send((rank + 1) % size, 1, &round.to_le_bytes())?;
        circuit.receive((rank + size - 1) % size, 1, &mut got)?;
        ensure!(u32::from_le_bytes(got) == round, "a message was lost");
        let mut all = [u8::from(ended.load(Ordering::Relaxed))];
        circuit.all_reduce(&mut all, op::min)?;
        if all == [1] {
            break;
        }
        std::thread::sleep(Duration::from_millis(2)); // the CPUs are for what is measured
    }
    Ok(circuit.barrier()?)
}

/// A flag that is set when standard input ends or says something.
fn input_ended() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let flag = ended.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        flag.store(true, Ordering::Relaxed);
    });
    ended
}

/// Attaches nodes that do nothing, in groups of [`CROWD_GROUP`], until standard input ends.
fn attach(process: usize, count: usize) -> Result<()> {
    let (sender, events) = mpsc::channel();
    let mut attached = Vec::new();
    for at in 0..count {
        let (sender, group) = (sender.clone(), format!("crowd-{process}-{}", at / CROWD_GROUP));
        let mut joined = false;
        let attachment = Attachment::open(&paths()?, &identity(process, at), "", move |_, event| {
            // Its first view only: those that follow say that others have joined.
            if matches!(event, Event::Line(ToNode::View(_))) && !std::mem::replace(&mut joined, true) {
                let _ = sender.send(());
            }
        })?;
        attachment.sender().join(&group, None)?;
        attached.push(attachment);
    }
    for _ in 0..count {
        events.recv_timeout(Duration::from_secs(60)).context("a node has no view")?;
    }
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}

/// Joins and leaves a group, and prints the 99th percentile of the time of one, ms.
fn operations(group: &str, count: usize) -> Result<()> {
    let (sender, events) = mpsc::channel();
    let attachment = Attachment::open(&paths()?, &identity(9999, 0), "", move |_, event| {
        if let Event::Line(line @ (ToNode::View(_) | ToNode::Left { .. })) = event {
            let _ = sender.send(matches!(line, ToNode::View(_)));
        }
    })?;
    let mut times = Vec::new();
    for _ in 0..count / 2 {
        for joins in [true, false] {
            let began = Instant::now();
            match joins {
                true => attachment.sender().join(group, None)?,
                false => drop(attachment.sender().leave(group)?),
            }
            while events.recv_timeout(Duration::from_secs(60)).context("no answer")? != joins {}
            times.push(ms(began));
        }
    }
    times.sort_by(f64::total_cmp);
    print(&[times[(times.len() * 99).div_ceil(100) - 1]]);
    Ok(())
}

fn paths() -> Result<SessionPaths> {
    Ok(SessionPaths::from_env()?)
}

/// An identity that no other node of the bench has.
fn identity(process: usize, at: usize) -> String {
    format!("{:08x}{process:012x}{at:012x}", 0x5e551_u32)
}
