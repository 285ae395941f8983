//! One connection of a node: it joins groups, and gets their views and the messages of other members.
//!
//! Lines are parsed as input of anyone: they are bounded, and a node can name only groups that it is in.

use crate::directory::{DirectoryError, check_group};
use crate::liveness;
use crate::nodes::{Inbox, MAX_QUEUE, Nodes};
use crate::store::StoreError;
use crate::views::Update;
use motet_session::api::{ANOTHER_SESSION, FromNode, MAX_LINE_BYTES, Member, ToNode, View};
use motet_session::process::Process;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

/// A connection has to say who it is within this time.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// A join that the store cannot take, because it is not connected, is tried again after this time.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// The buffer for what a node says, bytes. Most lines are shorter, and a thousand nodes have one each.
const READ_BUFFER_BYTES: usize = 1 << 10;
/// The longest address of a node, bytes.
const MAX_ADDRESS_BYTES: usize = 4096;

/// What a node has been sent of a group.
struct Sent {
    /// The number of the last view that it knows, or the one before its first view.
    number: u64,
    /// It knows that view, so a change is enough for the next one.
    known: bool,
}

/// One connection.
struct Connection {
    nodes: Nodes,
    node: String,
    number: u64,
    process: Process,
    address: String,
    /// What the node has been sent of each of its groups.
    sent: HashMap<String, Sent>,
    said_goodbye: bool,
}

/// Serves the connection of a node in this process, until it ends.
pub async fn serve(nodes: Nodes, stream: impl AsyncRead + AsyncWrite + Unpin, process: Process) {
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = BufReader::with_capacity(READ_BUFFER_BYTES, reader);
    let hello = match tokio::time::timeout(HELLO_LIMIT, read_line(&mut reader)).await {
        Ok(Ok(Some(line))) => Ok(line),
        Ok(Err(why)) => Err(why),
        Ok(Ok(None)) | Err(_) => return,
    };
    match hello.and_then(|line| Connection::open(nodes, *line, process)) {
        Ok((mut connection, inbox, groups)) => {
            connection.run(reader, writer, inbox, groups).await;
            let Connection { nodes, node, number, said_goodbye, .. } = connection;
            nodes.close(node, number, process, said_goodbye);
        }
        Err(error) => drop(write_line(&mut writer, &ToNode::Refused { group: None, error }).await),
    }
}

/// The groups that a node is in, with the ranks that it has asked for.
type Groups = Vec<(String, Option<u32>)>;

impl Connection {
    /// Registers a connection by its first line.
    fn open(nodes: Nodes, hello: FromNode, process: Process) -> Result<(Self, Inbox, Groups), String> {
        let FromNode::Hello { node, address, groups, session, circuits } = hello else {
            return Err("the first line has to be hello".to_owned());
        };
        if session.is_some_and(|session| session != nodes.shared().session) {
            return Err(ANOTHER_SESSION.to_owned());
        }
        if address.len() > MAX_ADDRESS_BYTES {
            return Err(format!("the node's address is longer than {MAX_ADDRESS_BYTES} bytes"));
        }
        let (number, inbox) = nodes.open(&node, process)?;
        nodes.shared().circuits.attached(&node, process, circuits);
        let sent = HashMap::new();
        Ok((Self { nodes, node, number, process, address, sent, said_goodbye: false }, inbox, groups))
    }

    /// Serves the node until the connection or its process ends.
    async fn run(
        &mut self,
        mut reader: impl AsyncBufReadExt + Unpin,
        mut writer: impl AsyncWrite + Unpin,
        Inbox { mut queue, mut closed }: Inbox,
        groups: Groups,
    ) {
        let mut updates = self.nodes.shared().views.subscribe();
        // Reading and writing go on at the same time as everything else: a node that writes before it reads must not wait for this side to read.
        let (lines, mut read) = mpsc::channel(2);
        let reading = async move {
            loop {
                let line = read_line(&mut reader).await;
                let last = !matches!(line, Ok(Some(_)));
                if lines.send(line).await.is_err() || last {
                    std::future::pending::<()>().await;
                }
            }
        };
        let (out, mut written) = mpsc::channel::<Arc<ToNode>>(MAX_QUEUE);
        let writing = async move {
            while let Some(line) = written.recv().await {
                if write_line(&mut writer, &line).await.is_err() {
                    return;
                }
            }
        };
        let ended = liveness::ended(self.process);
        let shared = self.nodes.shared().clone();
        let welcome = ToNode::Welcome { host: shared.host.clone(), session: shared.session.clone() };
        let serving = async {
            // A full queue is a node that does not read: the connection ends.
            let say = |line: ToNode| out.try_send(Arc::new(line)).map_err(drop);
            say(welcome)?;
            // Boxed: what an operation on the store needs is large, and most connections do none.
            Box::pin(self.join_all(groups)).await.into_iter().try_for_each(say)?;
            loop {
                tokio::select! {
                    line = read.recv() => match line {
                        Some(Ok(Some(line))) => match Box::pin(self.take(*line)).await {
                            Ok(_) if self.said_goodbye => {
                                drop(out);
                                return Ok(());
                            }
                            Ok(None) => {}
                            Ok(Some(answer)) => say(answer)?,
                            Err((group, error)) => say(ToNode::Refused { group, error })?,
                        },
                        Some(Err(error)) => {
                            say(ToNode::Refused { group: None, error })?;
                            drop(out);
                            return Ok(());
                        }
                        _ => return Err(()),
                    },
                    message = queue.recv() => match message {
                        Some(message) => out.try_send(message).map_err(drop)?,
                        None => return Err(()),
                    },
                    update = updates.recv() => match update {
                        Ok(update) if self.is_lost_to(&update.view) => return Err(()),
                        Ok(update) => self.view_line(&update).map_or(Ok(()), say)?,
                        Err(RecvError::Lagged(_) | RecvError::Closed) => return Err(()),
                    },
                }
            }
        };
        tokio::pin!(reading, writing, serving, ended);
        let mut is_serving = true;
        loop {
            tokio::select! {
                end = &mut serving, if is_serving => match end {
                    Ok(()) => is_serving = false, // what was said last is still written
                    Err(()) => return,
                },
                () = &mut writing => return,
                () = &mut reading => return,
                () = &mut ended => return,
                _ = &mut closed => return,
            }
        }
    }

    /// Joins the groups that the node is in, and leaves those that it was in before and does not name. Returns what was refused.
    async fn join_all(&mut self, groups: Groups) -> Vec<ToNode> {
        let before = self.nodes.groups_of(&self.node);
        let mut refused = Vec::new();
        for group in before.iter().filter(|group| !groups.iter().any(|(named, _)| named == *group)) {
            self.nodes.leave(group, &self.node).await;
        }
        for (group, rank) in groups {
            if let Err((group, error)) = self.take(FromNode::Join { group, rank }).await {
                refused.push(ToNode::Refused { group, error });
            }
        }
        refused
    }

    /// Does what the node says; returns what to answer. The error says why not, and which group it is about.
    async fn take(&mut self, line: FromNode) -> Result<Option<ToNode>, (Option<String>, String)> {
        // A line of a connection that a later one has replaced is void.
        if !self.nodes.is_current(&self.node, self.number) {
            return Err((None, "the node has attached again".to_owned()));
        }
        match line {
            FromNode::Hello { .. } => Err((None, "the node has said hello already".to_owned())),
            FromNode::Bye => {
                self.said_goodbye = true;
                Ok(None)
            }
            FromNode::Join { group, rank } => match self.join(&group, rank).await {
                Ok(()) => Ok(None),
                Err(error) => Err((Some(group), error)),
            },
            FromNode::Leave { group } => {
                self.nodes.leave(&group, &self.node).await;
                self.sent.remove(&group);
                Ok(Some(ToNode::Left { group }))
            }
            FromNode::CircuitOpened(part) => {
                let is_member = self.sent.contains_key(&part.id.group);
                let said = self.nodes.shared().circuits.opened(&self.node, self.process, part, is_member);
                said.map(|()| None).map_err(|why| (None, why))
            }
            FromNode::CircuitClosed(id) => {
                self.nodes.shared().circuits.closed(&self.node, &id);
                Ok(None)
            }
            FromNode::Modules { is_default, modules } => {
                let shared = self.nodes.shared();
                let said = shared.modules.said(&self.node, &shared.host, is_default, modules);
                said.map(|()| None).map_err(|why| (None, why))
            }
            FromNode::ModuleAnswer { request, answer } => {
                let shared = self.nodes.shared();
                shared.modules.answered(&self.node, &shared.host, request, answer);
                Ok(None)
            }
            FromNode::Send { group, to, body } => {
                if !self.sent.contains_key(&group) {
                    let error = format!("the node is not in the group {group:?}");
                    return Err((None, error));
                }
                self.nodes.deliver(&group, &self.node, &to, body);
                Ok(None)
            }
        }
    }

    async fn join(&mut self, group: &str, rank: Option<u32>) -> Result<(), String> {
        check_group(group).map_err(|error| error.to_string())?;
        self.nodes.enter(&self.node, group)?;
        let member = Member {
            node: self.node.clone(),
            host: self.nodes.shared().host.clone(),
            process: self.process,
            address: self.address.clone(),
            since: 0,
            rank,
        };
        let directory = &self.nodes.shared().directory;
        let joined = loop {
            match directory.join(group, member.clone()).await {
                Err(DirectoryError::Store(StoreError::Disconnected(_))) => tokio::time::sleep(RETRY_INTERVAL).await,
                result => break result,
            }
        };
        match joined {
            Ok(view) => {
                // Views from before this one are not for the node, even if it was in them.
                self.sent.insert(group.to_owned(), Sent { number: view.number - 1, known: false });
                Ok(())
            }
            Err(error) => {
                // It may have been a member before. The node does not wait for a store that is away.
                self.nodes.clear(group, &self.node);
                Err(error.to_string())
            }
        }
    }

    /// Whether the node was removed from a group that it wants to be in, by another host that took this one for dead. It attaches again and
    /// is a new member then.
    fn is_lost_to(&self, view: &View) -> bool {
        let knows = self.sent.get(&view.group).is_some_and(|sent| sent.number < view.number);
        knows && view.rank_of(&self.node).is_none() && self.nodes.is_in(&self.node, &view.group)
    }

    /// The line for a new view of a group. `None`: the node is not in it, or has this view.
    fn view_line(&mut self, update: &Update) -> Option<ToNode> {
        let Update { view, change } = update;
        let sent = self.sent.get_mut(&view.group)?;
        if sent.number >= view.number {
            return None;
        }
        let follows = sent.known && sent.number + 1 == change.number;
        *sent = Sent { number: view.number, known: true };
        if view.rank_of(&self.node).is_none() {
            self.sent.remove(&view.group);
            self.nodes.shared().circuits.left(&self.node, &view.group);
            return Some(ToNode::Change(change.clone()));
        }
        Some(if follows { ToNode::Change(change.clone()) } else { ToNode::View(view.clone()) })
    }
}

async fn write_line(writer: &mut (impl AsyncWrite + Unpin), line: &ToNode) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    writer.write_all(&text).await
}

/// Reads a line. `Ok(None)`: the connection has ended. `Err`: the line is no line of a node.
async fn read_line(reader: &mut (impl AsyncBufReadExt + Unpin)) -> Result<Option<Box<FromNode>>, String> {
    let mut line = Vec::new();
    match reader.take(MAX_LINE_BYTES as u64).read_until(b'\n', &mut line).await {
        Err(_) | Ok(0) => return Ok(None),
        Ok(_) if line.last() == Some(&b'\n') => {}
        Ok(MAX_LINE_BYTES) => return Err(format!("a line is longer than {MAX_LINE_BYTES} bytes")),
        Ok(_) => return Ok(None),
    }
    serde_json::from_slice(&line)
        .map(|line| Some(Box::new(line)))
        .map_err(|error| format!("a line is not understood: {error}"))
}
