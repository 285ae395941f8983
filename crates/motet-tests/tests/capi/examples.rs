//! The examples in C and C++ compile against `motet.h` and do what their comments say.

use motet_tests::native::Native;

/// Compiles an example and runs it. Returns its output; `None`, with a message, if libmotet is not built.
fn run(compiler: &str, source: &str, arguments: &[&str]) -> Option<String> {
    Some(Native::compile(compiler, source)?.run(arguments))
}

#[test]
fn c_example_exchanges_messages_through_shared_memory() {
    if let Some(printed) = run("cc", "examples/c/pingpong.c", &["2000", "64"]) {
        assert!(printed.contains("path: shm"), "{printed}");
    }
}

#[test]
fn cxx_example_echoes_and_keeps_its_deadline() {
    if let Some(printed) = run("c++", "examples/cxx/echo.cc", &[]) {
        assert!(printed.contains("1000 echoes; path shm"), "{printed}");
    }
}

#[test]
fn c_message_example_answers() {
    for bytes in ["0", "8", "100000"] {
        if let Some(printed) = run("cc", "examples/c/messages.c", &["300", bytes]) {
            assert!(printed.contains("driver: shm"), "{printed}");
        }
    }
}

#[test]
fn cxx_message_example_answers() {
    if let Some(printed) = run("c++", "examples/cxx/messages.cc", &["2000"]) {
        assert_eq!(printed, "2000 answers; driver shm\n");
    }
}

#[test]
fn jacobi_example_matches_the_serial_result() {
    let Some(program) = Native::compile("cc", "examples/c/jacobi.c") else { return };
    for processes in ["1", "2", "5"] {
        let printed = program.run(&[processes, "120", "100"]);
        assert!(printed.contains("the serial result, to the last bit"), "{printed}");
    }
}

#[test]
fn workqueue_example_redoes_work_of_killed_workers() {
    let Some(program) = Native::compile("cc", "examples/c/workqueue.c") else { return };
    for killed in ["0", "3"] {
        let printed = program.run(&["4", "60", killed]);
        assert!(printed.contains("as it should be"), "{printed}");
        assert_eq!(printed.matches("then it was killed").count().to_string(), killed, "{printed}");
    }
}

/// The first lines of every example name its compile command, which works from the root of a checkout with the build of this test.
#[test]
fn examples_compile_by_their_documented_command() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let Some(library) = motet_tests::engine().and_then(std::path::Path::parent) else {
        return motet_tests::programs::skip("examples_compile_by_their_documented_command", "nothing is built")
            .unwrap_or(());
    };
    let folders = ["examples/c", "examples/cxx"].map(|folder| std::fs::read_dir(root.join(folder)).expect("examples"));
    let sources: Vec<_> = folders.into_iter().flatten().map(|entry| entry.expect("an example").path()).collect();
    assert!(sources.len() >= 6, "{sources:?}");
    for source in sources {
        let text = std::fs::read_to_string(&source).expect("text");
        let said = text.lines().map(|line| line.trim_start_matches([' ', '*', '/']));
        let said = said.take(12).find(|line| line.starts_with("cc ") || line.starts_with("c++ ")).expect("a command");
        let words = said
            .split_whitespace()
            .map(|word| if word == "target/release" { library.as_os_str() } else { word.as_ref() });
        let mut words: Vec<_> = words.map(std::ffi::OsStr::to_owned).collect();
        let out = words.last_mut().expect("a name");
        let folder = motet_tests::temporary::Temporary::new("said");
        *out = folder.join("program").into();
        let made =
            std::process::Command::new(&words[0]).args(&words[1..]).current_dir(&root).output().expect("a compiler");
        assert!(made.status.success(), "{said}: {}", String::from_utf8_lossy(&made.stderr));
    }
}
