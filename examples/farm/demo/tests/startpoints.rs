//! Startpoints are never arguments, and files that others may read are refused.
#![forbid(unsafe_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A folder, and the process that works in it. Both go with the test.
struct Farm(PathBuf, Vec<Child>);

impl Farm {
    fn start(&mut self, words: &[&str]) -> usize {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farm"));
        command.args(words).current_dir(&self.0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        self.1.push(command.spawn().unwrap());
        self.1.len() - 1
    }

    fn file(&self, name: &str) -> PathBuf {
        let (path, began) = (self.0.join(name), Instant::now());
        while !path.exists() {
            assert!(began.elapsed() < LIMIT, "no file {name}");
            std::thread::sleep(Duration::from_millis(5));
        }
        path
    }
}

impl Drop for Farm {
    fn drop(&mut self) {
        for child in &mut self.1 {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn arguments(child: &Child) -> String {
    String::from_utf8_lossy(&std::fs::read(Path::new("/proc").join(child.id().to_string()).join("cmdline")).unwrap())
        .into_owned()
}

#[test]
fn startpoints_are_in_files_that_only_their_user_reads() {
    let folder = std::env::temp_dir().join(format!("motet-farm-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let mut farm = Farm(folder, Vec::new());
    farm.start(&["master", "4", "master"]);
    let master = farm.file("master");
    assert_eq!(std::fs::metadata(&master).unwrap().permissions().mode() & 0o777, 0o600);
    let text = std::fs::read_to_string(&master).unwrap();
    farm.start(&["successor", "master", "successor"]);
    farm.file("successor");
    assert!(farm.1.iter().all(|child| !arguments(child).contains(text.trim())));
    let worker = farm.start(&["worker", "master", "successor"]);
    assert!(farm.1[worker].wait().unwrap().success(), "it does all four points");
    // Others may read it.
    std::fs::set_permissions(&master, PermissionsExt::from_mode(0o644)).unwrap();
    let worker = farm.start(&["worker", "master"]);
    assert!(!farm.1[worker].wait().unwrap().success());
    // A startpoint as an argument is no file.
    let worker = farm.start(&["worker", text.trim()]);
    assert!(!farm.1[worker].wait().unwrap().success());
}
