//! Descriptor numbers that are reused, sockets that are reconnected, receives that only the kernel can answer, and where the engine is loaded from.

use motet_tests::programs::skip;
use motet_tests::temporary::Temporary;
use motet_tests::{Built, Mode, Program, both, engine};
use std::path::Path;
use std::process::Command;

#[test]
fn number_closed_by_raw_call_sends_nothing_to_old_peer() {
    for how in ["asm", "handler"] {
        both("closed_by_bypass", &[how]).took_the_fast_path(1);
    }
    // Numbers 0 to 2 stay on TCP anyway.
    both("closed_by_bypass", &["freopen"]);
    both("closed_by_bypass", &["daemon"]);
    let module = Built::library("bypass-module", &motet_tests::folder("bypass"), &[]);
    both("closed_by_bypass", &["module", module.to_str().expect("a plain path")]).took_the_fast_path(1);
}

#[test]
fn descriptor_range_is_closed_with_or_without_proc() {
    for how in ["none", "from", "jail"] {
        both("close_all", &[how]).took_the_fast_path(1);
    }
}

#[test]
fn reconnected_socket_has_a_new_peer() {
    both("reconnects", &[]).took_the_fast_path(1);
}

#[test]
fn kernel_only_receive_data_comes_from_the_kernel() {
    for what in ["timestamp", "inq", "peekoff", "zerocopy", "aio", "listio"] {
        both("kernel_tells", &[what, "before"]);
        both("kernel_tells", &[what, "after"]).took_the_fast_path(1);
    }
}

// ---- loading the engine ----------------------------------------------------------------------------------------------------

#[test]
fn engine_is_not_loaded_from_a_changed_root() {
    let test = "engine_is_not_loaded_from_a_changed_root";
    let Some(library) = engine() else { return skip(test, "libmotet.so.0 is not built").unwrap_or(()) };
    if !motet_programs::is_root() {
        return skip(test, "needs root to enter another one").unwrap_or(());
    }
    let jail = Temporary::new("jail");
    let path = library.canonicalize().expect("a path");
    let inside = jail.path().join(path.strip_prefix("/").expect("an absolute path"));
    std::fs::create_dir_all(inside.parent().expect("a folder")).expect("a folder");
    let evil = Built::library("writes-module", &motet_tests::folder("writes"), &[]);
    std::fs::copy(evil, &inside).expect("a library");
    // A log path in the new root is inside the jail too.
    let log = jail.join("log");
    let program = Program::c("jailed", &[jail.path().to_str().expect("a path")])
        .with("MOTET_LIBRARY", path.to_str().expect("a path"));
    let run = program.with("MOTET_LOG", "/log").run(Mode::WithMotet);
    assert!(run.succeeded, "{}", run.stderr);
    assert!(!jail.join("loaded").exists(), "a library inside the root was loaded");
    assert!(!log.exists(), "a log was begun inside the root");
    assert_eq!(run.printed, "served\n");
    let _ = std::fs::remove_file("/log");
}

#[test]
fn engine_writable_by_others_is_not_loaded() {
    let test = "engine_writable_by_others_is_not_loaded";
    let Some(library) = engine() else { return skip(test, "libmotet.so.0 is not built").unwrap_or(()) };
    let folder = Temporary::new("jail");
    let copy = folder.join("libmotet.so.0");
    std::fs::copy(library, &copy).expect("a copy");
    let mode = |path: &Path, bits: &str| {
        assert!(Command::new("chmod").arg(bits).arg(path).status().is_ok_and(|status| status.success()));
    };
    let talks = |expected: bool| {
        let program = Program::c("not_loaded", &["talk"]).with("MOTET_LIBRARY", copy.to_str().expect("a path"));
        let run = program.run(Mode::WithMotet);
        let loaded = run.printed != "engine not loaded\n";
        assert!(run.succeeded && loaded == expected, "{}{}", run.printed, run.stderr);
    };
    talks(true);
    mode(&copy, "o+w");
    talks(false);
    mode(&copy, "o-w");
    mode(folder.path(), "0777");
    talks(false);
    mode(folder.path(), "0755");
    talks(true);
}
