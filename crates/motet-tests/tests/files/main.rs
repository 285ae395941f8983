//! Tests of the files adapter: real programs on a folder, and on the same folder beneath a prefix of `MOTET_FILES`. Both runs must print the same and leave
//! the same names.
#![forbid(unsafe_code)]

mod calls;
mod special;
mod tools;

use motet_tests::{folder, temporary::Temporary};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where the folder appears: nothing exists there.
const PREFIX: &str = "/tmp/motet-files-test-prefix";

/// The files adapter, built from this checkout.
fn adapter() -> &'static Path {
    static ADAPTER: OnceLock<PathBuf> = OnceLock::new();
    ADAPTER.get_or_init(|| {
        let to = folder("files-adapter");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters/files");
        let built = Command::new("make").arg("-s").arg("-C").arg(source).arg(format!("OUT={}", to.display())).output();
        let built = built.expect("make is needed to build the files adapter");
        assert!(built.status.success(), "the files adapter does not build: {}", String::from_utf8_lossy(&built.stderr));
        to.join("libmotet_files.so")
    })
}

/// A command in an environment without Motet, ended after a minute or so.
fn command(words: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.arg("100").args(words).current_dir("/").stdin(Stdio::null());
    let settings =
        std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("MOTET_"));
    settings.chain([OsString::from("LD_PRELOAD")]).for_each(|name| {
        command.env_remove(name);
    });
    command.env("LC_ALL", "C").env("HOME", "/nonexistent").env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// A command that runs under the adapter with these mappings.
fn mapped(words: &[&str], mappings: &str) -> Command {
    let mut command = command(words);
    command.env("LD_PRELOAD", adapter()).env("MOTET_FILES", mappings);
    command
}

/// Status, standard output, standard error.
fn finish(mut command: Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A folder for an export.
fn real(name: &str) -> (Temporary, PathBuf) {
    let temporary = Temporary::new(name);
    let path = temporary.path().canonicalize().expect("a path").join("real");
    fs::create_dir(&path).expect("a folder");
    (temporary, path)
}

/// Runs a command on a folder, which is its last word, and on one beneath the prefix: both succeed, print the same, and leave the same names. Returns what is
/// printed.
#[track_caller]
fn same(name: &str, words: &[&str]) -> String {
    let (_plain, plain) = real(&format!("{name}-plain"));
    let (_real, real) = real(&format!("{name}-mapped"));
    let at = plain.to_str().expect("UTF-8");
    let with = |folder: &str, mut command: Command| {
        command.arg(folder).env("D", folder);
        finish(command)
    };
    let one = with(at, command(words));
    let one = (one.0, one.1.replace(at, PREFIX), one.2.replace(at, PREFIX));
    let other = with(PREFIX, mapped(words, &format!("{PREFIX}={}", real.display())));
    assert_eq!(one.0, Some(0), "without the adapter: {}{}", one.1, one.2);
    for (one, other) in one.1.lines().zip(other.1.lines()) {
        assert_eq!(one, other, "the first line that differs");
    }
    assert_eq!(one, other);
    assert_eq!(names(&plain), names(&real));
    other.1
}

/// Runs a bash script on the plain folder and under the adapter; both must print the same.
#[track_caller]
fn same_script(name: &str, script: &str) -> String {
    same(name, &["bash", "-c", script, "bash"])
}

/// Everything beneath a folder: name, kind, mode.
fn names(folder: &Path) -> BTreeMap<PathBuf, (char, u32)> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            let status = path.symlink_metadata().expect("a file");
            let kind = match status.file_type() {
                kind if kind.is_dir() => 'd',
                kind if kind.is_symlink() => 'l',
                kind if kind.is_fifo() => 'p',
                kind if kind.is_socket() => 's',
                _ => '-',
            };
            if kind == 'd' {
                folders.push(path.clone());
            }
            // Objects of git are named by their contents; some contain times.
            if !path.to_string_lossy().contains("/.git/objects/") {
                found.insert(path.strip_prefix(folder).expect("within").to_owned(), (kind, status.mode()));
            }
        }
    }
    found
}

/// Whether a program is installed; says so if not.
fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        eprintln!("SKIPPED: {program} is not installed");
    }
    found
}
