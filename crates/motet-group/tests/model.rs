//! Every order of events of a small group: openings, messages, members that die and members that join.
#![forbid(unsafe_code)]

use motet_group::opener::{Message, Opener, Opening, Step, Steps};
use stateright::{Checker, Model, Property};
use std::collections::{BTreeMap, VecDeque};

type Id = u8;
/// Messages under way from one member to another, in order, each with its view.
type Network = BTreeMap<(Id, Id), VecDeque<(u64, Message<Id>)>>;

/// Members, the events under way to each, and what may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct State {
    members: BTreeMap<Id, Member>,
    network: Network,
    /// The group's view: its number and its members.
    view: (u64, Vec<Id>),
    deaths_left: u8,
    joiners: Vec<Id>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member {
    opener: Opener<Id>,
    /// Views that the directory has sent to it.
    views: VecDeque<(u64, Vec<Id>)>,
    /// Names that it will want.
    names: Vec<&'static str>,
    /// The circuits that it has installed.
    log: Vec<Opening>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Event {
    Want(Id),
    View(Id),
    Deliver(Id, Id),
    Die(Id),
    Join(Id),
}

struct Group {
    members: Vec<(Id, Vec<&'static str>)>,
    joiners: Vec<(Id, Vec<&'static str>)>,
    deaths: u8,
}

impl State {
    fn apply(&mut self, who: Id, steps: Steps<Id>) {
        for step in steps {
            match step {
                Step::Send(to, view, message) => {
                    if self.members.contains_key(&to) {
                        self.network.entry((who, to)).or_default().push_back((view, message));
                    }
                }
                Step::Install(opening) => self.members.get_mut(&who).unwrap().log.push(opening),
            }
        }
    }

    fn publish(&mut self, members: Vec<Id>) {
        self.view = (self.view.0 + 1, members);
        for member in &self.view.1 {
            self.members.get_mut(member).unwrap().views.push_back(self.view.clone());
        }
    }

    /// Nothing is under way.
    fn is_quiet(&self) -> bool {
        self.network.is_empty()
            && self.members.values().all(|member| member.views.is_empty() && member.names.is_empty())
    }
}

fn member(id: Id, names: &[&'static str]) -> Member {
    Member { opener: Opener::new(id), views: VecDeque::new(), names: names.to_vec(), log: Vec::new() }
}

impl Model for Group {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            members: self.members.iter().map(|(id, names)| (*id, member(*id, names))).collect(),
            network: BTreeMap::new(),
            view: (0, Vec::new()),
            deaths_left: self.deaths,
            joiners: self.joiners.iter().map(|(id, _)| *id).collect(),
        };
        state.publish(self.members.iter().map(|(id, _)| *id).collect());
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Event>) {
        for (&id, member) in &state.members {
            if !member.names.is_empty() {
                actions.push(Event::Want(id));
            }
            if !member.views.is_empty() {
                actions.push(Event::View(id));
            }
            if state.deaths_left > 0 && state.members.len() > 1 {
                actions.push(Event::Die(id));
            }
        }
        actions.extend(state.network.keys().map(|&(from, to)| Event::Deliver(from, to)));
        actions.extend(state.joiners.iter().map(|&id| Event::Join(id)));
    }

    fn next_state(&self, last: &State, event: Event) -> Option<State> {
        let mut state = last.clone();
        match event {
            Event::Want(id) => {
                let member = state.members.get_mut(&id)?;
                let name = member.names.remove(0);
                let steps = member.opener.open(name);
                state.apply(id, steps);
            }
            Event::View(id) => {
                let member = state.members.get_mut(&id)?;
                let (number, members) = member.views.pop_front()?;
                let steps = member.opener.install(number, &members);
                state.apply(id, steps);
            }
            Event::Deliver(from, to) => {
                let queue = state.network.get_mut(&(from, to))?;
                let (view, message) = queue.pop_front()?;
                if queue.is_empty() {
                    state.network.remove(&(from, to));
                }
                let steps = state.members.get_mut(&to)?.opener.receive(from, view, message);
                state.apply(to, steps);
            }
            Event::Die(id) => {
                state.deaths_left -= 1;
                state.members.remove(&id);
                // What it has sent may still arrive; what was sent to it is gone.
                state.network.retain(|&(_, to), _| to != id);
                let rest = state.view.1.iter().copied().filter(|&member| member != id).collect();
                state.publish(rest);
            }
            Event::Join(id) => {
                state.joiners.retain(|&joiner| joiner != id);
                let (_, names) = self.joiners.iter().find(|(joiner, _)| *joiner == id)?;
                state.members.insert(id, member(id, names));
                let mut members = state.view.1.clone();
                members.push(id);
                state.publish(members);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one token in a view", |_, state: &State| {
                let views: Vec<u64> =
                    state.members.values().filter(|m| m.opener.has_token()).map(|m| m.opener.view()).collect();
                views.iter().all(|view| views.iter().filter(|other| *other == view).count() == 1)
            }),
            Property::always("circuits have one order, and each number is one circuit", |_, state: &State| {
                state.members.values().all(|member| {
                    member.log.windows(2).all(|pair| pair[0].number < pair[1].number)
                        && state.members.values().all(|other| {
                            member.log.iter().all(|mine| {
                                other.log.iter().all(|theirs| mine.number != theirs.number || mine == theirs)
                            })
                        })
                })
            }),
            Property::always("no name is opened twice in a view", |_, state: &State| {
                state.members.values().all(|member| {
                    member.log.iter().enumerate().all(|(at, opening)| {
                        !member.log[..at].iter().any(|other| other.view == opening.view && other.name == opening.name)
                    })
                })
            }),
            Property::always("no opening is lost", |_, state: &State| {
                !state.is_quiet() || state.members.values().all(|member| !member.opener.wants_any())
            }),
            Property::always("members that a name joins know the same circuit for it", |_, state: &State| {
                let mut numbers = ["a", "b", "c"].iter().map(|name| {
                    let of = |member: &Member| member.opener.number_of(name);
                    (name, state.members.values().map(of).collect::<Vec<_>>())
                });
                // A late member may have opened a newer one; then all have that.
                !state.is_quiet()
                    || numbers.all(|(_, known)| {
                        known.iter().all(|number| number.is_none() || *number == known.iter().copied().max().flatten())
                    })
            }),
            Property::always("members of the same views know the same circuits", |group: &Group, state: &State| {
                let firsts: Vec<_> = state
                    .members
                    .iter()
                    .filter(|(id, _)| group.members.iter().any(|(first, _)| first == *id))
                    .collect();
                !state.is_quiet() || firsts.windows(2).all(|pair| pair[0].1.log == pair[1].1.log)
            }),
            Property::sometimes("all is over", |_, state: &State| state.is_quiet()),
        ]
    }
}

fn check(group: Group) {
    let checker = group.checker().threads(2).spawn_bfs().join();
    println!("{} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The first members and the late ones, each with the names that it wants.
fn group(members: &[&[&'static str]], joiners: &[&[&'static str]], deaths: u8) -> Group {
    let numbered = |from: usize, all: &[&[&'static str]]| {
        all.iter().enumerate().map(|(at, names)| ((from + at) as Id, names.to_vec())).collect()
    };
    Group { members: numbered(1, members), joiners: numbered(1 + members.len(), joiners), deaths }
}

#[test]
fn crossing_openings_of_three_members_are_serialised() {
    check(group(&[&["a", "c"], &["b"], &["a"]], &[], 0));
}

#[test]
fn three_members_recover_from_a_death() {
    check(group(&[&["a"], &["b"], &["a"]], &[], 1));
}

#[test]
fn three_members_recover_from_two_deaths() {
    check(group(&[&["a"], &["b"], &["a"]], &[], 2));
}

#[test]
fn two_members_and_a_late_one_agree() {
    check(group(&[&["a"], &["b"]], &[&["a"]], 0));
}

#[test]
fn two_members_and_a_late_one_survive_a_death() {
    check(group(&[&["a"], &["a"]], &[&["b"]], 1));
}

#[test]
fn four_members_serialise_crossing_openings() {
    check(group(&[&[], &["a"], &[], &["b"]], &[], 0));
}

#[test]
fn four_members_recover_from_a_death() {
    check(group(&[&[], &["a"], &[], &["b"]], &[], 1));
}
