//! A session of three hosts: gatekeepers with folders of their own, which reach each other over TLS.
#![forbid(unsafe_code)]

mod support;

use motet_session::SESSION_ID_VARIABLE;
use motet_session::api::{Session, View};
use motet_session::client::ClientError;
use motet_session::hosts::Host;
use std::process::Command;
use support::{Node, Running, until};

/// Each of these tests runs over both stores.
macro_rules! over_both_stores {
    ($($name:ident,)*) => {
        mod embedded {
            $(#[test] fn $name() {
                super::$name(|| Some(super::Running::start()));
            })*
        }
        mod etcd {
            $(#[test] fn $name() {
                super::$name(super::Running::start_over_etcd);
            })*
        }
    };
}

over_both_stores! {
    nodes_of_three_hosts_are_one_group,
    every_gatekeeper_answers_for_every_host,
    gatekeeper_that_is_killed_comes_back_without_a_loss,
    host_that_stays_away_leaves_the_session,
    session_ends_on_all_hosts_from_any_of_them,
}

/// The primary gatekeeper, and those of hosts b and c.
fn three_hosts(start: fn() -> Option<Running>) -> Option<(Running, Running, Running)> {
    let a = start()?;
    let (b, c) = (Running::join(&a, "b"), Running::join(&a, "c"));
    Some((a, b, c))
}

/// A node on each host, all in one group.
fn members(hosts: [&Running; 3]) -> [Node; 3] {
    let nodes = std::array::from_fn(|at| {
        let node = Node::attach(hosts[at], at as u32 + 1);
        node.attachment.sender().join("fluid", Some(at as u32)).unwrap();
        node
    });
    wait_for_all(&nodes);
    nodes
}

/// Waits until all nodes have the same view with three members.
fn wait_for_all(nodes: &[Node; 3]) {
    until("all know all", || {
        let last = nodes.each_ref().map(|node| node.last("fluid"));
        last[0].as_ref().is_some_and(|view| view.members.len() == 3) && last[1] == last[0] && last[2] == last[0]
    });
}

fn send(from: &Node, to: &Node, text: &str) {
    from.attachment.sender().send("fluid", &to.id, text.into()).unwrap();
}

/// Sends until the message arrives: the gatekeepers may know the newest view a moment later than the nodes.
fn reaches(from: &Node, to: &Node, text: &str) {
    until(text, || {
        send(from, to, text);
        to.messages().contains(&text.into())
    });
}

fn nodes_of_three_hosts_are_one_group(start: fn() -> Option<Running>) {
    let Some((a, b, c)) = three_hosts(start) else { return };
    let nodes = members([&a, &b, &c]);
    let hosts: Vec<_> = nodes[2].last("fluid").unwrap().members.into_iter().map(|member| member.host).collect();
    assert_eq!(hosts, ["here", "b", "c"]);
    for (from, to) in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 0)] {
        reaches(&nodes[from], &nodes[to], &format!("{from} to {to}"));
    }
    for number in 0..1000 {
        send(&nodes[1], &nodes[2], &number.to_string());
    }
    let numbers = |node: &Node| -> Vec<u32> {
        node.messages().iter().filter_map(|message| message.as_str()?.parse().ok()).collect()
    };
    until("all messages arrive", || numbers(&nodes[2]).len() == 1000);
    assert_eq!(numbers(&nodes[2]), (0..1000).collect::<Vec<_>>());
    for host in [&a, &b, &c] {
        let view: View = host.client().get("/v1/groups/fluid").unwrap();
        assert_eq!(view.members.len(), 3);
    }
}

fn every_gatekeeper_answers_for_every_host(start: fn() -> Option<Running>) {
    let Some((a, b, c)) = three_hosts(start) else { return };
    for from in [&a, &b, &c] {
        until("all hosts are up", || {
            let hosts: Vec<Host> = from.client().get("/v1/hosts").unwrap();
            hosts.iter().filter(|host| host.up).count() == 3
        });
        let hosts: Vec<Host> = from.client().get("/v1/hosts").unwrap();
        assert_eq!(
            hosts.iter().map(|host| (&host.name[..], host.primary)).collect::<Vec<_>>(),
            [("b", false), ("c", false), ("here", true)]
        );
        for host in ["here", "b", "c"] {
            let session: Session = from.client().get(&format!("/v1/hosts/{host}/session")).unwrap();
            assert_eq!(session.host, host);
            for path in ["store", "store/watch?prefix=&revision=0", "attach", "link", "join", "hosts/b/session"] {
                let refused = from.client().get::<serde_json::Value>(&format!("/v1/hosts/{host}/{path}"));
                assert!(matches!(refused, Err(ClientError::Refused(403, _))), "{path}: {refused:?}");
            }
        }
        let refused = from.client().get::<Session>("/v1/hosts/nowhere/session").unwrap_err();
        assert!(matches!(refused, ClientError::Refused(404, _)), "{refused}");
        let missing = from.client().get::<View>("/v1/hosts/b/groups/none").unwrap_err();
        assert!(matches!(missing, ClientError::Refused(404, _)) && missing.to_string().contains("none"), "{missing}");
    }
}

fn gatekeeper_that_is_killed_comes_back_without_a_loss(start: fn() -> Option<Running>) {
    let Some((mut a, mut b, c)) = three_hosts(start) else { return };
    let nodes = members([&a, &b, &c]);
    let since = |node: &Node| node.last("fluid").unwrap().members.into_iter().map(|one| one.since).collect::<Vec<_>>();
    let before = since(&nodes[0]);
    for round in 0..3 {
        let killed = if round % 2 == 0 { &mut a } else { &mut b };
        let view = nodes[2].last("fluid").unwrap().number;
        killed.kill();
        killed.start_again();
        until("there is a new view", || nodes.iter().all(|node| node.last("fluid").unwrap().number > view));
        wait_for_all(&nodes);
        reaches(&nodes[1], &nodes[2], &format!("b to c, round {round}"));
        reaches(&nodes[0], &nodes[1], &format!("a to b, round {round}"));
        assert_eq!(since(&nodes[0]), before, "no member has left");
    }
}

fn host_that_stays_away_leaves_the_session(start: fn() -> Option<Running>) {
    let Some((a, mut b, c)) = three_hosts(start) else { return };
    let nodes = members([&a, &b, &c]);
    b.kill();
    until("the host is known to be down", || {
        let hosts: Vec<Host> = c.client().get("/v1/hosts").unwrap();
        hosts.iter().any(|host| host.name == "b" && !host.up)
    });
    until("its node leaves", || nodes[2].last("fluid").unwrap().members.len() == 2);
    until("and so does the host", || a.client().get::<Vec<Host>>("/v1/hosts").unwrap().len() == 2);
    b.start_again();
    wait_for_all(&nodes);
}

fn session_ends_on_all_hosts_from_any_of_them(start: fn() -> Option<Running>) {
    for from in [0, 1] {
        let Some((a, b, c)) = three_hosts(start) else { return };
        let hosts = [&a, &b, &c];
        let id = a.client().get::<Session>("/v1/session").unwrap().id;
        let sleep = || Command::new("sleep").arg("1000").env(SESSION_ID_VARIABLE, &id).spawn().unwrap();
        let mut children = hosts.map(|_| sleep());
        hosts[from].client().delete("/v1/session").unwrap();
        for child in &mut children {
            assert!(!child.wait().unwrap().success(), "it was ended by a signal");
        }
        until("all folders are gone", || hosts.iter().all(|host| !host.paths.dir().exists()));
    }
}
