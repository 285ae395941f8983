//! The Java virtual machine: a selector over epoll, java.net with time limits, RMI with the stock registry.

use motet_tests::programs::{Counters, Sandbox, both_ways, free_port, servers, source};

const TERM: i32 = 15;
const NEEDS: [&str; 2] = ["java", "javac"];

/// Settings for short runs on small machines: the compiler threads take most of the time.
const JAVA: [&str; 4] = ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx256m"];

fn compile(sandbox: &Sandbox, name: &str) {
    let file = source(sandbox, &format!("java/{name}.java"));
    sandbox.run(&["javac", "-J-XX:TieredStopAtLevel=1", "-d", &sandbox.path(""), &file]);
}

fn java<'a>(words: &[&'a str]) -> Vec<&'a str> {
    JAVA.iter().chain(&["-Djava.rmi.server.hostname=127.0.0.1"]).chain(words).copied().collect()
}

fn echoes(test: &str, how: &str, clients: &str, rounds: &str) -> Option<Counters> {
    both_ways(test, &NEEDS, |sandbox| {
        compile(sandbox, "Echo");
        let server = sandbox.start(&java(&["Echo", "serve", how, clients])).says("\n");
        let printed = server.printed();
        let port = printed.trim().strip_prefix("port ").expect("the port").to_owned();
        let hash = sandbox.run(&java(&["Echo", "call", how, &port, clients, rounds]));
        server.finish();
        hash
    })
}

#[test]
fn java_nio_echoes() {
    if let Some(counters) = echoes("java_nio_echoes", "nio", "6", "300") {
        counters.went_over_shared_memory(12);
    }
}

#[test]
fn java_net_echoes() {
    if let Some(counters) = echoes("java_net_echoes", "net", "4", "400") {
        counters.went_over_shared_memory(8);
    }
}

#[test]
fn java_rmi_calls_work_through_the_stock_registry() {
    let needs = ["java", "javac", "rmiregistry"];
    let counters = both_ways("java_rmi_calls_work_through_the_stock_registry", &needs, |sandbox| {
        compile(sandbox, "Remote");
        let port = free_port();
        let number = port.to_string();
        let registry =
            sandbox.follow(&servers::rmiregistry(&number), &[("CLASSPATH", &sandbox.path(""))]).listens(port);
        let server = sandbox.start(&java(&["Remote", "serve", &number])).says("bound");
        let output = sandbox.run(&java(&["Remote", "call", &number, "500"]));
        server.finish();
        registry.stop(TERM);
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
