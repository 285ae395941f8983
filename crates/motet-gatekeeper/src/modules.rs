//! The module nodes of this host: which modules they have, and questions to them that wait for an answer.
//!
//! A node says which modules it has whenever that changes. What it says is checked like any other input, and it can say something only about itself.

use crate::module_events;
use motet_session::api::ToNode;
use motet_session::events::What;
use motet_session::modules::{
    DEFAULT_NODE, MAX_ERROR_BYTES, MAX_LOG_BYTES, MAX_MODULES, MAX_REQUIRES, ModuleAnswer, ModuleQuestion, ModuleStatus,
};
use motet_session::paths::check_name;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::{broadcast, oneshot, watch};

/// The shortest start of an identity that stands for it.
const MIN_PREFIX: usize = 4;
/// The longest text about the end of a program, bytes.
const MAX_EXIT_BYTES: usize = 1024;

/// The module nodes. A clone is another handle.
#[derive(Debug, Clone)]
pub struct ModuleNodes {
    state: Arc<Mutex<State>>,
    /// Changes whenever a node has said something.
    changed: Arc<watch::Sender<()>>,
    happened: broadcast::Sender<What>,
    /// Held by the one who starts the default node.
    pub starting: Arc<tokio::sync::Mutex<()>>,
    /// Held by an operation on a group: the next one begins after it.
    pub in_group: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<String, ModuleNode>,
    /// What each node has said last. It stays known while the node's connection is broken.
    last: HashMap<String, Vec<ModuleStatus>>,
    /// Nodes that have programs, perhaps: all that were ever module nodes, until they have died.
    parents: HashSet<String>,
    questions: HashMap<u64, Question>,
    last_question: u64,
}

/// A module node.
#[derive(Debug)]
struct ModuleNode {
    is_default: bool,
    modules: Vec<ModuleStatus>,
}

/// A question that waits for its answer.
#[derive(Debug)]
struct Question {
    node: String,
    answer: oneshot::Sender<ModuleAnswer>,
}

impl ModuleNodes {
    /// None. `happened`: gets an event for each module that is loaded, started, stopped or unloaded, or crashes.
    pub fn new(happened: broadcast::Sender<What>) -> Self {
        Self {
            state: Arc::default(),
            changed: Arc::default(),
            happened,
            starting: Arc::default(),
            in_group: Arc::default(),
        }
    }

    /// A node says which modules it has. The error says what is wrong with that.
    pub fn said(&self, node: &str, host: &str, is_default: bool, mut modules: Vec<ModuleStatus>) -> Result<(), String> {
        if modules.len() > MAX_MODULES {
            return Err(format!("a node has at most {MAX_MODULES} modules"));
        }
        for module in &mut modules {
            check(module)?;
            node.clone_into(&mut module.node);
            host.clone_into(&mut module.host);
        }
        let mut state = self.lock();
        let before = state.last.insert(node.to_owned(), modules.clone()).unwrap_or_default();
        self.tell(module_events::between(&before, &modules));
        state.nodes.insert(node.to_owned(), ModuleNode { is_default, modules });
        state.parents.insert(node.to_owned());
        drop(state);
        self.changed.send_replace(());
        Ok(())
    }

    /// A node answers a question. An answer to a question that it was not asked is void.
    pub fn answered(&self, node: &str, host: &str, request: u64, mut answer: ModuleAnswer) {
        let mut state = self.lock();
        if state.questions.get(&request).is_none_or(|question| question.node != node) {
            return;
        }
        match &mut answer {
            ModuleAnswer::Outcome(outcome) => {
                outcome.changed.truncate(MAX_MODULES);
                outcome.changed.retain(|name| check_name("module", name).is_ok());
                outcome.error.as_mut().into_iter().for_each(|why| cut(why, MAX_ERROR_BYTES));
                cut(&mut outcome.module, MAX_ERROR_BYTES);
                node.clone_into(&mut outcome.node);
                host.clone_into(&mut outcome.host);
            }
            ModuleAnswer::Log(log) => cut(&mut log.text, MAX_LOG_BYTES),
            ModuleAnswer::ForGroup(why) | ModuleAnswer::Refused(why) => cut(why, MAX_ERROR_BYTES),
        }
        if let Some(question) = state.questions.remove(&request) {
            let _ = question.answer.send(answer); // the client may have gone
        }
    }

    /// The connection of a node has ended: questions to it have no answer, and its modules are unknown until it says them again.
    pub fn gone(&self, node: &str) {
        let mut state = self.lock();
        state.nodes.remove(node);
        state.questions.retain(|_, question| question.node != node);
        self.changed.send_replace(());
    }

    /// A node has gone for good. `has_died`: its process has ended, and it has not said goodbye before. Returns whether it was a module node.
    pub fn died(&self, node: &str, has_died: bool) -> bool {
        let mut state = self.lock();
        let last = state.last.remove(node).unwrap_or_default();
        self.tell(module_events::at_end(&last, has_died));
        state.parents.remove(node)
    }

    fn tell(&self, events: Vec<What>) {
        for what in events {
            let _ = self.happened.send(what); // fails while nothing follows
        }
    }

    /// All modules of this host.
    pub fn list(&self) -> Vec<ModuleStatus> {
        let mut modules: Vec<_> = self.lock().nodes.values().flat_map(|node| node.modules.clone()).collect();
        modules.sort_by(|a, b| (&a.node, &a.name).cmp(&(&b.node, &b.name)));
        modules
    }

    /// The identity of a node: of the default one by its name, of any by a start of it that no other one has.
    pub fn resolve(&self, node: &str) -> Option<String> {
        let state = self.lock();
        let fits = |id: &str, known: &ModuleNode| match node {
            DEFAULT_NODE => known.is_default,
            _ => node.len() >= MIN_PREFIX && id.starts_with(node),
        };
        let mut found = state.nodes.iter().filter(|(id, known)| fits(id, known)).map(|(id, _)| id.clone());
        found.next().filter(|_| node == DEFAULT_NODE || found.next().is_none())
    }

    /// The group for whose nodes a module is.
    pub fn group_of(&self, module: &str) -> Option<String> {
        let state = self.lock();
        let mut modules = state.nodes.values().flat_map(|node| &node.modules);
        modules.find(|known| known.name == module).and_then(|known| known.group.clone())
    }

    /// Waits until `ready` has a result. Something changes with every line of a module node.
    pub async fn wait_for<T>(&self, mut ready: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changes = self.changed.subscribe();
        loop {
            if let Some(result) = ready(self) {
                return result;
            }
            let _ = changes.changed().await; // the sender is `self`'s
        }
    }

    /// Asks a module node, to which `say` hands a line. The error says why there is no answer.
    pub async fn ask(
        &self,
        say: impl FnOnce(ToNode) -> bool,
        node: &str,
        question: ModuleQuestion,
        limit: Duration,
    ) -> Result<ModuleAnswer, String> {
        let (request, answer) = {
            let mut state = self.lock();
            if !state.nodes.contains_key(node) {
                return Err("it is no module node: start one with motet node".to_owned());
            }
            // Numbers of an earlier gatekeeper are not used again: a late answer to it is void.
            if state.last_question == 0 {
                state.last_question =
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
            }
            state.last_question += 1;
            let (sender, answer) = oneshot::channel();
            let request = state.last_question;
            state.questions.insert(request, Question { node: node.to_owned(), answer: sender });
            (request, answer)
        };
        // Forgotten with this call, however it ends.
        let asked = Asked { all: self, request };
        if !say(ToNode::Module { request: asked.request, question }) {
            return Err("the node's connection has broken".to_owned());
        }
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err("the node has ended, or its connection has broken, before it was done".to_owned()),
            Err(_) => Err(format!("the node does not answer within {} s", limit.as_secs())),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A question, as long as someone waits for the answer.
struct Asked<'a> {
    all: &'a ModuleNodes,
    request: u64,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.all.lock().questions.remove(&self.request);
    }
}

/// Checks and bounds what a node says about one of its modules.
fn check(module: &mut ModuleStatus) -> Result<(), String> {
    let name = |what: &str, name: &str| check_name(what, name).map_err(|error| error.to_string());
    name("module", &module.name)?;
    name("driver", &module.driver)?;
    module.group.iter().try_for_each(|group| name("group", group))?;
    // A package requires its parts as well.
    if module.requires.len() > 2 * MAX_REQUIRES {
        return Err(format!("{} requires too many modules", module.name));
    }
    module.requires.iter().try_for_each(|required| name("module", required))?;
    module.last_exit.as_mut().into_iter().for_each(|how| cut(how, MAX_EXIT_BYTES));
    Ok(())
}

/// Cuts a text to a length in bytes.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
}
