//! The directory of a session: its groups and its programs, as values in a store.
//!
//! | key | value |
//! | --- | --- |
//! | `group/NAME` | the group's [`View`]; it stays when the last member leaves, so that numbers of views never repeat |
//! | `program/HOST/PID` | a [`Program`] |
//! | `host/NAME` | a [`Host`] |
//! | `session/id` | the session's identity |
//!
//! A change of a group is a compare-and-swap of its view, so gatekeepers need no lock among each other, and the store's order of changes is the order
//! of views.

use crate::store::{Change, Expected, Store, StoreError};
use motet_session::api::{MAX_MEMBERS, Member, Program, View};
use motet_session::hosts::Host;
use motet_session::paths::check_name;
use serde::de::DeserializeOwned;
use std::fmt;

/// The key of the session's identity.
pub const SESSION_ID: &str = "session/id";
/// The prefix of the keys of groups.
pub const GROUPS: &str = "group/";
/// The prefix of the keys of hosts.
const HOSTS: &str = "host/";
/// The prefix of the keys of programs.
pub const PROGRAMS: &str = "program/";

/// Why the directory does not do what it was asked for.
#[derive(Debug)]
pub enum DirectoryError {
    /// The request is wrong: what, and what to do.
    Invalid(String),
    /// There is no such group or program.
    NotFound(String),
    /// The store does not work.
    Store(StoreError),
}

impl fmt::Display for DirectoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) | Self::NotFound(why) => f.write_str(why),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for DirectoryError {}

impl From<StoreError> for DirectoryError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// The directory.
#[derive(Debug, Clone)]
pub struct Directory {
    store: Store,
}

impl Directory {
    /// The directory in a store.
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// Removes what the session has left in a store that outlives it. The primary gatekeeper does so at the end of the session; the others remove
    /// what they have written since. The keys of a later session are left alone.
    pub async fn clear(&self, session_id: &str, is_primary: bool) -> Result<(), StoreError> {
        match &self.store {
            Store::Embedded(_) | Store::Remote(_) => Ok(()),
            Store::Etcd(store) => store.clear((SESSION_ID, is_primary.then_some(session_id))).await,
        }
    }

    /// The store.
    pub fn store(&self) -> &Store {
        &self.store
    }

    // ---- groups -----------------------------------------------------------------------------------------------------

    /// Adds a member to a group, which exists from then on. A member that is in it already joins again: that is a new view, too.
    pub async fn join(&self, group: &str, member: Member) -> Result<View, DirectoryError> {
        check_group(group)?;
        self.change_group(group, |view| {
            if view.members.len() >= MAX_MEMBERS && view.rank_of(&member.node).is_none() {
                return Err(DirectoryError::Invalid(format!("the group {group} is full: {MAX_MEMBERS} members")));
            }
            let since = view.rank_of(&member.node).map(|rank| view.members[rank].since);
            view.insert(Member { since: since.unwrap_or(view.number + 1), ..member.clone() });
            Ok(true)
        })
        .await
    }

    /// Removes a member from a group. One that is not in it changes nothing.
    pub async fn leave(&self, group: &str, node: &str) -> Result<View, DirectoryError> {
        self.change_group(group, |view| {
            let before = view.members.len();
            view.members.retain(|member| member.node != node);
            Ok(view.members.len() < before)
        })
        .await
    }

    /// The view of a group.
    pub async fn group(&self, group: &str) -> Result<View, DirectoryError> {
        match self.store.get(&format!("{GROUPS}{group}")).await? {
            Some((_, text)) => parse(&text),
            None => Err(DirectoryError::NotFound(format!("there is no group {group:?} in this session"))),
        }
    }

    /// The views of all groups, and the revision of the store at that time.
    pub async fn groups(&self) -> Result<(Vec<View>, u64), DirectoryError> {
        let (entries, revision) = self.store.list(GROUPS).await?;
        Ok((entries.iter().map(parse_change).collect::<Result<_, _>>()?, revision))
    }

    /// Changes the view of a group; `change` may run more than once. It returns whether there is a new view.
    async fn change_group(
        &self,
        group: &str,
        mut change: impl FnMut(&mut View) -> Result<bool, DirectoryError>,
    ) -> Result<View, DirectoryError> {
        let key = format!("{GROUPS}{group}");
        loop {
            let (expected, mut view) = match self.store.get(&key).await? {
                Some((revision, text)) => (Expected::Revision(revision), parse::<View>(&text)?),
                None => (Expected::Absent, View { group: group.to_owned(), number: 0, members: Vec::new() }),
            };
            if !change(&mut view)? {
                return Ok(view);
            }
            view.number += 1;
            match self.store.write(&key, Some(text(&view)?), expected).await {
                Ok(_) => return Ok(view),
                Err(StoreError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    // ---- programs ---------------------------------------------------------------------------------------------------

    /// Adds a program.
    pub async fn add_program(&self, program: &Program) -> Result<(), DirectoryError> {
        if let Some(group) = &program.group {
            check_group(group)?;
        }
        self.store.write(&program_key(&program.host, program.process.pid), Some(text(program)?), Expected::Any).await?;
        Ok(())
    }

    /// Removes a program that has ended, unless another one has its process id by now.
    pub async fn remove_program(&self, program: &Program) -> Result<(), DirectoryError> {
        let key = program_key(&program.host, program.process.pid);
        if let Some((revision, text)) = self.store.get(&key).await?
            && parse::<Program>(&text)?.process == program.process
        {
            match self.store.write(&key, None, Expected::Revision(revision)).await {
                Ok(_) | Err(StoreError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// All programs.
    pub async fn programs(&self) -> Result<Vec<Program>, DirectoryError> {
        let (entries, _) = self.store.list(PROGRAMS).await?;
        entries.iter().map(parse_change).collect()
    }
}

impl Directory {
    // ---- hosts ------------------------------------------------------------------------------------------------------

    /// Adds a host, or replaces what is known of it.
    pub async fn add_host(&self, host: &Host) -> Result<(), DirectoryError> {
        self.store.write(&format!("{HOSTS}{}", host.name), Some(text(host)?), Expected::Any).await?;
        Ok(())
    }

    /// All hosts.
    pub async fn hosts(&self) -> Result<Vec<Host>, DirectoryError> {
        let (entries, _) = self.store.list(HOSTS).await?;
        entries.iter().map(parse_change).collect()
    }

    /// Notes that the gatekeeper of a host does not answer.
    pub async fn host_is_down(&self, name: &str) -> Result<(), DirectoryError> {
        let Some(host) = self.hosts().await?.into_iter().find(|host| host.name == name) else { return Ok(()) };
        self.add_host(&Host { up: false, ..host }).await
    }

    /// Removes a host, its programs, and its nodes from all groups.
    pub async fn remove_host(&self, name: &str) -> Result<(), DirectoryError> {
        for view in self.groups().await?.0 {
            if view.members.iter().any(|member| member.host == name) {
                self.change_group(&view.group, |view| {
                    let before = view.members.len();
                    view.members.retain(|member| member.host != name);
                    Ok(view.members.len() < before)
                })
                .await?;
            }
        }
        for program in self.programs().await?.iter().filter(|program| program.host == name) {
            self.remove_program(program).await?;
        }
        self.store.write(&format!("{HOSTS}{name}"), None, Expected::Any).await?;
        Ok(())
    }
}

/// Checks the name of a group.
pub fn check_group(group: &str) -> Result<(), DirectoryError> {
    check_name("group", group).map_err(|error| DirectoryError::Invalid(error.to_string()))
}

fn program_key(host: &str, pid: u32) -> String {
    format!("{PROGRAMS}{host}/{pid}")
}

fn text(value: &impl serde::Serialize) -> Result<String, DirectoryError> {
    serde_json::to_string(value).map_err(|error| DirectoryError::Invalid(error.to_string()))
}

/// The value of a change that is no removal.
pub fn parse_change<T: DeserializeOwned>(change: &Change) -> Result<T, DirectoryError> {
    parse(change.value.as_deref().unwrap_or("null"))
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T, DirectoryError> {
    serde_json::from_str(text)
        .map_err(|error| DirectoryError::Store(StoreError::Unavailable(format!("a value is damaged: {error}"))))
}
