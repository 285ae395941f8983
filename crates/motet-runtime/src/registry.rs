//! The modules of a node, and the operations on them. They happen one after another, in one thread.

use crate::descriptor::{DriverKind, Fault, Source};
use crate::driver::Drivers;
use crate::instance::Instance;
use crate::log::Log;
use crate::plan::{self, Library};
use crate::text::one_line;
use motet_session::modules::{MAX_MODULES, ModuleAnswer, ModuleState, ModuleStatus, Operation, Outcome};
use motet_session::notes::note;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The logs of all modules. A clone is another handle, for another thread.
#[derive(Debug, Clone, Default)]
pub struct Logs(Arc<Mutex<HashMap<String, Log>>>);

impl Logs {
    /// The log of a module.
    pub fn of(&self, module: &str) -> Option<Log> {
        self.lock().get(module).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Log>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The modules, in the order in which they were loaded.
pub struct Registry {
    modules: Vec<Module>,
    drivers: Drivers,
    logs: Logs,
}

/// A module.
struct Module {
    source: Source,
    instance: Box<dyn Instance>,
    log: Log,
    status: ModuleStatus,
}

impl Module {
    fn name(&self) -> &str {
        &self.status.name
    }

    fn is_active(&self) -> bool {
        self.status.state.is_active()
    }

    fn needs(&self, other: &str) -> bool {
        self.source.descriptor.dependencies().contains(&other)
    }

    /// Notes a state.
    fn enter(&mut self, state: ModuleState) {
        if self.status.state != state {
            self.status.state = state;
            self.status.since = now_s();
        }
    }

    /// Looks at its program.
    fn review(&mut self, now: Instant) {
        if let Some(program) = self.instance.review(now) {
            if program.restarts != self.status.restarts || program.pid != self.status.pid {
                self.status.since = now_s();
            }
            self.enter(program.state);
            self.status.pid = program.pid;
            self.status.restarts = program.restarts;
            self.status.last_exit = program.last_exit.map(|how| one_line(&how).chars().take(200).collect());
        }
    }

    fn start(&mut self) -> Result<(), String> {
        let started = self.instance.start();
        match &started {
            Ok(()) => self.enter(ModuleState::Running),
            Err(why) => self.log.note(&format!("it does not start: {why}")),
        }
        self.review(Instant::now());
        started.map_err(|why| format!("{} does not start: {why}", self.name()))
    }

    fn stop(&mut self) -> Result<(), String> {
        let stopped = self.instance.stop();
        self.enter(ModuleState::Loaded);
        self.review(Instant::now());
        stopped.map_err(|why| {
            self.log.note(&format!("it does not stop in order: {why}"));
            format!("{} does not stop in order: {why}", self.name())
        })
    }
}

impl Library for Registry {
    fn is_loaded(&self, name: &str) -> bool {
        self.place(name).is_some()
    }

    fn find(&mut self, folder: &Path, name: &str) -> Result<Source, Fault> {
        Source::beside(folder, name)
    }
}

/// What an operation has changed, and whether it failed.
type Done = (Vec<String>, Result<(), String>);

impl Registry {
    /// No modules.
    pub fn new(drivers: Drivers) -> Self {
        Self { modules: Vec::new(), drivers, logs: Logs::default() }
    }

    /// The logs.
    pub fn logs(&self) -> Logs {
        self.logs.clone()
    }

    /// All modules.
    pub fn statuses(&self) -> Vec<ModuleStatus> {
        self.modules.iter().map(|module| module.status.clone()).collect()
    }

    /// Looks at all programs; returns when to do so again, at the latest.
    pub fn review(&mut self, now: Instant) -> Option<Instant> {
        self.modules.iter_mut().for_each(|module| module.review(now));
        self.modules.iter().filter_map(|module| module.instance.deadline()).min()
    }

    /// Does an operation. `in_group`: it is done on all nodes of a group.
    pub fn perform(&mut self, operation: &Operation, in_group: bool) -> ModuleAnswer {
        let mut module = operation.module().unwrap_or_default().to_owned();
        let (changed, result) = match operation {
            Operation::Load { descriptor, start } => match Source::read(Path::new(descriptor)) {
                Ok(source) => {
                    let group = source.descriptor.option("group").filter(|_| !in_group);
                    if let Some(group) = group {
                        return ModuleAnswer::ForGroup(group.to_owned());
                    }
                    module.clone_from(&source.descriptor.name);
                    self.load(source, *start)
                }
                Err(Fault(why)) => (Vec::new(), Err(why)),
            },
            Operation::Start { module } => self.with(module, Self::start),
            Operation::Stop { module, cascade } => self.with(module, |all, name| all.stop(name, *cascade)),
            Operation::Unload { module, cascade } => self.with(module, |all, name| all.unload(name, *cascade)),
        };
        let error = result.err().map(|why| one_line(&why));
        ModuleAnswer::Outcome(Outcome { module, changed, error, ..Outcome::default() })
    }

    /// Stops and unloads everything, the last one first.
    pub fn end(&mut self) {
        while let Some(name) = self.modules.last().map(|module| module.name().to_owned()) {
            self.remove(&name);
        }
    }

    fn with(&mut self, name: &str, act: impl FnOnce(&mut Self, &str) -> Done) -> Done {
        match self.place(name) {
            Some(_) => act(self, name),
            None => (Vec::new(), Err(format!("no module {name:?} is loaded"))),
        }
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.modules.iter().position(|module| module.name() == name)
    }

    // ---- load -------------------------------------------------------------------------------------------------------

    fn load(&mut self, source: Source, start: bool) -> Done {
        let name = source.descriptor.name.clone();
        let ordered = match plan::order(source, self) {
            Ok(ordered) if ordered.len() + self.modules.len() > MAX_MODULES => {
                return (Vec::new(), Err(format!("the node would have more than {MAX_MODULES} modules")));
            }
            Ok(ordered) => ordered,
            Err(Fault(why)) => return (Vec::new(), Err(why)),
        };
        let mut loaded = Vec::new();
        let mut result = Ok(());
        for source in ordered {
            let part = source.descriptor.name.clone();
            match self.add(source) {
                Ok(()) => loaded.push(part),
                Err(why) => {
                    result = Err(if part == name { why } else { format!("{part}: {why}") });
                    break;
                }
            }
        }
        if result.is_ok() && start {
            result = self.start(&name).1;
        }
        if result.is_err() {
            loaded.drain(..).rev().for_each(|part| self.remove(&part));
        }
        (loaded, result)
    }

    fn add(&mut self, source: Source) -> Result<(), String> {
        let log = Log::default();
        let instance = self.drivers.load(&source, &log)?;
        let descriptor = &source.descriptor;
        let status = ModuleStatus {
            node: String::new(),
            host: String::new(),
            name: descriptor.name.clone(),
            driver: descriptor.driver.name().to_owned(),
            state: ModuleState::Loaded,
            since: now_s(),
            restarts: 0,
            last_exit: None,
            pid: None,
            requires: descriptor.dependencies().into_iter().map(str::to_owned).collect(),
            group: descriptor.option("group").filter(|_| descriptor.driver == DriverKind::Multi).map(str::to_owned),
        };
        self.logs.lock().insert(descriptor.name.clone(), log.clone());
        self.modules.push(Module { source, instance, log, status });
        Ok(())
    }

    // ---- start and stop ---------------------------------------------------------------------------------------------

    /// Starts a module, after those that it requires. If one does not start, those that were started for it are stopped again.
    fn start(&mut self, name: &str) -> Done {
        let mut started = Vec::<String>::new();
        for at in self.closure(name, |module, other| other.needs(module)) {
            let module = &mut self.modules[at];
            // A program that has done its work need not do it again for another one.
            let is_done = module.status.state == ModuleState::Ended && module.name() != name;
            if module.is_active() || is_done {
                continue;
            }
            if let Err(why) = module.start() {
                for part in started.drain(..).rev() {
                    self.halt(&part);
                }
                return (Vec::new(), Err(why));
            }
            started.push(module.name().to_owned());
        }
        (started, Ok(()))
    }

    /// Stops a module, and the parts of a package that no other one needs.
    fn stop(&mut self, name: &str, cascade: bool) -> Done {
        let mut dependents: Vec<_> =
            self.dependents(name).into_iter().filter(|at| self.modules[*at].is_active()).collect();
        dependents.reverse();
        if !cascade && let Some(at) = dependents.last() {
            let other = self.modules[*at].name();
            return (Vec::new(), Err(format!("{other} runs and requires {name}: stop it first, or use --cascade")));
        }
        let mut names: Vec<_> = dependents.into_iter().map(|at| self.modules[at].name().to_owned()).collect();
        names.push(name.to_owned());
        let (mut stopped, mut result) = (Vec::new(), Ok(()));
        let mut queue = std::collections::VecDeque::from(names);
        while let Some(next) = queue.pop_front() {
            let Some(at) = self.place(&next) else { continue };
            if self.modules[at].is_active() || next == name {
                let was_active = self.modules[at].is_active();
                result = result.and(self.modules[at].stop());
                if was_active {
                    stopped.push(next.clone());
                }
            }
            queue.extend(self.free_parts(&next, |module| module.is_active()));
        }
        (stopped, result)
    }

    /// Stops one module, without a look at others; what goes wrong is in its log.
    fn halt(&mut self, name: &str) {
        if let Some(at) = self.place(name) {
            let _ = self.modules[at].stop();
        }
    }

    // ---- unload -----------------------------------------------------------------------------------------------------

    /// Unloads a module, and the parts of a package that no other one needs.
    fn unload(&mut self, name: &str, cascade: bool) -> Done {
        let dependents = self.dependents(name);
        if !cascade && let Some(at) = dependents.first() {
            let other = self.modules[*at].name();
            return (Vec::new(), Err(format!("{other} requires {name}: unload it first, or use --cascade")));
        }
        let mut queue: std::collections::VecDeque<_> =
            dependents.into_iter().rev().map(|at| self.modules[at].name().to_owned()).collect();
        queue.push_back(name.to_owned());
        let mut unloaded = Vec::new();
        while let Some(next) = queue.pop_front() {
            if self.place(&next).is_none() {
                continue;
            }
            // Parts are free once their package is gone.
            let parts = self.free_parts(&next, |_| true);
            self.remove(&next);
            unloaded.push(next);
            queue.extend(parts);
        }
        (unloaded, Ok(()))
    }

    /// Stops and unloads one module, without a look at others; what goes wrong is on standard error.
    fn remove(&mut self, name: &str) {
        let Some(at) = self.place(name) else { return };
        let mut module = self.modules.remove(at);
        let stopped = if module.is_active() { module.stop() } else { Ok(()) };
        let unloaded = module.instance.unload().map_err(|why| format!("{name} is not unloaded in order: {why}"));
        for why in [stopped, unloaded].into_iter().filter_map(Result::err) {
            note(one_line(&why));
        }
        self.logs.lock().remove(name);
    }

    // ---- who needs whom ---------------------------------------------------------------------------------------------

    /// The places of all modules that lead to `name` by steps of `follows(known, other)`, itself included, in the order of loading.
    fn closure(&self, name: &str, follows: impl Fn(&str, &Module) -> bool) -> Vec<usize> {
        let mut found: Vec<usize> = self.place(name).into_iter().collect();
        let mut next = 0;
        while let Some(&at) = found.get(next) {
            next += 1;
            let module = &self.modules[at];
            for (other, candidate) in self.modules.iter().enumerate() {
                let is_step = follows(candidate.name(), module);
                if is_step && !found.contains(&other) {
                    found.push(other);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// The modules that require `name`, directly or not.
    fn dependents(&self, name: &str) -> Vec<usize> {
        let mut found = self.closure(name, |candidate, module| {
            self.place(candidate).is_some_and(|at| self.modules[at].needs(module.name()))
        });
        found.retain(|at| self.modules[*at].name() != name);
        found
    }

    /// The parts of a package that no module outside of it needs, of those for which `counts` is true: first those that other parts do not need.
    fn free_parts(&self, package: &str, counts: impl Fn(&Module) -> bool) -> Vec<String> {
        let Some(at) = self.place(package) else { return Vec::new() };
        let descriptor = &self.modules[at].source.descriptor;
        let mut parts: Vec<&String> = descriptor.units.iter().filter(|_| descriptor.driver.has_parts()).collect();
        let mut free: Vec<String> = Vec::new();
        loop {
            let is_free = |part: &&&String| {
                let gone = |name: &str| name == package || free.iter().any(|free| free == name);
                self.modules.iter().all(|other| gone(other.name()) || !counts(other) || !other.needs(part))
            };
            let Some(next) = parts.iter().rposition(|part| is_free(&part)) else { return free };
            free.push(parts.remove(next).clone());
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
