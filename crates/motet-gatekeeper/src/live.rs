//! What a client that watches the session uses: processes, events, and the logins of browsers. And what makes the events.

use crate::directory::{Directory, DirectoryError, PROGRAMS, parse_change};
use crate::events::Events;
use crate::logins::Logins;
use crate::members::Members;
use crate::nodes::{NodeChange, Nodes};
use crate::processes::Processes;
use crate::store::StoreError;
use crate::views::Update;
use motet_session::api::Program;
use motet_session::events::{MAX_NAMED, Place, What};
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

/// While any client follows the events, falls to TCP are looked for at this interval.
const FALL_INTERVAL: Duration = Duration::from_secs(2);

/// A directory that cannot be read is read again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Processes, events and logins. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Live {
    /// The processes of this host.
    pub processes: Processes,
    /// The events.
    pub events: Events,
    /// What is known of the session's processes here.
    pub members: Members,
    /// Browsers that have logged in.
    pub logins: Logins,
}

impl Live {
    /// Begins to make events, in tasks that end with the runtime. `session_id`: the session's identity.
    pub async fn start(
        host: &str,
        session_id: &str,
        directory: &Directory,
        nodes: &Nodes,
    ) -> Result<Self, DirectoryError> {
        let unavailable = |error: std::io::Error| DirectoryError::Store(StoreError::Unavailable(error.to_string()));
        let events = Events::new().map_err(unavailable)?;
        let members = Members::new(session_id);
        let processes = Processes::new(host, directory, &members, events.clone());
        tokio::spawn(follow_views(events.clone(), nodes.clone()));
        tokio::spawn(follow_nodes(events.clone(), nodes.clone(), host.to_owned()));
        tokio::spawn(follow_happenings(events.clone(), nodes.clone()));
        tokio::spawn(follow_programs(events.clone(), directory.clone(), known_programs(directory).await?));
        tokio::spawn(processes.clone().watch_falls(FALL_INTERVAL));
        Ok(Self { processes, events, members, logins: Logins::new(session_id) })
    }
}

/// Events for new views of groups.
async fn follow_views(events: Events, nodes: Nodes) {
    let mut updates = nodes.shared().views.subscribe();
    loop {
        match updates.recv().await {
            Ok(update) => events.publish(view(&update)),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

fn view(update: &Update) -> What {
    let (view, change) = (&update.view, &update.change);
    let joined = change.joined.iter().take(MAX_NAMED);
    What::View {
        group: view.group.clone(),
        number: view.number,
        members: view.members.len(),
        joined: joined.map(|member| Place { host: member.host.clone(), pid: member.process.pid }).collect(),
        joined_count: change.joined.len(),
        left_count: change.left.len(),
    }
}

/// Events for nodes of this host.
async fn follow_nodes(events: Events, nodes: Nodes, host: String) {
    let mut changes = nodes.changes();
    loop {
        let place = |pid| Place { host: host.clone(), pid };
        match changes.recv().await {
            Ok(NodeChange { node, pid, is_attached: true }) => {
                events.publish(What::NodeAttached { place: place(pid), node });
            }
            Ok(NodeChange { node, pid, .. }) => events.publish(What::NodeGone { place: place(pid), node }),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Events for circuits and modules of this host.
async fn follow_happenings(events: Events, nodes: Nodes) {
    let mut happenings = nodes.happenings();
    loop {
        match happenings.recv().await {
            Ok(what) => events.publish(what),
            Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// The programs by key, and the revision of the store.
type Known = (HashMap<String, Program>, u64);

async fn known_programs(directory: &Directory) -> Result<Known, DirectoryError> {
    let (entries, revision) = directory.store().list(PROGRAMS).await?;
    let program = |change: &crate::store::Change| Some((change.key.clone(), parse_change(change).ok()?));
    Ok((entries.iter().filter_map(program).collect(), revision))
}

/// Events for programs.
async fn follow_programs(events: Events, directory: Directory, (mut known, mut revision): Known) {
    let place = |program: &Program| Place { host: program.host.clone(), pid: program.process.pid };
    let started = |program: &Program| {
        let (command, group) = (program.command.clone(), program.group.clone());
        events.publish(What::ProgramStarted { place: place(program), command, group });
    };
    let ended = |program: &Program| {
        let (command, group) = (program.command.clone(), program.group.clone());
        events.publish(What::ProgramEnded { place: place(program), command, group });
    };
    loop {
        let mut watch = directory.store().watch(PROGRAMS, revision);
        while let Ok(changes) = watch.next().await {
            for change in changes {
                known.remove(&change.key).iter().for_each(ended);
                if let (true, Ok(program)) = (change.value.is_some(), parse_change::<Program>(&change)) {
                    started(&program);
                    known.insert(change.key, program);
                }
            }
        }
        // Changes were missed, or the store is away.
        let (now, at) = loop {
            tokio::time::sleep(RETRY_INTERVAL).await;
            if let Ok(known) = known_programs(&directory).await {
                break known;
            }
        };
        known.iter().filter(|(key, _)| !now.contains_key(*key)).for_each(|(_, program)| ended(program));
        now.iter().filter(|(key, _)| !known.contains_key(*key)).for_each(|(_, program)| started(program));
        (known, revision) = (now, at);
    }
}
