//! Processes that restrict their system calls (seccomp) in the middle of a conversation.

use motet_tests::programs::skip;
use motet_tests::temporary::Temporary;
use motet_tests::{Mode, Outcome, Program, both};
use std::path::{Path, PathBuf};

const CALLS: [&str; 15] = [
    "close", "poll", "ppoll", "select", "pselect", "epoll", "write", "read", "readv", "recvmsg", "sendmsg", "shutdown",
    "dup", "fcntl", "socket",
];

/// After the filter is installed, only the program's own system calls are made on a connection.
fn makes_only_program_calls(how: &str) {
    for call in CALLS {
        let outcome = both("confined_calls", &[how, call]);
        assert_eq!(outcome.printed, "confined, and alive\n", "{how} {call}");
        if call == "close" {
            outcome.took_the_fast_path(1);
        }
    }
}

#[test]
fn confinement_by_prctl_leaves_only_program_calls() {
    makes_only_program_calls("prctl");
}

#[test]
fn confinement_by_raw_prctl_leaves_only_program_calls() {
    makes_only_program_calls("raw");
}

#[test]
fn confinement_by_raw_seccomp_leaves_only_program_calls() {
    makes_only_program_calls("seccomp");
    makes_only_program_calls("alone");
}

#[test]
fn confined_child_makes_only_program_calls() {
    makes_only_program_calls("child");
    makes_only_program_calls("flags");
}

#[test]
fn child_of_confined_process_makes_only_program_calls() {
    makes_only_program_calls("parent");
}

#[test]
fn bytes_sent_before_confinement_are_received_after_it() {
    for how in ["read", "recv", "recvmsg", "whole", "peek", "discard", "poll", "select", "epoll", "edge", "once"] {
        for by in [&[how][..], &[how, "child"]] {
            both("confined_unread", by).took_the_fast_path(20_000);
        }
    }
}

// ---- OpenSSH ---------------------------------------------------------------------------------------------------------------

struct Ssh {
    folder: Temporary,
    port: String,
}

impl Ssh {
    /// Makes keys and settings for this test. `None`, with a message, if they cannot be made.
    fn prepare(test: &str) -> Option<Self> {
        let found = |name: &str| motet_programs::find(name);
        let (Some(keygen), Some(_), Some(_)) = (found("ssh-keygen"), found("sshd"), found("ssh")) else {
            return skip(test, "OpenSSH is not installed");
        };
        if !motet_programs::is_root() {
            return skip(test, "needs root: the server confines a child of another user");
        }
        let _ = std::fs::create_dir("/run/sshd"); // the root folder of the confined child
        let folder = Temporary::new("ssh");
        let port = motet_programs::free_port().expect("a port").to_string();
        for name in ["host", "user"] {
            let file = folder.join(name);
            let made =
                std::process::Command::new(&keygen).args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(file).status();
            assert!(made.is_ok_and(|status| status.success()), "a key");
        }
        let here = folder.path().display();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {here}/host\nAuthorizedKeysFile {here}/user.pub\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin yes\nSubsystem sftp internal-sftp\n"
        );
        std::fs::write(folder.join("settings"), settings).expect("settings");
        Some(Self { folder, port })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn server(&self) -> Program {
        let settings = self.file("settings").display().to_string();
        Program::built(&motet_programs::find("sshd").expect("a server"), &["-D", "-e", "-f", &settings])
    }

    fn client(&self, program: &str, port: &str, what: &[&str]) -> Outcome {
        let key = self.file("user").display().to_string();
        let mut words = vec!["-F", "none", "-i", &key, port, &self.port];
        for option in [
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "BatchMode=yes",
            "ConnectionAttempts=20",
        ] {
            words.extend(["-o", option]);
        }
        words.extend(what);
        Program::built(&motet_programs::find(program).expect("a client"), &words).run(Mode::WithMotet)
    }
}

fn same_bytes(one: &Path, other: &Path) -> bool {
    std::fs::read(one).ok().is_some_and(|bytes| std::fs::read(other).ok() == Some(bytes))
}

#[test]
fn openssh_accepts_logins_and_files() {
    let Some(ssh) = Ssh::prepare("openssh_accepts_logins_and_files") else { return };
    let server = ssh.server().start(Mode::WithMotet);
    for round in 0..3 {
        let run = ssh.client("ssh", "-p", &["root@127.0.0.1", &format!("echo login {round}")]);
        assert_eq!(run.printed, format!("login {round}\n"), "{}", run.stderr);
    }
    let mut bytes = vec![0; 8 << 20];
    let mut state = 1u64;
    for byte in &mut bytes {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *byte = (state >> 56) as u8;
    }
    let (from, to) = (ssh.file("from"), ssh.file("to"));
    std::fs::write(&from, &bytes).expect("a file");
    for how in [&[][..], &["-O"]] {
        let _ = std::fs::remove_file(&to);
        let (from, there) = (from.display().to_string(), format!("root@127.0.0.1:{}", to.display()));
        let run = ssh.client("scp", "-P", &[how, &[&from, &there]].concat());
        assert!(run.succeeded, "{}", run.stderr);
        assert!(same_bytes(&ssh.file("from"), &to), "the copy differs");
    }
    drop(server);
}
