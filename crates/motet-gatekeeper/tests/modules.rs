//! What the gatekeeper does for module nodes, and against nodes that say what they like.

mod support;

use motet_session::api::{FromNode, ToNode};
use motet_session::client::ClientError;
use motet_session::events::{SessionEvent, What};
use motet_session::modules::{
    ModuleAnswer, ModuleLog, ModuleQuestion, ModuleRequest, ModuleState, ModuleStatus, Operation, Outcome,
};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use support::{Node, Raw, Running, hello, node_id, until};

/// A module node that a test plays.
struct Played(BufReader<UnixStream>);

impl Played {
    fn attach(session: &Running, number: u32) -> Self {
        let mut raw = Raw::upgraded(&session.paths);
        raw.write(&hello(number));
        let mut played = Self(BufReader::new(raw.0));
        assert!(matches!(played.line(), ToNode::Welcome { .. }));
        played
    }

    fn say(&mut self, line: &FromNode) {
        let mut text = serde_json::to_vec(line).unwrap();
        text.push(b'\n');
        std::io::Write::write_all(self.0.get_mut(), &text).unwrap();
    }

    fn line(&mut self) -> ToNode {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    fn question(&mut self) -> (u64, ModuleQuestion) {
        match self.line() {
            ToNode::Module { request, question } => (request, question),
            other => panic!("{other:?}"),
        }
    }

    fn refusal(&mut self) -> String {
        match self.line() {
            ToNode::Refused { group: None, error } => error,
            other => panic!("{other:?}"),
        }
    }
}

fn status(name: &str) -> ModuleStatus {
    ModuleStatus {
        node: "someone else".to_owned(),
        host: "elsewhere".to_owned(),
        name: name.to_owned(),
        driver: "exec".to_owned(),
        state: ModuleState::Loaded,
        since: 1,
        restarts: 0,
        last_exit: None,
        pid: None,
        requires: Vec::new(),
        group: None,
    }
}

fn modules(list: Vec<ModuleStatus>) -> FromNode {
    FromNode::Modules { is_default: false, modules: list }
}

/// Does a request in another thread.
fn start<T: serde::de::DeserializeOwned + Send + 'static>(
    session: &Running,
    path: String,
    body: serde_json::Value,
) -> std::thread::JoinHandle<Result<T, ClientError>> {
    let client = session.client();
    std::thread::spawn(move || client.post::<T>(&path, &body))
}

fn operation() -> serde_json::Value {
    json!({"operation": "start", "module": "m"})
}

#[test]
fn node_says_only_what_is_its_own() {
    let session = Running::start();
    let mut node = Played::attach(&session, 7);
    node.say(&modules(vec![status("m")]));
    let list = || session.client().get::<Vec<ModuleStatus>>("/v1/modules").unwrap();
    until("the module is listed", || list().len() == 1);
    assert_eq!((&list()[0].node[..], &list()[0].host[..]), (&node_id(7)[..], "here"));
    for (wrong, said) in [
        (vec![status("../m")], "is no name of a module"),
        (vec![status("m"); 129], "at most 128 modules"),
        (vec![ModuleStatus { group: Some("a/b".to_owned()), ..status("m") }], "is no name of a group"),
        (vec![ModuleStatus { requires: vec!["x".to_owned(); 33], ..status("m") }], "requires too many"),
    ] {
        node.say(&modules(wrong));
        let refusal = node.refusal();
        assert!(refusal.contains(said), "{refusal}");
    }
    let endless = ModuleStatus { last_exit: Some("ä".repeat(50_000)), ..status("m") };
    node.say(&modules(vec![endless]));
    until("the new state is listed", || list()[0].last_exit.is_some());
    assert!(list()[0].last_exit.as_ref().unwrap().len() <= 1024);
    drop(node);
    until("a node that is gone has no modules", || list().is_empty());
}

#[test]
fn only_the_node_that_was_asked_answers() {
    let session = Running::start();
    let (mut node, mut other) = (Played::attach(&session, 1), Played::attach(&session, 2));
    node.say(&modules(Vec::new()));
    other.say(&modules(Vec::new()));
    let ready = |number: u32| {
        let path = format!("/v1/modules/{}/none/log", node_id(number));
        !matches!(
            session.client().within(std::time::Duration::from_millis(20)).get::<ModuleLog>(&path),
            Err(ClientError::Refused(404, _))
        )
    };
    until("both are module nodes", || ready(1) && ready(2));
    let asked = start::<Outcome>(&session, format!("/v1/nodes/{}/modules", node_id(1)), operation());
    let (request, question) = loop {
        match node.question() {
            (_, ModuleQuestion::Log { .. }) => {}
            operation => break operation,
        }
    };
    let ModuleQuestion::Do { operation: Operation::Start { module }, in_group: false } = question else { panic!() };
    assert_eq!(module, "m");
    let outcome = |error: &str| {
        let (node, changed) = ("someone else".to_owned(), vec!["a".to_owned(), "../b".to_owned()]);
        ModuleAnswer::Outcome(Outcome { node, changed, error: Some(error.to_owned()), ..Outcome::default() })
    };
    other.say(&FromNode::ModuleAnswer { request, answer: outcome("forged") });
    // The other one has been heard when its next line has been answered.
    other.say(&modules(vec![status("a/b")]));
    other.refusal_after_questions();
    node.say(&FromNode::ModuleAnswer { request: request + 1000, answer: outcome("not asked") });
    node.say(&FromNode::ModuleAnswer { request, answer: outcome(&"x".repeat(5000)) });
    node.say(&FromNode::ModuleAnswer { request, answer: outcome("twice") });
    let answer = asked.join().unwrap().unwrap();
    assert_eq!((&answer.node[..], &answer.host[..]), (&node_id(1)[..], "here"));
    assert_eq!((answer.error.unwrap(), answer.changed), ("x".repeat(1024), vec!["a".to_owned()]));
}

impl Played {
    fn question_after_views(&mut self) -> (u64, ModuleQuestion) {
        loop {
            match self.line() {
                ToNode::View(_) | ToNode::Change(_) => {}
                ToNode::Module { request, question } => return (request, question),
                other => panic!("{other:?}"),
            }
        }
    }

    fn refusal_after_questions(&mut self) -> String {
        loop {
            match self.line() {
                ToNode::Module { .. } => {}
                ToNode::Refused { error, .. } => return error,
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn questions_to_nodes_that_cannot_answer_end() {
    let session = Running::start();
    // An ordinary node.
    let ordinary = Node::attach(&session, 3);
    ordinary.attachment.sender().join("fluid", None).unwrap();
    until("it has joined", || ordinary.last("fluid").is_some());
    let at = |node: &str| format!("/v1/nodes/{node}/modules");
    let refused = |path: &str| match session.client().post::<Outcome>(path, &operation()) {
        Err(ClientError::Refused(status, why)) => (status, why),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(&at(&node_id(3))).0, 404);
    assert_eq!(refused(&at("default")).0, 404);
    assert_eq!(refused(&at("..%2F..")).0, 404);
    let request = ModuleRequest {
        on: Some("fluid".to_owned()),
        operation: Operation::Load { descriptor: "/m.toml".to_owned(), start: false },
    };
    let outcomes: Vec<Outcome> = session.client().post("/v1/modules", &request).unwrap();
    assert_eq!(outcomes.len(), 1);
    assert!(outcomes[0].error.as_ref().unwrap().contains("it is no module node"), "{outcomes:?}");
    // One whose connection breaks while it is asked.
    let mut node = Played::attach(&session, 4);
    node.say(&modules(vec![status("m")]));
    until("the module is listed", || session.client().get::<Vec<ModuleStatus>>("/v1/modules").unwrap().len() == 1);
    let asked = start::<Outcome>(&session, at(&node_id(4)), operation());
    node.question();
    drop(node);
    match asked.join().unwrap() {
        Err(ClientError::Refused(503, why)) => assert!(why.contains("the node has ended"), "{why}"),
        other => panic!("{other:?}"),
    }
    // A body that is no request.
    for body in [json!({}), json!({"operation": "load"}), json!({"operation": "format", "module": "m"}), json!(3)] {
        assert!(matches!(
            session.client().post::<Vec<Outcome>>("/v1/modules", &body),
            Err(ClientError::Refused(422, _))
        ));
    }
}

#[test]
fn group_of_three_hosts_is_one_operation() {
    let a = Running::start();
    let (b, c) = (Running::join(&a, "b"), Running::join(&a, "c"));
    let mut nodes: Vec<_> = [&a, &b, &c].iter().zip(1..).map(|(host, number)| Played::attach(host, number)).collect();
    for (rank, node) in (0..).zip(&mut nodes) {
        node.say(&modules(Vec::new()));
        node.say(&FromNode::Join { group: "fluid".to_owned(), rank: Some(rank) });
    }
    let members = || c.client().get::<motet_session::api::View>("/v1/groups/fluid").map(|view| view.members.len());
    until("all are in the group", || members().is_ok_and(|members| members == 3));
    let request = json!({"on": "fluid", "operation": "load", "descriptor": "/m.toml"});
    let asked = start::<Vec<Outcome>>(&c, "/v1/modules".to_owned(), request);
    for (rank, node) in nodes.iter_mut().enumerate() {
        let (request, question) = node.question_after_views();
        assert!(matches!(question, ModuleQuestion::Do { operation: Operation::Load { .. }, in_group: true }));
        let (module, changed) = ("m".to_owned(), vec!["m".to_owned()]);
        let failed = (rank == 1).then(|| "not here".to_owned());
        let changed = if rank == 1 { Vec::new() } else { changed };
        let outcome = Outcome { module, changed, error: failed, ..Outcome::default() };
        node.say(&FromNode::ModuleAnswer { request, answer: ModuleAnswer::Outcome(outcome) });
    }
    // It failed on one host, so those on the others are unloaded again.
    for rank in [0, 2] {
        let (request, question) = nodes[rank].question_after_views();
        let unload = Operation::Unload { module: "m".to_owned(), cascade: false };
        assert_eq!(question, ModuleQuestion::Do { operation: unload, in_group: true });
        nodes[rank].say(&FromNode::ModuleAnswer { request, answer: ModuleAnswer::Outcome(Outcome::default()) });
    }
    let outcomes = asked.join().unwrap().unwrap();
    let told: Vec<_> =
        outcomes.iter().map(|one| (&one.host[..], one.rank.unwrap(), one.error.as_deref().unwrap())).collect();
    assert_eq!(told, [("here", 0, "unloaded again"), ("b", 1, "not here"), ("c", 2, "unloaded again")]);
    // One node of another host, through the same path as for this one.
    let asked = start::<Outcome>(&c, format!("/v1/hosts/b/nodes/{}/modules", node_id(2)), operation());
    let (request, _) = nodes[1].question_after_views();
    nodes[1].say(&FromNode::ModuleAnswer { request, answer: ModuleAnswer::Outcome(Outcome::default()) });
    assert_eq!(asked.join().unwrap().unwrap().host, "b");
}

#[test]
fn log_has_a_limit() {
    let session = Running::start();
    let mut node = Played::attach(&session, 5);
    node.say(&modules(vec![status("m")]));
    until("the module is listed", || session.client().get::<Vec<ModuleStatus>>("/v1/modules").unwrap().len() == 1);
    let client = session.client();
    let path = format!("/v1/modules/{}/m/log?tail=12", node_id(5));
    let asked = std::thread::spawn(move || client.get::<ModuleLog>(&path));
    let (request, question) = node.question();
    assert_eq!(question, ModuleQuestion::Log { module: "m".to_owned(), tail: 12 });
    let answer = ModuleAnswer::Log(ModuleLog { text: "ä".repeat(100_000) });
    node.say(&FromNode::ModuleAnswer { request, answer });
    assert!(asked.join().unwrap().unwrap().text.len() <= 32 << 10);
    let wrong = session.client().get::<ModuleLog>(&format!("/v1/modules/{}/m/log?tail=-1", node_id(5)));
    assert!(matches!(wrong, Err(ClientError::Refused(400, _))), "{wrong:?}");
}

#[test]
fn document_describes_the_routes() {
    let session = Running::start();
    let document: serde_json::Value = session.client().get("/v1/openapi.json").unwrap();
    let paths = document["paths"].as_object().unwrap();
    for path in ["/v1/session", "/v1/modules", "/v1/modules/{node}/{module}/log", "/v1/nodes/{node}/modules"] {
        assert!(paths.contains_key(path), "{path}");
    }
    assert!(document["components"]["schemas"]["ModuleStatus"].is_object());
}

/// The events of modules that are kept, each as its kind and how the program has ended.
fn happened(session: &Running) -> Vec<String> {
    let mut raw = Raw::connect(&session.paths);
    raw.write(b"GET /v1/events?follow=false HTTP/1.0\r\n\r\n");
    let answer = raw.rest();
    let events = answer.lines().filter_map(|line| line.strip_prefix("data: "));
    let word = |event: SessionEvent| match event.what {
        What::ModuleLoaded(place) => Some(format!("{} loaded", place.module)),
        What::ModuleStarted(place) => Some(format!("{} started", place.module)),
        What::ModuleStopped(place) => Some(format!("{} stopped", place.module)),
        What::ModuleUnloaded(place) => Some(format!("{} unloaded", place.module)),
        What::ModuleCrashed(place) => Some(format!("{} crashed: {}", place.module, place.how?)),
        _ => None,
    };
    events.filter_map(|event| word(serde_json::from_str(event).unwrap())).collect()
}

#[test]
fn events_tell_what_becomes_of_modules() {
    let session = Running::start();
    let mut node = Played::attach(&session, 7);
    let in_state = |state, exit: Option<&str>| {
        modules(vec![ModuleStatus { state, last_exit: exit.map(str::to_owned), ..status("m") }])
    };
    node.say(&in_state(ModuleState::Loaded, None));
    node.say(&in_state(ModuleState::Running, None));
    node.say(&in_state(ModuleState::Running, None));
    node.say(&in_state(ModuleState::Failed, Some("signal 11")));
    node.say(&in_state(ModuleState::Running, Some("signal 11")));
    let mut expected = vec!["m loaded", "m started", "m crashed: signal 11", "m started"];
    until("the events", || happened(&session) == expected);
    // A connection that breaks changes nothing, if the node says the same again.
    drop(node);
    let mut node = Played::attach(&session, 7);
    node.say(&in_state(ModuleState::Running, Some("signal 11")));
    node.say(&in_state(ModuleState::Loaded, Some("signal 15")));
    expected.push("m stopped");
    until("the events", || happened(&session) == expected);
    node.say(&modules(vec![status("other")]));
    node.say(&FromNode::Bye);
    expected.extend(["m unloaded", "other loaded", "other unloaded"]);
    until("the events", || happened(&session) == expected);
}

#[test]
fn module_of_a_killed_node_has_crashed() {
    let session = Running::start();
    let mut child = support::child(&session, "module-node");
    until("it runs", || happened(&session) == ["m loaded", "m started"]);
    child.kill().unwrap();
    child.wait().unwrap();
    let end = ["m crashed: its node has died", "m unloaded"];
    until("its end", || happened(&session).ends_with(&end.map(str::to_owned)));
}

/// A process of the session, started by the test above.
#[test]
#[ignore = "a role of another test"]
fn child() {
    if std::env::var("MOTET_TEST_ROLE").is_err() {
        return;
    }
    let node = Node::attach_to(&support::paths_from_env(), 99);
    let running = ModuleStatus { state: ModuleState::Running, ..status("m") };
    node.attachment.sender().say_modules(false, vec![running]).unwrap();
    std::thread::sleep(support::LIMIT);
}
