//! The examples in C and C++ compile against `motet.h` and do what they say.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compiles an example, runs it and returns what it printed; `None`, loudly, where libmotet is not built.
fn run(compiler: &str, source: &str, arguments: &[&str]) -> Option<String> {
    let Some(library) = motet_tests::engine().and_then(Path::parent) else {
        eprintln!("SKIPPED {source}: libmotet.so.0 is not built (make build)");
        return None;
    };
    let folder = tempfile_folder(source);
    let program = folder.join("program");
    let compiled = Command::new(compiler)
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-pthread", "-o"])
        .arg(&program)
        .arg(root().join(source))
        .arg("-I")
        .arg(root().join("include"))
        .arg(library.join("libmotet.so.0"))
        .output()
        .expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new("timeout")
        .arg("20")
        .arg(&program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", library)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(ran.status.success(), "{source}: {}", String::from_utf8_lossy(&ran.stderr));
    Some(String::from_utf8_lossy(&ran.stdout).into_owned())
}

fn tempfile_folder(source: &str) -> PathBuf {
    let name = format!("motet-example-{}-{}", std::process::id(), source.replace('/', "-"));
    let folder = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
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
