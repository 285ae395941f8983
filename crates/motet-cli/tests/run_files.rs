//! `motet run --files`: exports of this host at a path of a program, and what is refused.

mod common;

use std::path::Path;

use common::exported::Export;
use common::{finish, motet, refused};

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
fn a_folder_that_becomes_a_link_into_the_export_is_one() {
    let export = Export::new(|_| {});
    export.folder.file("f", "text\n", 0o644);
    let (prefix, folder) = ("/tmp/motet-run-files-linked", "/tmp/motet-run-files-link");
    // One process looks into the folder, and opens a file through the link.
    let script =
        "mkdir $1 && ! test -e $1/missing && rmdir $1 && ln -s $0 $1 && read line < $1/f && echo $line; rm -f $1";
    let (code, out, err) = finish(&mut export.run(prefix, &["sh", "-c", script, prefix, folder]));
    assert_eq!((code, out.as_str()), (0, "text\n"), "{err}");
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
    assert!(refused(&mut with("/no-such-folder/r"), 2).contains("no directory /no-such-folder"));
    assert!(refused(&mut with("/tmp"), 2).contains("would hide"));
    let mut unknown = motet(["run", "--files", "motet-no-such-export=/tmp/r", "--", "true"]);
    assert!(
        refused(unknown.env("MOTET_LIBDIR", export.libraries.path()), 3).contains("no export motet-no-such-export")
    );
    let mut off = motet(["run", "--off", "--files", "a=/tmp/r", "true"]);
    assert_eq!(finish(&mut off).0, 2);
    let program = export.folder.compile("static", "int main(void) { return 0; }\n", &["-static"]);
    let program = program.to_str().unwrap();
    let mut preloaded = motet(["run", "--files-by", "preload", "--files", &format!("{}=/tmp/motet-r", export.name)]);
    let message = refused(preloaded.arg(program).env("MOTET_LIBDIR", export.libraries.path()), 2);
    assert!(message.contains("statically linked"), "{message}");
    let message = refused(&mut export.run("/tmp/motet-no-such-place", &[program]), 2);
    assert!(message.contains("there is no directory /tmp/motet-no-such-place to mount on"), "{message}");
    let message = refused(&mut export.run("/etc/passwd", &[program]), 2);
    assert!(message.contains("is no directory"), "{message}");
    std::fs::remove_file(export.libraries.path().join("libmotet_files.so")).unwrap();
    assert!(refused(&mut with("/tmp/motet-r"), 70).contains("libmotet_files.so"));
}

#[test]
fn export_that_is_not_direct_is_not_preloaded() {
    let export = Export::new(|options| options.direct = false);
    let preload = |export: &Export| {
        let mut command = motet(["run", "--files-by", "preload", "--files", &format!("{}=/tmp/motet-r", export.name)]);
        command.arg("true").env("MOTET_LIBDIR", export.libraries.path());
        refused(&mut command, 1)
    };
    assert!(preload(&export).contains("--no-direct"));
    // Another folder has taken the place of the exported one.
    let moved = Export::new(|_| {});
    let path = moved.folder.path();
    std::fs::rename(path, path.with_extension("moved")).unwrap();
    std::fs::create_dir(path).unwrap();
    assert!(preload(&moved).contains("another directory"));
    std::fs::remove_dir(path.with_extension("moved")).unwrap();
}
