//! Modules on all nodes of a group.

mod common;

use common::module_session::Session;
use common::{json, refused};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn states(session: &Session) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> =
        session.modules().iter().map(|module| (text(&module["name"]), text(&module["state"]))).collect();
    all.sort();
    all
}

#[test]
fn module_is_on_every_node_of_a_group() {
    let session = Session::up("group");
    let _nodes = session.group("fluid", 4);
    let script = "echo $MOTET_GROUP $MOTET_GROUP_RANK; exec sleep 1000";
    let mesh = session.shell("mesh", script, "");
    assert_eq!(session.ok(&["load", &mesh, "--on", "fluid"]), "loaded: mesh (4 nodes)\n");
    assert_eq!(session.ok(&["start", "mesh", "--on", "fluid"]), "started: mesh (4 nodes)\n");
    assert_eq!(states(&session), vec![("mesh".to_owned(), "running".to_owned()); 4]);
    let mut ranks = Vec::new();
    session.until("all have written", |session| {
        let logs = json(&session.ok(&["--json", "modules", "mesh", "--log"]));
        ranks = logs.as_array().unwrap().iter().map(|log| log["log"].as_str().unwrap().to_owned()).collect();
        ranks.iter().all(|log| log.contains("fluid "))
    });
    (0..4).for_each(|rank| assert!(ranks.iter().any(|log| log.contains(&format!("fluid {rank}\n"))), "{ranks:?}"));
    let outcomes = json(&session.ok(&["--json", "stop", "mesh", "--on", "fluid"]));
    let ranks: Vec<_> = outcomes.as_array().unwrap().iter().map(|outcome| outcome["rank"].clone()).collect();
    assert_eq!(ranks, [0, 1, 2, 3]);
    assert_eq!(session.ok(&["unload", "mesh", "--on", "fluid"]), "unloaded: mesh (4 nodes)\n");
    assert!(refused(&mut session.motet(&["load", &mesh, "--on", "gas"]), 3).contains("there is no group \"gas\""));
    refused(&mut session.motet(&["load", &mesh, "--on", "a/b"]), 2);
}

#[test]
fn all_load_or_none() {
    let session = Session::up("all-or-none");
    let _nodes = session.group("fluid", 4);
    session.shell("base", "exec sleep 1000", "");
    session.0.file("picky.py", "import os\nassert os.environ['MOTET_GROUP_RANK'] != '2', 'not here'\n", 0o644);
    let picky = session.descriptor("picky", "python", "picky.py", "requires = [\"base\"]");
    let command = ["--json", "load", "--start", &picky, "--on", "fluid"];
    let (code, out, err) = common::finish(&mut session.motet(&command));
    assert_eq!(code, 1, "{err}");
    assert_eq!(err, "motet: rank 2: AssertionError: not here (4 nodes failed or were undone)\n");
    let errors: Vec<_> = json(&out).as_array().unwrap().iter().map(|outcome| outcome["error"].clone()).collect();
    assert_eq!(errors, ["unloaded again", "unloaded again", "AssertionError: not here", "unloaded again"]);
    assert!(session.modules().is_empty());
    // One that is loaded everywhere and does not start at one node.
    session.0.file("late.py", "import os\ndef start(): return int(os.environ['MOTET_GROUP_RANK'] == '1')\n", 0o644);
    let late = session.descriptor("late", "python", "late.py", "requires = [\"base\"]");
    let why = session.fails(&["load", "--start", &late, "--on", "fluid"]);
    assert!(why.contains("rank 1: late does not start: RuntimeError: start() returns 1"), "{why}");
    assert!(session.modules().is_empty(), "what had started has been stopped and unloaded");
    assert_eq!(session.ok(&["load", &late, "--on", "fluid"]), "loaded: base, late (4 nodes)\n");
}

#[test]
fn multi_module_knows_its_group() {
    let session = Session::up("multi");
    let nodes = session.group("fluid", 4);
    session.shell("part", "exec sleep 1000", "");
    let all = session.descriptor("all", "multi", "part", "group = \"fluid\"");
    assert_eq!(
        session.ok(&["load", "--start", &all]),
        "loaded: part, all (4 nodes)\n".replace("loaded", "loaded and started")
    );
    assert_eq!(session.modules().len(), 8);
    assert_eq!(session.ok(&["stop", "all"]), "stopped: all, part (4 nodes)\n");
    assert_eq!(session.ok(&["start", "all"]), "started: part, all (4 nodes)\n");
    // On one node alone it is refused.
    let (code, _, err) = common::finish(&mut session.motet(&["load", &all, "--node", &nodes.ids[0]]));
    assert!(code == 1 && err.contains("is for all nodes of the group fluid"), "{err}");
    assert_eq!(session.ok(&["unload", "all"]), "unloaded: all, part (4 nodes)\n");
    assert!(session.modules().is_empty());
}

#[test]
fn nodes_that_die_are_failures() {
    let session = Session::up("dead");
    let mut nodes = session.group("fluid", 2);
    let source = format!("import time\nopen({:?}, 'w')\ntime.sleep(1000)\n", session.path().join("loading"));
    session.0.file("slow.py", &source, 0o644);
    let slow = session.descriptor("slow", "python", "slow.py", "");
    // Both nodes die while they load: the command ends, and the gatekeeper lives.
    let mut loading =
        session.motet(&["load", &slow, "--on", "fluid"]).stderr(std::process::Stdio::piped()).spawn().unwrap();
    session.until("it loads", |session| session.path().join("loading").exists());
    kill_process(Pid::from_child(&nodes.child), Signal::TERM).unwrap();
    let ranks = common::module_session::processes(|command| command.ends_with("motet node"), &session);
    ranks.into_iter().for_each(|rank| kill_process(rank, Signal::KILL).unwrap());
    assert_eq!(loading.wait().unwrap().code(), Some(1));
    nodes.child.wait().unwrap();
    session.until("the group is empty", |session| {
        json(&session.ok(&["--json", "groups"]))
            .as_array()
            .unwrap()
            .iter()
            .all(|group| group["view"]["members"] == serde_json::json!([]))
    });
    assert!(refused(&mut session.motet(&["load", &slow, "--on", "fluid"]), 3).contains("has no members"));
}

#[test]
fn modules_of_all_hosts_are_one_list() {
    let session = Session::up("hosts");
    let agent = format!("env MOTET_SESSION_DIR={}/%h", session.path().display());
    session.ok(&["up", "--listen", "127.0.0.1:0", "--hosts", "b", "--agent", &agent]);
    let mut there = session.motet(&["run", "--group", "fluid", "--", env!("CARGO_BIN_EXE_motet"), "node"]);
    let mut there = there.env("MOTET_SESSION_DIR", session.path().join("b")).spawn().unwrap();
    let _here = session.group("fluid", 1);
    session.until("both nodes are in the group", |session| {
        let groups = json(&session.ok(&["--json", "groups", "fluid"]));
        groups[0]["view"]["members"].as_array().is_some_and(|members| members.len() == 2)
    });
    let mesh = session.shell("mesh", "exec sleep 1000", "");
    assert_eq!(session.ok(&["load", "--start", &mesh, "--on", "fluid"]), "loaded and started: mesh (2 nodes)\n");
    let single = session.shell("single", "echo on the other host; exec sleep 1000", "");
    assert_eq!(session.ok(&["load", "--start", &single, "--host", "b"]), "loaded and started: single\n");
    let hosts = |name: &str| {
        let modules = session.modules().into_iter().filter(|module| module["name"] == name);
        let mut hosts: Vec<_> = modules.map(|module| module["host"].as_str().unwrap().to_owned()).collect();
        hosts.sort();
        hosts
    };
    assert_eq!((hosts("mesh"), hosts("single")), (vec!["b".to_owned(), "here".to_owned()], vec!["b".to_owned()]));
    session.until("its log is read from here", |session| session.log("single").contains("on the other host"));
    assert_eq!(session.ok(&["stop", "single", "--host", "b"]), "stopped: single\n");
    assert_eq!(session.ok(&["unload", "mesh", "--on", "fluid"]), "unloaded: mesh (2 nodes)\n");
    assert!(session.ok(&["down"]).starts_with("session default has ended"));
    there.wait().unwrap();
    assert!(!session.path().join("b/default").exists());
}
