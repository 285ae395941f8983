//! `motet top` whose terminal goes away. Needs Python; prints SKIPPED and passes without it.

mod common;

use common::finish;
use std::process::Command;

/// Starts the command on a terminal, closes the terminal's other end once it has drawn, and prints how the command ends.
const CLOSES: &str = r#"
import os, pty, signal, sys
pid, terminal = pty.fork()
if pid == 0:
    if sys.argv[1] == "ignored":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if sys.argv[1] == "output only":
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.execv(sys.argv[2], sys.argv[2:])
seen = b""
while b"motet top:" not in seen:
    seen += os.read(terminal, 4096)
os.close(terminal)
signal.alarm(60)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(status)
"#;

#[test]
fn top_ends_with_its_terminal() {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("SKIPPED: needs python3");
        return;
    }
    for how in ["hung up", "ignored", "output only"] {
        for interval in ["0.05", "3600"] {
            let mut command = Command::new("python3");
            let motet = common::motet(["top", "-i", interval]);
            command.args(["-c", CLOSES, how]).arg(motet.get_program()).args(motet.get_args());
            command
                .env("MOTET_SESSION_DIR", "/does/not/exist")
                .env("MOTET_CONFIG", "/dev/null")
                .env_remove("MOTET_SESSION");
            let (code, out, err) = finish(&mut command);
            // By the end of the terminal, by the signal, or by an error of a write: it ends.
            let ends = ["129\n", "143\n", "1\n"].contains(&&out[..]);
            assert!(code == 0 && ends, "{how}, every {interval} s: {code} {out}{err}");
        }
    }
}
