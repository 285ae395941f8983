//! libfuse's example of a passthrough file system beside Motet's mounts: it is compiled from the sources that Debian installs with libfuse3-dev.

use super::scene::{Mounted, Server};
use crate::cleanup;
use anyhow::{Context, Result, ensure};
use motet_programs::find;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The example's source.
const SOURCE: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";

/// A folder that the example shows at another place.
pub struct Passthrough {
    /// The mounted folder.
    pub mounted: Mounted,
    _program: TempDir,
}

impl Passthrough {
    /// Compiles the example and mounts a folder. An error that begins with `SKIPPED` says what is missing.
    pub fn mount(folder: &Path, at: PathBuf) -> Result<Self> {
        ensure!(Path::new(SOURCE).exists(), "SKIPPED: no {SOURCE} (package libfuse3-dev)");
        find("pkg-config").context("SKIPPED: no pkg-config (package pkg-config)")?;
        let made = cleanup::folder()?;
        let program = made.path().join("passthrough_ll");
        let script = "exec cc -O2 -w -o \"$1\" \"$2\" $(pkg-config --cflags --libs fuse3)";
        let mut compiler = Command::new("sh");
        compiler.args(["-c", script, "sh"]).arg(&program).arg(SOURCE);
        let compiled = cleanup::output(&mut compiler)?;
        let said = String::from_utf8_lossy(&compiled.stderr);
        ensure!(compiled.status.success(), "{SOURCE} does not compile: {}", said.lines().last().unwrap_or_default());
        std::fs::create_dir(&at)?;
        let mut command = Command::new(&program);
        command.arg("-f").arg("-o").arg(format!("source={}", folder.display())).arg(&at);
        // It complains about its own settings.
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mounted = Mounted::by(at, Server::of(cleanup::start(&mut command)?))?;
        Ok(Self { mounted, _program: made })
    }
}
