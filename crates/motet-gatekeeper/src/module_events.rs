//! Events of modules: what has happened between two lists of modules that a node has said.
//!
//! A node says its list after each operation and whenever a program ends, so a list may also skip a state: a program that ends at once was started.

use motet_session::events::{ModulePlace, What};
use motet_session::modules::{ModuleState, ModuleStatus};

/// How a program ends that has not failed.
const SUCCESS: &str = "exit status 0";

/// The events between two lists of one node.
pub fn between(before: &[ModuleStatus], now: &[ModuleStatus]) -> Vec<What> {
    let named = |list: &[ModuleStatus], name: &str| list.iter().position(|module| module.name == name);
    let gone = before.iter().filter(|module| named(now, &module.name).is_none());
    let gone = gone.flat_map(|module| {
        let stopped = module.state.is_active().then(|| What::ModuleStopped(place(module, None)));
        stopped.into_iter().chain([What::ModuleUnloaded(place(module, None))])
    });
    let changed = now.iter().flat_map(|module| match named(before, &module.name) {
        Some(at) => change(&before[at], module),
        None => first(module),
    });
    gone.chain(changed).collect()
}

/// The events when a node is gone. `has_died`: it has not ended in order, so what ran in it has not either.
pub fn at_end(modules: &[ModuleStatus], has_died: bool) -> Vec<What> {
    let of_module = |module: &ModuleStatus| {
        let crashed = has_died && module.state.is_active();
        let crashed = crashed.then(|| What::ModuleCrashed(place(module, Some("its node has died"))));
        crashed.into_iter().chain([What::ModuleUnloaded(place(module, None))])
    };
    modules.iter().flat_map(of_module).collect()
}

/// The events of a module that was not known before.
fn first(now: &ModuleStatus) -> Vec<What> {
    let loaded = What::ModuleLoaded(place(now, None));
    match now.state {
        ModuleState::Loaded => vec![loaded],
        ModuleState::Running | ModuleState::Restarting => vec![loaded, started(now)],
        ModuleState::Ended | ModuleState::Failed => vec![loaded, ended(now)],
    }
}

/// The events of a module that was known before.
fn change(before: &ModuleStatus, now: &ModuleStatus) -> Vec<What> {
    use ModuleState::{Ended, Failed, Loaded, Restarting, Running};
    let was_restarted = before.restarts != now.restarts;
    match (before.state, now.state) {
        (Running, Running) if was_restarted => vec![ended(now), started(now)],
        (Running, Running) => vec![],
        (Running | Restarting, Loaded) => vec![What::ModuleStopped(place(now, None))],
        (Running, _) | (Restarting, Failed) => vec![ended(now)],
        (_, Running) => vec![started(now)],
        (Restarting, Restarting) if !was_restarted => vec![],
        (_, Loaded) => vec![],
        // A program that has ended and has the same time has not run since.
        (Ended | Failed, Ended | Failed) if before.since == now.since => vec![],
        _ => vec![started(now), ended(now)],
    }
}

fn started(module: &ModuleStatus) -> What {
    What::ModuleStarted(place(module, None))
}

/// A program has ended by itself.
fn ended(module: &ModuleStatus) -> What {
    let how = module.last_exit.as_deref();
    let has_failed = match module.state {
        ModuleState::Failed => true,
        ModuleState::Ended => false,
        _ => how != Some(SUCCESS),
    };
    if has_failed { What::ModuleCrashed(place(module, how)) } else { What::ModuleStopped(place(module, how)) }
}

fn place(module: &ModuleStatus, how: Option<&str>) -> ModulePlace {
    ModulePlace {
        host: module.host.clone(),
        node: module.node.clone(),
        module: module.name.clone(),
        group: module.group.clone(),
        how: how.map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ModuleState::{Ended, Failed, Loaded, Restarting, Running};

    fn module(state: ModuleState, restarts: u32, exit: &str) -> ModuleStatus {
        ModuleStatus {
            node: "n".to_owned(),
            host: "h".to_owned(),
            name: "m".to_owned(),
            driver: "exec".to_owned(),
            state,
            since: 1,
            restarts,
            last_exit: (!exit.is_empty()).then(|| exit.to_owned()),
            pid: None,
            requires: Vec::new(),
            group: None,
        }
    }

    /// The kinds of events, as the API calls them, without their beginning.
    fn kinds(events: Vec<What>) -> String {
        let kind = |what| serde_json::to_value(what).unwrap()["kind"].as_str().unwrap().replace("module_", "");
        events.into_iter().map(kind).collect::<Vec<_>>().join(" ")
    }

    fn from_to(before: &[ModuleStatus], now: &[ModuleStatus]) -> String {
        kinds(between(before, now))
    }

    #[test]
    fn life_of_a_module_is_told() {
        let (loaded, running) = ([module(Loaded, 0, "")], [module(Running, 0, "")]);
        assert_eq!(from_to(&[], &loaded), "loaded");
        assert_eq!(from_to(&loaded, &running), "started");
        assert_eq!(from_to(&running, &running), "");
        assert_eq!(from_to(&running, &loaded), "stopped");
        assert_eq!(from_to(&loaded, &[]), "unloaded");
        assert_eq!(from_to(&running, &[]), "stopped unloaded");
        assert_eq!(from_to(&[], &running), "loaded started");
        assert_eq!(from_to(&loaded, &loaded), "");
    }

    #[test]
    fn end_of_a_program_is_told_with_its_reason() {
        let running = [module(Running, 0, "")];
        assert_eq!(from_to(&running, &[module(Failed, 0, "signal 11")]), "crashed");
        assert_eq!(from_to(&running, &[module(Ended, 0, SUCCESS)]), "stopped");
        assert_eq!(from_to(&running, &[module(Restarting, 0, "exit status 3")]), "crashed");
        assert_eq!(from_to(&running, &[module(Restarting, 0, SUCCESS)]), "stopped");
        assert_eq!(from_to(&running, &[module(Running, 1, "signal 9")]), "crashed started");
        assert_eq!(from_to(&[module(Restarting, 0, "signal 9")], &[module(Running, 1, "signal 9")]), "started");
        let restarted = from_to(&[module(Restarting, 0, "signal 9")], &[module(Restarting, 1, "signal 9")]);
        assert_eq!(restarted, "started crashed");
        assert_eq!(from_to(&[module(Loaded, 0, "")], &[module(Failed, 0, "exit status 1")]), "started crashed");
        let failed = [module(Failed, 0, "exit status 1")];
        assert_eq!(from_to(&failed, &failed), "");
        let again = [ModuleStatus { since: 2, ..failed[0].clone() }];
        assert_eq!(from_to(&failed, &again), "started crashed");
        let What::ModuleCrashed(place) = &between(&running, &[module(Failed, 0, "signal 11")])[0] else { panic!() };
        assert_eq!(place.how.as_deref(), Some("signal 11"));
    }

    #[test]
    fn node_that_dies_takes_its_modules_with_it() {
        let modules = [module(Running, 0, ""), module(Loaded, 0, "")];
        assert_eq!(kinds(at_end(&modules, true)), "crashed unloaded unloaded");
        assert_eq!(kinds(at_end(&modules, false)), "unloaded unloaded");
    }
}
