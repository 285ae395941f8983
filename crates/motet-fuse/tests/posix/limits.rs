//! Long files, large directories, full and read-only disks, names, files without a name.

use crate::scene::{MODES, MemoryDisk, Mode, Mounted, can_mount, is_able, open_folder, script, skip};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;

const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const ENAMETOOLONG: i32 = 36;

#[test]
fn a_file_of_more_than_4_gib_is_sparse_and_whole() {
    if !can_mount("a_file_of_more_than_4_gib_is_sparse_and_whole") {
        return;
    }
    const LAST: u64 = 4 << 30;
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(mounted.path("big")).expect("a file");
        file.write_all_at(b"z", LAST).expect("a write");
        file.write_all_at(b"a", 0).expect("a write");
        file.write_all_at(b"mm", (2 << 30) - 1).expect("a write around 2 GiB");
        drop(file);
        let stat = fs::metadata(mounted.path("big")).expect("attributes");
        assert_eq!(stat.len(), LAST + 1);
        assert!(stat.blocks() < 1 << 16, "{} blocks of a sparse file", stat.blocks());
        let file = fs::File::open(mounted.path("big")).expect("the file");
        for (offset, expected) in
            [(0, b'a'), (1, 0), ((2 << 30) - 1, b'm'), (2 << 30, b'm'), (LAST - 1, 0), (LAST, b'z')]
        {
            let mut byte = [0xff];
            file.read_exact_at(&mut byte, offset).expect("a read");
            assert_eq!(byte[0], expected, "{mode:?}, at {offset}");
        }
        assert_eq!(file.read_at(&mut [0], LAST + 1).expect("a read"), 0, "the end");
        let printed = script(
            mounted.folder.path(),
            "stat -c %s big; truncate -s 5G big; stat -c %s big; truncate -s 1 big; cat big",
        );
        assert_eq!(printed, format!("{}\n{}\na", LAST + 1, 5_u64 << 30));
    }
}

#[test]
fn a_directory_of_100_000_entries_is_listed_whole_while_entries_are_removed() {
    const ENTRIES: usize = 100_000;
    if !can_mount("a_directory_of_100_000_entries_is_listed_whole_while_entries_are_removed") {
        return;
    }
    let mounted = Mounted::new(Mode::Messages);
    let many = mounted.exported("many");
    fs::create_dir(&many).expect("a directory");
    fs::write(many.join("0"), "").expect("a file");
    // Names of few files: links are made faster than files. A file has at most 65 000 of them on some file systems.
    for entry in 1..ENTRIES {
        let name = many.join(entry.to_string());
        let first = (entry % 4).to_string();
        if entry < 4 { fs::write(name, "") } else { fs::hard_link(many.join(first), name) }.expect("an entry");
    }
    let listed = || -> Vec<usize> {
        let names = fs::read_dir(mounted.path("many")).expect("the directory");
        names
            .map(|entry| entry.expect("an entry").file_name().to_str().expect("text").parse().expect("a number"))
            .collect()
    };
    let remaining = |entry: &usize| entry % 10 != 7;
    let found = thread::scope(|scope| {
        let remover = scope.spawn(|| {
            for entry in (0..ENTRIES).filter(|entry| !remaining(entry)) {
                fs::remove_file(many.join(entry.to_string())).expect("removed");
            }
        });
        let found = listed();
        remover.join().expect("the remover");
        found
    });
    let unique: BTreeSet<_> = found.iter().copied().collect();
    assert_eq!(unique.len(), found.len(), "an entry is listed twice");
    assert!((0..ENTRIES).filter(remaining).all(|entry| unique.contains(&entry)), "an entry that was there is listed");
    assert_eq!(listed().len(), ENTRIES - ENTRIES / 10);
    // The rest in several listings, each while names of it are removed.
    for entry in (0..ENTRIES).filter(|entry| remaining(entry) && entry % 10 > 1) {
        fs::remove_file(many.join(entry.to_string())).expect("removed");
    }
    script(mounted.folder.path(), "rm -r many");
    assert!(!many.exists());
}

#[test]
fn what_a_full_disk_has_not_taken_is_not_reported_as_written() {
    if !is_able("what_a_full_disk_has_not_taken_is_not_reported_as_written") {
        return;
    }
    for mode in MODES {
        let exported = open_folder();
        let _disk = MemoryDisk::new(exported.path(), "size=4m,mode=755");
        let mounted = Mounted::of(exported, false, mode, false);
        let pattern = |record: u64| record.to_le_bytes().repeat(12_345);
        let mut file = fs::File::create(mounted.path("file")).expect("a file");
        let (mut acknowledged, mut record) = (0, 0);
        let error = loop {
            let bytes = pattern(record);
            let mut done = 0;
            let failed = loop {
                match file.write(&bytes[done..]) {
                    Ok(written) => done += written,
                    Err(error) => break Some(error),
                }
                if done == bytes.len() {
                    break None;
                }
            };
            acknowledged += done;
            record += 1;
            if let Some(error) = failed {
                break error;
            }
        };
        assert_eq!(error.raw_os_error(), Some(ENOSPC), "{mode:?}: {error}");
        assert!(acknowledged > 3 << 20, "{mode:?}: {acknowledged} bytes");
        file.sync_all().expect("what was acknowledged is stored");
        drop(file);
        let stored = fs::read(mounted.exported("file")).expect("the file");
        assert_eq!(stored.len(), acknowledged, "{mode:?}: what was acknowledged, and nothing else");
        let expected: Vec<u8> = (0..record).flat_map(pattern).take(acknowledged).collect();
        assert!(stored == expected, "{mode:?}: the content is what was written");
        let refused = fs::write(mounted.path("another"), [1; 100_000]).expect_err("no space");
        assert_eq!(refused.raw_os_error(), Some(ENOSPC));
        // A file that is replaced by way of another one stays as it was.
        assert_eq!(fs::metadata(mounted.path("another")).map_or(0, |stat| stat.len()) % 4096, 0);
        for name in ["file", "another"] {
            let _ = fs::remove_file(mounted.path(name));
        }
        fs::write(mounted.path("again"), [7; 1 << 20]).expect("space again");
        assert_eq!(fs::read(mounted.exported("again")).expect("the file"), [7; 1 << 20]);
    }
}

#[test]
fn a_read_only_file_system_beneath_is_said_so() {
    if !is_able("a_read_only_file_system_beneath_is_said_so") {
        return;
    }
    for mode in MODES {
        let exported = open_folder();
        let disk = MemoryDisk::new(exported.path(), "size=1m,mode=755");
        fs::write(exported.path().join("file"), "text").expect("a file");
        disk.remount("ro");
        let mounted = Mounted::of(exported, false, mode, false);
        let path = mounted.path("file");
        assert_eq!(fs::read_to_string(&path).expect("a read"), "text");
        let refused = [
            fs::write(&path, "x"),
            fs::write(mounted.path("new"), "x"),
            fs::create_dir(mounted.path("directory")),
            fs::remove_file(&path),
            fs::rename(&path, mounted.path("moved")),
            fs::hard_link(&path, mounted.path("link")),
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            assert_eq!(refused.expect_err("refused").raw_os_error(), Some(EROFS), "{mode:?}, call {at}");
        }
    }
}

#[test]
fn names_have_every_byte_and_255_of_them() {
    if !can_mount("names_have_every_byte_and_255_of_them") {
        return;
    }
    let bytes = (1..=255_u8).filter(|&byte| byte != b'/');
    let mut names: Vec<_> = bytes.clone().map(|byte| OsString::from_vec(vec![b'x', byte])).collect();
    names.push(OsString::from_vec(bytes.collect()));
    names.push(OsString::from_vec(vec![0xff; 255]));
    names.push("\u{1f980}".repeat(63).into());
    for mode in MODES {
        let mounted = Mounted::new(mode);
        for (at, name) in names.iter().enumerate() {
            fs::write(mounted.folder.path().join(name), at.to_string()).expect("a file");
        }
        let listed = |folder: &Path| -> BTreeSet<OsString> {
            fs::read_dir(folder).expect("the directory").map(|entry| entry.expect("an entry").file_name()).collect()
        };
        let expected: BTreeSet<_> = names.iter().cloned().collect();
        assert!(listed(mounted.folder.path()) == expected && listed(mounted.exported.path()) == expected, "{mode:?}");
        for (at, name) in names.iter().enumerate() {
            let path = mounted.folder.path().join(name);
            assert_eq!(fs::read_to_string(mounted.exported.path().join(name)).expect("the file"), at.to_string());
            assert_eq!(fs::read_to_string(&path).expect("the file"), at.to_string());
            fs::rename(&path, mounted.path("moved")).expect("renamed");
            fs::remove_file(mounted.path("moved")).expect("removed");
        }
        let refused = fs::write(mounted.path(&"n".repeat(256)), "").expect_err("too long");
        assert_eq!(refused.raw_os_error(), Some(ENAMETOOLONG));
    }
}

#[test]
fn removed_and_replaced_files_that_are_open_go_on() {
    if !can_mount("removed_and_replaced_files_that_are_open_go_on") {
        return;
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let open = |name: &str| {
            let mut options = fs::OpenOptions::new();
            options.read(true).write(true).create_new(true).open(mounted.path(name)).expect("a file")
        };
        let [removed, replaced, inner] = ["removed", "replaced", "kept"].map(open);
        for file in [&removed, &replaced, &inner] {
            file.write_all_at(b"before", 0).expect("a write");
        }
        fs::write(mounted.path("new"), "new").expect("a file");
        fs::remove_file(mounted.path("removed")).expect("removed");
        fs::rename(mounted.path("new"), mounted.path("replaced")).expect("renamed");
        // Removed by another client.
        fs::remove_file(mounted.exported("kept")).expect("removed");
        for file in [&removed, &replaced, &inner] {
            file.write_all_at(b"after!", 6).expect("a write");
            file.set_len(9).expect("a length");
            let mut content = [0; 20];
            let length = file.read_at(&mut content, 0).expect("a read");
            assert_eq!(&content[..length], b"beforeaft", "{mode:?}");
            assert_eq!(file.metadata().expect("attributes").len(), 9, "{mode:?}");
        }
        for file in [&removed, &replaced] {
            assert_eq!(file.metadata().expect("attributes").nlink(), 0, "{mode:?}");
        }
        assert_eq!(fs::read_to_string(mounted.path("replaced")).expect("the file"), "new");
        // The name is free.
        fs::write(mounted.path("removed"), "another").expect("a file");
        let mut content = [0; 20];
        assert_eq!(removed.read_at(&mut content, 0).expect("a read"), 9);
    }
}

/// What stress-ng does to a file system, each checked by it. They run at a time.
const STRESSORS: [&str; 16] = [
    "access",
    "chmod",
    "chown",
    "dentry",
    "dir",
    "fallocate",
    "filename",
    "flock",
    "getdent",
    "link",
    "lockf",
    "lockofd",
    "rename",
    "symlink",
    "utime",
    "xattr",
];

#[test]
fn stress_ng_finds_no_fault() {
    if !can_mount("stress_ng_finds_no_fault") {
        return;
    }
    if Command::new("stress-ng").arg("--version").output().is_err() {
        return skip("stress_ng_finds_no_fault", "stress-ng is not installed (package stress-ng)");
    }
    for mode in MODES {
        let mounted = Mounted::new(mode);
        let mut command = Command::new("stress-ng");
        command.args(STRESSORS.iter().flat_map(|stressor| [format!("--{stressor}"), "1".to_owned()]));
        command.args(["--timeout", "3", "--verify", "--temp-path"]).arg(mounted.folder.path());
        let output = command.current_dir(mounted.folder.path()).output().expect("stress-ng");
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{mode:?}: {said}");
        assert!(!said.contains("skipped") && !said.contains("fail:"), "{mode:?}: {said}");
    }
}

/// Removes files that are open, and prints how often their space was not free when they were closed.
const REMOVED: &str = r#"
import os
full = 0
for round in range(100):
    file = os.open("file", os.O_RDWR | os.O_CREAT, 0o600)
    before = os.statvfs(".").f_bfree
    os.write(file, b"x" * 100_000); os.unlink("file"); os.close(file)
    full += os.statvfs(".").f_bfree < before
# More than fits at a time. The next one is written as soon as the one before is closed.
for round in range(20):
    file = os.open("file", os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink("file")
    assert os.write(file, b"y" * 1_000_000) == 1_000_000
    os.close(file)
print(full)
"#;

#[test]
fn the_space_of_a_removed_file_is_free_when_it_is_closed() {
    if !is_able("the_space_of_a_removed_file_is_free_when_it_is_closed") {
        return;
    }
    let exported = open_folder();
    let _disk = MemoryDisk::new(exported.path(), "size=1500k,mode=755");
    // Where the kernel reads and writes the files itself, it releases them when it likes.
    let mounted = Mounted::of(exported, false, Mode::Messages, false);
    let tried = || {
        let output = Command::new("python3").args(["-c", REMOVED]).current_dir(mounted.folder.path()).output();
        output
            .map(|output| {
                format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
            })
            .expect("python3")
    };
    // On a busy machine the kernel may take longer than the mount waits. Without waiting, hardly any try of 120 rounds succeeds.
    let tries: Vec<String> = (0..10).map(|_| tried()).take_while(|printed| printed != "0\n").collect();
    assert!(tries.len() < 10, "{tries:?}");
}
