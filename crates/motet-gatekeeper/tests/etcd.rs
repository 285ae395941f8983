//! Sessions whose directory is in an etcd: it may be away, several hosts may use it, and any of them may die.
#![forbid(unsafe_code)]

mod support;

use motet_gatekeeper::server::{Gatekeeper, Options};
use motet_gatekeeper::store::{Etcd, Expected, Store};
use motet_session::api::{Session, ToNode, View};
use motet_session::client::ClientError;
use motet_session::etcd_address::EtcdAddress;
use std::os::unix::fs::PermissionsExt;
use std::time::Instant;
use support::etcd::EtcdServer;
use support::{LIMIT, Node, Running, node_id, until};

/// Two hosts of one session, and their etcd.
fn two_hosts() -> Option<(Running, Running, EtcdServer)> {
    let etcd = EtcdServer::start()?;
    let a = Running::start_with("a", Some(etcd.address("test")));
    let b = Running::join(&a, "b");
    Some((a, b, etcd))
}

fn nodes_of(view: &View) -> Vec<&str> {
    view.members.iter().map(|member| &member.node[..]).collect()
}

fn count(node: &Node, members: usize) -> bool {
    node.last("fluid").is_some_and(|view| view.members.len() == members)
}

#[test]
fn directory_is_correct_again_when_etcd_is_back() {
    let Some(mut session) = Running::start_over_etcd() else { return };
    let nodes: Vec<_> = (0..3).map(|number| Node::attach(&session, number)).collect();
    for (rank, node) in nodes.iter().enumerate() {
        node.attachment.sender().join("fluid", Some(rank as u32)).unwrap();
    }
    let mut child = support::child(&session, "member");
    until("all have joined", || nodes.iter().all(|node| count(node, 4)));
    session.etcd.as_mut().unwrap().kill();
    child.kill().unwrap();
    child.wait().unwrap();
    match session.client().get::<Vec<View>>("/v1/groups").unwrap_err() {
        ClientError::Refused(503, why) => assert!(why.contains("etcd://127.") && why.contains("refused"), "{why}"),
        error => panic!("{error:?}"),
    }
    session.client().get::<Session>("/v1/session").unwrap();
    // Members go on without it; what needs it is refused, and the node is not kept waiting.
    nodes[0].attachment.sender().join("late", None).unwrap();
    let refused = |line: &ToNode| matches!(line, ToNode::Refused { group: Some(group), .. } if group == "late");
    until("the refusal", || nodes[0].lines().iter().any(refused));
    nodes[0].attachment.sender().forget("late");
    nodes[0].attachment.sender().send("fluid", &nodes[1].id, "hello".into()).unwrap();
    nodes[1].attachment.sender().send("fluid", &nodes[0].id, "hello".into()).unwrap();
    until("messages between members", || nodes[..2].iter().all(|node| node.messages().len() == 1));
    session.etcd.as_mut().unwrap().start_again();
    let began = Instant::now();
    until("the dead one has left", || nodes.iter().all(|node| count(node, 3)));
    println!("it left {:?} after etcd was back", began.elapsed());
    assert_eq!(nodes_of(&nodes[0].last("fluid").unwrap()), [0, 1, 2].map(node_id));
    until("the group can be joined", || {
        nodes[0].attachment.sender().join("late", None).unwrap();
        nodes[0].last("late").is_some_and(|view| view.members.len() == 1)
    });
    let connections = |node: &Node| node.lines().iter().filter(|line| matches!(line, ToNode::Welcome { .. })).count();
    assert!(nodes.iter().all(|node| connections(node) == 0), "no node has had to attach again");
}

#[test]
fn hosts_share_the_groups_and_a_dead_host_leaves_them() {
    let Some((a, mut b, _etcd)) = two_hosts() else { return };
    let id = |session: &Running| session.client().get::<Session>("/v1/session").unwrap().id;
    assert_eq!(id(&a), id(&b));
    let (first, second) = (Node::attach(&a, 1), Node::attach(&b, 2));
    second.attachment.sender().join("fluid", Some(1)).unwrap();
    first.attachment.sender().join("fluid", Some(0)).unwrap();
    until("both see both", || count(&first, 2) && count(&second, 2));
    let view = second.last("fluid").unwrap();
    assert_eq!(Some(&view), first.last("fluid").as_ref());
    assert_eq!(view.members.iter().map(|member| &member.host[..]).collect::<Vec<_>>(), ["a", "b"]);
    b.kill();
    let began = Instant::now();
    until("the member of the dead host has left", || count(&first, 1));
    println!("it left after {:?}", began.elapsed());
    b.start_again();
    until("its node is back", || count(&first, 2) && count(&second, 2));
    assert!(first.last("fluid").unwrap().members[1].since > view.number, "as a new member");
}

#[test]
fn host_that_was_taken_for_dead_comes_back() {
    let Some((a, b, etcd)) = two_hosts() else { return };
    let (first, second) = (Node::attach(&a, 1), Node::attach(&b, 2));
    first.attachment.sender().join("fluid", Some(0)).unwrap();
    second.attachment.sender().join("fluid", Some(1)).unwrap();
    until("both see both", || count(&first, 2) && count(&second, 2));
    let before = second.last("fluid").unwrap();
    let leases = etcd.ctl(&["lease", "list"]).unwrap();
    for lease in leases.lines().skip(1) {
        etcd.ctl(&["lease", "revoke", lease]).unwrap();
    }
    until("both are new members", || {
        let new =
            |node: &Node| node.last("fluid").is_some_and(|view| view.members.iter().all(|m| m.since > before.number));
        count(&first, 2) && count(&second, 2) && new(&first) && new(&second)
    });
}

#[test]
fn second_primary_gatekeeper_is_refused() {
    let Some((a, b, etcd)) = two_hosts() else { return };
    let dir = tempfile::tempdir().unwrap();
    let paths = motet_session::paths::SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let options = Options {
        paths,
        host: Some("c".to_owned()),
        listen: None,
        directory: Some(etcd.address("test")),
        containers: None,
    };
    let why = runtime.block_on(Gatekeeper::start(options)).unwrap_err();
    assert!(why.to_string().contains("motet up --hosts"), "{why}");
    for session in [a, b] {
        session.client().get::<Session>("/v1/session").unwrap();
    }
}

#[test]
fn end_of_the_session_leaves_nothing_in_etcd() {
    let Some(session) = Running::start_over_etcd() else { return };
    let node = Node::attach(&session, 1);
    node.attachment.sender().join("fluid", None).unwrap();
    until("it has joined", || count(&node, 1));
    let all = || session.etcd.as_ref().unwrap().ctl(&["get", "", "--prefix"]).unwrap();
    let key = std::fs::read_to_string(session.paths.key()).unwrap();
    assert!(all().contains("/test/") && !all().contains(key.trim()), "the session's key is not in etcd");
    session.client().delete("/v1/session").unwrap();
    drop(node);
    assert_eq!(all(), "");
}

#[test]
fn etcd_that_is_not_there_is_said() {
    let Some(mut etcd) = EtcdServer::start() else { return };
    etcd.kill();
    let dir = tempfile::tempdir().unwrap();
    let paths = motet_session::paths::SessionPaths::within(&dir.path().join("sessions"), "test").unwrap();
    let options = Options {
        paths: paths.clone(),
        host: None,
        listen: None,
        directory: Some(etcd.address("test")),
        containers: None,
    };
    let began = Instant::now();
    let why = tokio::runtime::Runtime::new().unwrap().block_on(Gatekeeper::start(options)).unwrap_err();
    assert!(why.to_string().contains("etcd://127.") && began.elapsed() < LIMIT, "{why}");
    assert!(!paths.options().exists(), "no later command starts it again");
}

#[tokio::test]
async fn etcd_may_want_tls_and_a_login() {
    let Some(mut server) = EtcdServer::start_with(true) else { return };
    for command in [&["user", "add", "root:p:w"][..], &["user", "grant-role", "root", "root"], &["auth", "enable"]] {
        server.ctl(command).unwrap();
    }
    server.login = Some("root:p:w".to_owned());
    let address = server.address("x");
    let why = Etcd::open(&address, "one").await.unwrap_err().to_string();
    assert!(why.contains("etcds://127.") && why.contains("user name is empty"), "{why}");
    let other = EtcdServer::start_with(true).unwrap();
    let unknown = EtcdAddress { authorities: other.address("x").authorities, ..address.clone() };
    let why = Etcd::open(&unknown, "one").await.unwrap_err().to_string();
    assert!(why.contains("certificate"), "{why}");
    let login = server.file("login");
    for (text, works) in [("root:wrong", false), ("root:p:w", true)] {
        std::fs::write(&login, text).unwrap();
        std::fs::set_permissions(&login, std::fs::Permissions::from_mode(0o600)).unwrap();
        let address = EtcdAddress { login: Some(login.clone()), ..address.clone() };
        let opened = Etcd::open(&address, "one").await;
        assert_eq!(opened.is_ok(), works, "{opened:?}");
        if let Ok(etcd) = opened {
            let store = Store::Etcd(etcd);
            store.write("k", Some("v".to_owned()), Expected::Absent).await.unwrap();
            assert_eq!(store.watch("", 1).next().await.unwrap()[0].value.as_deref(), Some("v"));
        }
    }
}

/// The role of the processes that the tests start: this test binary itself.
#[test]
#[ignore = "a role of the other tests"]
fn child() {
    let node = Node::attach_to(&support::paths_from_env(), 99);
    node.attachment.sender().join("fluid", None).unwrap();
    std::thread::sleep(LIMIT);
}
