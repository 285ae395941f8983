//! One group: its members, and its circuits.

use crate::circuit::Circuit;
use crate::error::Error;
use crate::group_state::GroupState;
use crate::membership::{Inner, Membership, State};
use crate::pmix;
use motet_session::GROUP_VARIABLE;
use motet_session::api::View;
use motet_session::attach::Sender;
use motet_session::launcher::Place;
use motet_session::paths::check_name;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A group that the node is in. Dropping it does not leave the group: [`Group::leave`] does.
#[derive(Debug)]
pub struct Group {
    inner: Arc<Inner>,
    sender: Sender,
    name: String,
}

impl Membership {
    /// Joins a group, and waits for the first view with this node in it. `rank`: members are in the order of the ranks that they ask for. `None`: the rank
    /// that the launcher of this process (mpirun, srun, motet run) has given to it; processes without one come last.
    pub fn join(&self, group: &str, rank: Option<u32>) -> Result<Group, Error> {
        check_name("group", group).map_err(|error| Error::Invalid(error.to_string()))?;
        let rank = rank.or_else(|| Place::of_process().map(|place| place.rank));
        {
            // One lock for the state and for the line, or a `leave` at the same time could come between the two.
            let mut state = self.inner.lock();
            state.groups.entry(group.to_owned()).or_default().refusal = None;
            self.sender().join(group, rank)?;
        }
        let joined = self.inner.wait(None, |state| match state.groups.get(group) {
            Some(GroupState { refusal: Some(why), .. }) => Some(Err(Error::Refused(why.clone()))),
            Some(GroupState { view: Some(_), .. }) => Some(Ok(())),
            Some(_) => None,
            None => Some(Err(Error::Invalid(format!("the node has left the group {group}")))),
        });
        if let Err(Error::Refused(_)) = joined {
            self.inner.lock().groups.remove(group);
        }
        joined.map(|()| Group::new(self.inner.clone(), self.sender().clone(), group))
    }

    /// Joins the group in which `motet run --group` has started this process, with its rank there, and waits until all that were started with it have
    /// joined. Ranks that a launcher has started inside (`motet run --group NAME -- mpirun ...`) are the members, in the launcher's order.
    pub fn join_own(&self, limit: Option<Duration>) -> Result<Group, Error> {
        let place = Place::of_process();
        let (Ok(name), Some(place)) = (std::env::var(GROUP_VARIABLE), place) else {
            return Err(Error::Invalid("this process is in no group: start it with motet run --group NAME".to_owned()));
        };
        let size = match (place.size, &place.pmix_namespace) {
            (Some(size), _) => size,
            (None, Some(namespace)) => pmix::job_size(namespace).map_err(Error::Invalid)?,
            (None, None) => 1,
        };
        let group = self.join(&name, Some(place.rank))?;
        group.wait_for_members(size as usize, limit)?;
        Ok(group)
    }
}

impl Group {
    fn new(inner: Arc<Inner>, sender: Sender, name: &str) -> Self {
        Self { inner, sender, name: name.to_owned() }
    }

    /// The group's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The group as it is now.
    pub fn view(&self) -> Result<Arc<View>, Error> {
        self.view_in(&self.inner.lock())
    }

    /// Waits for the first view for which `ready` returns true.
    pub fn wait_for(&self, mut ready: impl FnMut(&View) -> bool, limit: Option<Duration>) -> Result<Arc<View>, Error> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut view = self.view()?;
        // `ready` runs without the lock, so it may use the group.
        while !ready(&view) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            view = self.inner.wait(left, |state| match self.view_in(state) {
                Ok(next) if next.number > view.number => Some(Ok(next)),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            })?;
        }
        Ok(view)
    }

    /// The next view after the one with the number `after`, for a program that handles each change: it waits for the view if there is none yet. Only the
    /// last 64 views are kept. A node that was out of the group meanwhile goes on with its first view since.
    pub fn next_view(&self, after: u64, limit: Option<Duration>) -> Result<Arc<View>, Error> {
        self.inner.wait(limit, |state| match state.groups.get(&self.name) {
            Some(group) => group.next_view(after).map(Ok),
            None => Some(Err(self.left())),
        })
    }

    /// This node's rank in a view of the group.
    pub fn rank_in(&self, view: &View) -> Option<usize> {
        view.rank_of(&self.inner.id)
    }

    /// Waits until the group has at least so many members.
    pub fn wait_for_members(&self, count: usize, limit: Option<Duration>) -> Result<Arc<View>, Error> {
        self.wait_for(|view| view.members.len() >= count, limit)
    }

    /// Opens the circuit of this name among the members of the group's view. Members that open it at the same time, or later while all of them are there,
    /// get the same circuit; its first messages wait for members that do not know it yet. When a member of it has gone, the name stands for a new
    /// circuit among the members of a later view.
    pub fn open(&self, name: &str, limit: Option<Duration>) -> Result<Circuit, Error> {
        let circuit = self.inner.wait(limit, |state| {
            // A view without one of its members may have ended the circuit before this thread has seen it: then it is wanted again.
            if let Err(error) = self.inner.open(state, &self.sender, &self.name, name) {
                return Some(Err(error));
            }
            match state.groups.get(&self.name) {
                Some(group) => group.circuit(name),
                None => Some(Err(self.left())),
            }
        })?;
        Circuit::new(self.inner.clone(), self.sender.clone(), &self.name, circuit)
    }

    /// The circuits that are open at this node, in the order in which the group has opened them: number and name.
    pub fn circuits(&self) -> Vec<(u64, String)> {
        self.inner.lock().groups.get(&self.name).map_or_else(Vec::new, GroupState::circuits)
    }

    /// Leaves the group. Its circuits end, and calls on all handles of it fail from then on.
    pub fn leave(&self) -> Result<(), Error> {
        let mut state = self.inner.lock();
        Ok(state.leave(&self.sender, &self.name, &self.inner.node)?)
    }

    fn view_in(&self, state: &State) -> Result<Arc<View>, Error> {
        let view = state.groups.get(&self.name).and_then(|group| group.view.clone());
        view.ok_or_else(|| self.left())
    }

    fn left(&self) -> Error {
        Error::Invalid(format!("the node has left the group {}", self.name))
    }
}
