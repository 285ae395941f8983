//! The agreement on circuits: which circuits a group has opened, in the same order at every member, although members come and go.
//!
//! **Within a view** the holder of the [token](crate::token) opens: it gives the circuit the next number, sends it to all members, and waits until
//! all have it. Then it passes the token on. So two members differ by at most the last circuit.
//!
//! **A new view** ends everything of the old one: its token and all of its messages, which carry the number of their view, are void. Each member
//! sends its last circuit to the first member of the view. That one waits for all of them, sends the newest circuit to all (members that lack it add
//! it), waits until all have it, and makes a new token: no further circuit may be opened before, or a member could lack two. Members that want a circuit request the token again. A lost holder is recovered so, and a circuit that one survivor
//! knows is known to all.
//!
//! A name stands for one circuit as long as all members of that circuit are there: members whose requests cross open it once, and one that asks late
//! gets the same. When a member has gone, the name stands for a new circuit. A member that came after the circuit, and asks for its name, opens a new one
//! with all members of the view.
//!
//! A message of a view that is not installed here yet is kept until it is.
//!
//! No I/O: events come in ([`Opener::install`], [`Opener::open`], [`Opener::receive`]), [`Step`]s come out. Messages between two members must arrive in order
//! or not at all; if one is lost, a new view must follow.

use crate::token::{MAX_NUMBER, Token, TokenState};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Views whose members are remembered, for circuits of which this member hears late.
const MAX_PAST_VIEWS: usize = 64;
/// Messages of later views that are kept, more than the largest group sends in one. If there are more, those of the earliest of these views go: its members
/// have gone on to a later one.
const MAX_FUTURE: usize = 16 << 10;

/// A circuit that the group has opened.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Opening {
    /// Its number in the group, from 1. No number is used twice.
    pub number: u64,
    /// Its name.
    pub name: String,
    /// The view whose members it joins.
    pub view: u64,
}

/// A message between two members of a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Message<Id: Ord> {
    /// The sender wants the token.
    Request(u64),
    /// The token.
    Token(Token<Id>),
    /// A new circuit.
    Open(Opening),
    /// The sender has the circuit of this number.
    Opened(u64),
    /// To the first member of a new view: the sender's last circuit.
    Last(Option<Opening>),
    /// From the first member of a new view: the group's last circuit.
    Agreed(Option<Opening>),
    /// To the first member of a new view: the sender has the group's last circuit.
    Ready,
}

/// What the caller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<Id: Ord> {
    /// Send a message to a member of the view with this number.
    Send(Id, u64, Message<Id>),
    /// Install a circuit, before the next step: its peers may use it then.
    Install(Opening),
}

/// The steps that an event causes, in order.
pub type Steps<Id> = Vec<Step<Id>>;

/// One member's part.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Opener<Id: Ord> {
    me: Id,
    view: u64,
    /// The first view since which this member has been in all. Circuits of earlier views are not for it.
    joined: u64,
    members: Vec<Id>,
    /// Messages of later views, with the numbers of these.
    future: Vec<(Id, u64, Message<Id>)>,
    /// The last circuits of the members that have reported theirs; kept by the first member until all have.
    reported: BTreeMap<Id, Option<Opening>>,
    /// Members that have the group's last circuit; kept by the first member until all have.
    ready: BTreeSet<Id>,
    /// This member has the group's last circuit.
    agreed: bool,
    /// Messages of this view that arrived before that.
    early: Vec<(Id, Message<Id>)>,
    token: TokenState<Id>,
    /// Names that this member wants opened.
    wanted: BTreeSet<String>,
    /// The circuit that this member opens, and the members that have it.
    opening: Option<(Opening, BTreeSet<Id>)>,
    last: Option<Opening>,
    /// Circuits with this member whose members are all there, by name: the number and the members of each.
    usable: BTreeMap<String, (u64, Vec<Id>)>,
    /// The members of the last views since this member joined, for circuits of which it hears late.
    past: BTreeMap<u64, Vec<Id>>,
}

impl<Id: Ord + Copy> Opener<Id> {
    /// A member that is in no view yet.
    pub fn new(me: Id) -> Self {
        Self {
            me,
            view: 0,
            joined: 0,
            members: Vec::new(),
            future: Vec::new(),
            reported: BTreeMap::new(),
            ready: BTreeSet::new(),
            agreed: false,
            early: Vec::new(),
            token: TokenState::new(me),
            wanted: BTreeSet::new(),
            opening: None,
            last: None,
            usable: BTreeMap::new(),
            past: BTreeMap::new(),
        }
    }

    /// The number of the view.
    pub fn view(&self) -> u64 {
        self.view
    }

    /// Whether the token is at this member.
    pub fn has_token(&self) -> bool {
        self.token.has_token()
    }

    /// Whether this member waits for a circuit.
    pub fn wants_any(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// The number of the circuit with this name, if there is one that can be used here.
    pub fn number_of(&self, name: &str) -> Option<u64> {
        self.usable.get(name).map(|(number, _)| *number)
    }

    /// Whether the circuit of this name or a newer one is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.wanted.contains(name)
    }

    /// A new view. Older views are ignored.
    pub fn install(&mut self, number: u64, members: &[Id]) -> Steps<Id> {
        let mut steps = Vec::new();
        if number <= self.view {
            return steps;
        }
        self.view = number;
        self.members = members.to_vec();
        self.token = TokenState::new(self.me);
        (self.agreed, self.opening) = (false, None);
        self.reported.clear();
        self.ready.clear();
        self.early.clear();
        let (kept, now): (Vec<_>, Vec<_>) = std::mem::take(&mut self.future)
            .into_iter()
            .filter(|(_, view, _)| *view >= number)
            .partition(|(_, view, _)| *view > number);
        self.future = kept;
        if !members.contains(&self.me) {
            self.joined = 0;
            self.past.clear();
            self.usable.clear();
            return steps;
        }
        if self.joined == 0 {
            self.joined = number;
        }
        self.past.insert(number, self.members.clone());
        if self.past.len() > MAX_PAST_VIEWS {
            self.past.pop_first();
        }
        self.usable.retain(|_, (_, joined)| joined.iter().all(|member| members.contains(member)));
        self.send(&mut steps, members[0], Message::Last(self.last.clone()));
        for (from, view, message) in now {
            steps.extend(self.receive(from, view, message));
        }
        steps
    }

    /// Wants a circuit of this name, which [`Step::Install`] reports.
    pub fn open(&mut self, name: &str) -> Steps<Id> {
        let mut steps = Vec::new();
        if !self.usable.contains_key(name) {
            self.wanted.insert(name.to_owned());
            self.proceed(&mut steps);
        }
        steps
    }

    /// Ends this member's wish for a circuit of this name. If it is being opened already, it opens all the same.
    pub fn forget(&mut self, name: &str) {
        self.wanted.remove(name);
    }

    /// A message of a member. Messages of earlier views are void.
    pub fn receive(&mut self, from: Id, view: u64, message: Message<Id>) -> Steps<Id> {
        let mut steps = Vec::new();
        if view > self.view {
            self.keep(from, view, message);
        } else if view == self.view && from != self.me && self.members.contains(&from) {
            self.handle(&mut steps, from, message);
        }
        steps
    }

    /// Keeps a message of a later view.
    fn keep(&mut self, from: Id, view: u64, message: Message<Id>) {
        if self.future.len() >= MAX_FUTURE
            && let Some(earliest) = self.future.iter().map(|(_, view, _)| *view).min().filter(|first| *first < view)
        {
            self.future.retain(|(_, view, _)| *view > earliest);
        }
        if self.future.len() < MAX_FUTURE {
            self.future.push((from, view, message));
        }
    }

    /// Sends a message, also to this member itself.
    fn send(&mut self, steps: &mut Steps<Id>, to: Id, message: Message<Id>) {
        if to == self.me {
            self.handle(steps, to, message);
        } else {
            steps.push(Step::Send(to, self.view, message));
        }
    }

    fn send_to_others(&mut self, steps: &mut Steps<Id>, message: &Message<Id>) {
        for &to in self.members.iter().filter(|&&to| to != self.me) {
            steps.push(Step::Send(to, self.view, message.clone()));
        }
    }

    fn handle(&mut self, steps: &mut Steps<Id>, from: Id, message: Message<Id>) {
        match message {
            Message::Last(last) => self.collect(steps, from, last),
            Message::Agreed(last) if !self.agreed && from == self.members[0] => self.agree(steps, last),
            Message::Agreed(_) => {}
            Message::Ready => self.note_ready(steps, from),
            _ if !self.agreed && self.early.len() < MAX_FUTURE => self.early.push((from, message)),
            _ if !self.agreed => {}
            Message::Request(number) => {
                if let Some(token) = self.token.on_request(from, number) {
                    self.send(steps, from, Message::Token(token));
                }
            }
            Message::Token(token) if token.is_valid(&self.members) => {
                self.token.on_token(token);
                self.proceed(steps);
            }
            Message::Token(_) => {}
            Message::Open(opening) => {
                let number = opening.number;
                self.add(steps, opening);
                self.send(steps, from, Message::Opened(number));
            }
            Message::Opened(number) => {
                if let Some((opening, have)) = &mut self.opening
                    && opening.number == number
                {
                    have.insert(from);
                    self.finish_opening(steps);
                }
            }
        }
    }

    /// Collects a member's last circuit. When all are here, the newest one is agreed on.
    fn collect(&mut self, steps: &mut Steps<Id>, from: Id, last: Option<Opening>) {
        if self.members[0] != self.me || self.agreed {
            return;
        }
        self.reported.insert(from, last);
        if self.reported.len() < self.members.len() {
            return;
        }
        let newest = std::mem::take(&mut self.reported).into_values().flatten().max_by_key(|opening| opening.number);
        self.send_to_others(steps, &Message::Agreed(newest.clone()));
        self.agree(steps, newest);
    }

    /// Notes that a member has the group's last circuit. When all have, there is a new token.
    fn note_ready(&mut self, steps: &mut Steps<Id>, from: Id) {
        if self.members[0] != self.me
            || !self.agreed
            || !self.ready.insert(from)
            || self.ready.len() < self.members.len()
        {
            return;
        }
        let token = Token::new(self.last.as_ref().map_or(0, |last| last.number) + 1);
        match self.token.grant_first(token) {
            Some((next, token)) => self.send(steps, next, Message::Token(token)),
            None => self.proceed(steps),
        }
    }

    /// Adds the group's last circuit if it is missing here, and takes up what has waited.
    fn agree(&mut self, steps: &mut Steps<Id>, last: Option<Opening>) {
        self.agreed = true;
        if let Some(last) = last {
            self.add(steps, last);
        }
        self.send(steps, self.members[0], Message::Ready);
        for (from, message) in std::mem::take(&mut self.early) {
            self.handle(steps, from, message);
        }
        self.proceed(steps);
    }

    /// Adds a circuit if it is newer than the last one. One of a view that this member was not in is only noted.
    fn add(&mut self, steps: &mut Steps<Id>, opening: Opening) {
        if opening.number > MAX_NUMBER || opening.view > self.view {
            return; // no member that follows the protocol says so
        }
        if self.last.as_ref().is_some_and(|last| last.number >= opening.number) {
            return;
        }
        self.last = Some(opening.clone());
        if opening.view < self.joined {
            return;
        }
        let joined = self.past.get(&opening.view);
        if let Some(joined) = joined.filter(|joined| joined.iter().all(|member| self.members.contains(member))) {
            self.usable.insert(opening.name.clone(), (opening.number, joined.clone()));
            self.wanted.remove(&opening.name);
        }
        steps.push(Step::Install(opening));
    }

    /// Opens the next circuit that is wanted, or requests the token for it.
    fn proceed(&mut self, steps: &mut Steps<Id>) {
        if !self.agreed || self.opening.is_some() {
            return;
        }
        let Some(name) = self.wanted.first().cloned() else { return self.pass_on(steps) };
        if let Some(number) = self.token.request() {
            return self.send_to_others(steps, &Message::Request(number));
        }
        let Some(token) = self.token.held() else { return };
        let opening = Opening { number: token.next_number, name, view: self.view };
        token.next_number += 1;
        self.opening = Some((opening.clone(), BTreeSet::from([self.me])));
        self.add(steps, opening.clone());
        self.send_to_others(steps, &Message::Open(opening));
        self.finish_opening(steps);
    }

    /// When every member has the circuit, releases the token; the next circuit needs another turn.
    fn finish_opening(&mut self, steps: &mut Steps<Id>) {
        if self.opening.as_ref().is_some_and(|(_, have)| have.len() == self.members.len()) {
            self.opening = None;
            self.pass_on(steps);
            self.proceed(steps);
        }
    }

    /// Passes the token on, if it was requested here and another member waits for it.
    fn pass_on(&mut self, steps: &mut Steps<Id>) {
        if self.token.held().is_some()
            && let Some((next, token)) = self.token.release()
        {
            self.send(steps, next, Message::Token(token));
        }
    }
}
