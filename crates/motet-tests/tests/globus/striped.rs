//! Striped servers: a front end that speaks with clients, and data nodes that move the data.

use crate::{Channel, Server, Site, same};
use motet_tests::programs::is_root;
use std::fs;

const BYTES: usize = 40 << 20;

fn anonymous() -> Vec<String> {
    let mut words = vec!["-aa".to_owned(), "-no-secure-ipc".to_owned()];
    if is_root() {
        words.extend(["-anonymous-user", "root"].map(str::to_owned));
    }
    words
}

/// A front end with two data nodes.
fn striped(site: &Site, channel: Channel) -> (Server, [Server; 2]) {
    let words = [anonymous(), vec!["-data-node".to_owned()]].concat();
    let nodes = [(); 2].map(|()| site.serve_with(site.command("globus-gridftp-server"), channel, &words));
    let contacts = nodes.each_ref().map(|node| format!("127.0.0.1:{}", node.port)).join(",");
    let words = [anonymous(), vec!["-remote-nodes".to_owned(), contacts]].concat();
    (site.serve_with(site.command("globus-gridftp-server"), channel, &words), nodes)
}

#[test]
fn striped_servers_exchange_a_file_over_shared_memory() {
    let Some(site) = Site::new("stripes") else { return };
    let [(from, _sources), (to, _targets)] = [(); 2].map(|()| striped(&site, Channel::Motet));
    let source = site.file("source", BYTES);
    let target = site.path("out/target");
    // Two data nodes on each side, so two streams at least, each with two ends.
    site.until_shared_memory(4, || {
        site.copy(&["-stripe", "-sbs", "262144", "-p", "2", &from.url(&source), &to.url(&target)]);
        assert!(same(&source, &target));
        fs::remove_file(&target).expect("the copy");
    });
}

#[test]
fn a_striped_server_exchanges_files_with_others() {
    let Some(site) = Site::new("a striped server and others") else { return };
    let (striped, _nodes) = striped(&site, Channel::Motet);
    let source = site.file("source", BYTES / 4);
    let target = site.path("out/target");
    for channel in [Channel::Motet, Channel::Tcp] {
        let single = site.serve(channel);
        for [from, to] in [[&striped, &single], [&single, &striped]] {
            site.copy(&["-stripe", "-p", "2", &from.url(&source), &to.url(&target)]);
            assert!(same(&source, &target), "{channel:?}");
            fs::remove_file(&target).expect("the copy");
        }
    }
    // A client is served through the front end.
    let local = format!("file://{}", target.display());
    site.copy(&[&striped.url(&source), &local]);
    assert!(same(&source, &target));
}
