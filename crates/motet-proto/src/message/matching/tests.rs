//! The table against an oracle of two lists that are searched linearly.

use super::super::slab::SlabId;
use super::*;
use crate::message::ChannelId;

/// SplitMix64 (Steele, Lea, Flood 2014).
struct Prng(u64);

impl Prng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The oracle. Receives from any source have a context instead of a scope.
#[derive(Default)]
struct Oracle {
    /// Operation, selector, in the order of posting.
    waiting: Vec<(u64, Selector)>,
    /// Name, scope, tag, whether it is whole, in the order of arrival.
    kept: Vec<(u64, Scope, u64, bool)>,
}

/// The selector in effect: an ordered scope ignores tags.
fn effective(selector: Selector, ordered: &[Scope]) -> Selector {
    match selector.from {
        Source::One(scope) if ordered.contains(&scope) => Selector { ignore: u64::MAX, ..selector },
        _ => selector,
    }
}

/// Whether a message of this scope and context matches a selector.
fn fits(selector: Selector, scope: Scope, context: Option<Context>, tag: u64) -> bool {
    let from = match selector.from {
        Source::One(one) => one == scope,
        Source::Any(any) => Some(any) == context,
    };
    from && (selector.tag ^ tag) & !selector.ignore == 0
}

fn held(name: u64, tag: u64, is_whole: bool) -> UnexpectedMessage {
    let (source, channel, headers, units, bytes) = (0, ChannelId(SlabId(1)), 0, 0, Box::default());
    let long = (!is_whole).then_some(SlabId(1));
    UnexpectedMessage { source, channel, headers, tag, length: name, units, long, bytes }
}

fn compare(seed: u64) {
    let prng = &mut Prng(seed);
    let mut table = Table::new([seed, 77]);
    let mut oracle = Oracle::default();
    let contexts = [table.add_context().unwrap(), table.add_whole_message_context().unwrap()];
    let scopes: Vec<(Scope, Option<Context>)> = (0..6)
        .map(|n| [Some(contexts[0]), Some(contexts[1]), None][n % 3])
        .map(|context| (table.add_scope(context).unwrap(), context))
        .collect();
    let ordered = [table.add_ordered_scope().unwrap(), table.add_ordered_scope().unwrap()];
    let scopes = [scopes, ordered.map(|scope| (scope, None)).to_vec()].concat();
    let (mut tickets, mut kept_numbers) = (HashMap::new(), HashMap::new());
    let tags = 1 + prng.below(5);
    for name in 0..1 + prng.below(600) {
        let (scope, _) = scopes[prng.below(8) as usize];
        let from = if prng.below(3) == 0 { Source::Any(contexts[prng.below(2) as usize]) } else { Source::One(scope) };
        let ignore = [0, 0, 0, 1, 6, u64::MAX, 1 << prng.below(64)][prng.below(7) as usize];
        let selector = Selector { from, tag: prng.below(tags), ignore };
        let context_of = |scope: Scope, is_whole| {
            let context = scopes.iter().find(|known| known.0 == scope).and_then(|known| known.1);
            context.filter(|&context| is_whole || context != contexts[1])
        };
        let asked = effective(selector, &ordered);
        let first = oracle
            .kept
            .iter()
            .position(|&(_, scope, tag, is_whole)| fits(asked, scope, context_of(scope, is_whole), tag));
        match prng.below(12) {
            0..=4 => {
                let (tag, is_whole) = (prng.below(tags), prng.below(3) > 0);
                let context = context_of(scope, is_whole);
                let first = oracle.waiting.iter().position(|waiting| fits(waiting.1, scope, context, tag));
                let expected = first.map(|at| oracle.waiting.remove(at).0);
                let first = table.oldest(scope, tag).filter(|_| is_whole && prng.below(2) == 0);
                let got = match first {
                    Some(node) => table.take(node),
                    None if is_whole => table.arrive(scope, tag),
                    None => table.arrive_long(scope, tag),
                };
                let got = got.map(|receive| receive.operation);
                assert_eq!(got, expected);
                if got.is_none() {
                    oracle.kept.push((name, scope, tag, is_whole));
                    kept_numbers.insert(name, table.add_unexpected(scope, held(name, tag, is_whole)).unwrap());
                }
            }
            5..=8 => {
                let receive = Receive { operation: name, capacity: 0, buffer: () };
                let simply = if prng.below(2) == 0 { table.post_fast(selector, receive) } else { None };
                match simply.map_or_else(|| table.post(selector, receive), PostOutcome::Posted) {
                    PostOutcome::Posted(ticket) => {
                        assert_eq!(first, None);
                        tickets.insert(name, ticket);
                        oracle.waiting.push((name, asked));
                    }
                    PostOutcome::Matched(held) => assert_eq!(held.length, oracle.kept.remove(first.unwrap()).0),
                    PostOutcome::Ended(_) => panic!("no scope has ended"),
                }
            }
            9 => {
                let seen = table.peek(selector).map(|held| held.length);
                assert_eq!(seen, first.map(|at| oracle.kept[at].0));
                assert_eq!(table.claim(selector).map(|held| held.length), first.map(|at| oracle.kept.remove(at).0));
            }
            10 => {
                let Some((&name, &ticket)) = tickets.iter().min_by_key(|known| known.0) else { continue };
                tickets.remove(&name);
                let at = oracle.waiting.iter().position(|waiting| waiting.0 == name);
                assert_eq!(table.cancel(ticket).map(|receive| receive.operation), at.map(|_| name));
                at.map(|at| oracle.waiting.remove(at));
            }
            _ => {
                let Some((&name, &number)) = kept_numbers.iter().min_by_key(|known| known.0) else { continue };
                kept_numbers.remove(&name);
                let at = oracle.kept.iter().position(|kept| kept.0 == name);
                assert_eq!(table.remove_unexpected(number).map(|held| held.length), at.map(|_| name));
                at.map(|at| oracle.kept.remove(at));
            }
        }
        assert_eq!(table.len(), (oracle.waiting.len() as u32, oracle.kept.len() as u32));
    }
    for source in scopes.iter().map(|scope| Source::One(scope.0)).chain(contexts.map(Source::Any)) {
        while table.end_source(source, Status::Closed).is_some() {}
        if let Source::One(scope) = source {
            while table.drain(scope).is_some() {}
        }
        assert!(table.remove_source(source));
    }
    assert!(table.is_empty() && table.scopes.count() == 0);
    assert!(table.hashed_by_key.is_empty() && table.unexpected_by_key.is_empty());
    assert!(table.masks.iter().all(|mask| mask.receives == 0));
}

#[test]
fn table_behaves_as_two_lists() {
    for seed in 0..3000 {
        if let Err(panic) = std::panic::catch_unwind(|| compare(seed)) {
            eprintln!("seed {seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn any_source_and_one_source_receives_match_in_order() {
    let mut table = Table::new([1, 2]);
    let context = table.add_context().unwrap();
    let scope = table.add_scope(Some(context)).unwrap();
    let receives = [Source::Any(context), Source::One(scope), Source::Any(context)];
    for (operation, from) in (0..).zip(receives) {
        let selector = Selector { from, tag: 9, ignore: 0 };
        assert!(matches!(table.post(selector, Receive { operation, capacity: 0, buffer: () }), PostOutcome::Posted(_)));
    }
    for operation in 0..3 {
        assert_eq!(table.arrive(scope, 9).map(|receive| receive.operation), Some(operation));
    }
    assert_eq!(table.arrive(scope, 9), None);
}

#[test]
fn record_of_unexpected_message_is_within_its_cost() {
    let maps = 2 * (size_of::<MatchKey>() + size_of::<IntrusiveList>());
    assert!(Slab::<UnexpectedRecord, 4>::RECORD_BYTES + maps <= super::super::credit::RECORD_BYTES);
}

#[test]
fn scope_with_a_posted_receive_is_not_removed() {
    let mut table = Table::new([1, 2]);
    let scope = table.add_scope(None).unwrap();
    let selector = Selector { from: Source::One(scope), tag: 0, ignore: 0 };
    let PostOutcome::Posted(ticket) = table.post(selector, Receive { operation: 5, capacity: 0, buffer: () }) else {
        panic!()
    };
    assert!(!table.remove_source(Source::One(scope)));
    assert!(table.cancel(ticket).is_some() && table.cancel(ticket).is_none());
    assert!(table.remove_source(Source::One(scope)));
    let receive = Receive { operation: 6, capacity: 0, buffer: () };
    assert!(matches!(table.post(selector, receive), PostOutcome::Ended(Status::Closed)));
}
