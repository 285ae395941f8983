//! Connections whose descriptors are handed over to another process or program image: every way to do it, in every phase of the connection, with
//! everything that the holder may do with its own descriptor. What each reader reads, and in which order, must match TCP.
//!
//! Each test is one way with one reader: `tests/programs/handed_over.c` runs its cells and prints a line for each.

use motet_tests::programs::{find, is_root, skip};
use motet_tests::{Built, Mode, Program, engine, folder, script};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Time limit of all cells of one way. Each cell has a limit of 20 s.
const TIMEOUT: Duration = Duration::from_secs(240);

/// What the program prints for cells that cannot run here.
const LEFT_OUT: &str = "left out";

/// The program image that reads.
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
            Self::Dynamic => Some(Built::program("handed_over_reader", &folder("handed-over"), &[])),
            Self::Static => Some(Built::program("handed_over_reader", &folder("handed-over-static"), &["-static"])),
            Self::Go => go_reader(),
        };
        PATHS[self as usize].get_or_init(build).as_deref()
    }
}

fn go_reader() -> Option<PathBuf> {
    let (go, folder) = (find("go")?, folder("handed-over-go"));
    let program = folder.join("handed_over_reader");
    let built = Command::new(go)
        .args(["build", "-o"])
        .args([&program, &script("handed_over_reader.go")])
        .env("GOCACHE", folder.join("cache"))
        .env("CGO_ENABLED", "0")
        .current_dir(&folder)
        .output()
        .expect("the Go compiler");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(program)
}

/// Runs all `cells` cells of one way to hand over, without and with Motet.
#[track_caller]
fn handed_over(how: &str, reader: Reader, cells: usize) {
    let Some(reader) = reader.path() else {
        return skip(&format!("{how} to a Go image"), "go is not installed (tests/packages.txt)").unwrap_or(());
    };
    if how.starts_with("python") && find("python3").is_none() {
        return skip(how, "python3 is not installed").unwrap_or(());
    }
    let (reader, script) = (reader.to_str().expect("a path"), script("handed_over.py"));
    let program = Program::c("handed_over", &[how, reader, script.to_str().expect("a path")]).within(TIMEOUT);
    let without_motet = program.run(Mode::WithoutMotet);
    // Requires in each cell that bytes bypassed TCP before the hand-over.
    let proof = if engine().is_some() { program.with("HANDED_OVER_OUTSIDE", "1") } else { program };
    let with_motet = proof.run(Mode::WithMotet);
    for (mode, run) in [("without Motet", &without_motet), ("with Motet", &with_motet)] {
        let wrong: Vec<&str> = run.printed.lines().filter(|line| line.contains("FAILED")).collect();
        assert!(run.succeeded, "{mode}:\n{}\n{}", wrong.join("\n"), run.stderr);
        assert_eq!(run.printed.lines().count(), cells, "{mode}: {}{}", run.printed, run.stderr);
    }
    assert_eq!(without_motet.printed, with_motet.printed);
    if without_motet.printed.contains(LEFT_OUT) {
        skip::<()>(how, "a peer that stays stopped: pidfd_getfd is not permitted here");
    }
}

/// Phases of the connection, times the actions of the holder.
const ACTION_COUNT: usize = 8 * 3;

/// One test for each row.
macro_rules! ways {
    ($($name:ident: $how:literal, $reader:ident, $cells:expr;)*) => {
        $(#[test]
        fn $name() {
            handed_over($how, Reader::$reader, $cells);
        })*
    };
}

ways! {
    by_fork: "fork", Dynamic, ACTION_COUNT;
    by_clone: "clone", Dynamic, ACTION_COUNT;
    by_raw_clone: "raw-clone", Dynamic, ACTION_COUNT;
    by_raw_clone3: "raw-clone3", Dynamic, ACTION_COUNT;
    by_exec: "exec", Dynamic, ACTION_COUNT;
    by_exec_of_a_static_image: "exec", Static, ACTION_COUNT;
    by_exec_of_a_go_image: "exec", Go, ACTION_COUNT;
    as_standard_input_and_output: "inetd", Dynamic, ACTION_COUNT;
    as_standard_input_and_output_of_a_static_image: "inetd", Static, ACTION_COUNT;
    as_standard_input_and_output_of_a_go_image: "inetd", Go, ACTION_COUNT;
    to_a_reader_that_uses_stdio: "stdio", Dynamic, ACTION_COUNT;
    to_an_image_with_a_clean_environment: "clean", Dynamic, ACTION_COUNT;
    to_a_helper_that_does_not_use_it: "helper", Dynamic, 8;
    by_vfork: "vfork", Dynamic, ACTION_COUNT;
    by_vfork_of_a_static_image: "vfork", Static, ACTION_COUNT;
    by_vfork_without_dup: "vfork-number", Dynamic, ACTION_COUNT;
    by_posix_spawn: "spawn", Dynamic, ACTION_COUNT;
    by_posix_spawn_of_a_go_image: "spawn", Go, ACTION_COUNT;
    by_posix_spawn_with_file_actions: "spawn-actions", Dynamic, ACTION_COUNT;
    by_posix_spawn_with_file_actions_of_a_static_image: "spawn-actions", Static, ACTION_COUNT;
    by_system: "system", Dynamic, 8 * 2;
    by_popen: "popen", Dynamic, ACTION_COUNT;
    through_two_shells: "chain", Dynamic, ACTION_COUNT;
    through_two_shells_to_a_static_image: "chain", Static, ACTION_COUNT;
    to_the_next_image_of_the_process: "itself", Dynamic, 8;
    to_the_next_static_image_of_the_process: "itself", Static, 8;
    by_passing: "passing", Dynamic, ACTION_COUNT;
    by_passing_to_another_image: "passing-image", Dynamic, ACTION_COUNT;
    by_passing_to_a_static_image: "passing-image", Static, ACTION_COUNT;
    by_python_subprocess: "python-popen", Dynamic, 8;
    by_python_multiprocessing_spawn: "python-spawn", Dynamic, 8;
    by_python_multiprocessing_forkserver: "python-forkserver", Dynamic, 8;
    by_python_forking_server: "python-forking", Dynamic, 8;
}

#[test]
fn set_uid_image_takes_over_the_connection() {
    if !is_root() {
        return skip("set_uid_image_takes_over_the_connection", "needs root to make one").unwrap_or(());
    }
    handed_over("set-uid", Reader::Dynamic, ACTION_COUNT);
}

/// A few seconds. `make torture` runs longer.
#[test]
fn random_process_trees_lose_no_bytes() {
    let image = Built::program("torture_trees", &folder("torture-static"), &["-static"]);
    let program = Program::c("torture_trees", &["1", "4", "20"]).with("TORTURE_HANG", "30");
    let run = program.with("TORTURE_IMAGE", image.to_str().expect("a path")).run(Mode::WithMotet);
    assert!(run.succeeded, "{}{}", run.printed, run.stderr);
}
