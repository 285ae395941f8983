//! Operation of the sockets adapter: which programs run under it, users, settings, logs, confinement, installation.

use motet_tests::programs::{is_root, skip};
use motet_tests::temporary::Temporary;
use motet_tests::{Built, Mode, Program, both, engine};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

// ---- programs that run under Motet -------------------------------------------------------------------------------------------

fn echo_between(server: Mode, client: Mode) -> (String, u64) {
    let server = Program::c("ping_pong", &["serve", "4"]).with_open_gates().start(server);
    let port = server.first_line();
    let client = Program::c("ping_pong", &["call", "4", &port, "300", "3000"]).with_open_gates().run(client);
    let server = server.finish();
    assert!(client.succeeded && server.succeeded, "{} {}", client.stderr, server.stderr);
    (client.printed.clone(), client.sent_fast() + server.sent_fast())
}

#[test]
fn peer_without_motet_is_unaffected() {
    let (reference, _) = echo_between(Mode::WithoutMotet, Mode::WithoutMotet);
    for (server, client) in [(Mode::WithoutMotet, Mode::WithMotet), (Mode::WithMotet, Mode::WithoutMotet)] {
        let (printed, fast) = echo_between(server, client);
        assert_eq!(printed, reference);
        assert_eq!(fast, 0);
    }
}

#[test]
fn separately_started_programs_use_shared_memory() {
    let (reference, _) = echo_between(Mode::WithoutMotet, Mode::WithoutMotet);
    let (printed, fast) = echo_between(Mode::WithMotet, Mode::WithMotet);
    assert_eq!(printed, reference);
    assert!(fast > 0 || engine().is_none(), "nothing over shared memory");
}

#[test]
fn motet_disable_keeps_connections_on_tcp() {
    let outcome = Program::c("ping_pong", &["4", "500", "64"]).with("MOTET_DISABLE", "1").same_both_ways();
    assert!(outcome.streams.is_empty());
    let outcome = Program::c("not_loaded", &["talk"]).with("MOTET_DISABLE", "1").run(Mode::WithMotet);
    assert_eq!(outcome.printed, "engine not loaded\n", "{}", outcome.stderr);
}

#[test]
fn kernel_symbols_are_hidden_from_libfabric_only() {
    let library = Built::library("symbols-fi", &motet_tests::folder("symbols"), &[]);
    let library = library.to_str().expect("a plain path");
    let found = |settings: &[&str]| {
        let program = Program::c("kernel_symbols", &[library]);
        let program = settings.iter().fold(program, |program, name| program.with(name, "1"));
        program.run(Mode::WithMotet).printed
    };
    let there = u8::from(std::fs::read("/proc/kallsyms").is_ok_and(|symbols| !symbols.is_empty()));
    let asked = if Path::new("/sys/class/infiniband").exists() { there } else { 0 };
    assert_eq!(found(&["MOTET_MPI_SET"]), format!("{asked} {there}\n"));
    assert_eq!(found(&[]), format!("{there} {there}\n"));
    assert_eq!(found(&["MOTET_MPI_SET", "MOTET_DISABLE"]), format!("{there} {there}\n"));
}

#[test]
fn settings_survive_an_overwritten_environment() {
    let program = || Program::c("scrubbed_environment", &[]);
    let counted = program().counted().same_both_ways();
    counted.took_the_fast_path(1);
    let outcome = program().with("MOTET_DRIVERS", "tcp").same_both_ways();
    if motet_tests::engine().is_some() {
        assert_eq!(counted.counts.matches("\"upgraded\":1,").count(), 2, "{}", counted.counts);
        assert_eq!(outcome.streams.iter().map(|s| (s.sent_fast, s.reason)).collect::<Vec<_>>(), [(0, 6); 2]);
    }
    assert!(program().with("MOTET_DISABLE", "1").same_both_ways().streams.is_empty());
}

/// The engine sees the first messages of a stream that stays on TCP, and not the later ones: a part of the bytes would look like all.
#[test]
fn bytes_over_tcp_are_counted_whole_or_not_at_all() {
    let server = Program::c("ping_pong", &["serve", "1"]).start(Mode::WithoutMotet);
    let client = Program::c("ping_pong", &["call", "1", &server.first_line(), "5000", "1000"]).counted();
    let client = client.run(Mode::WithMotet);
    assert!(client.succeeded && server.finish().succeeded, "{}", client.stderr);
    if engine().is_some() {
        for counted in ["\"sent_tcp\":0,", "\"received_tcp\":0,", "\"uncounted_tcp\":1,"] {
            assert!(client.counts.contains(counted), "{counted} in {}", client.counts);
        }
    }
}

#[test]
fn process_without_sockets_never_loads_the_engine() {
    let outcome = Program::c("not_loaded", &["idle"]).run(Mode::WithMotet);
    assert_eq!(outcome.printed, "engine not loaded\n", "{}", outcome.stderr);
}

#[test]
fn missing_engine_is_silent() {
    let outcome = Program::c("ping_pong", &["4", "500", "64"])
        .with("MOTET_LIBRARY", "/nonexistent/libmotet.so.0")
        .same_both_ways();
    assert!(outcome.streams.is_empty());
}

#[test]
fn image_of_another_libc_does_not_see_the_preload_object() {
    both("foreign_image", &[]);
    let own = Program::c("foreign_image", &["own"]).run(Mode::WithMotet);
    assert_eq!(own.printed, "own: preload object present, other one present, KEPT=yes\n", "{}", own.stderr);
}

#[test]
fn process_that_confines_itself_by_seccomp_survives() {
    both("confined", &["early"]);
    both("confined", &["late"]).took_the_fast_path(1);
}

#[test]
fn process_that_gives_up_new_privileges_is_not_confined() {
    both("confined", &["privileges"]).took_the_fast_path(400);
}

// ---- users and privileges ------------------------------------------------------------------------------------------------

/// Two user ids. The programs are copied to where every user may read them.
const USERS: [u32; 2] = [1, 2];

#[test]
fn memory_is_offered_to_the_same_user_only() {
    if !is_root() {
        return skip("memory_is_offered_to_the_same_user_only", "needs root to become other users").unwrap_or(());
    }
    let echo = |server: u32, client: u32| {
        let server = Program::c("ping_pong", &["serve", "4"]).with_open_gates().for_user(server).start(Mode::WithMotet);
        let calling = Program::c("ping_pong", &["call", "4", &server.first_line(), "300", "300"]).with_open_gates();
        let client = calling.for_user(client).run(Mode::WithMotet);
        let server = server.finish();
        assert!(client.succeeded && server.succeeded, "{} {}", client.stderr, server.stderr);
        let reasons: Vec<u64> = server.streams.iter().chain(&client.streams).map(|s| s.reason).collect();
        (client.printed.clone(), client.sent_fast() + server.sent_fast(), reasons)
    };
    let (alike, fast, _) = echo(USERS[0], USERS[0]);
    assert!(fast > 0 || engine().is_none(), "nothing over shared memory");
    for (server, client) in [(USERS[0], USERS[1]), (USERS[0], 0), (0, USERS[0])] {
        let (printed, fast, reasons) = echo(server, client);
        assert_eq!((printed, fast), (alike.clone(), 0), "user {server} serves user {client}");
        assert!(reasons.contains(&OTHER_USER) || engine().is_none(), "{reasons:?}");
    }
}

#[test]
fn set_uid_program_is_left_alone() {
    if !is_root() {
        return skip("set_uid_program_is_left_alone", "needs root to make one").unwrap_or(());
    }
    // Only root can change names in this folder, so the file that becomes set-uid is the one that was built.
    let folder = Temporary::new("set-uid").pass();
    let path = Built::program("privileged", folder.path(), &[]);
    let run = |mode| Program::built(&path, &[]).by(&["setpriv", "--reuid", "1", "--clear-groups"]).run(mode);
    let ordinary = run(Mode::WithMotet).printed;
    std::os::unix::fs::chown(&path, Some(USERS[1]), None).expect("another owner");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("set-uid");
    let (without_motet, with_motet) = (run(Mode::WithoutMotet), run(Mode::WithMotet));
    drop(folder);
    if !without_motet.printed.starts_with("privileged") {
        return skip("set_uid_program_is_left_alone", "set-uid has no effect here").unwrap_or(());
    }
    assert_eq!(ordinary, "unprivileged, preload object present\n");
    assert_eq!(with_motet.printed, "privileged, preload object absent\n");
    assert_eq!((with_motet.succeeded, with_motet.stderr, with_motet.streams.len()), (true, without_motet.stderr, 0));
}

#[test]
fn statically_linked_program_is_left_alone() {
    let path = Built::program("ping_pong", &motet_tests::folder("static"), &["-static"]);
    let outcome = Program::built(&path, &["4", "500", "64"]).same_both_ways();
    assert!(outcome.streams.is_empty());
}

// ---- confinement ---------------------------------------------------------------------------------------------------------

#[test]
fn sandbox_without_abstract_names_stays_on_tcp_with_reason() {
    let program = Program::c("sandboxed", &["accepted"]);
    if program.run(Mode::WithoutMotet).stderr.contains("77") {
        return skip("sandbox_without_abstract_names_stays_on_tcp_with_reason", "no Landlock here").unwrap_or(());
    }
    let outcome = program.same_both_ways();
    assert_eq!(outcome.sent_fast(), 0);
    assert!(outcome.streams.iter().any(|s| s.reason == NOT_PERMITTED) || engine().is_none(), "{:?}", outcome.streams);
    both("sandboxed", &["connected"]).took_the_fast_path(1); // the peer finds this end, which needs no name
}

/// In its own file system, because the file affects every process of the host.
#[test]
fn disable_file_keeps_new_processes_on_tcp() {
    let with = |file: &str| {
        let script = format!("mount -t tmpfs none /etc && mkdir /etc/motet && {file} exec \"$0\" \"$@\"");
        Program::c("ping_pong", &["4", "500", "64"])
            .by(&["unshare", "--mount", "sh", "-c", &script])
            .run(Mode::WithMotet)
    };
    let without = with("");
    if !without.succeeded {
        return skip("disable_file_keeps_new_processes_on_tcp", "needs a mount namespace").unwrap_or(());
    }
    without.took_the_fast_path(1);
    let outcome = with("touch /etc/motet/disable &&");
    assert!(outcome.succeeded && outcome.streams.is_empty(), "{}", outcome.stderr);
    assert_eq!(outcome.printed, without.printed);
}

// ---- installation --------------------------------------------------------------------------------------------------------

/// All files of an installation under a folder.
fn installed(under: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(under).into_iter().flatten().map(|entry| entry.expect("an entry").path());
    entries.flat_map(|path| if path.is_dir() && !path.is_symlink() { installed(&path) } else { vec![path] }).collect()
}

/// LD_PRELOAD separates names by spaces and colons.
#[test]
fn install_refuses_prefix_that_cannot_be_preloaded() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = motet_tests::folder("install").join(format!("{}-refused", std::process::id()));
    for prefix in ["/opt/my programs", "/opt/a:b"] {
        let mut command = std::process::Command::new(root.join("scripts/install"));
        let refused = command.env("DESTDIR", &folder).env("PREFIX", prefix).output().expect("the script runs");
        let said = [refused.stdout, refused.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
        assert!(!refused.status.success() && said.contains("LD_PRELOAD"), "{said}");
    }
    assert!(!folder.exists(), "and nothing was made");
}

#[test]
fn reinstall_and_uninstall_disturb_no_running_program() {
    let test = "reinstall_and_uninstall_disturb_no_running_program";
    let Some(build) = engine().and_then(Path::parent).filter(|f| f.join("libmotet_sockets.so").exists()) else {
        return skip(test, "nothing is built (make build)").unwrap_or(());
    };
    let (target, root) = (build.parent().expect("target"), Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    if !target.join("release/motet").exists() {
        return skip(test, "nothing is built (make build)").unwrap_or(());
    }
    let folder = motet_tests::folder("install").join(std::process::id().to_string());
    let install = |arguments: &[&str]| {
        let mut command = std::process::Command::new(root.join("scripts/install"));
        command.args(arguments).env("DESTDIR", &folder).env("PREFIX", "/usr").env("CARGO_TARGET_DIR", target);
        let done = command.output().expect("the script runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    };
    install(&[]);
    let (files, shim) = (installed(&folder), folder.join("usr/lib/motet/libmotet_sockets.so"));
    let inode = || shim.metadata().expect("the preload object").ino();
    let before = inode();
    let runs = |name, arguments: &[&str]| {
        let program = Program::c(name, arguments).with("LD_PRELOAD", shim.to_str().expect("UTF-8"));
        program.with("MOTET_LIBRARY", folder.join("usr/lib/libmotet.so.0").to_str().expect("UTF-8"))
    };
    // A program that has loaded the preload object and loads the engine only later.
    let server = runs("ping_pong", &["serve", "4"]).start(Mode::WithMotet);
    let port = server.first_line();
    install(&[]);
    assert!(inode() != before, "a new file took the name of the old one");
    assert_eq!(installed(&folder), files, "the same files, and nothing else");
    let client = runs("ping_pong", &["call", "4", &port, "300", "300"]).run(Mode::WithMotet);
    let server = server.finish();
    assert!(client.succeeded && server.succeeded, "{} {}", client.stderr, server.stderr);
    assert!(
        !client.streams.is_empty() && client.streams.iter().all(|stream| stream.reason == 0),
        "{:?}",
        client.streams
    );
    let server = runs("ping_pong", &["serve", "4"]).start(Mode::WithMotet);
    let port = server.first_line();
    install(&["--uninstall"]);
    assert_eq!(installed(&folder), Vec::<PathBuf>::new());
    let client = Program::c("ping_pong", &["call", "4", &port, "300", "300"]).run(Mode::WithoutMotet);
    assert!(client.succeeded && server.finish().succeeded, "{}", client.stderr);
    std::fs::remove_dir_all(&folder).expect("removed");
}

// ---- the log -------------------------------------------------------------------------------------------------------------

/// Descriptor numbers, close of everything, forks, exec: the same as without a log, and the log is complete.
#[test]
fn log_changes_nothing_for_the_program() {
    let folder = Temporary::new("log");
    let programs: [(&str, &[&str]); 5] = [
        ("numbers", &["0"]),
        ("forks", &["child-serves-young"]),
        ("forks", &["both-in-turn"]),
        ("inherits", &["60", "20"]),
        ("killed_peer", &["30000"]),
    ];
    for (n, (program, arguments)) in programs.into_iter().enumerate() {
        for name in ["one", "each.%p"] {
            let log = folder.join(&format!("{n}.{name}"));
            let program = Program::c(program, arguments).with("MOTET_LOG", log.to_str().expect("UTF-8"));
            program.same_both_ways().took_the_fast_path(u64::from(n == 0));
        }
    }
    if motet_tests::engine().is_none() {
        return eprintln!("SKIPPED the log itself: libmotet.so.0 is not built (make build)");
    }
    let mut all = String::new();
    for file in std::fs::read_dir(folder.path()).expect("the logs") {
        let path = file.expect("a log").path();
        let text = std::fs::read_to_string(&path).expect("text");
        let own = path.to_string_lossy().rsplit_once("each.").map(|(_, pid)| format!(" pid={pid} "));
        for line in text.lines() {
            assert!(line.contains("Z mono=") && line.contains(" event="), "{}: {line}", path.display());
            assert!(own.as_ref().is_none_or(|own| line.contains(own)), "{}: {line}", path.display());
        }
        all += &text;
    }
    for event in ["start", "attached", "closed", "exit"] {
        assert!(all.contains(&format!(" event={event} ")), "{event} in:\n{all}");
    }
}

#[test]
fn unwritable_log_changes_nothing_for_the_program() {
    for path in ["/proc/no/such/log", "/dev/stdout", "/proc/self/fd/2", "/"] {
        Program::c("ping_pong", &["4", "300", "64"]).with("MOTET_LOG", path).same_both_ways().took_the_fast_path(5000);
    }
}

/// Reason codes of `motet why`.
const OTHER_USER: u64 = 4;
const NOT_PERMITTED: u64 = 10;
