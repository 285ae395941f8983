//! `motet run --files`: exports of this host at a path of a program, and what is refused.

mod common;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use common::{Folder, finish, motet, refused};
use motet_files::server::{Options, Server};

/// An export, and the libraries that `motet run` needs.
struct Export {
    name: String,
    libraries: Folder,
    folder: Folder,
    _server: Server,
}

impl Export {
    fn new(change: impl FnOnce(&mut Options)) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("run-files-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (libraries, folder) = (Folder::new("files-libraries"), Folder::new("files-export"));
        libraries.libraries();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters/files");
        let out = format!("OUT={}", libraries.path().display());
        let built = Command::new("make").arg("-s").arg("-C").arg(source).arg(out).output().expect("make is installed");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let exported = folder.path().to_owned();
        let mut options = Options { name: name.clone(), directory: exported, direct: true, ..Options::default() };
        change(&mut options);
        let server = Server::start(options).expect("a server");
        Self { name, libraries, folder, _server: server }
    }

    fn run(&self, prefix: &str, words: &[&str]) -> Command {
        let mut command = motet(["run", "--files", &format!("{}={prefix}", self.name), "--"]);
        command.args(words).env("MOTET_LIBDIR", self.libraries.path());
        command
    }
}

#[test]
fn program_and_children_see_the_export() {
    let export = Export::new(|_| {});
    export.folder.file("f", "text\n", 0o644);
    let script =
        export.folder.file("script", "#!/bin/sh\ncat $1/f; cd $1; pwd; sh -c 'cat f'; echo made > $1/new\n", 0o755);
    assert!(script.is_file());
    let prefix = "/tmp/motet-run-files-prefix";
    for program in ["script", "./script", "//script"] {
        let program = format!("{prefix}/{program}");
        let (code, out, err) = finish(&mut export.run(prefix, &[&program, prefix]));
        assert_eq!((code, out), (0, format!("text\n{prefix}\ntext\n")), "{err}");
    }
    assert_eq!(std::fs::read_to_string(export.folder.path().join("new")).unwrap(), "made\n");
    assert!(!Path::new(prefix).exists());
    // One `motet run` within another: the inner one adds its own mappings, or takes all away.
    let own = env!("CARGO_BIN_EXE_motet");
    let inner = format!(
        "{own} run --files {0}={prefix}2 -- cat {prefix}/f {prefix}2/f; {own} run -- cat {prefix}/f; {own} run --off cat {prefix}/f",
        export.name
    );
    let (code, out, err) = finish(&mut export.run(prefix, &["sh", "-c", &inner]));
    assert_eq!((code, out.as_str()), (1, "text\ntext\ntext\n"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
}

#[test]
fn read_only_export_stays_as_it_is() {
    let export = Export::new(|options| options.read_only = true);
    export.folder.file("f", "text\n", 0o644);
    let (code, out, err) =
        finish(&mut export.run("/tmp/motet-r", &["sh", "-c", "cat /tmp/motet-r/f; echo x > /tmp/motet-r/f"]));
    assert_eq!(out, "text\n");
    assert!(code != 0 && err.contains("Read-only file system"), "{err}");
}

#[test]
fn what_cannot_work_is_refused() {
    let export = Export::new(|_| {});
    let with = |prefix: &str| export.run(prefix, &["true"]);
    assert!(refused(&mut with("relative"), 2).contains("absolute"));
    assert!(refused(&mut with("/tmp/../x"), 2).contains("without `..`"));
    assert!(refused(&mut with("/"), 2).contains("root"));
    assert!(refused(&mut with("/no-such-folder/r"), 2).contains("no folder /no-such-folder"));
    assert!(refused(&mut with("/tmp"), 2).contains("would hide"));
    let mut unknown = motet(["run", "--files", "motet-no-such-export=/tmp/r", "--", "true"]);
    assert!(
        refused(unknown.env("MOTET_LIBDIR", export.libraries.path()), 3).contains("no export motet-no-such-export")
    );
    let mut off = motet(["run", "--off", "--files", "a=/tmp/r", "true"]);
    assert_eq!(finish(&mut off).0, 2);
    let program = export.folder.compile("static", "int main(void) { return 0; }\n", &["-static"]);
    let message = refused(&mut export.run("/tmp/motet-r", &[program.to_str().unwrap()]), 2);
    assert!(message.contains("statically linked") && message.contains("motet mount"), "{message}");
    std::fs::remove_file(export.libraries.path().join("libmotet_files.so")).unwrap();
    assert!(refused(&mut with("/tmp/motet-r"), 70).contains("libmotet_files.so"));
}

#[test]
fn export_that_is_not_direct_needs_a_mount() {
    let export = Export::new(|options| options.direct = false);
    assert!(refused(&mut export.run("/tmp/motet-r", &["true"]), 1).contains("motet mount"));
    // Another folder has taken the place of the exported one.
    let moved = Export::new(|_| {});
    let path = moved.folder.path();
    std::fs::rename(path, path.with_extension("moved")).unwrap();
    std::fs::create_dir(path).unwrap();
    assert!(refused(&mut moved.run("/tmp/motet-r", &["true"]), 1).contains("another folder"));
    std::fs::remove_dir(path.with_extension("moved")).unwrap();
}
