//! C and C++ programs that are linked with libmotet: compiled against `motet.h` as a user would, and run.

use crate::temporary::Temporary;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A compiled program.
#[derive(Debug)]
pub struct Native {
    folder: Temporary,
    source: String,
}

impl Native {
    /// Compiles a source of the checkout. `None`, with a message, if libmotet is not built.
    pub fn compile(compiler: &str, source: &str) -> Option<Self> {
        let Some(library) = crate::engine() else {
            eprintln!("SKIPPED {source}: libmotet.so.0 is not built (make build)");
            return None;
        };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let native = Self { folder: Temporary::new("native"), source: source.to_owned() };
        let compiled = Command::new(compiler)
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-pthread", "-o"])
            .arg(native.program())
            .arg(root.join(source))
            .arg("-I")
            .arg(root.join("include"))
            .arg(library)
            .arg("-lm")
            .output()
            .expect("a compiler");
        assert!(compiled.status.success(), "{source}: {}", String::from_utf8_lossy(&compiled.stderr));
        Some(native)
    }

    /// The compiled program. It needs `LD_LIBRARY_PATH` to find libmotet.
    pub fn program(&self) -> PathBuf {
        self.folder.join("program")
    }

    /// Counts with callgrind the instructions of one function and its callees. `None`, with a message, without valgrind.
    #[track_caller]
    pub fn instructions(&self, function: &str, arguments: &[&str]) -> Option<u64> {
        let collected = format!("--toggle-collect={function}");
        let valgrind = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", &collected];
        let ran = self.output(120, &valgrind, arguments);
        if ran.status.code() == Some(127) {
            eprintln!("SKIPPED {}: needs valgrind", self.source);
            return None;
        }
        let said = self.succeeded(&ran, arguments);
        let count = said.lines().find_map(|line| line.split("Collected :").nth(1)).expect("a count");
        Some(count.trim().parse().expect("a number"))
    }

    /// Counts as [`Native::instructions`] does, for one of `units`, and prints it. Says what is wrong if that exceeds the budget.
    #[track_caller]
    pub fn beyond_budget(&self, function: &str, arguments: &[&str], units: u64, budget: u64) -> Option<Option<String>> {
        let counted = self.instructions(function, arguments)? / units;
        let said = format!("{arguments:?}: {counted} of {budget}");
        println!("{said}");
        assert!(counted > 20, "{arguments:?}: no instruction was counted");
        Some((counted > budget).then_some(said))
    }

    /// Runs the program, which must succeed. Returns its output.
    #[track_caller]
    pub fn run(&self, arguments: &[&str]) -> String {
        let ran = self.output(60, &[], arguments);
        self.succeeded(&ran, arguments);
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }

    /// Runs the program by the command `by`, for at most `seconds`.
    fn output(&self, seconds: u32, by: &[&str], arguments: &[&str]) -> Output {
        let library = crate::engine().and_then(Path::parent).expect("as when it was compiled");
        let mut command = Command::new("timeout");
        command.arg(seconds.to_string()).args(by).arg(self.program()).args(arguments);
        command.env("LD_LIBRARY_PATH", library).output().expect("timeout")
    }

    /// The standard error of a run, which must have succeeded.
    #[track_caller]
    fn succeeded(&self, ran: &Output, arguments: &[&str]) -> String {
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        assert!(ran.status.success(), "{} {arguments:?}: {}: {said}", self.source, ran.status);
        said
    }
}
