//! `motet run`: what the program sees, and how it ends.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use common::{Folder, finish, json, motet, refused};
use rustix::process::{Pid, Signal, kill_process};

fn run(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = motet(["run"]);
    command.args(arguments).env("MOTET_LIBDIR", folder.path());
    command
}

fn shell(folder: &Folder, options: &[&str], script: &str) -> Command {
    let arguments: Vec<&str> = options.iter().copied().chain(["--", "sh", "-c", script]).collect();
    run(folder, &arguments)
}

fn folder_with_libraries(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.libraries();
    folder
}

#[test]
fn commands_that_cannot_run_end_as_in_a_shell() {
    let folder = folder_with_libraries("cannot");
    assert!(refused(&mut run(&folder, &["no-such-command"]), 127).contains("command not found"));
    refused(&mut run(&folder, &["./no-such-command"]), 127);
    let plain = folder.file("plain", "#!/bin/sh\n", 0o644);
    assert!(refused(&mut run(&folder, &[plain.to_str().unwrap()]), 126).contains("chmod +x"));
    refused(&mut run(&folder, &["/etc"]), 126);
    let orphan = folder.file("orphan", "#!/no/such/interpreter\n", 0o755);
    assert!(refused(&mut run(&folder, &[orphan.to_str().unwrap()]), 127).contains("interpreter"));
    refused(&mut run(&folder, &["--stats", orphan.to_str().unwrap()]), 127);
}

/// A file without a `#!` line is a shell script for `execvp`.
#[test]
fn script_without_a_first_line_runs_under_the_shell() {
    let folder = folder_with_libraries("scripts");
    let script = folder.file("script", "echo \"$1\" $MOTET_DISABLE; exit 4\n", 0o755);
    for options in [&[][..], &["--stats"]] {
        let words = [options, &["--", script.to_str().unwrap(), "a word"]].concat();
        let (code, out, _) = finish(&mut run(&folder, &words));
        assert_eq!((code, out.as_str()), (4, "a word 0\n"), "{options:?}");
    }
}

#[test]
fn missing_libraries_are_code_70() {
    let folder = Folder::new("nothing");
    assert!(refused(&mut run(&folder, &["true"]), 70).contains("correct MOTET_LIBDIR"));
    folder.file("libmotet_sockets.so", "text", 0o644);
    folder.file("libmotet.so.0", "text", 0o644);
    assert!(refused(&mut run(&folder, &["true"]), 70).contains("is not a library"));
    assert_eq!(finish(&mut run(&folder, &["--off", "true"])).0, 0);
}

/// LD_PRELOAD cannot hold such a path: it is preloaded by a link in a private folder, and refused where that has a space, too.
#[test]
fn libraries_in_a_path_with_a_space_are_preloaded_by_a_link() {
    let spaced = Folder::new("with a space");
    spaced.libraries();
    let (private, folder) = (spaced.path().join("private"), Folder::new("links"));
    let preloaded = |sessions: &std::path::Path| {
        let mut command = run(&spaced, &["sh", "-c", "echo $LD_PRELOAD"]);
        command.env("MOTET_SESSION_DIR", sessions);
        command
    };
    let (code, out, _) = finish(&mut preloaded(&folder.path().join("sessions")));
    assert!(code == 0 && out.contains("/.libraries/") && !out.trim().contains(' '), "{code}: {out}");
    assert!(refused(&mut preloaded(&private), 70).contains("space or colon"));
}

#[test]
fn wrong_options_name_the_word() {
    let folder = folder_with_libraries("options");
    assert!(refused(&mut run(&folder, &["--on", "warp", "true"]), 2).contains("no such driver: `warp`"));
    assert!(refused(&mut run(&folder, &["--set", "rign=1", "true"]), 2).contains("did you mean ring?"));
    assert!(refused(&mut run(&folder, &["--set", "ring", "true"]), 2).contains("NAME=VALUE"));
    refused(&mut run(&folder, &["--on", "shm", "--off", "true"]), 2);
    refused(&mut run(&folder, &["--nonsense", "true"]), 2);
}

#[test]
fn program_replaces_the_motet_process() {
    let folder = folder_with_libraries("replaces");
    let mut child = shell(&folder, &[], "echo $$").stdout(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(said.trim(), child.id().to_string());
    assert!(child.wait().unwrap().success());
}

#[test]
fn exit_status_and_signals_pass_through() {
    let folder = folder_with_libraries("status");
    for options in [&[][..], &["--stats"]] {
        for code in [0, 1, 77, 255] {
            assert_eq!(finish(&mut shell(&folder, options, &format!("exit {code}"))).0, code, "{options:?}");
        }
        for (signal, number) in [("TERM", 15), ("KILL", 9), ("INT", 2), ("ABRT", 6), ("PIPE", 13), ("USR1", 10)] {
            let (code, ..) = finish(&mut shell(&folder, options, &format!("ulimit -c 0; kill -{signal} $$")));
            assert_eq!(code, -number, "{options:?} {signal}");
        }
    }
}

#[test]
fn program_sees_libraries_settings_and_arguments() {
    let folder = folder_with_libraries("sees");
    let mine = folder.compile("mine.so", "int mine;", &["-shared", "-fPIC"]);
    let script = "echo $LD_PRELOAD; echo $MOTET_LIBRARY; echo $MOTET_DRIVERS $MOTET_RING $MOTET_DISABLE";
    let options = ["--on", "shm,tcp", "--set", "ring=128K"];
    let (code, out, err) = finish(shell(&folder, &options, script).env("LD_PRELOAD", &mine));
    let at = folder.path().display();
    assert_eq!(out, format!("{at}/libmotet_sockets.so:{}\n{at}/libmotet.so.0\nshm,tcp 128K 0\n", mine.display()));
    assert_eq!((code, err.as_str()), (0, ""));
    let (_, out, _) = finish(&mut run(&folder, &["printf", "%s|", "--json", "-v", "a b"]));
    assert_eq!(out, "--json|-v|a b|");
}

#[test]
fn run_off_removes_the_outer_preload() {
    let folder = folder_with_libraries("off");
    let inner = env!("CARGO_BIN_EXE_motet");
    let script = format!("{inner} run --off -- sh -c 'echo [$LD_PRELOAD] $MOTET_DISABLE'");
    assert_eq!(finish(&mut shell(&folder, &[], &script)).1, "[] 1\n");
    let script = format!("{inner} run -- sh -c 'echo $LD_PRELOAD'");
    let once = format!("{}/libmotet_sockets.so\n", folder.path().display());
    assert_eq!(finish(&mut shell(&folder, &[], &script)).1, once);
}

#[test]
fn omniorb_adapter_is_preloaded_if_wanted() {
    let folder = folder_with_libraries("two-adapters");
    folder.compile("libmotet_omniorb.so", "int motet_orb_dummy;", &["-shared", "-fPIC"]);
    let inner = env!("CARGO_BIN_EXE_motet");
    let script = format!(
        "echo $LD_PRELOAD; {inner} run -- sh -c 'echo $LD_PRELOAD'; {inner} run --off -- sh -c 'echo [$LD_PRELOAD]'"
    );
    let at = folder.path().display();
    let both = format!("{at}/libmotet_sockets.so:{at}/libmotet_omniorb.so");
    assert_eq!(finish(&mut shell(&folder, &[], &script)).1, format!("{both}\n{both}\n[]\n"));
    let one = format!("{at}/libmotet_sockets.so\n");
    assert_eq!(finish(&mut shell(&folder, &["--set", "omniorb=off"], "echo $LD_PRELOAD")).1, one);
}

#[test]
fn omniorb_adapter_gets_settings_of_every_source() {
    let folder = folder_with_libraries("orb-settings");
    folder.compile("libmotet_omniorb.so", "int motet_orb_dummy;", &["-shared", "-fPIC"]);
    let file = folder.file("motet.toml", "omniorb_message = \"3MiB\"\nomniorb_huge = \"off\"\n", 0o644);
    let seen = |more: &[&str]| {
        let mut command = shell(&folder, more, "echo $MOTET_OMNIORB_MESSAGE $MOTET_OMNIORB_HUGE");
        finish(command.env("MOTET_CONFIG", &file)).1
    };
    assert_eq!(seen(&[]), "3145728 off\n");
    assert_eq!(seen(&["--set", "omniorb_huge=on", "--set", "omniorb_message=1MiB"]), "1MiB on\n");
}

#[test]
fn programs_without_motet_are_reported_only_with_v() {
    let folder = folder_with_libraries("static");
    let program = folder.compile("static", "int main(void) { return 5; }", &["-static"]);
    let program = program.to_str().unwrap();
    let (code, out, err) = finish(&mut run(&folder, &[program]));
    assert_eq!((code, out.as_str(), err.as_str()), (5, "", ""));
    let (code, _, err) = finish(&mut run(&folder, &["-v", program]));
    assert!(code == 5 && err.contains("statically linked"), "{err}");
}

#[test]
fn signals_reach_the_program_under_stats() {
    let folder = folder_with_libraries("signals");
    // A test in the background may ignore signals, which a shell then cannot trap.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    let all = [(Signal::INT, "INT"), (Signal::TERM, "TERM"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP")];
    for (signal, name) in all.into_iter().filter(|(signal, _)| ignored >> (signal.as_raw() - 1) & 1 == 0) {
        let script = format!("trap 'echo got {name}; exit 5' {name}; echo ready; while :; do sleep 0.05; done");
        let mut child =
            shell(&folder, &["--stats"], &script).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("got {name}"));
        assert_eq!(child.wait().unwrap().code(), Some(5));
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let folder = folder_with_libraries("ignored");
    let inner = env!("CARGO_BIN_EXE_motet");
    for options in ["", "--stats"] {
        let script = format!("trap '' HUP; exec {inner} run {options} -- sh -c 'kill -HUP $$; echo alive'");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("MOTET_LIBDIR", folder.path()).env("MOTET_CONFIG", "/dev/null");
        assert_eq!(finish(&mut command).1, "alive\n", "{options}");
    }
}

#[test]
fn stats_are_summed_on_standard_error() {
    let folder = folder_with_libraries("stats");
    let script = r#"for n in 1 2; do echo '{"pid":'$n',"command":"part","streams":1,"upgraded":1,"sent_fast":1500}' >>$MOTET_STATS; done; echo out"#;
    let (code, out, err) = finish(&mut shell(&folder, &["--stats"], script));
    assert_eq!((code, out.as_str()), (0, "out\n"));
    assert!(err.contains("SENT shm") && err.contains("3.00 kB"), "{err}");
    let (_, out, err) = finish(&mut shell(&folder, &["--stats", "--json"], script));
    assert_eq!((out.as_str(), json(&err)[1]["sent_fast"].as_u64()), ("out\n", Some(1500)));
}

#[test]
fn log_has_an_absolute_name_and_fails_in_one_line() {
    let folder = folder_with_libraries("log");
    let at = folder.path();
    let named = |name: &str| finish(shell(&folder, &["--log", name], "echo $MOTET_LOG").current_dir(at));
    for name in ["log.txt", "log.%p"] {
        assert_eq!(named(name), (0, format!("{}/{name}\n", at.display()), String::new()));
    }
    let (code, out, err) = named("/proc/no/such/log");
    assert_eq!((code, out.as_str()), (0, "/proc/no/such/log\n"), "the program runs");
    assert!(err.starts_with("motet: no log: /proc/no/such/log: ") && err.lines().count() == 1, "{err}");
    assert!(named("/proc/no/such/%p").2.starts_with("motet: no log: "));
    let (_, _, err) = finish(shell(&folder, &[], "true").env("MOTET_LOG", at));
    assert!(err.starts_with("motet: no log: ") && err.contains("directory"), "{err}");
    // The log is never the output of the program.
    let out = std::fs::File::create(at.join("out")).unwrap();
    let output = shell(&folder, &["--log", "out"], "echo text").current_dir(at).stdout(out).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("it is the program's own output"));
    assert_eq!(std::fs::read_to_string(at.join("out")).unwrap(), "text\n");
}

/// A standard error whose every write fails: a full disk, and a pipe without a reader.
fn lost_outputs() -> [Stdio; 2] {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (_, closed) = std::io::pipe().unwrap();
    [full.into(), closed.into()]
}

#[test]
fn standard_error_that_cannot_be_written_changes_nothing() {
    let folder = folder_with_libraries("lost");
    for options in [&["-v"][..], &["--stats"], &["--log", "/no/such/log"], &["--stats", "--json", "-v"]] {
        for lost in lost_outputs() {
            let output = shell(&folder, options, "echo ran; exit 7").stderr(lost).output().unwrap();
            let out = String::from_utf8(output.stdout).unwrap();
            assert_eq!((output.status.code(), out.as_str()), (Some(7), "ran\n"), "{options:?}");
        }
    }
    for lost in lost_outputs() {
        let status =
            motet(["config"]).stdout(Stdio::null()).stderr(lost).env("MOTET_RING", "no size").status().unwrap();
        assert_eq!(status.code(), Some(2));
    }
}
