//! Tells clients that something they may have cached has changed.
//!
//! A client subscribes on a channel of its own. A change is answered when every other client that had the attributes has said that it uses them no more, so a
//! program that sees the change done finds it everywhere. A client that says nothing for [`ANSWER_LIMIT`] is not waited for again until it has subscribed again; one of
//! another user not for a while.

use super::leases::Leased;
use super::session::Session;
use super::{Shared, Turn};
use crate::protocol::{Notice, OpenFlags, Operation, Reply, Target, append, entries, notice_tag};
use crate::storage::{Body, Tree};
use motet::node::{Channel, Mode, Outgoing};
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a change waits for a client that has cached what it changes.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);

/// A file: its device, and its number there.
type FileId = (u64, u64);

/// What an operation changes: files by their attributes, names by their paths.
#[derive(Debug, Default)]
pub struct Changes<'a> {
    files: Vec<FileId>,
    /// With the directory of each, if that exists.
    names: Vec<(&'a [u8], Option<FileId>)>,
}

/// The path of a directory, and a name in it.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

impl<'a> Changes<'a> {
    /// What an operation is about to change. `file`: the device and number of an open file.
    pub fn of(tree: &Tree, operation: &Operation<'a>, file: impl Fn(u32) -> Option<(u64, u64)>) -> Self {
        let mut changes = Self::default();
        let at = |path: &[u8]| tree.attributes(path).ok().map(|found| (found.device, found.inode));
        let parent = |path: &[u8]| at(split(path).0);
        let target = |target: Target<'_>| match target {
            Target::Path(path) => at(path),
            Target::File(number) => file(number),
            // Otherwise the operation fails.
            Target::Known { device, inode, .. } => Some((device, inode)),
        };
        match *operation {
            Operation::Write { file: number, .. }
            | Operation::Append { file: number }
            | Operation::Reserve { file: number, .. }
            | Operation::Fallocate { file: number, .. }
            | Operation::CopyFileRange { to: number, .. } => changes.files.extend(file(number)),
            Operation::SetAttributes(of, _)
            | Operation::SetXattr { target: of, .. }
            | Operation::RemoveXattr { target: of, .. } => {
                changes.files.extend(target(of));
            }
            Operation::Open { path, flags, .. } => {
                if flags.contains(OpenFlags::TRUNCATE) {
                    changes.files.extend(at(path));
                }
                if flags.contains(OpenFlags::CREATE) {
                    changes.files.extend(parent(path));
                }
            }
            Operation::OpenKnown { target: of, flags } if flags.contains(OpenFlags::TRUNCATE) => {
                changes.files.extend(target(of));
            }
            Operation::Mkdir { path, .. } | Operation::Mknod { path, .. } | Operation::Symlink { path, .. } => {
                changes.files.extend(parent(path));
            }
            Operation::Link { from, to } => changes.files.extend([target(from), parent(to)].into_iter().flatten()),
            Operation::Unlink { path, .. } => {
                let directory = parent(path);
                changes.files.extend([at(path), directory].into_iter().flatten());
                changes.names.push((path, directory));
            }
            Operation::Rename { from, to, .. } => {
                let directories = [parent(from), parent(to)];
                changes.files.extend([at(from), at(to)].into_iter().chain(directories).flatten());
                changes.names.extend([(from, directories[0]), (to, directories[1])]);
            }
            _ => {}
        }
        changes
    }
}

/// A client that was sent a notice, and the number of the last one.
struct Told<'a> {
    part: &'a Shared,
    session: Arc<Session>,
    channel: Channel,
    number: u32,
}

impl Changes<'_> {
    fn is_empty(&self) -> bool {
        self.files.is_empty() && self.names.is_empty()
    }
}

/// The file whose attributes an answer shows.
fn shown_file(reply: &Reply) -> Option<FileId> {
    match reply {
        Reply::Attributes(found) | Reply::Opened { attributes: found, .. } => Some((found.device, found.inode)),
        _ => None,
    }
}

/// The path that the answer of an operation shows to exist.
fn shown_path<'a>(operation: &Operation<'a>) -> Option<&'a [u8]> {
    match *operation {
        Operation::GetAttributes(Target::Path(path) | Target::Known { path, .. })
        | Operation::OpenKnown { target: Target::Known { path, .. }, .. }
        | Operation::Open { path, .. }
        | Operation::Mkdir { path, .. }
        | Operation::Mknod { path, .. }
        | Operation::Symlink { path, .. }
        | Operation::Link { to: path, .. } => Some(path),
        _ => None,
    }
}

impl Shared {
    /// A client learns the attributes and the names that an answer contains. Returns them.
    pub(super) fn grant(
        &self,
        session: &Session,
        operation: &Operation<'_>,
        (reply, body): (&Reply, &Body),
    ) -> Vec<Leased> {
        let mut granted = Vec::new();
        if let Some(file) = shown_file(reply) {
            granted.push(Leased::Attributes(file.0, file.1));
            if let Some((directory, name)) = shown_path(operation).map(split)
                && let Ok(directory) = self.tree.attributes(directory)
            {
                granted.push(self.leases.entry((directory.device, directory.inode), name));
            }
        }
        if let (&Operation::Readdir { file, attributes: true, .. }, Body::Owned(listing)) = (operation, body)
            && let Ok(directory) = session.files().get(file)
        {
            for (name, found) in entries(listing).filter_map(|entry| Some((entry.name, entry.attributes?))) {
                granted.push(Leased::Attributes(found.device, found.inode));
                granted.push(self.leases.entry(directory.identity(), name));
            }
        }
        for &leased in &granted {
            self.lease(session, leased);
        }
        granted
    }

    /// Tells a client that what an answer shows may have changed already.
    pub(super) fn recall(&self, session: &Session, operation: &Operation<'_>, reply: &Reply) {
        if let Some((device, inode)) = shown_file(reply) {
            let _ = self.send_notice(session, &Notice::Attributes { device, inode });
            if let Some(path) = shown_path(operation) {
                let _ = self.send_notice(session, &Notice::Name { path });
            }
        }
    }

    /// A client learns something. One that has too many leases forgets all that it has cached: it subscribes again.
    fn lease(&self, session: &Session, leased: Leased) {
        match self.leases.grant(session.key(), leased) {
            Some(client) if client == session.key() => self.end_notices(session),
            Some(client) => {
                if let Some(other) = self.sessions.with_key(client) {
                    self.end_notices(&other);
                }
            }
            None => {}
        }
    }

    /// Tells other clients what a client has changed, those of the other part of the server, too, and waits until they use it no more.
    pub(super) fn tell(
        &self,
        session: &Arc<Session>,
        changes: &Changes<'_>,
        other_part: Option<&Self>,
        turn: &mut Turn<'_>,
    ) {
        if changes.is_empty() {
            return;
        }
        let mut told = Vec::new();
        for part in iter::once(self).chain(other_part) {
            part.end_leases(session, changes, &mut told);
        }
        if told.is_empty() {
            return;
        }
        turn.give(session);
        let deadline = Instant::now() + ANSWER_LIMIT;
        for Told { part, session, channel, number } in told {
            let user = session.member().map(|member| member.user);
            if user.is_some_and(|user| part.silent.has(user)) {
                continue;
            }
            if !session.wait_for_acknowledgement(channel, number, deadline) {
                part.end_notices(&session);
                user.into_iter().for_each(|user| part.silent.note(user));
            }
        }
    }

    /// Ends the leases of this part's clients on what a client has changed, and tells them.
    fn end_leases<'a>(&'a self, by: &Session, changes: &Changes<'_>, told: &mut Vec<Told<'a>>) {
        self.leases.count_change();
        let mut tell = |leased, notice: Notice<'_>| {
            for client in self.leases.end_of_others(by.key(), leased) {
                let Some(session) = self.sessions.with_key(client) else { continue };
                match self.send_notice(&session, &notice) {
                    Some((channel, number)) => {
                        told.retain(|earlier| !Arc::ptr_eq(&earlier.session, &session));
                        told.push(Told { part: self, session, channel, number });
                    }
                    None => self.end_notices(&session),
                }
            }
        };
        for &(device, inode) in &changes.files {
            tell(Leased::Attributes(device, inode), Notice::Attributes { device, inode });
        }
        for &(path, directory) in &changes.names {
            if let Some(directory) = directory {
                tell(self.leases.entry(directory, split(path).1), Notice::Name { path });
            }
        }
    }

    /// Sends a notice; returns its channel and number. `None`: the client does not take it.
    fn send_notice(&self, session: &Session, notice: &Notice<'_>) -> Option<(Channel, u32)> {
        let (channel, number) = session.next_notice()?;
        let mut bytes = Vec::new();
        append(&number, &mut bytes);
        append(notice, &mut bytes);
        let message = Outgoing { channel, tag: notice_tag(), headers: &[], mode: Mode::Automatic };
        self.node.try_inject(&message, &[&bytes]).ok().map(|()| (channel, number))
    }

    /// A client gets no notices any more: it is too slow, or has gone. It sees its channel lost.
    pub(super) fn end_notices(&self, session: &Session) {
        self.leases.unsubscribe(session.key());
        if let Some(channel) = session.end_notices() {
            let _ = self.node.disconnect(channel.link);
        }
    }
}
