//! Files that a program of the server's host replaces or removes while programs of a mount use them.

mod scene;

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use scene::{MODES, Mode, Mounted, Second, can_mount, server};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

/// Gives a name of the exported directory to a new file.
fn replace(mounted: &Mounted, name: &str, content: &str) {
    let new = mounted.exported("new");
    fs::write(&new, content).expect("a file");
    fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).expect("a mode");
    fs::rename(new, mounted.exported(name)).expect("renamed");
}

fn in_both_modes(test: &str, run: impl Fn(Mounted)) {
    if can_mount(test) {
        MODES.map(Mounted::new).into_iter().for_each(run);
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("attributes").permissions().mode() & 0o7777
}

#[test]
fn calls_on_a_descriptor_change_the_file_behind_it() {
    in_both_modes("calls_on_a_descriptor_change_the_file_behind_it", |mounted| {
        fs::write(mounted.exported("file"), "before").expect("a file");
        fs::hard_link(mounted.exported("file"), mounted.exported("kept")).expect("another name");
        let file = fs::OpenOptions::new().read(true).write(true).open(mounted.path("file")).expect("the file");
        replace(&mounted, "file", "replacement");
        let replacement = fs::metadata(mounted.exported("file")).expect("attributes");
        file.set_permissions(fs::Permissions::from_mode(0o640)).expect("a mode");
        fchown(&file, Some(replacement.uid()), Some(replacement.gid())).expect("an owner");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        file.set_times(fs::FileTimes::new().set_modified(time)).expect("a time");
        let set = fsetxattr(&file, "user.test", b"value", XattrFlags::empty());
        let seen = fs::metadata(mounted.exported("file")).expect("attributes");
        let changed =
            |of: &fs::Metadata| (of.ino(), of.mode(), of.mtime(), of.mtime_nsec(), of.ctime(), of.ctime_nsec());
        assert_eq!(changed(&seen), changed(&replacement), "no process has asked for a change of the replacement");
        let kept = fs::metadata(mounted.exported("kept")).expect("attributes");
        assert_eq!((kept.mode() & 0o7777, kept.mtime()), (0o640, 1000));
        let by_descriptor = file.metadata().expect("attributes");
        assert_eq!((by_descriptor.ino(), by_descriptor.mode() & 0o7777), (kept.ino(), 0o640));
        match set {
            Ok(()) => {
                let mut value = [0; 16];
                assert_eq!(fgetxattr(&file, "user.test", &mut value[..]).expect("the value"), 5);
                let open = fs::File::open(mounted.exported("kept")).expect("the file");
                assert_eq!(fgetxattr(&open, "user.test", &mut value[..]).expect("the value"), 5);
            }
            Err(error) => assert_eq!(error, rustix::io::Errno::OPNOTSUPP, "the file system has none"),
        }
    });
}

#[test]
fn calls_by_a_name_reach_the_file_that_has_it_now() {
    in_both_modes("calls_by_a_name_reach_the_file_that_has_it_now", |mounted| {
        fs::write(mounted.exported("file"), "before").expect("a file");
        std::os::unix::fs::symlink("before", mounted.exported("link")).expect("a link");
        for name in ["file", "link"] {
            assert!(fs::symlink_metadata(mounted.path(name)).is_ok());
        }
        let replace_both = |content: &str| {
            replace(&mounted, "file", content);
            std::os::unix::fs::symlink(content, mounted.exported("new")).expect("a link");
            fs::rename(mounted.exported("new"), mounted.exported("link")).expect("renamed");
        };
        replace_both("first");
        assert_eq!(fs::read_link(mounted.path("link")).expect("a link"), Path::new("first"));
        fs::set_permissions(mounted.path("file"), fs::Permissions::from_mode(0o600)).expect("a mode");
        assert_eq!(mode(&mounted.exported("file")), 0o600);
        replace_both("second");
        fs::hard_link(mounted.path("file"), mounted.path("linked")).expect("another name");
        assert_eq!(fs::read_to_string(mounted.exported("linked")).expect("the file"), "second");
        replace_both("third");
        fs::OpenOptions::new().write(true).truncate(true).open(mounted.path("file")).expect("the file");
        assert_eq!(fs::read_to_string(mounted.exported("file")).expect("the file"), "");
        assert_eq!(fs::read_to_string(mounted.exported("linked")).expect("the file"), "second");
    });
}

#[test]
fn a_removed_file_that_is_open_can_be_used_by_its_descriptor() {
    in_both_modes("a_removed_file_that_is_open_can_be_used_by_its_descriptor", |mounted| {
        for remove in [PathBuf::from("file"), mounted.exported("file")] {
            fs::write(mounted.path("file"), "content").expect("a file");
            let file = fs::OpenOptions::new().read(true).write(true).open(mounted.path("file")).expect("the file");
            fs::remove_file(mounted.folder.path().join(remove)).expect("removed");
            file.set_permissions(fs::Permissions::from_mode(0o600)).expect("a mode");
            let set = fsetxattr(&file, "user.test", b"value", XattrFlags::empty());
            assert!(matches!(set, Ok(()) | Err(rustix::io::Errno::OPNOTSUPP)), "{set:?}");
            let opened = fs::File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
            let mut content = String::new();
            opened.expect("opened again").read_to_string(&mut content).expect("a read");
            assert_eq!(content, "content");
        }
    });
}

#[test]
fn a_file_that_was_removed_is_made_again() {
    in_both_modes("a_file_that_was_removed_is_made_again", |mounted| {
        for listed in [false, true] {
            fs::write(mounted.exported("file"), "").expect("a file");
            let seen = || fs::metadata(mounted.path("file")).is_ok();
            // What the kernel has not looked up without effect a moment ago.
            while !seen() {
                thread::sleep(Duration::from_millis(10));
            }
            if listed {
                assert_eq!(fs::read_dir(mounted.folder.path()).expect("the directory").count(), 1);
            }
            fs::remove_file(mounted.exported("file")).expect("removed");
            let made = fs::OpenOptions::new().write(true).create(true).truncate(false).open(mounted.path("file"));
            made.unwrap_or_else(|error| panic!("listed {listed}: {error}"));
            fs::remove_file(mounted.exported("file")).expect("it was made");
            assert_eq!(fs::File::open(mounted.path("file")).expect_err("removed").kind(), ErrorKind::NotFound);
        }
    });
}

#[test]
fn a_name_that_threads_open_and_remove_is_always_opened_or_made() {
    const ROUNDS: usize = 1000;
    in_both_modes("a_name_that_threads_open_and_remove_is_always_opened_or_made", |mounted| {
        let second = Second::of(&mounted);
        for other in [mounted.folder.path(), second.folder(), mounted.exported.path()] {
            thread::scope(|scope| {
                for worker in 0..4 {
                    let folder = if worker % 2 == 0 { mounted.folder.path() } else { other };
                    scope.spawn(move || {
                        for round in 0..ROUNDS {
                            let mut options = fs::OpenOptions::new();
                            let opened =
                                options.read(true).write(true).create(true).truncate(false).open(folder.join("lock"));
                            opened.unwrap_or_else(|error| panic!("{folder:?}, round {round}: {error}"));
                            if worker % 2 == 1
                                && let Err(error) = fs::remove_file(folder.join("lock"))
                            {
                                assert_eq!(error.kind(), ErrorKind::NotFound, "{folder:?}, round {round}");
                            }
                        }
                    });
                }
            });
        }
    });
}

#[test]
fn each_open_of_a_name_that_is_replaced_has_one_file() {
    in_both_modes("each_open_of_a_name_that_is_replaced_has_one_file", |mounted| {
        let content = |round: usize| round.to_string().repeat(3000 * (round + 1));
        let mut open = Vec::new();
        for round in 0..9 {
            replace(&mounted, "file", &content(round));
            let file = fs::File::open(mounted.path("file")).expect("the file");
            // A page of it is in the kernel's cache.
            file.read_exact_at(&mut [0; 1], 0).expect("a read");
            open.push(file);
            for (opened, file) in open.iter().enumerate() {
                let expected = content(opened);
                assert_eq!(file.metadata().expect("attributes").len(), expected.len() as u64, "{opened} after {round}");
                let mut read = vec![0; expected.len() + 1];
                let length = file.read_at(&mut read, 0).expect("a read");
                assert!(read[..length] == *expected.as_bytes(), "{opened} after {round}");
            }
        }
        let numbers: std::collections::BTreeSet<_> =
            open.iter().map(|file| file.metadata().expect("attributes").ino()).collect();
        assert_eq!(numbers.len(), open.len());
    });
}

#[test]
fn an_open_knows_the_present_length() {
    in_both_modes("an_open_knows_the_present_length", |mounted| {
        let asked_before = |length: u64| {
            fs::write(mounted.exported("file"), vec![b'x'; length as usize]).expect("a file");
            // The attributes are in the kernel's cache, and the time of the last access, too, as nothing has been read.
            assert!(fs::metadata(mounted.path("file")).is_ok());
        };
        for (before, after) in [(10, 20_000), (20_000, 10), (0, 5)] {
            asked_before(before);
            fs::write(mounted.exported("file"), vec![b'y'; after]).expect("a write");
            let file = fs::File::open(mounted.path("file")).expect("the file");
            let mut read = vec![0; 30_000];
            let length = file.read_at(&mut read, 0).expect("a read");
            assert_eq!((length, read[..length].iter().all(|&byte| byte == b'y')), (after, true), "{before} before");
            drop(file);
            fs::remove_file(mounted.path("file")).expect("removed");
        }
    });
}

#[test]
fn a_name_that_is_replaced_all_the_time_can_be_used() {
    const ROUNDS: usize = 400;
    in_both_modes("a_name_that_is_replaced_all_the_time_can_be_used", |mounted| {
        let asking = Second::asking(&mounted);
        let content = |round: usize| format!("{round:06}").repeat(round % 7 + 1);
        replace(&mounted, "file", &content(0));
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                (1..ROUNDS).for_each(|round| replace(&mounted, "file", &content(round)));
                done.store(true, Ordering::Release);
            });
            for folder in [mounted.folder.path(), asking.folder()] {
                let done = &done;
                scope.spawn(move || {
                    let path = folder.join("file");
                    while !done.load(Ordering::Acquire) {
                        let mut file = fs::File::open(&path).expect("the name is always there");
                        let mut text = String::new();
                        file.read_to_string(&mut text).expect("a read");
                        let round: usize = text[..6].parse().expect("a number");
                        assert_eq!(text, content(round));
                        assert_eq!(file.metadata().expect("attributes").len(), text.len() as u64);
                        fs::metadata(&path).expect("attributes");
                        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("a mode");
                    }
                });
            }
        });
    });
}

#[test]
fn a_restarted_server_finds_open_files_by_the_names_that_they_have_now() {
    if !can_mount("a_restarted_server_finds_open_files_by_the_names_that_they_have_now") {
        return;
    }
    let mut mounted = Mounted::new(Mode::Messages);
    let names = ["moved", "exchanged", "partner", "folder/beneath", "folder/inner/beneath", "stays"];
    fs::create_dir_all(mounted.path("folder/inner")).expect("folders");
    let open = names.map(|name| {
        fs::write(mounted.path(name), name).expect("a file");
        fs::File::open(mounted.path(name)).expect("the file")
    });
    fs::rename(mounted.path("moved"), mounted.path("elsewhere")).expect("renamed");
    let exchange = rustix::fs::RenameFlags::EXCHANGE;
    let (one, other) = (mounted.path("exchanged"), mounted.path("partner"));
    rustix::fs::renameat_with(rustix::fs::CWD, one, rustix::fs::CWD, other, exchange).expect("exchanged");
    fs::rename(mounted.path("folder"), mounted.path("stays-not")).expect("renamed");
    drop(mounted.server.take());
    mounted.server = Some(server(&mounted.name, mounted.exported.path(), false, Mode::Messages));
    for (name, file) in names.iter().zip(&open) {
        let mut read = vec![0; name.len()];
        file.read_exact_at(&mut read, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read, name.as_bytes());
    }
}
