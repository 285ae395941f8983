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
