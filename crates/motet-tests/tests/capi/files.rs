//! motet_file.h, on an export that `motet export` serves.

use motet_tests::native::Native;
use motet_tests::temporary::Temporary;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// An export of an empty directory, with a directory of sessions of its own. It ends when this is dropped.
struct Export {
    served: Child,
    folder: Temporary,
    libraries: PathBuf,
}

impl Export {
    /// Serves it; clients use the directory itself, or send messages. `None`, with a message, if the command is not built.
    fn new(test: &str, direct: bool) -> Option<Self> {
        let libraries = motet_tests::engine().and_then(Path::parent)?.to_owned();
        let motet = libraries.join("motet");
        if !motet.exists() {
            return motet_tests::programs::skip(test, "motet is not built (make build)");
        }
        let folder = Temporary::new("files-api");
        fs::create_dir(folder.join("data")).expect("a folder");
        let mut command = Command::new(motet);
        command.arg("export").arg(folder.join("data")).args(["--as", "test"]);
        command.args((!direct).then_some("--no-direct")).env("MOTET_SESSION_DIR", folder.join("sessions"));
        let mut served = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("motet");
        let mut line = String::new();
        BufReader::new(served.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let export = Self { served, folder, libraries };
        assert!(line.contains("is exported as"), "{line}");
        Some(export)
    }

    /// Runs a program, which must succeed. Returns its output.
    #[track_caller]
    fn run(&self, program: &Native, arguments: &[&str]) -> String {
        let mut command = Command::new("timeout");
        command.arg("100").arg(program.program()).args(arguments).env("LD_LIBRARY_PATH", &self.libraries);
        let ran = command.env("MOTET_SESSION_DIR", self.folder.join("sessions")).output().expect("timeout");
        assert!(ran.status.success(), "{arguments:?}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ = self.served.kill();
        let _ = self.served.wait();
    }
}

#[test]
fn file_calls_match_their_documentation() {
    let test = "file_calls_match_their_documentation";
    for way in ["messages", "direct"] {
        let Some(program) = Native::compile("cc", "tests/files/calls.c") else { return };
        let Some(export) = Export::new(test, true) else { return };
        assert_eq!(export.run(&program, &["test", way]), "all calls did what they should\n", "{way}");
    }
}

#[test]
fn files_example_reads_a_file_ahead() {
    let Some(program) = Native::compile("cc", "examples/c/files.c") else { return };
    for (direct, way) in [(false, "by messages"), (true, "the directory itself")] {
        let Some(export) = Export::new("files_example_reads_a_file_ahead", direct) else { return };
        for length in [0usize, 1, 64 << 10, 5_000_001] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
            fs::write(export.folder.join("data/file"), bytes).expect("a file");
            assert_eq!(export.run(&program, &["test", "file"]), format!("{length} bytes, sum {sum}, {way}\n"));
        }
    }
}

/// The page shows the example as it is.
#[test]
fn page_of_the_interface_has_the_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = |path: &str| fs::read_to_string(root.join(path)).expect("text");
    let (page, example) = (text("docs/files-api.md"), text("examples/c/files.c"));
    let shown = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a block of C");
    let code = &example[example.find("#include").expect("code")..];
    assert_eq!(shown, code);
}
