//! The examples in C and C++ compile against `motet.h` and do what they say.

use motet_tests::native::Native;

/// Compiles an example and runs it; what it printed. `None`, loudly, where libmotet is not built.
fn run(compiler: &str, source: &str, arguments: &[&str]) -> Option<String> {
    Some(Native::compile(compiler, source)?.run(arguments))
}

#[test]
fn the_c_example_exchanges_messages_through_shared_memory() {
    if let Some(printed) = run("cc", "examples/c/pingpong.c", &["2000", "64"]) {
        assert!(printed.contains("path: shm"), "{printed}");
    }
}

#[test]
fn the_cxx_example_echoes_and_keeps_its_deadline() {
    if let Some(printed) = run("c++", "examples/cxx/echo.cc", &[]) {
        assert!(printed.contains("1000 echoes; path shm"), "{printed}");
    }
}

#[test]
fn messages_are_answered_in_c() {
    for bytes in ["0", "8", "100000"] {
        if let Some(printed) = run("cc", "examples/c/messages.c", &["300", bytes]) {
            assert!(printed.contains("driver: shm"), "{printed}");
        }
    }
}

#[test]
fn messages_are_answered_in_cxx() {
    if let Some(printed) = run("c++", "examples/cxx/messages.cc", &["2000"]) {
        assert_eq!(printed, "2000 answers; driver shm\n");
    }
}

#[test]
fn processes_that_exchange_borders_find_what_one_finds() {
    let Some(program) = Native::compile("cc", "examples/c/jacobi.c") else { return };
    for processes in ["1", "2", "5"] {
        let printed = program.run(&[processes, "120", "100"]);
        assert!(printed.contains("the serial result, to the last bit"), "{printed}");
    }
}

#[test]
fn the_work_of_killed_workers_is_done_by_others() {
    let Some(program) = Native::compile("cc", "examples/c/workqueue.c") else { return };
    for killed in ["0", "3"] {
        let printed = program.run(&["4", "60", killed]);
        assert!(printed.contains("as it should be"), "{printed}");
        assert_eq!(printed.matches("then it was killed").count().to_string(), killed, "{printed}");
    }
}
