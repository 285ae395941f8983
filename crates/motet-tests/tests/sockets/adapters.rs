//! Several adapters in one process share one engine. A copy in another linker namespace stays on TCP.

use motet_tests::{Built, Mode, Outcome, Program};
use std::sync::{Mutex, PoisonError};

const WAYS: [(&str, bool); 4] = [("linked", false), ("linked", true), ("opened", false), ("opened", true)];

/// A program with a second adapter, which is linked to it or opened by it. The adapter is linked to the engine in a folder of that name. `None`, with
/// a message, if there is no engine.
fn program(how: &str, adapter_first: bool, engine_in: &str) -> Option<Program> {
    let Some(engine) = motet_tests::engine() else {
        eprintln!("SKIPPED {how}: libmotet.so.0 is not built (make build)");
        return None;
    };
    let folder = motet_tests::folder(&format!("adapters-{}", engine_in.replace(' ', "-")));
    let soname = folder.join("libmotet.so.0");
    match engine_in {
        "its own place" => {
            let _ = std::fs::remove_file(&soname);
            std::os::unix::fs::symlink(engine.canonicalize().unwrap(), &soname).unwrap();
        }
        _ => drop(std::fs::copy(engine, &soname).unwrap()),
    }
    let run_path = format!("-Wl,-rpath,{}", folder.display());
    let adapter = Built::library("adapter", &folder, &[soname.to_str().unwrap(), &run_path]);
    let linked = ["-Wl,--no-as-needed", adapter.to_str().unwrap(), &run_path];
    let first = if adapter_first { "adapter" } else { "sockets" };
    Some(match how {
        "linked" => Program::built(&Built::program("two_adapters", &folder, &linked), &["linked", first]),
        _ => Program::built(&Built::program("two_adapters", &folder, &[]), &[adapter.to_str().unwrap(), first]),
    })
}

/// Checks the output of both processes: five connections in all.
#[track_caller]
fn one_engine(outcome: &Outcome, adapter_first: bool) {
    assert!(outcome.succeeded, "{}{}", outcome.printed, outcome.stderr);
    let by_adapter = if adapter_first { 3 } else { 2 };
    for who in ["accepting", "connecting"] {
        let lines = [
            format!(
                "{who}: {by_adapter} connections by the second adapter, {by_adapter} in shared memory, {by_adapter} recognised"
            ),
            // An arena grows by segments of 1 and 4 slots: five streams of one engine fill two segments, two engines would have four.
            format!("{who}: engines 1, node files 1, segments 2, threads 1"),
            format!("{who}: done"),
        ];
        for line in lines {
            assert!(outcome.printed.contains(&line), "no line '{line}' in:\n{}", outcome.printed);
        }
    }
}

/// Runs the program under Motet: one engine, and the program's own connection uses shared memory. That needs bytes behind an open gate when they are
/// counted, so it is checked in a second run with open gates.
#[track_caller]
fn one_engine_for_the_program_too(program: &Program, adapter_first: bool) {
    let lines = ["accepting", "connecting"].map(|who| {
        [
            format!("{who}: the program's connection: in shared memory 1, counted 1"),
            format!("{who}: still in shared memory after the second adapter let go: 1"),
        ]
    });
    one_engine(&program.run(Mode::WithMotet), adapter_first);
    let outcome = program.clone().with_open_gates().run(Mode::WithMotet);
    one_engine(&outcome, adapter_first);
    let printed = outcome.printed;
    assert!(lines.as_flattened().iter().all(|line| printed.contains(line)), "not all of {lines:?} in:\n{printed}");
}

/// One test at a time: each counts resources of its processes.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn two_adapters_in_one_process_share_one_engine() {
    let _exclusive = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (how, adapter_first) in WAYS {
        let Some(program) = program(how, adapter_first, "its own place") else { return };
        one_engine_for_the_program_too(&program, adapter_first);
        one_engine(&program.run(Mode::WithoutMotet), adapter_first);
    }
}

#[test]
fn engine_loaded_by_another_adapter_is_shared() {
    let _exclusive = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for (how, adapter_first) in WAYS {
        let Some(program) = program(how, adapter_first, "a copy") else { return };
        one_engine_for_the_program_too(&program, adapter_first);
    }
}

#[test]
fn library_in_own_namespace_works_and_stays_on_tcp() {
    let _exclusive = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = motet_tests::folder("namespaces");
    let library = Built::library("namespace_library", &folder, &[]);
    let program = Program::built(&Built::program("namespaces", &folder, &[]), &[library.to_str().unwrap()]);
    let outcome = program.same_both_ways();
    outcome.took_the_fast_path(1);
    // The peer accepted two connections; the one from the namespace had no Motet at its other end.
    assert!(outcome.streams.iter().any(|s| s.sent_fast == 0), "{:?}", outcome.streams);
}
