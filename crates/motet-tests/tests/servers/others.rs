//! ZeroMQ, whose sockets are used by a thread of its own; a program under valgrind; and programs that Motet cannot affect.

use motet_tests::Built;
use motet_tests::programs::{Counters, Sandbox, both_ways, find, placed};
use std::path::Path;
use std::process::Command;

fn compiles_with(library: &str, header: &str) -> bool {
    let program = format!(
        "echo '#include <{header}>' | cc -fsyntax-only -xc - && cc -x c /dev/null -shared -o /dev/null {library}"
    );
    Command::new("sh").args(["-c", &program]).output().is_ok_and(|o| o.status.success())
}

/// `serve` prints "WORD PORT ..." and exits with its clients; `call` gets the printed ports.
fn serve_and_call(sandbox: &Sandbox, program: &str, serve: &[&str], call: &[&str]) -> String {
    let server = sandbox.start(&[&[program, "serve"], serve].concat()).says("\n");
    let printed = server.printed();
    let ports: Vec<&str> = printed.split_whitespace().filter(|w| w.parse::<u16>().is_ok()).collect();
    let words = [&[program, "call"], ports.as_slice(), call].concat();
    let output = sandbox.run(&words);
    server.finish();
    output
}

/// No process was under Motet.
#[track_caller]
fn untouched(counters: &Counters) {
    assert_eq!((counters.upgraded, counters.sent_fast), (0, 0), "{}", counters.lines);
}

#[test]
fn zeromq_requests_and_pushes_arrive() {
    let test = "zeromq_requests_and_pushes_arrive";
    if !compiles_with("-lzmq", "zmq.h") {
        motet_tests::programs::skip::<()>(test, "libzmq3-dev is not installed (tests/programs/packages.txt)");
        return;
    }
    let program = Built::program("zeromq", &motet_tests::folder("zeromq"), &["-lzmq"]);
    let counters = both_ways(test, &[], |sandbox| {
        let program = placed(sandbox, &program);
        serve_and_call(sandbox, &program, &[], &["1500"])
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn valgrind_reports_no_errors_under_motet() {
    let program = Built::program("ping_pong", &motet_tests::folder("valgrind"), &["-g"]);
    let counters = both_ways("valgrind_reports_no_errors_under_motet", &["valgrind"], |sandbox| {
        let program = placed(sandbox, &program);
        let mut output = String::new();
        // Short messages, and long ones, which use the large ring. An end with valgrind errors fails.
        for [count, size] in [["1000", "64"], ["100", "300000"]] {
            let words = ["valgrind", "--error-exitcode=9", &program, "4", count, size];
            let printed = sandbox.run(&words);
            let echoes = printed.lines().filter(|line| line.contains("echoes"));
            output.extend(echoes.map(|line| format!("{line}\n")));
        }
        assert_eq!(output.lines().count(), 2, "{output}");
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(4);
    }
}

#[test]
fn static_program_is_unaffected() {
    let program = Built::program("ping_pong", &motet_tests::folder("static"), &["-static"]);
    let counters = both_ways("static_program_is_unaffected", &[], |sandbox| {
        let program = placed(sandbox, &program);
        let server = sandbox.start(&[&program, "serve", "4"]).says("\n");
        let port = server.printed().trim().to_owned();
        let output = sandbox.run(&[&program, "call", "4", &port, "500", "3000"]);
        server.finish();
        output
    });
    if let Some(counters) = counters {
        untouched(&counters);
    }
}

/// Builds the Go program once; the compiler's cache stays in the build folder. The compiler does not run under Motet.
fn go_program() -> Option<std::path::PathBuf> {
    let (go, folder) = (find("go")?, motet_tests::folder("go"));
    let program = folder.join("echo");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/programs/echo.go");
    let built = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &file])
        .env("GOCACHE", folder.join("cache"))
        .env("CGO_ENABLED", "0")
        .current_dir(&folder)
        .output()
        .expect("the Go compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

#[test]
fn go_program_is_unaffected() {
    let test = "go_program_is_unaffected";
    let Some(program) = go_program() else {
        motet_tests::programs::skip::<()>(test, "go is not installed (tests/packages.txt)");
        return;
    };
    let counters = both_ways(test, &[], |sandbox| {
        let program = placed(sandbox, &program);
        serve_and_call(sandbox, &program, &["8"], &["8", "200"])
    });
    if let Some(counters) = counters {
        untouched(&counters);
    }
}
