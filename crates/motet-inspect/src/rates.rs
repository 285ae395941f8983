//! Bytes per second of streams, links and processes, from two scans.

use std::collections::HashMap;
use std::time::Duration;

use crate::process_scan::{Moved, Process};
use crate::rate::Rate;

/// Identifies a stream, or a link of a node, for as long as it lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    Stream(u32, (usize, u32)),
    Link(String, u32, String),
}

/// Bytes sent and received so far.
#[derive(Debug, Clone, Default)]
pub struct Totals(HashMap<Key, (u64, u64)>);

impl Totals {
    /// Those of a scan.
    pub fn of(processes: &[Process]) -> Self {
        let both = |moved: Moved| moved.fast.wrapping_add(moved.tcp);
        let mut totals = HashMap::new();
        for process in processes {
            for stream in &process.streams {
                totals.insert(Key::Stream(process.pid, stream.id), (both(stream.sent), both(stream.received)));
            }
            for node in &process.nodes {
                for link in &node.links {
                    let key = Key::Link(node.number.clone(), link.link, link.peer.clone());
                    totals.insert(key, link.counts.bytes());
                }
            }
        }
        Self(totals)
    }

    /// Bytes moved since an earlier scan; nothing for a stream or link that was not in it.
    fn since(&self, earlier: &Self, key: &Key) -> (u64, u64) {
        match (self.0.get(key), earlier.0.get(key)) {
            (Some(now), Some(before)) => (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1)),
            _ => (0, 0),
        }
    }
}

/// Sets the rates of all streams, links and processes, from the totals of an earlier scan, which was `elapsed` before. A stream or link that is new has
/// the rate 0.
pub fn set(processes: &mut [Process], earlier: &Totals, elapsed: Duration) -> Totals {
    let totals = Totals::of(processes);
    let rate = |key: &Key| Rate::of(totals.since(earlier, key), elapsed);
    for process in processes.iter_mut() {
        let mut all = Rate::default();
        for stream in &mut process.streams {
            let own = rate(&Key::Stream(process.pid, stream.id));
            // What only the kernel counts has no rate here.
            stream.rate = stream.is_counted().then_some(own);
            all += own;
        }
        for node in &mut process.nodes {
            for link in &mut node.links {
                let own = rate(&Key::Link(node.number.clone(), link.link, link.peer.clone()));
                link.rate = Some(own);
                all += own;
            }
        }
        process.rate = Some(all);
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_what_is_in_both_scans() {
        let stream = |pid, index, generation| Key::Stream(pid, (index, generation));
        let before = Totals([(stream(1, 0, 0), (100, 0)), (stream(2, 1, 0), (5, 5))].into());
        let now =
            Totals([(stream(1, 0, 0), (300, 50)), (stream(1, 5, 0), (900, 900)), (stream(2, 1, 0), (1, 5))].into());
        let rate = |key| Rate::of(now.since(&before, &key), Duration::from_secs(2));
        assert_eq!(rate(stream(1, 0, 0)), Rate { sent: 100, received: 25 });
        assert_eq!(rate(stream(1, 5, 0)), Rate::default());
        assert_eq!(rate(stream(2, 1, 0)), Rate::default());
        assert_eq!(rate(stream(1, 0, 1)), Rate::default());
    }

    #[test]
    fn rates_of_impossible_counts_are_bounded() {
        let mut rate = Rate::of((u64::MAX, u64::MAX), Duration::ZERO);
        rate += rate;
        assert_eq!(rate.both(), u64::MAX);
    }
}
