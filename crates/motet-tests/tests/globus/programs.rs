//! `globus-xioperf` over the driver, and the driver's string options.

use crate::{LIMIT, Site, succeeded};
use motet_tests::programs::{find, free_port, skip};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Runs a server and a client of xioperf with these options behind the driver's name. Returns what both print.
#[track_caller]
fn xioperf(site: &Site, options: [&str; 2]) -> String {
    let port = free_port();
    let [server_options, client_options] = options;
    let mut server = site.command("timeout");
    server.args([
        "-k",
        "5",
        "60",
        "globus-xioperf",
        "-s",
        "-l",
        "256K",
        "-D",
        &format!("motet:port={port};{server_options}"),
    ]);
    let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("globus-xioperf");
    let client_driver = if client_options.is_empty() { "motet".to_owned() } else { format!("motet:{client_options}") };
    let began = Instant::now();
    let client = loop {
        let mut client: Command = site.command("timeout");
        client.args([
            "-k",
            "5",
            "50",
            "globus-xioperf",
            "-c",
            &format!("127.0.0.1:{port}"),
            "-S",
            "-l",
            "256K",
            "-n",
            "64M",
            "-D",
            &client_driver,
        ]);
        let output = client.output().expect("globus-xioperf");
        // The server does not listen yet.
        if output.status.success() || began.elapsed() > LIMIT {
            break succeeded(&output);
        }
        thread::sleep(Duration::from_millis(100));
    };
    client + &succeeded(&server.wait_with_output().expect("the server's output"))
}

#[test]
fn xioperf_measures_the_driver() {
    let Some(site) = Site::new("xioperf") else { return };
    if find("globus-xioperf").is_none() {
        return skip("xioperf", "globus-xioperf is not installed (tests/programs/packages.txt)").unwrap_or(());
    }
    site.until_shared_memory(2, || {
        let printed = xioperf(&site, ["iface=127.0.0.1;reuse=true", "nodelay=true;sndbuf=256K"]);
        assert!(printed.contains("Bytes sent:") && printed.contains("Bytes recv:"), "{printed}");
        assert!(!printed.contains("string opts error"), "{printed}");
    });
}

#[test]
fn a_string_option_keeps_a_handle_on_tcp() {
    let Some(site) = Site::new("tcponly") else { return };
    if find("globus-xioperf").is_none() {
        return skip("tcponly", "globus-xioperf is not installed (tests/programs/packages.txt)").unwrap_or(());
    }
    let printed = xioperf(&site, ["noipv6=true;keepalive=true", "tcponly=true"]);
    assert!(printed.contains("Bytes recv:"), "{printed}");
    assert_eq!(site.fast(), (0, 0), "one end has no stream");
}
