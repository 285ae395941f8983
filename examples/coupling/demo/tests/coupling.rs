//! The two codes are right: exact solutions, order of convergence, energy, layouts, and the same bits behind a prefix.
//!
//! Builds the codes first. Without Open MPI or omniORB every test says so and passes; with `REQUIRE_COUPLING=1` it fails.
//! No test looks at a time.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use coupling_demo::case::{Case, Layout};
use coupling_demo::run::Runner;
use coupling_demo::{compare, validate};

const ONE_BY_ONE: Layout = Layout { fluid: 1, solid: 1 };

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn case(name: &str) -> Case {
    Case::read(&example().join("cases").join(format!("{name}.toml"))).expect("the case file is readable")
}

/// Why the codes cannot be built here, if so.
fn missing() -> Option<String> {
    let wanted = ["mpicxx", "mpirun", "omniidl", "omniNames", "make"];
    let there = |program: &&str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|path| path.join(program).is_file())
    };
    let lost: Vec<_> = wanted.into_iter().filter(|program| !there(program)).collect();
    let advice = "install the packages in examples/coupling/packages.txt";
    (!lost.is_empty()).then(|| format!("{} not found; {advice}", lost.join(", ")))
}

/// The built codes, and a lock: the tests run one after another, as each starts several processes.
fn runner() -> Option<(Runner, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let built = BUILT.get_or_init(|| {
        if let Some(reason) = missing() {
            return Err(reason);
        }
        let build = example().join("../../build/coupling");
        let output = Command::new("make")
            .args(["-j2", "-C"])
            .arg(example())
            .env_remove("MAKEFLAGS") // of a make that runs this test
            .env_remove("MAKELEVEL")
            .output()
            .expect("make runs");
        assert!(output.status.success(), "building the codes failed: {}", String::from_utf8_lossy(&output.stderr));
        Ok(build)
    });
    match built {
        Ok(build) => Some((Runner::without_prefix(build).expect("the codes are built"), turn)),
        Err(reason) => {
            let required = std::env::var_os("REQUIRE_COUPLING").is_some_and(|value| value == "1");
            assert!(!required, "{reason}");
            skip(reason);
            None
        }
    }
}

/// Says loudly that a test was skipped: past the test harness, which hides what a passing test prints.
fn skip(reason: &str) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {reason}");
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

/// The demo on a coarse grid and a short time: flow, strips, table, everything that a layout could break.
fn small_demo() -> Case {
    let mut case = case("demo");
    case.set("grid", "columns", 48);
    case.set("time", "steps", 300);
    case.set("fluid", "rows", 12);
    case.set("solid", "rows", 8);
    case
}

#[test]
fn steady_state_of_two_slabs_is_the_exact_one() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    for layout in [ONE_BY_ONE, Layout { fluid: 2, solid: 3 }] {
        let errors = validate::slab(&runner, &case("validate-slab"), layout, directory().path()).unwrap();
        assert!(errors.largest < 1e-9, "{layout:?}: relative error {:e}", errors.largest);
    }
}

#[test]
fn variable_conductivity_converges_at_second_order() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let grids = validate::grid_convergence(&runner, &case("validate-kirchhoff"), directory().path()).unwrap();
    assert_eq!(grids.len(), 3);
    for order in validate::orders(grids.iter().map(|errors| errors.mean)) {
        assert!((1.9..=2.1).contains(&order), "observed order {order}");
    }
    assert!(grids[2].mean < 2e-6, "error on the finest grid {:e}", grids[2].mean);
}

#[test]
fn halving_the_time_step_halves_the_error() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let errors = validate::time_convergence(&runner, &case("demo"), directory().path()).unwrap();
    for order in validate::orders(errors.iter().map(|error| error.error)) {
        assert!((0.9..=1.1).contains(&order), "observed order {order}");
    }
}

#[test]
fn energy_is_conserved_across_the_interface_in_every_layout() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    for (fluid, solid) in [(1, 1), (2, 3), (3, 2)] {
        let layout = Layout { fluid, solid };
        let outcome = runner.run(&small_demo(), layout, directory().path()).unwrap();
        assert!(outcome.fluid.energy_interface.abs() > 1.0, "heat does cross the interface");
        assert!(outcome.interface_error() < 1e-10, "{layout:?}: interface {:e}", outcome.interface_error());
        for code in [&outcome.fluid, &outcome.solid] {
            assert!(code.balance_error() < 1e-10, "{layout:?}: {} {:e}", code.code, code.balance_error());
        }
    }
}

#[test]
fn every_layout_gives_the_fields_of_one_by_one_to_the_last_bit() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let reference = runner.run(&small_demo(), ONE_BY_ONE, directory().path()).unwrap();
    for (fluid, solid) in [(2, 3), (3, 2), (1, 4), (4, 1), (3, 3)] {
        let layout = Layout { fluid, solid };
        let outcome = runner.run(&small_demo(), layout, directory().path()).unwrap();
        assert_eq!(outcome.checksums(), reference.checksums(), "{layout:?}");
    }
}

#[test]
fn exchanged_values_agree_and_repetitions_are_bit_identical() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let layout = Layout { fluid: 2, solid: 3 };
    let first = runner.run(&small_demo(), layout, directory().path()).unwrap();
    let second = runner.run(&small_demo(), layout, directory().path()).unwrap();
    assert_eq!(first.fluid.interface_checksum, first.solid.interface_checksum);
    assert_eq!(first.checksums(), second.checksums());
    assert_eq!(first.fluid.bytes, first.solid.bytes);
    assert_eq!(first.fluid.bytes, 48.0 * 8.0 * (2.0 * 300.0 + 1.0));
}

#[test]
fn checksum_tells_a_different_case() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let first = runner.run(&small_demo(), ONE_BY_ONE, directory().path()).unwrap();
    let mut other = small_demo();
    other.set("fluid", "inlet_temperature", 900.000_000_1);
    let second = runner.run(&other, ONE_BY_ONE, directory().path()).unwrap();
    for (a, b) in first.checksums().iter().zip(second.checksums()) {
        assert_ne!(*a, b);
    }
}

#[test]
fn prefix_is_put_before_the_programs_and_changes_no_bit() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let plain = runner.run(&small_demo(), ONE_BY_ONE, directory().path()).unwrap();
    let behind = runner.under("env 'COUPLING_TEST=a b'").unwrap();
    let outcome = behind.run(&small_demo(), ONE_BY_ONE, directory().path()).unwrap();
    assert_eq!(outcome.checksums(), plain.checksums());
    let absent = runner.under("/nonexistent/prefix --").unwrap();
    let error = absent.run(&small_demo(), ONE_BY_ONE, directory().path()).unwrap_err();
    assert!(format!("{error:#}").contains("/nonexistent/prefix"), "{error:#}");
}

#[test]
fn results_with_motet_are_the_same_bits() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let built = example().join("../../target/release/motet");
    let motet = std::env::var_os("MOTET_BIN").map(PathBuf::from).or_else(|| built.is_file().then_some(built));
    let Some(motet) = motet else {
        skip("no motet; build it, or name it in MOTET_BIN");
        return;
    };
    let under = compare::with_motet(&runner, &motet).unwrap();
    for layout in [Layout { fluid: 1, solid: 2 }, Layout { fluid: 3, solid: 2 }] {
        let plain = runner.run(&small_demo(), layout, directory().path()).unwrap();
        let with = under.run(&small_demo(), layout, directory().path()).unwrap();
        assert_eq!(with.checksums(), plain.checksums(), "{layout:?}");
    }
}

#[test]
fn faulty_case_fails_in_one_line_and_leaves_nothing_running() {
    let Some((runner, _turn)) = runner() else {
        return;
    };
    let error_of = |case: &Case| {
        let directory = directory();
        let error = format!("{:#}", runner.run(case, ONE_BY_ONE, directory.path()).unwrap_err());
        let path = directory.path().canonicalize().unwrap();
        // What was killed may need the time of a busy machine to be gone.
        let began = Instant::now();
        while !processes_with(&path.to_string_lossy()).is_empty() && began.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_millis(20));
        }
        assert_eq!(processes_with(&path.to_string_lossy()), Vec::<String>::new(), "left running");
        error
    };
    let mut misspelt = small_demo();
    misspelt.set("fluid", "hight", 0.1);
    assert!(error_of(&misspelt).contains("hight is not a known key"), "{}", error_of(&misspelt));
    let mut unstable = small_demo();
    unstable.set("time", "step", 1.0);
    assert!(error_of(&unstable).contains("time.step is too long"));
    let mut endless = small_demo();
    endless.set("run", "timeout", 1.5);
    endless.set("time", "steps", 100_000_000);
    assert!(error_of(&endless).contains("the time limit has passed"));
}

/// Command lines of processes that mention a text.
fn processes_with(text: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(text)).collect()
}
