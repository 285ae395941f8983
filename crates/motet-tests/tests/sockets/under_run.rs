//! What `motet run` finds out about the place that a program starts in, and sets for it.

use motet_tests::programs::{is_root, skip};
use motet_tests::temporary::Temporary;
use motet_tests::{Mode, Outcome, Program, compiled, engine};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The reasons OTHER_HOST and TWO_ADDRESSES of `motet why`.
const OTHER_HOST_REASON: &str = "\"2\":";
const TWO_ADDRESSES_REASON: &str = "\"49\":";
/// More than the first messages, which use TCP.
const MOST_BYTES: u64 = 64_000;

/// The command, beside the engine. `None`, with a message, if it is not built.
fn motet(test: &str) -> Option<PathBuf> {
    let motet = engine().and_then(Path::parent).map(|folder| folder.join("motet"));
    match motet.filter(|motet| motet.is_file() && motet.with_file_name("libmotet_sockets.so").is_file()) {
        Some(motet) => Some(motet),
        None => skip(test, "motet is not built (make build)"),
    }
}

/// Runs `before motet run -- pollers poll 3000`.
fn pollers_under(before: &[&str], motet: &Path) -> Outcome {
    let words = [before, &[motet.to_str().expect("a path in UTF-8"), "run", "--"]].concat();
    let outcome = Program::c("pollers", &["poll", "3000"]).by(&words).with_open_gates().run(Mode::WithMotet);
    assert!(outcome.succeeded, "{outcome:?}");
    outcome
}

#[test]
fn default_filter_of_containers_leaves_the_fast_path() {
    let Some(motet) = motet("container's filter") else { return };
    let container = compiled("container");
    pollers_under(&[container.to_str().expect("a path in UTF-8"), "refuse"], &motet).took_the_fast_path(MOST_BYTES);
}

/// A filter that ends processes for calls that Motet makes: the program runs, on TCP.
#[test]
fn filter_that_kills_keeps_connections_on_tcp() {
    let Some(motet) = motet("filter that kills") else { return };
    let container = compiled("container");
    let outcome = pollers_under(&[container.to_str().expect("a path in UTF-8"), "kill"], &motet);
    assert_eq!(outcome.sent_fast(), 0, "{outcome:?}");
}

#[test]
fn libraries_in_a_path_with_a_space_and_a_colon_are_preloaded() {
    let Some(motet) = motet("path with a space") else { return };
    let folder = Temporary::new("spaces");
    let installed = folder.join("a folder: of its own");
    fs::create_dir(&installed).expect("a folder");
    fs::copy(&motet, installed.join("motet")).expect("a copy of motet");
    for library in ["libmotet_sockets.so", "libmotet.so.0"] {
        let real = motet.with_file_name(library).canonicalize().expect("a library");
        fs::copy(real, installed.join(library)).expect("a copy of the library");
    }
    let sessions = folder.join("sessions");
    fs::create_dir(&sessions).expect("a folder");
    let words = [installed.join("motet").to_str().expect("a path in UTF-8").to_owned(), "run".into(), "--".into()];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let run = || {
        let private = sessions.join("private");
        let program = Program::c("pollers", &["poll", "3000"]).by(&words).with_open_gates();
        program.with("MOTET_SESSION_DIR", private.to_str().expect("a path in UTF-8")).run(Mode::WithMotet)
    };
    for _ in 0..2 {
        let outcome = run();
        assert!(outcome.succeeded, "{outcome:?}");
        outcome.took_the_fast_path(MOST_BYTES);
    }
    // A link that leads elsewhere is replaced.
    let links = sessions.join("private/.libraries");
    for link in fs::read_dir(&links).expect("the links") {
        let link = link.expect("a link").path();
        fs::remove_file(&link).expect("a link");
        symlink("/nowhere", &link).expect("a link");
    }
    run().took_the_fast_path(MOST_BYTES);
}

#[test]
fn program_with_a_shared_runtime_of_address_sanitizer_runs() {
    let Some(motet) = motet("AddressSanitizer") else { return };
    let folder = Temporary::new("sanitizer");
    let (source, program) = (folder.join("empty.c"), folder.join("pollers"));
    fs::write(&source, "").expect("a file");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let built = Command::new("gcc")
        .args(["-fsanitize=address", "-O1", "-g", "-pthread", "-o"])
        .arg(&program)
        .arg(root.join("tests/programs/pollers.c"))
        .output()
        .expect("gcc");
    if !built.status.success() {
        return skip("AddressSanitizer", "gcc has no runtime of AddressSanitizer").unwrap_or_default();
    }
    for options in ["", "detect_leaks=0"] {
        let words = [motet.to_str().expect("a path in UTF-8"), "run", "--"];
        let started = Program::built(&program, &["poll", "3000"]).by(&words).with("ASAN_OPTIONS", options);
        let outcome = started.with_open_gates().run(Mode::WithMotet);
        assert!(outcome.succeeded, "{outcome:?}");
        outcome.took_the_fast_path(MOST_BYTES);
    }
}

/// A connection whose ends cannot share memory is counted, with its reason.
#[test]
fn connections_to_other_hosts_and_addresses_are_counted() {
    if !is_root() {
        return skip("other hosts", "network namespaces need root").unwrap_or_default();
    }
    for (kind, reason) in [("addresses", TWO_ADDRESSES_REASON), ("hosts", OTHER_HOST_REASON)] {
        let program = Program::c("distant", &[kind]).counted();
        let outcome = program.run(Mode::WithMotet);
        assert!(outcome.succeeded, "{outcome:?}");
        if engine().is_some() {
            let counted = outcome.counts.lines().filter(|line| line.contains(reason)).count();
            assert_eq!(counted, 2, "both ends of {kind}: {}", outcome.counts);
        }
    }
}
