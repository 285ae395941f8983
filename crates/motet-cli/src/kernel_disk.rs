//! `--connect` of `motet nbd` and `motet export --block`: a disk as a block device of this host.
//!
//! Where the kernel's nbd driver is loaded, `nbd-client` attaches one of its devices. Elsewhere `nbdfuse` makes a file of the disk, and a loop device a block
//! device of the file. The directory in which nbdfuse makes the file (module `place`) exists until the loop device has the file. Then each part holds the next
//! one: the users of the device hold the device, the device the file, the file nbdfuse. So nothing stays behind, however this process ends.

mod place;

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use clap::Args;
use motet_sys::loop_device::LoopDevice;
use place::Place;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::exit_error::{FAILED, Failure, Outcome};
use crate::output;

/// The name of the file that nbdfuse makes.
const FILE: &str = "disk";
/// How long the programs may take to begin.
const BEGIN_LIMIT: Duration = Duration::from_secs(60);
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the end may take before this process says what it waits for.
const QUIET_END: Duration = Duration::from_secs(1);

/// Run a program that ends when its parent ends; `motet nbd --connect` runs its helpers so
#[derive(Debug, Args)]
pub struct WithParentArguments {
    /// The process that is the parent
    parent: i32,

    /// The program and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The command `with-parent`.
pub fn with_parent(arguments: &WithParentArguments) -> Outcome {
    let failed = |error: std::io::Error| Failure::new(FAILED, error.to_string());
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| failed(error.into()))?;
    // A parent that has ended before sends no signal.
    if rustix::process::getppid().map(|parent| parent.as_raw_pid()) != Some(arguments.parent) {
        return Ok(FAILED);
    }
    let program = &arguments.command[0];
    let error = Command::new(program).args(&arguments.command[1..]).exec();
    Err(Failure::new(FAILED, format!("{}: {error}", program.display())))
}

/// Where a disk can be reached.
#[derive(Debug)]
pub struct Target<'a> {
    /// The URI, for nbdfuse.
    pub uri: &'a str,
    /// The Unix socket and the name of the disk, for nbd-client.
    pub socket: &'a Path,
    pub name: &'a str,
    pub read_only: bool,
}

/// A disk that is attached.
#[derive(Debug)]
pub struct KernelDisk {
    device: PathBuf,
    way: Way,
    helper: Watched,
}

/// A program that serves the device, and that a thread waits for.
#[derive(Debug)]
struct Watched {
    program: &'static str,
    /// Its end is wanted. Before that its end is a failure, which ends this process, too.
    is_ending: Arc<AtomicBool>,
    /// Its end.
    ended: Receiver<()>,
}

#[derive(Debug)]
enum Way {
    /// nbdfuse ends when the device has let go of its file.
    Loop(LoopDevice),
    /// nbd-client ends when the device is disconnected.
    Driver,
}

impl KernelDisk {
    /// Attaches a disk that is served. The calling thread must live as long as the device.
    pub fn connect(target: &Target<'_>) -> Outcome<Self> {
        match free_device(Path::new("/sys/block")) {
            Some(name) => Self::by_driver(target, &name),
            None => Self::by_loop(target),
        }
    }

    /// The device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    fn by_loop(target: &Target<'_>) -> Outcome<Self> {
        let parent = motet_session::paths::exports_folder().map_err(|error| Failure::new(FAILED, error.to_string()))?;
        let made = Place::new(&parent);
        let place = made.map_err(|error| Failure::new(FAILED, format!("{}: {error}", parent.display())))?;
        let mut words: Vec<&OsStr> = Vec::new();
        if target.read_only {
            words.push(OsStr::new("-r"));
        }
        let file = place.mounted().join(FILE);
        words.extend([file.as_os_str(), OsStr::new(target.uri)]);
        let mut helper = Helper::start("nbdfuse", "libnbd-bin", &words)?;
        helper.until_ready(|| file.try_exists().is_ok_and(|exists| exists))?;
        let opened = OpenOptions::new().read(true).write(!target.read_only).open(&file);
        let opened = opened.map_err(|error| Failure::new(FAILED, format!("the file of nbdfuse: {error}")))?;
        let device = LoopDevice::attach(opened.as_fd(), target.read_only).map_err(|error| {
            let error = std::io::Error::from_raw_os_error(error);
            Failure::new(FAILED, format!("no loop device (only root has them, and some containers have none): {error}"))
        })?;
        drop(place);
        Ok(Self { device: device.path().to_owned(), way: Way::Loop(device), helper: helper.watch()? })
    }

    fn by_driver(target: &Target<'_>, name: &str) -> Outcome<Self> {
        let device = Path::new("/dev").join(name);
        let mut words = vec![OsStr::new("-unix"), target.socket.as_os_str(), device.as_os_str()];
        words.extend(["-name", target.name, "-nonetlink", "-nofork"].map(OsStr::new));
        if target.read_only {
            words.push(OsStr::new("-readonly"));
        }
        let mut helper = Helper::start("nbd-client", "nbd-client", &words)?;
        let attached = Path::new("/sys/block").join(name).join("pid");
        helper.until_ready(|| attached.exists())?;
        Ok(Self { device, way: Way::Driver, helper: helper.watch()? })
    }

    /// Detaches the disk, after its last user. Says so if that takes a while. The disk must be served until this returns. Fails if it was not attached any more.
    pub fn disconnect(self) -> Outcome<()> {
        let Watched { program, is_ending, ended } = self.helper;
        if ended.try_recv().is_ok() {
            return Err(Failure::new(FAILED, format!("{program} has ended, and the device with it")));
        }
        is_ending.store(true, Ordering::SeqCst);
        let shown = output::sanitize(&self.device.to_string_lossy(), 100);
        let began = Instant::now();
        let mut said = false;
        let mut say = || {
            if !said && began.elapsed() > QUIET_END {
                said = true;
                let text = "is in use, by a mounted file system perhaps: this ends when it is not used any more";
                motet_session::notes::note(format_args!("{shown} {text}; a second signal ends it at once"));
            }
        };
        if let Way::Loop(device) = self.way {
            // The last one who closes the device ends it.
            drop(device);
        } else {
            while is_mounted(&self.device) {
                say();
                std::thread::sleep(PAUSE);
            }
            // nbd-client ends then. If it cannot be run, the device ends with the server.
            let _ = Command::new("nbd-client").arg("-d").arg(&self.device).stdin(Stdio::null()).output();
        }
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PAUSE) {
            say();
        }
        Ok(())
    }
}

/// Whether a file system, or another device, uses a device.
fn is_mounted(device: &Path) -> bool {
    use rustix::fs::{Mode, OFlags, open};
    open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).err() == Some(Errno::BUSY)
}

/// The first device of the nbd driver that is attached to nothing. Without the driver there is none.
fn free_device(blocks: &Path) -> Option<String> {
    let names = std::fs::read_dir(blocks).ok()?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let number = |name: &String| name.strip_prefix("nbd").and_then(|number| number.parse::<u32>().ok());
    let mut names: Vec<_> = names.filter_map(|name| Some((number(&name)?, name))).collect();
    names.sort();
    let is_free = |name: &str| !blocks.join(name).join("pid").exists();
    names.into_iter().map(|(_, name)| name).find(|name| is_free(name))
}

/// A program that serves the device. It ends when this process ends. It is killed when this is dropped before [`Helper::watch`].
struct Helper {
    program: &'static str,
    child: Option<Child>,
}

impl Helper {
    fn start(program: &'static str, package: &str, words: &[&OsStr]) -> Outcome<Self> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(FAILED, format!("{program}: {error}"));
        if !is_installed(program) {
            return Err(failed(&format_args!("not installed: --connect needs it (package {package})")));
        }
        let mut command = Command::new(std::env::current_exe().map_err(|error| failed(&error))?);
        command.args(["with-parent", &std::process::id().to_string(), "--", program]).args(words);
        // A Ctrl-C at the terminal is for this process alone.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self { program, child: Some(command.spawn().map_err(|error| failed(&error))?) })
    }

    fn until_ready(&mut self, is_ready: impl Fn() -> bool) -> Outcome<()> {
        let failed = |what: String| Failure::new(FAILED, format!("{}: {what}", self.program));
        let began = Instant::now();
        while !is_ready() {
            let ended = self.child.as_mut().map(Child::try_wait).transpose();
            if let Some(status) = ended.map_err(|error| failed(error.to_string()))?.flatten() {
                return Err(failed(format!("it has ended: {status}")));
            }
            if began.elapsed() > BEGIN_LIMIT {
                return Err(failed("it does not get ready".to_owned()));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Waits for the program's end in a thread.
    fn watch(mut self) -> Outcome<Watched> {
        let (sender, ended) = channel();
        let program = self.program;
        let child = self.child.take();
        let watched = Watched { program, is_ending: Arc::default(), ended };
        let is_ending = Arc::clone(&watched.is_ending);
        let watch = move || {
            let _ = child.map(|mut child| child.wait());
            let _ = sender.send(());
            if !is_ending.load(Ordering::SeqCst) {
                // Wakes the thread that waits for a signal to end.
                let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
            }
        };
        let thread = std::thread::Builder::new().name("motet-disk".to_owned()).spawn(watch);
        thread.map_err(|error| Failure::new(FAILED, format!("{program}: {error}")))?;
        Ok(watched)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Whether a program is in a directory of PATH.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_the_driver_is_free_when_nothing_is_attached() {
        let blocks = std::env::temp_dir().join(format!("motet-blocks-{}", std::process::id()));
        let made = |name: &str| std::fs::create_dir_all(blocks.join(name)).expect("a folder");
        assert_eq!(free_device(&blocks), None);
        made("loop0");
        assert_eq!(free_device(&blocks), None);
        ["nbd10", "nbd2", "nbd1"].iter().for_each(|name| made(name));
        std::fs::write(blocks.join("nbd1/pid"), "7\n").expect("a file");
        assert_eq!(free_device(&blocks).as_deref(), Some("nbd2"));
        std::fs::write(blocks.join("nbd2/pid"), "7\n").expect("a file");
        assert_eq!(free_device(&blocks).as_deref(), Some("nbd10"));
        std::fs::remove_dir_all(&blocks).expect("an end");
    }
}
