//! Measures a barrier and an all-reduce of 8 bytes among the members of a group:
//!
//! ```text
//! motet up
//! cargo build --release -p motet-group --example collectives
//! motet run --group bench -n 2 -- target/release/examples/collectives
//! ```
#![forbid(unsafe_code)]

use motet::node::Node;
use motet_group::{Circuit, Error, Membership, op};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const REPETITIONS: usize = 7;
const CALLS: u32 = 20_000;

/// The median of the time of one call, and the range, microseconds.
fn measure(circuit: &Circuit, call: impl Fn() -> Result<(), Error>) -> Result<[f64; 3], Error> {
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        circuit.barrier()?;
        let began = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        times.push(began.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS));
    }
    times.sort_by(f64::total_cmp);
    Ok([times[REPETITIONS / 2], times[0], times[REPETITIONS - 1]])
}

fn main() -> Result<(), Error> {
    let node = Arc::new(Node::open("")?);
    let membership = Membership::attach(&node)?;
    let group = membership.join_own(LIMIT)?;
    let began = Instant::now();
    let circuit = group.open("collectives", LIMIT)?;
    let opened = began.elapsed();
    circuit.barrier()?;
    let barrier = measure(&circuit, || circuit.barrier())?;
    let reduce = measure(&circuit, || circuit.all_reduce(&mut [1u64], op::sum))?;
    if circuit.rank() == 0 {
        let shown = |[median, least, most]: [f64; 3]| format!("{median:.2} us [{least:.2} .. {most:.2}]");
        println!("{} members: circuit opened in {opened:?}", circuit.size());
        println!("barrier {}, all-reduce of 8 bytes {}", shown(barrier), shown(reduce));
    }
    circuit.barrier()
}
