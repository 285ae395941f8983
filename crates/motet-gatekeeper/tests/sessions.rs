//! A gatekeeper and the nodes of a session, which may be killed.
#![forbid(unsafe_code)]

mod support;

use motet_session::SESSION_ID_VARIABLE;
use motet_session::api::{Program, Session, ToNode, View};
use motet_session::process::Process;
use std::process::{Command, Stdio};
use std::time::Instant;
use support::{LIMIT, Node, Running, node_id, until};

/// Each of these tests runs over both stores.
macro_rules! over_both_stores {
    ($($name:ident,)*) => {
        mod embedded {
            $(#[test] fn $name() {
                super::$name(super::Running::start());
            })*
        }
        mod etcd {
            $(#[test] fn $name() {
                if let Some(session) = super::Running::start_over_etcd() {
                    super::$name(session);
                }
            })*
        }
    };
}

over_both_stores! {
    members_see_the_same_views_in_the_same_order,
    messages_reach_members_of_the_group_only,
    killed_process_leaves_its_groups,
    killed_process_leaves_although_a_child_of_it_lives,
    nodes_find_a_gatekeeper_that_was_killed_and_restarted,
    end_of_the_session_ends_its_programs_and_removes_its_folder,
    programs_without_the_identity_end_with_the_session,
    program_that_has_ended_is_forgotten,
    second_gatekeeper_of_a_session_is_refused,
    document_describes_the_paths,
}

fn members_see_the_same_views_in_the_same_order(session: Running) {
    let watcher = Node::attach(&session, 0);
    watcher.attachment.sender().join("fluid", Some(0)).unwrap();
    until("the first view", || watcher.last("fluid").is_some());
    let others: Vec<_> = (1..9).map(|number| Node::attach(&session, number)).collect();
    std::thread::scope(|scope| {
        for node in &others {
            scope.spawn(|| node.attachment.sender().join("fluid", None).unwrap());
        }
    });
    until("all have joined", || watcher.last("fluid").is_some_and(|view| view.members.len() == 9));
    for node in others.iter().take(4) {
        node.attachment.sender().leave("fluid").unwrap();
    }
    until("four have left", || watcher.last("fluid").is_some_and(|view| view.members.len() == 5));
    let all = watcher.views("fluid");
    assert!(all.windows(2).all(|pair| pair[1].number == pair[0].number + 1), "no view is left out");
    assert_eq!(all.last().unwrap().members[0].node, node_id(0));
    for node in &others[4..] {
        until("the last view", || node.last("fluid").as_ref() == all.last());
        for view in node.views("fluid") {
            assert_eq!(Some(&view), all.iter().find(|other| other.number == view.number), "members see the same views");
        }
    }
    for node in &others[..4] {
        until("the node learns that it has left", || {
            node.lines().iter().any(|line| matches!(line, ToNode::Left { .. }))
        });
        let last = node.lines().pop().unwrap();
        assert_eq!(last, ToNode::Left { group: "fluid".to_owned() }, "no view follows");
    }
    let mut last = all.last().unwrap().clone();
    last.members.iter_mut().for_each(|member| member.address.clear());
    assert_eq!(session.client().get::<View>("/v1/groups/fluid").unwrap(), last, "without the secrets");
}

fn messages_reach_members_of_the_group_only(session: Running) {
    let nodes: Vec<_> = (0..3).map(|number| Node::attach(&session, number)).collect();
    for node in &nodes[..2] {
        node.attachment.sender().join("a", None).unwrap();
    }
    nodes[2].attachment.sender().join("b", None).unwrap();
    until("views", || nodes[0].last("a").is_some_and(|view| view.members.len() == 2) && nodes[2].last("b").is_some());
    for number in 0..1000 {
        nodes[0].attachment.sender().send("a", &nodes[1].id, number.into()).unwrap();
    }
    nodes[0].attachment.sender().send("a", &nodes[2].id, "stray".into()).unwrap();
    nodes[2].attachment.sender().send("a", &nodes[1].id, "stray".into()).unwrap();
    until("the refusal", || nodes[2].lines().iter().any(|line| matches!(line, ToNode::Refused { .. })));
    until("all messages", || nodes[1].messages().len() == 1000);
    assert!(nodes[1].messages().iter().enumerate().all(|(at, body)| *body == serde_json::json!(at)), "in order");
    assert!(nodes[2].messages().is_empty());
}

fn killed_process_leaves_its_groups(session: Running) {
    let watcher = Node::attach(&session, 0);
    watcher.attachment.sender().join("fluid", None).unwrap();
    let mut child = support::child(&session, "member");
    until("the child has joined", || watcher.last("fluid").is_some_and(|view| view.members.len() == 2));
    let killed = Instant::now();
    child.kill().unwrap();
    until("the child has left", || watcher.last("fluid").is_some_and(|view| view.members.len() == 1));
    println!("it left after {:?}", killed.elapsed());
    child.wait().unwrap();
}

fn killed_process_leaves_although_a_child_of_it_lives(session: Running) {
    let watcher = Node::attach(&session, 0);
    watcher.attachment.sender().join("fluid", None).unwrap();
    // Its child is started without close-on-exec descriptors, and holds the connection open.
    let mut child = support::child(&session, "member-with-child");
    until("the child has joined", || watcher.last("fluid").is_some_and(|view| view.members.len() == 2));
    child.kill().unwrap();
    until("the child has left", || watcher.last("fluid").is_some_and(|view| view.members.len() == 1));
    child.wait().unwrap();
    session.client().delete("/v1/session").unwrap();
}

fn nodes_find_a_gatekeeper_that_was_killed_and_restarted(mut session: Running) {
    let nodes: Vec<_> = (0..3).map(|number| Node::attach(&session, number)).collect();
    for (rank, node) in nodes.iter().enumerate() {
        node.attachment.sender().join("fluid", Some(rank as u32)).unwrap();
    }
    let mut child = support::child(&session, "member");
    until("all have joined", || nodes[0].last("fluid").is_some_and(|view| view.members.len() == 4));
    let before = nodes[0].last("fluid").unwrap();
    session.kill();
    child.kill().unwrap();
    child.wait().unwrap();
    session.start_again();
    let three = |view: View| view.members.len() == 3 && view.number >= before.number + 3;
    until("the living ones are back, the dead one is gone", || {
        nodes.iter().all(|node| node.last("fluid").is_some_and(three))
    });
    let last = session.client().get::<View>("/v1/groups/fluid").unwrap();
    until("all have the last view", || nodes.iter().all(|node| node.last("fluid").unwrap().number == last.number));
    assert_eq!(last.members.iter().map(|member| member.node.clone()).collect::<Vec<_>>(), [0, 1, 2].map(node_id));
}

fn end_of_the_session_ends_its_programs_and_removes_its_folder(session: Running) {
    let about = session.client().get::<Session>("/v1/session").unwrap();
    let mut shell = Command::new("sh")
        .args(["-c", "trap '' TERM; sleep 1000 & echo $!; wait"])
        .env(SESSION_ID_VARIABLE, &about.id)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(shell.stdout.take().unwrap()), &mut line).unwrap();
    let grandchild = Process::of(line.trim().parse().unwrap()).unwrap();
    let process = Process::of(shell.id()).unwrap();
    let program = Program { host: String::new(), process, command: vec!["sh".to_owned()], group: None, rank: None };
    let program = session.client().post::<Program>("/v1/programs", &program).unwrap();
    assert_eq!(program.host, "here");
    assert_eq!(session.client().get::<Vec<Program>>("/v1/programs").unwrap(), [program]);
    session.client().delete("/v1/session").unwrap();
    assert!(!shell.wait().unwrap().success());
    assert!(!grandchild.is_running());
    until("the folder is gone", || !session.paths.dir().exists());
}

/// A program that overwrites its environment, as one that sets its title does, with a child; its first thread ends.
const WITHOUT_IDENTITY: &str = r#"
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
fields = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
child = os.fork()
if child == 0:
    time.sleep(1000)
print(os.getpid(), child, flush=True)
threading.Thread(target=lambda: time.sleep(1000)).start()
libc.pthread_exit(None)
"#;

fn programs_without_the_identity_end_with_the_session(session: Running) {
    let about = session.client().get::<Session>("/v1/session").unwrap();
    let mut python = Command::new("python3")
        .args(["-c", WITHOUT_IDENTITY])
        .env(SESSION_ID_VARIABLE, &about.id)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(python.stdout.take().unwrap()), &mut line).unwrap();
    let processes: Vec<_> = line.split_whitespace().map(|pid| Process::of(pid.parse().unwrap()).unwrap()).collect();
    let environ = std::fs::read(format!("/proc/{}/environ", processes[1].pid)).unwrap();
    assert!(environ.iter().all(|byte| *byte == 0), "it is overwritten");
    until("the first thread has ended", || {
        std::fs::read_to_string(format!("/proc/{}/stat", python.id())).unwrap().contains(") Z ")
    });
    assert!(processes.iter().all(Process::is_running), "a process runs as long as one of its threads does");
    let program = Program { host: String::new(), process: processes[0], command: vec![], group: None, rank: None };
    session.client().post::<Program>("/v1/programs", &program).unwrap();
    session.client().delete("/v1/session").unwrap();
    until("both end", || !processes.iter().any(Process::is_running));
    python.wait().unwrap();
}

fn program_that_has_ended_is_forgotten(session: Running) {
    let mut sleep = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = Process::of(sleep.id()).unwrap();
    let program = Program { host: String::new(), process, command: vec![], group: Some("g".to_owned()), rank: Some(0) };
    session.client().post::<Program>("/v1/programs", &program).unwrap();
    sleep.kill().unwrap();
    until("it is forgotten", || session.client().get::<Vec<Program>>("/v1/programs").unwrap().is_empty());
    sleep.wait().unwrap();
    let error = session.client().post::<Program>("/v1/programs", &program).unwrap_err();
    assert!(error.to_string().contains("does not run"), "{error}");
}

fn second_gatekeeper_of_a_session_is_refused(session: Running) {
    let why = session.second().unwrap_err();
    assert!(why.to_string().contains("runs on this host already"), "{why}");
    assert!(session.client().get::<Session>("/v1/session").is_ok(), "the first one is undisturbed");
}

fn document_describes_the_paths(session: Running) {
    let document = session.client().get::<serde_json::Value>("/v1/openapi.json").unwrap();
    for path in ["/v1/session", "/v1/groups", "/v1/groups/{group}", "/v1/programs", "/v1/attach", "/metrics"] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    let error = session.client().get::<()>("/v1/nothing").unwrap_err();
    assert!(error.to_string().contains("openapi"), "{error}");
}

/// The roles of the processes that the tests start: this test binary itself.
#[test]
#[ignore = "a role of the other tests"]
fn child() {
    let paths = support::paths_from_env();
    if std::env::var("MOTET_TEST_ROLE").unwrap() == "member-with-child" {
        let _raw = support::join_with_child_that_keeps_the_connection(&paths);
        std::thread::sleep(LIMIT);
    }
    let node = Node::attach_to(&paths, 99);
    node.attachment.sender().join("fluid", None).unwrap();
    std::thread::sleep(LIMIT);
}
