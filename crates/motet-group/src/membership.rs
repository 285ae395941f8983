//! A node's part in the session: lines of the gatekeeper change the views of its groups, and drive the agreement on circuits.
//!
//! All of this happens in the thread of the connection. The program's threads read the state and wait for its changes.

use crate::error::Error;
use crate::group_state::{GroupState, MemberId, PairLost};
use crate::links::Links;
use crate::opener::{Message, Step, Steps};
use motet::node::Node;
use motet_session::api::{Session, ToNode, View, ViewChange};
use motet_session::attach::{Attachment, Event, Sender};
use motet_session::circuits::MAX_CIRCUIT_NAME_BYTES;
use motet_session::client::{Client, ClientError};
use motet_session::modules::ModuleAnswer;
use motet_session::paths::SessionPaths;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A message between two openers.
#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    /// The sender's membership, which is new after each break.
    from: MemberId,
    view: u64,
    message: Message<MemberId>,
}

/// A member tells what it has lost.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// The sender's membership.
    pub from: MemberId,
    pub lost: PairLost,
}

/// A node that is attached to the session. Dropping it leaves all groups: waits of their handles fail.
#[derive(Debug)]
pub struct Membership {
    pub(crate) inner: Arc<Inner>,
    attachment: Attachment,
}

/// What the connection's thread and the program share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) node: Arc<Node>,
    pub(crate) links: Links,
    /// The node's identity, as the session writes it.
    pub(crate) id: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) groups: HashMap<String, GroupState>,
    /// Groups that the node has left, until the gatekeeper confirms it as often: what it says of them before is void.
    leaving: HashMap<String, u32>,
    /// The session has ended, or the node has left it.
    gone: bool,
}

impl Membership {
    /// Attaches a node to the session that the environment names. If the session has other hosts, the node listens for their nodes from then on. A
    /// node for one thread ([`Node::single`]) cannot be attached: another thread uses it.
    pub fn attach(node: &Arc<Node>) -> Result<Self, Error> {
        let paths = SessionPaths::from_env().map_err(|error| Error::Invalid(error.to_string()))?;
        Self::attach_to(node, &paths)
    }

    /// Attaches a node to a session.
    pub fn attach_to(node: &Arc<Node>, paths: &SessionPaths) -> Result<Self, Error> {
        Self::attach_with(node, paths, |sender, event| {
            if let Event::Line(ToNode::Module { request, .. }) = event {
                let _ = sender.answer(*request, ModuleAnswer::Refused("it is no module node".to_owned()));
            }
        })
    }

    /// Attaches a node to a session. `observe` sees every event of the connection, in its thread, before the groups do: a module node answers
    /// questions there.
    pub fn attach_with(
        node: &Arc<Node>,
        paths: &SessionPaths,
        mut observe: impl FnMut(&Sender, &Event) + Send + 'static,
    ) -> Result<Self, Error> {
        let id: String = node.id()?.0.iter().map(|byte| format!("{byte:02x}")).collect();
        let (state, changed) = (Mutex::default(), Condvar::new());
        let inner = Arc::new(Inner { node: node.clone(), links: Links::default(), id: id.clone(), state, changed });
        let own = inner.clone();
        if let Some(address) = Client::of(paths)?.get::<Session>("/v1/session")?.address {
            node.listen_for_hosts(SocketAddr::new(address, 0))?;
        }
        if paths.nodes().is_dir() {
            // Without it the node is reached by its other addresses.
            let _ = node.listen_in(&paths.nodes());
        }
        let address = node.address()?;
        let attachment = Attachment::open(paths, &id, &address, move |sender, event| {
            observe(sender, &event);
            own.take(sender, event);
        })?;
        Ok(Self { inner, attachment })
    }

    /// The node's identity, as the session writes it.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// The sending half of the connection.
    pub fn sender(&self) -> &Sender {
        self.attachment.sender()
    }
}

impl State {
    /// The node leaves a group: it forgets all about it.
    pub(crate) fn leave(&mut self, sender: &Sender, group: &str, node: &Node) -> io::Result<()> {
        if let Some(known) = self.groups.remove(group) {
            known.retire(node);
        }
        if sender.leave(group)? {
            *self.leaving.entry(group.to_owned()).or_default() += 1;
        }
        Ok(())
    }

    /// The gatekeeper confirms that the node has left a group.
    fn has_left(&mut self, group: &str) {
        if let Some(count) = self.leaving.get_mut(group) {
            *count -= 1;
            if *count == 0 {
                self.leaving.remove(group);
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.inner.end();
    }
}

impl Inner {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all groups and all waits.
    fn end(&self) {
        let mut state = self.lock();
        state.gone = true;
        state.groups.drain().for_each(|(_, group)| group.retire(&self.node));
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a result.
    pub(crate) fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<Result<T, Error>>,
    ) -> Result<T, Error> {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit)); // one that is too long to add is none
        let mut state = self.lock();
        loop {
            if let Some(result) = ready(&mut state) {
                return result;
            }
            if state.gone {
                return Err(Error::Session(ClientError::NotUp));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            state = match left {
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Handles an event of the connection, in its thread.
    fn take(&self, sender: &Sender, event: Event) {
        let mut state = self.lock();
        match event {
            Event::Line(ToNode::View(View { group, .. }) | ToNode::Change(ViewChange { group, .. }))
                if state.leaving.contains_key(&group) => {}
            Event::Line(ToNode::Left { group }) => state.has_left(&group),
            Event::Line(ToNode::View(view)) => self.install(&mut state, sender, view),
            Event::Line(ToNode::Change(change)) => {
                let view = state.groups.get(&change.group).and_then(|group| group.view.as_deref());
                if let Some(mut view) = view.cloned()
                    && view.apply(&change)
                {
                    self.install(&mut state, sender, view);
                }
            }
            Event::Line(ToNode::Message { group, from, body }) => {
                if let Ok(Notice { from: member, lost }) = Notice::deserialize(&body) {
                    let known = state.groups.get(&group).filter(|_| member.is_of(&from));
                    known.inspect(|known| known.pair_is_lost(&self.id, member, &lost, &self.node));
                } else if let Ok(Envelope { from: member, view, message }) = serde_json::from_value(body)
                    && member.is_of(&from)
                    && let Some(known) = state.groups.get_mut(&group)
                {
                    let steps = known.receive(member, view, message);
                    self.perform(&mut state, sender, &group, steps);
                }
            }
            Event::Line(ToNode::Refused { group: Some(group), error }) => {
                sender.forget(&group);
                if let Some(known) = state.groups.get_mut(&group) {
                    known.refusal = Some(error);
                }
            }
            Event::Line(ToNode::Refused { group: None, .. } | ToNode::Welcome { .. } | ToNode::Module { .. })
            | Event::Back => {}
            // The next connection begins with the groups that the node is in.
            Event::Away => state.leaving.clear(),
            Event::Gone => {
                drop(state);
                return self.end();
            }
        }
        self.changed.notify_all();
    }

    fn install(&self, state: &mut State, sender: &Sender, view: View) {
        let name = view.group.clone();
        if view.rank_of(&self.id).is_none() {
            if let Some(group) = state.groups.remove(&name) {
                group.retire(&self.node);
                sender.circuits_ended(&name);
            }
            return;
        }
        if let Some(group) = state.groups.get_mut(&name) {
            let steps = group.install(view, &self.id, &self.node, sender);
            self.perform(state, sender, &name, steps);
        }
    }

    /// Begins to open a circuit, unless it is open or wanted already.
    pub(crate) fn open(&self, state: &mut State, sender: &Sender, group: &str, name: &str) -> Result<(), Error> {
        if name.is_empty() || name.len() > MAX_CIRCUIT_NAME_BYTES {
            return Err(Error::Invalid(format!("a circuit's name has 1 to {MAX_CIRCUIT_NAME_BYTES} bytes")));
        }
        if let Some(steps) = state.groups.get_mut(group).and_then(|known| known.open(name)) {
            self.perform(state, sender, group, steps);
            self.changed.notify_all();
        }
        Ok(())
    }

    fn perform(&self, state: &mut State, sender: &Sender, group: &str, steps: Steps<MemberId>) {
        let Some(known) = state.groups.get_mut(group) else { return };
        for step in steps {
            match step {
                Step::Send(to, view, message) => {
                    let Some(from) = known.own_id() else { continue };
                    // What cannot be sent is lost, as if the gatekeeper were away: a new view follows.
                    if let Ok(body) = serde_json::to_value(Envelope { from, view, message }) {
                        let _ = sender.send(group, &to.node(), body);
                    }
                }
                Step::Install(opening) => known.serve(&self.node, sender, opening),
            }
        }
    }
}
