//! `examples/session`: two MPI codes in one session, coupled by a circuit and by CORBA, and a monitor that joins late.

use motet_programs::find;
use motet_tests::engine;
use motet_tests::mpi::{output, root, skip};
use motet_tests::temporary::Temporary;
use std::process::Command;

/// Runs the example; `None`, with a message, if something is missing.
fn example(test: &str, arguments: &[&str]) -> Option<String> {
    let motet = engine()?.parent()?.join("motet");
    if !motet.exists() {
        skip(test, "motet is not built (make build)");
        return None;
    }
    if find("omniidl").is_none() || find("mpicxx.openmpi").is_none() {
        skip(test, "omniidl or mpicxx.openmpi is not installed (examples/session/packages.txt)");
        return None;
    }
    let build = Temporary::new("session-example");
    let mut command = Command::new("timeout");
    command.arg("120").arg(root().join("examples/session/run")).args(arguments);
    Some(output(command.env("MOTET", motet).env("BUILD", build.path()).env_remove("MOTET_SESSION")))
}

/// The line that begins so, once.
#[track_caller]
fn line<'a>(said: &'a str, begin: &str) -> &'a str {
    let found: Vec<_> = said.lines().filter(|line| line.starts_with(begin)).collect();
    assert_eq!(found.len(), 1, "{begin}: {said}");
    found[0]
}

#[test]
fn coupled_codes_and_a_late_monitor_share_a_session() {
    let _shared = crate::shared_cpus();
    let Some(said) = example("coupled_codes_and_a_late_monitor_share_a_session", &["2", "1", "40", "10"]) else {
        return;
    };
    // Both accounts are of the same heat, and the codes did at least the steps that were asked for.
    let given = line(&said, "fluid: 2 ranks, ");
    assert!(given.ends_with("the solid's account agrees"), "{given}");
    let received = line(&said, "solid: 1 ranks, ");
    let part = |text: &str, begin: &str, end: &str| {
        let from = text.find(begin).unwrap_or_else(|| panic!("{text}")) + begin.len();
        text[from..].split(end).next().map(str::to_owned)
    };
    assert_eq!(part(given, "gave ", " J"), part(received, "received ", " J"));
    let steps: u32 = part(given, "ranks, ", " steps").and_then(|steps| steps.parse().ok()).expect("a number");
    assert!(steps >= 40, "{given}");
    // The fluid has seen the monitor come and go; the monitor has got its values on a circuit of the new view.
    line(&said, "coupled: 3 nodes in view 3");
    line(&said, "fluid: view 1 of watch has 1 members");
    line(&said, "fluid: view 2 of watch has 2 members");
    line(&said, "monitor: rank 1 of 2 in view 2");
    line(&said, "monitor: 10 reports, the last one of step ");
    line(&said, "session default has ended");
}
