//! One coupled run: a naming service, the ranks of the wall and those of the gas, all on 127.0.0.1.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::case::{Case, Layout};
use crate::children::{Program, check_interrupt, wait_all};
use crate::outcome::Outcome;

/// The programs, and the words in front of them.
#[derive(Clone, Debug)]
pub struct Runner {
    /// The directory with `coupling-fluid` and `coupling-solid`.
    pub build: PathBuf,
    /// Words put before the naming service and before `mpirun`; empty for a run without Motet.
    pub prefix: Vec<String>,
}

impl Runner {
    /// A runner without a prefix. Fails when the codes are not built.
    pub fn without_prefix(build: &Path) -> Result<Self> {
        let build = build.canonicalize().unwrap_or_else(|_| build.to_path_buf());
        for program in ["coupling-fluid", "coupling-solid"] {
            if !build.join(program).is_file() {
                bail!("{} does not exist; build it with: make -C examples/coupling", build.join(program).display());
            }
        }
        Ok(Self { build, prefix: Vec::new() })
    }

    /// A runner with these programs after a command, which is split as a shell would do.
    pub fn under(&self, command: &str) -> Result<Self> {
        let prefix = shell_words::split(command).with_context(|| format!("cannot read the command {command:?}"))?;
        Ok(Self { build: self.build.clone(), prefix })
    }

    /// Runs a case. `directory` (made if need be) takes the case file, logs, results and fields.
    /// All programs have ended when this returns, whether well, with an error, by time-out or by Ctrl-C.
    pub fn run(&self, case: &Case, layout: Layout, directory: &Path) -> Result<Outcome> {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let directory = directory.canonicalize()?;
        let file = directory.join("case.toml");
        case.write(&file)?;
        for code in ["fluid", "solid"] {
            let _ = std::fs::remove_file(directory.join(format!("{code}.jsonl"))); // of an earlier run
        }
        let deadline = Instant::now() + Duration::from_secs_f64(case.timeout());
        let start = |words: Vec<String>, name: &str| {
            let words = [self.prefix.clone(), words].concat();
            Program::start(name, &words, &directory.join(format!("{name}.log")), &environment())
        };

        let (mut names, address) = naming_service(&directory, &start)?;
        let began = Instant::now();
        // Two launchers that make their shared directory in the temporary directory at the same moment conflict
        // (Open MPI 4.1), so each gets its own. Its name is short, as socket names are in it.
        let scratch = [short_directory()?, short_directory()?];
        let code = |name: &str, ranks: u32, scratch: &Path| {
            let program = self.build.join(format!("coupling-{name}"));
            let mut words: Vec<String> = MPIRUN.map(Into::into).into();
            words.extend(["--mca".into(), "orte_tmpdir_base".into(), text(scratch), "-n".into(), ranks.to_string()]);
            words.extend([text(&program), "--case".into(), text(&file)]);
            words.extend(["--naming".into(), address.to_string(), "--output".into(), text(&directory)]);
            start(words, name)
        };
        let mut solid = code("solid", layout.solid, scratch[0].path())?;
        let mut fluid = code("fluid", layout.fluid, scratch[1].path())?;
        wait_all(&mut [&mut solid, &mut fluid], deadline)?;
        let seconds = began.elapsed().as_secs_f64();
        names.end(Duration::from_secs(5));
        Outcome::read(&directory, seconds)
    }
}

/// No pinning, as two launchers would pin to the same CPU; waiting ranks let others run.
const MPIRUN: [&str; 7] = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"];

fn short_directory() -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("cpl").tempdir().context("cannot make a temporary directory")
}

/// Open MPI runs as root only if both variables are set.
fn environment() -> [(&'static str, &'static str); 2] {
    [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")]
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Starts omniNames on a free port and waits until it answers.
fn naming_service(
    directory: &Path,
    start: &dyn Fn(Vec<String>, &str) -> Result<Program>,
) -> Result<(Program, SocketAddr)> {
    let state = directory.join("names");
    let mut last = String::new();
    for _ in 0..5 {
        let _ = std::fs::remove_dir_all(&state); // no names of an earlier run
        std::fs::create_dir_all(&state)?;
        // Free now; should another process take it in between, omniNames ends at once and another port is tried.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut words: Vec<String> = vec!["omniNames".into(), "-start".into(), port.to_string()];
        words.extend(["-always", "-nohostname", "-ignoreport", "-datadir"].map(Into::into));
        words.extend([text(&state), "-ORBendPoint".into(), format!("giop:tcp:{address}")]);
        let mut names = start(words, "omninames")?;
        let deadline = Instant::now() + Duration::from_secs(15);
        while names.poll()?.is_none() {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok((names, address));
            }
            check_interrupt()?;
            if Instant::now() > deadline {
                bail!("omniNames does not answer at {address}: {}", names.log_end());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        last = names.log_end();
    }
    bail!("omniNames does not start: {last}")
}
