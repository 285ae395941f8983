//! MPI-IO (`tests/mpi/io.c`) on exports: Open MPI with its components ompio and romio321, and MPICH, on mounts and under `motet run --files`. Each job must print
//! the same and leave the same files as on a plain directory.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Folder, finish, motet, skipped};
use motet_files::server::{Options, Server};
use motet_tests::mpi::{MPICH_BY_UCX, Mpi, OPEN_MPI_4, exclusively, installed};

const RANKS: usize = 4;
/// Open MPI's components for MPI-IO.
const OMPIO: &[&str] = &["--mca", "io", "ompio"];
const ROMIO: &[&str] = &["--mca", "io", "romio321"];

/// A library with the options of its launcher, and the arguments of the program.
struct Job {
    mpi: Mpi,
    launcher: &'static [&'static str],
    arguments: &'static [&'static str],
}

/// An export that is served in this process.
struct Export {
    name: String,
    folder: Folder,
    _server: Server,
}

/// A mounted folder; it is unmounted when this is dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let lazily = if std::thread::panicking() { &["-l"][..] } else { &[] };
        let _ = Command::new("umount").args(lazily).arg(self.0).stderr(Stdio::null()).status();
    }
}

impl Export {
    fn new(name: &str, direct: bool) -> Self {
        let (name, folder) = (format!("mpi-io-{name}-{}", std::process::id()), Folder::new("mpi-export"));
        let directory = folder.path().to_owned();
        let options = Options { name: name.clone(), directory, direct, ..Options::default() };
        Self { name, folder, _server: Server::start(options).unwrap() }
    }

    /// What is in the directory. It is empty afterwards.
    fn take(&self) -> BTreeMap<String, Vec<u8>> {
        take(self.folder.path())
    }
}

fn take(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let path_of = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path();
    let paths: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(path_of).collect();
    let named = |path: PathBuf| {
        let contents = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        (path.file_name().unwrap().to_string_lossy().into_owned(), contents)
    };
    paths.into_iter().map(named).collect()
}

impl Job {
    /// Those that are installed.
    fn all(test: &str) -> Vec<Self> {
        let mut jobs = Vec::new();
        for mpi in installed(test, &[OPEN_MPI_4, MPICH_BY_UCX]) {
            if mpi.name == OPEN_MPI_4 {
                // This component has no nonblocking collective operations.
                jobs.push(Self { mpi: mpi.clone(), launcher: ROMIO, arguments: &["individual"] });
            }
            let launcher = if mpi.name == OPEN_MPI_4 { OMPIO } else { &[] };
            jobs.push(Self { mpi, launcher, arguments: &[] });
        }
        jobs
    }

    /// The command in a directory, by a command that these words begin. It ends after some minutes.
    fn command(&self, before: &[String], directory: &str) -> Command {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "200"]).args(before).args(self.words(directory)).env_remove("LD_PRELOAD");
        self.mpi.set_environment(&mut command);
        command
    }

    fn words(&self, directory: &str) -> Vec<String> {
        let program = self.mpi.compile("io").display().to_string();
        let more = [program, directory.to_owned()].into_iter();
        let arguments = self.arguments.iter().map(|word| (*word).to_owned());
        self.mpi.launcher(RANKS, self.launcher).into_iter().chain(more).chain(arguments).collect()
    }

    /// Runs the command. Returns what it prints.
    #[track_caller]
    fn run(&self, what: &str, mut command: Command) -> String {
        let (code, printed, errors) = exclusively(|| finish(command.stdin(Stdio::null())));
        assert_eq!(code, 0, "{} {:?}, {what}: {printed}{errors}", self.mpi.name, self.launcher);
        printed
    }

    /// Runs it in a plain directory. Returns what it prints and leaves.
    fn reference(&self) -> (String, BTreeMap<String, Vec<u8>>) {
        let plain = Folder::new("mpi-plain");
        let printed = self.run("plain", self.command(&[], plain.path().to_str().unwrap()));
        let left = take(plain.path());
        assert!(printed.lines().count() >= 10 && left.len() >= 9, "{printed}{:?}", left.keys());
        (printed, left)
    }
}

#[track_caller]
fn same(
    what: &str,
    (printed, left): (String, BTreeMap<String, Vec<u8>>),
    wanted: &(String, BTreeMap<String, Vec<u8>>),
) {
    assert_eq!(printed, wanted.0, "{what}");
    assert_eq!(left.keys().collect::<Vec<_>>(), wanted.1.keys().collect::<Vec<_>>(), "{what}");
    let other = left.iter().find(|(name, contents)| wanted.1[*name] != **contents);
    assert_eq!(other.map(|(name, _)| name), None, "{what}: contents differ");
}

#[test]
fn mpi_io_on_a_mount_leaves_what_it_leaves_in_a_plain_directory() {
    let test = "mpi_io_on_a_mount_leaves_what_it_leaves_in_a_plain_directory";
    if !Path::new("/dev/fuse").exists() || !rustix::process::getuid().is_root() {
        return skipped(test, "no /dev/fuse, or not root");
    }
    let exports = [("by messages", Export::new("messages", false)), ("direct", Export::new("direct", true))];
    let at = Folder::new("mpi-mount");
    for job in Job::all(test) {
        let wanted = job.reference();
        for (way, export) in &exports {
            let folder = at.path().to_str().unwrap();
            let (code, _, errors) = finish(&mut motet(["mount", "--soft", "20", &export.name, folder]));
            assert_eq!(code, 0, "{errors}");
            let mounted = Mounted(at.path());
            let printed = job.run(way, job.command(&[], folder));
            drop(mounted);
            same(&format!("{} {:?}, {way}", job.mpi.name, job.launcher), (printed, export.take()), &wanted);
        }
    }
}

#[test]
fn mpi_io_under_motet_run_leaves_what_it_leaves_in_a_plain_directory() {
    let test = "mpi_io_under_motet_run_leaves_what_it_leaves_in_a_plain_directory";
    let libraries = Folder::new("mpi-libraries");
    libraries.libraries();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../adapters/files");
    let out = format!("OUT={}", libraries.path().display());
    let built = Command::new("make").arg("-s").arg("-C").arg(source).arg(out).output().expect("make is installed");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let export = Export::new("run", true);
    let prefix = "/tmp/motet-mpi-io-prefix";
    for job in Job::all(test) {
        let wanted = job.reference();
        let own = env!("CARGO_BIN_EXE_motet");
        let run = [own, "run", "--files", &format!("{}={prefix}", export.name), "--"].map(str::to_owned);
        let mut command = job.command(&run, prefix);
        command.env("MOTET_LIBDIR", libraries.path()).env("MOTET_CONFIG", "/dev/null");
        let printed = job.run("under motet run", command);
        same(&format!("{} {:?}, under motet run", job.mpi.name, job.launcher), (printed, export.take()), &wanted);
    }
}
