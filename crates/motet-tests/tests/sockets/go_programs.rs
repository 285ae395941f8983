//! Programs with a Go runtime, whose system calls pass the adapter by.

use motet_programs::find;
use motet_tests::programs::skip;
use motet_tests::temporary::Temporary;
use motet_tests::{Program, script};
use std::process::Command;

/// Libc and Go move bytes of one connection in turn: it stays on TCP, and no exchange fails.
#[test]
fn connection_that_libc_and_go_use_in_turn_stays_whole() {
    let (Some(go), Some(_)) = (find("go"), find("python3")) else {
        return skip("libc and Go in turn", "go or python3 is not installed (tests/packages.txt)").unwrap_or_default();
    };
    let folder = Temporary::new("mixed-calls");
    let program = folder.join("mixed_calls");
    let built = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &script("mixed_calls.go")])
        .envs([("GOCACHE", folder.join("cache").as_os_str()), ("CGO_ENABLED", "1".as_ref())])
        .current_dir(folder.join(""))
        .output()
        .expect("the Go compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Program::built(&program, &[]).with_open_gates().same_both_ways();
}
