//! A module node: a process that is attached to its session, begins empty, and lives from modules.
//!
//! One thread does all operations on modules, in the order in which they come. The thread of the connection passes questions to it, and answers
//! those about logs itself, so that a log can be read while an operation takes long.

use crate::driver::Drivers;
use crate::instance::{Launcher, Waker};
use crate::registry::{Logs, Registry};
use motet::node::Node;
use motet_group::Membership;
use motet_session::api::ToNode;
use motet_session::attach::{Event, Sender};
use motet_session::modules::{ModuleAnswer, ModuleLog, ModuleQuestion, ModuleStatus, Operation};
use motet_session::paths::SessionPaths;
use std::ffi::OsString;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The stack of the thread for modules: interpreters want one like that of a main thread.
const STACK_BYTES: usize = 8 << 20;
/// A look at all programs happens at least so often, should a wake-up be lost.
const REVIEW_INTERVAL: Duration = Duration::from_secs(10);
/// Questions that wait for the thread. More are refused.
const MAX_WAITING: usize = 256;

/// How a module node is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The session.
    pub paths: SessionPaths,
    /// The group that it joins, and the rank that it asks for there.
    pub group: Option<(String, Option<u32>)>,
    /// It is the host's default node.
    pub is_default: bool,
    /// The command that starts a program under Motet: the program and its arguments follow.
    pub launcher: Vec<OsString>,
}

/// What the thread for modules has to do.
enum Task {
    /// An operation, and the number of its question.
    Perform(u64, Operation, bool),
    /// A look at the programs, and at whether the gatekeeper knows the modules.
    Review,
    /// The node ends.
    End,
}

/// Ends a node. Any thread may call it.
#[derive(Debug, Clone)]
pub struct Ender(mpsc::SyncSender<Task>);

impl Ender {
    /// The node stops its modules and ends.
    pub fn end(&self) {
        let _ = self.0.send(Task::End);
    }
}

/// A node that is attached.
pub struct ModuleNode {
    membership: Membership,
    tasks: mpsc::Receiver<Task>,
    ender: Ender,
    logs: Arc<OnceLock<Logs>>,
    /// The gatekeeper does not know the modules: the connection is a new one.
    is_unknown: Arc<AtomicBool>,
    options: Options,
}

impl ModuleNode {
    /// Attaches to the session and joins the group.
    pub fn attach(options: Options) -> Result<Self, motet_group::Error> {
        let node = Arc::new(Node::open("")?);
        let (sender, tasks) = mpsc::sync_channel(MAX_WAITING);
        let (ender, logs) = (Ender(sender.clone()), Arc::new(OnceLock::<Logs>::new()));
        let known = logs.clone();
        let is_unknown = Arc::new(AtomicBool::new(false));
        let forgotten = is_unknown.clone();
        let observe = move |answers: &Sender, event: &Event| match event {
            Event::Line(ToNode::Module { request, question: ModuleQuestion::Do { operation, in_group } }) => {
                let task = Task::Perform(*request, operation.clone(), *in_group);
                if sender.try_send(task).is_err() {
                    let why = "the node has too much to do: ask again later".to_owned();
                    let _ = answers.answer(*request, ModuleAnswer::Refused(why));
                }
            }
            Event::Line(ToNode::Module { request, question: ModuleQuestion::Log { module, tail } }) => {
                let log = known.get().and_then(|logs| logs.of(module));
                let answer = match log {
                    Some(log) => ModuleAnswer::Log(ModuleLog { text: log.tail(*tail) }),
                    None => ModuleAnswer::Refused(format!("no module {module:?} is loaded")),
                };
                let _ = answers.answer(*request, answer);
            }
            Event::Back => {
                forgotten.store(true, Ordering::Release);
                let _ = sender.try_send(Task::Review); // if there is no place for it, another task comes soon
            }
            Event::Gone => drop(sender.send(Task::End)),
            Event::Line(_) | Event::Away => {}
        };
        let membership = Membership::attach_with(&node, &options.paths, observe)?;
        // Before the group knows the node: what is for all nodes of a group finds a module node.
        membership.sender().say_modules(options.is_default, Vec::new())?;
        if let Some((group, rank)) = &options.group {
            membership.join(group, *rank)?;
        }
        Ok(Self { membership, tasks, ender, logs, is_unknown, options })
    }

    /// The node's identity in the session.
    pub fn id(&self) -> &str {
        self.membership.id()
    }

    /// What ends the node.
    pub fn ender(&self) -> Ender {
        self.ender.clone()
    }

    /// Serves until the node ends, and unloads all modules then.
    pub fn run(self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("motet-modules".to_owned()).stack_size(STACK_BYTES);
        let served = thread.spawn(move || self.serve())?.join();
        served.map_err(|_| io::Error::other("the thread for modules has panicked"))
    }

    fn serve(self) {
        let Self { membership, tasks, ender, logs, is_unknown, options } = self;
        let launcher = Launcher { command: options.launcher, node: membership.id().to_owned() };
        let waker = Waker(Arc::new(move || drop(ender.0.try_send(Task::Review))));
        let mut registry = Registry::new(Drivers::new(launcher, waker));
        let _ = logs.set(registry.logs());
        let sender = membership.sender();
        let say = |modules: &[ModuleStatus]| {
            let said = sender.say_modules(options.is_default, modules.to_vec());
            // Many long names do not fit into one line: without them.
            said.or_else(|_| sender.say_modules(options.is_default, without_requires(modules)))
        };
        let mut said = registry.statuses();
        let mut deadline = None::<Instant>;
        loop {
            let wait = deadline.map_or(REVIEW_INTERVAL, |at| at.saturating_duration_since(Instant::now()));
            let mut answer = None;
            match tasks.recv_timeout(wait.min(REVIEW_INTERVAL)) {
                Ok(Task::Perform(request, operation, in_group)) => {
                    answer = Some((request, registry.perform(&operation, in_group)));
                }
                Ok(Task::Review) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Task::End) | Err(RecvTimeoutError::Disconnected) => break,
            }
            deadline = registry.review(Instant::now());
            let now = registry.statuses();
            if is_unknown.swap(false, Ordering::AcqRel) || now != said {
                said = now;
                let _ = say(&said);
            }
            // After the list: who gets the answer finds it in the list.
            if let Some((request, answer)) = answer {
                let _ = sender.answer(request, answer);
            }
        }
        registry.end();
    }
}

fn without_requires(modules: &[ModuleStatus]) -> Vec<ModuleStatus> {
    modules.iter().map(|module| ModuleStatus { requires: Vec::new(), ..module.clone() }).collect()
}
