//! Connections whose descriptors reach another process or program image: every way to hand on, in every phase of the connection, whatever the
//! holder does with its own descriptor afterwards. What is read, by whom and in which order must be what it is over TCP alone.
//!
//! Each test is one way with one reader: `tests/programs/handed_on.c` runs its cells and prints a line for each.

use motet_tests::programs::{find, skip};
use motet_tests::{Built, Mode, Program, engine, folder, script};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Of all cells of one way, each of which has a limit of 20 s of its own.
const LIMIT: Duration = Duration::from_secs(240);

/// What the program says of cells that cannot be here.
const LEFT_OUT: &str = "left out";

/// What reads in the other image.
#[derive(Clone, Copy)]
enum Reader {
    Dynamic,
    Static,
    Go,
}

impl Reader {
    fn path(self) -> Option<&'static Path> {
        static PATHS: [OnceLock<Option<PathBuf>>; 3] = [OnceLock::new(), OnceLock::new(), OnceLock::new()];
        let build = || match self {
            Self::Dynamic => Some(Built::program("handed_on_reader", &folder("handed-on"), &[])),
            Self::Static => Some(Built::program("handed_on_reader", &folder("handed-on-static"), &["-static"])),
            Self::Go => go_reader(),
        };
        PATHS[self as usize].get_or_init(build).as_deref()
    }
}

fn go_reader() -> Option<PathBuf> {
    let (go, folder) = (find("go")?, folder("handed-on-go"));
    let program = folder.join("handed_on_reader");
    let built = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &script("handed_on_reader.go")])
        .env("GOCACHE", folder.join("cache"))
        .env("CGO_ENABLED", "0")
        .current_dir(&folder)
        .output()
        .expect("the Go compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// All cells of one way to hand on, without and with Motet. `cells`: how many.
#[track_caller]
fn handed_on(how: &str, reader: Reader, cells: usize) {
    let Some(reader) = reader.path() else {
        return skip(&format!("{how} to a Go image"), "go is not installed (tests/packages.txt)").unwrap_or(());
    };
    if how.starts_with("python") && find("python3").is_none() {
        return skip(how, "python3 is not installed").unwrap_or(());
    }
    let (reader, script) = (reader.to_str().expect("a path"), script("handed_on.py"));
    let program = Program::c("handed_on", &[how, reader, script.to_str().expect("a path")]).within(LIMIT);
    let plain = program.run(Mode::WithoutMotet);
    // With the proof, in each cell, that bytes took another way than TCP before.
    let proof = if engine().is_some() { program.with("HANDED_ON_OUTSIDE", "1") } else { program };
    let with_motet = proof.run(Mode::WithMotet);
    for (mode, run) in [("without Motet", &plain), ("with Motet", &with_motet)] {
        let wrong: Vec<&str> = run.printed.lines().filter(|line| line.contains("FAILED")).collect();
        assert!(run.succeeded, "{mode}:\n{}\n{}", wrong.join("\n"), run.complaints);
        assert_eq!(run.printed.lines().count(), cells, "{mode}: {}{}", run.printed, run.complaints);
    }
    assert_eq!(plain.printed, with_motet.printed);
    if plain.printed.contains(LEFT_OUT) {
        skip::<()>(how, "of a peer that stays stopped: here nobody may borrow its descriptor (pidfd_getfd)");
    }
}

/// Phases of the connection, times what the holder does.
const ALL: usize = 8 * 3;

/// One test for each line.
macro_rules! ways {
    ($($name:ident: $how:literal, $reader:ident, $cells:expr;)*) => {
        $(#[test]
        fn $name() {
            handed_on($how, Reader::$reader, $cells);
        })*
    };
}

ways! {
    by_fork: "fork", Dynamic, ALL;
    by_clone: "clone", Dynamic, ALL;
    by_the_system_call_clone: "raw-clone", Dynamic, ALL;
    by_fork_and_exec: "exec", Dynamic, ALL;
    by_fork_and_exec_of_a_static_image: "exec", Static, ALL;
    by_fork_and_exec_of_a_go_image: "exec", Go, ALL;
    as_standard_input_and_output: "inetd", Dynamic, ALL;
    as_standard_input_and_output_of_a_static_image: "inetd", Static, ALL;
    as_standard_input_and_output_of_a_go_image: "inetd", Go, ALL;
    to_a_reader_that_uses_stdio: "stdio", Dynamic, ALL;
    to_an_image_with_a_clean_environment: "clean", Dynamic, ALL;
    to_a_helper_that_does_not_touch_it: "helper", Dynamic, 8;
    by_vfork: "vfork", Dynamic, ALL;
    by_vfork_of_a_static_image: "vfork", Static, ALL;
    by_vfork_without_dup: "vfork-number", Dynamic, ALL;
    by_posix_spawn: "spawn", Dynamic, ALL;
    by_posix_spawn_of_a_go_image: "spawn", Go, ALL;
    by_posix_spawn_with_file_actions: "spawn-actions", Dynamic, ALL;
    by_posix_spawn_with_file_actions_of_a_static_image: "spawn-actions", Static, ALL;
    by_system: "system", Dynamic, 8 * 2;
    by_popen: "popen", Dynamic, ALL;
    through_two_shells: "chain", Dynamic, ALL;
    through_two_shells_to_a_static_image: "chain", Static, ALL;
    to_the_next_image_of_the_process: "itself", Dynamic, 8;
    to_the_next_static_image_of_the_process: "itself", Static, 8;
    by_passing: "passing", Dynamic, ALL;
    by_passing_to_another_image: "passing-image", Dynamic, ALL;
    by_passing_to_a_static_image: "passing-image", Static, ALL;
    by_pythons_subprocess: "python-popen", Dynamic, 8;
    by_pythons_multiprocessing_spawn: "python-spawn", Dynamic, 8;
    by_pythons_multiprocessing_forkserver: "python-forkserver", Dynamic, 8;
    by_pythons_forking_server: "python-forking", Dynamic, 8;
}

#[test]
fn to_a_set_uid_image() {
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        return skip("to_a_set_uid_image", "needs root to make one").unwrap_or(());
    }
    handed_on("set-uid", Reader::Dynamic, ALL);
}

/// For a few seconds; `make torture` goes on for longer.
#[test]
fn random_trees_of_processes_lose_nothing() {
    let image = Built::program("torture_trees", &folder("torture-static"), &["-static"]);
    let program = Program::c("torture_trees", &["1", "4", "20"]).with("TORTURE_HANG", "30");
    let run = program.with("TORTURE_IMAGE", image.to_str().expect("a path")).run(Mode::WithMotet);
    assert!(run.succeeded, "{}{}", run.printed, run.complaints);
}
