//! Real programs on a mounted export, compared with the same programs on a plain folder.

mod scene;

use scene::{Mode, Mounted, can_mount, mounted_at, open_folder, script, server};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Runs a script in a plain folder and in an export that is mounted in each way. All must print the same.
fn same_as_on_a_plain_folder(test: &str, text: &str) {
    if !can_mount(test) {
        return;
    }
    let plain = tempfile::tempdir().expect("a folder");
    let expected = script(plain.path(), text);
    assert!(!expected.is_empty(), "the script shows nothing");
    for mode in [Mode::Messages, Mode::Direct] {
        assert_eq!(script(Mounted::new(mode).folder.path(), text), expected, "{mode:?}");
    }
}

#[test]
fn tools_of_files_and_folders() {
    same_as_on_a_plain_folder(
        "tools_of_files_and_folders",
        r#"
        mkdir -p a/b/c; for i in $(seq 200); do echo "line $i" > "a/b/file $i"; done
        ln -s b/c a/link; ln "a/b/file 1" a/hard; mkfifo a/pipe; touch -d 2001-02-03T04:05:06.789 a/old; chmod 4750 a/hard
        cp -a a copy; mv a/b a/moved; cp -r a/moved again; rm -r copy/b/c
        find . -printf '%P %y %m %n %s\n' | grep -v '^ d' | grep -v ' d ' | sort
        stat -c '%n %Y %y' a/old copy/old; stat -f -c %T . > /dev/null
        echo text > new; echo more >> new; truncate -s 5 new; cat new; dd if=/dev/zero of=sparse bs=1 count=1 seek=5M status=none; stat -c %s sparse
        mv -n new copy/old; ls -la copy | wc -l; readlink a/link; realpath --relative-to=. a/moved
        rm -rf again copy; ls; df . | wc -l; (echo to the pipe > a/pipe &); cat a/pipe
        "#,
    );
}

#[test]
fn archives_and_copies() {
    same_as_on_a_plain_folder(
        "archives_and_copies",
        r#"
        mkdir tree; for d in $(seq 20); do mkdir tree/$d; for f in $(seq 30); do seq $((d * f)) > tree/$d/$f; done; done
        tar cf tree.tar tree; mkdir out; tar xf tree.tar -C out; diff -r tree out/tree && echo same
        tar czf - tree | tar tzf - | wc -l
        rsync -a tree/ synced/; echo changed > tree/3/4; rm tree/5/6; rsync -a --delete --itemize-changes tree/ synced/ | grep -v '^\.d' | sort; diff -r tree synced && echo synced
        cmp tree.tar <(cat tree.tar) && echo whole; split -b 100000 tree.tar part.; cat part.* | cmp - tree.tar && echo joined
        "#,
    );
}

#[test]
fn pages_of_a_mapping_are_written_at_their_place() {
    same_as_on_a_plain_folder(
        "pages_of_a_mapping_are_written_at_their_place",
        r#"
        cat > map.py <<-'END'
	import mmap, os
	for mode in "a+b", "w+b":
	    with open("mapped", mode) as file:
	        file.truncate(10000)
	        with mmap.mmap(file.fileno(), 10000) as mapped:
	            mapped[0:4], mapped[5000:5004] = b"abcd", b"wxyz"
	            mapped.flush()
	        if mode == "a+b": file.write(b"end"); file.flush()
	        with open("mapped", "rb") as read: data = read.read()
	        print(mode, len(data), data[:4], data[5000:5004], data[-3:])
	END
        python3 map.py
        "#,
    );
}

#[test]
fn times_before_1970_are_kept() {
    same_as_on_a_plain_folder(
        "times_before_1970_are_kept",
        r#"
        python3 -c "
import os
open('old', 'w').close()
for time in -5_000_000_001, -5_000_000_000, -1, 1, 1_500_000_000:
    os.utime('old', ns=(time, time))
    print(time, os.stat('old').st_mtime_ns, os.stat('old').st_atime_ns)
"
        "#,
    );
}

/// A process without the privilege changes it through a descriptor that root has opened.
#[test]
fn a_program_that_is_changed_does_not_run_as_its_owner_any_more() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let test = "a_program_that_is_changed_does_not_run_as_its_owner_any_more";
    if !can_mount(test) {
        return;
    }
    let text = r#"
        python3 -c "
import itertools, os
changes = {
    'write': lambda file: os.write(file, b'evil'),
    'pwrite': lambda file: os.pwrite(file, b'evil', 2),
    'ftruncate': lambda file: os.ftruncate(file, 3),
    'fallocate': lambda file: os.posix_fallocate(file, 0, 9000),
    'nothing': lambda file: 0,
}
for name, is_open_before in itertools.product(changes, (False, True)):
    with open('program', 'w') as file: file.write('program')
    before = os.open('program', os.O_RDONLY)
    if not is_open_before: os.close(before)
    os.chmod('program', 0o6755)
    file = os.open('program', os.O_RDWR)
    child = os.fork()
    if child == 0:
        os.setgroups([]); os.setgid(4051); os.setuid(4051)
        changes[name](file)
        os._exit(0)
    os.waitpid(child, 0)
    print(name, is_open_before, oct(os.fstat(file).st_mode), oct(os.stat('program').st_mode), os.stat('program').st_size)
    os.close(file)
    if is_open_before: os.close(before)
    os.unlink('program')
"
        "#;
    let plain = open_folder();
    let expected = script(plain.path(), text);
    for mode in [Mode::Messages, Mode::Direct] {
        assert_eq!(script(Mounted::for_all_users(mode).folder.path(), text), expected, "{mode:?}");
    }
}

#[test]
fn git_works_in_an_export() {
    same_as_on_a_plain_folder(
        "git_works_in_an_export",
        r#"
        export GIT_AUTHOR_DATE=2020-01-01T00:00:00Z GIT_COMMITTER_DATE=2020-01-01T00:00:00Z
        git init -q -b main one; cd one; git config user.email a@b; git config user.name n
        for i in $(seq 100); do echo $i > f$i; done; git add .; git commit -q -m first; git checkout -q -b side; echo x > f5; git commit -qam second
        git checkout -q main; git merge -q side -m merged; git gc -q; git fsck 2>&1; cd ..
        git clone -q one two; cd two; git log --oneline; git status --short; git rev-parse HEAD; git stash list; git mv f7 renamed; git status --short
        "#,
    );
}

#[test]
fn a_project_is_built_in_an_export() {
    same_as_on_a_plain_folder(
        "a_project_is_built_in_an_export",
        r#"
        for i in $(seq 12); do echo "int f$i(int x) { return x + $i; }" > f$i.c; done
        { for i in $(seq 12); do echo "int f$i(int);"; done; echo '#include <stdio.h>'; echo 'int main(void) { int x = 0;'; for i in $(seq 12); do echo "x = f$i(x);"; done; echo 'printf("%d\n", x); return 0; }'; } > main.c
        printf 'OBJS := $(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(OBJS)\n\t$(CC) -o $@ $^\n' > Makefile
        make -s -j3; ./prog; touch f3.c; make -s; ./prog; make -q && echo up to date
        "#,
    );
}

#[test]
fn sqlite_keeps_its_promises() {
    same_as_on_a_plain_folder(
        "sqlite_keeps_its_promises",
        r#"
        python3 - <<'END'
import sqlite3, subprocess, sys
worker = """
import sqlite3, sys
db = sqlite3.connect("db", timeout=60)
for i in range(50):
    with db:
        db.execute("insert into t values (?, ?)", (int(sys.argv[1]), i))
"""
for mode in ("delete", "truncate", "persist"):
    db = sqlite3.connect("db")
    db.execute("drop table if exists t")
    print(db.execute("pragma journal_mode=" + mode).fetchone())
    db.execute("create table t (worker int, n int)")
    db.commit()
    db.close()
    workers = [subprocess.Popen([sys.executable, "-c", worker, str(n)]) for n in range(3)]
    print([w.wait() for w in workers])
    db = sqlite3.connect("db")
    print(db.execute("select count(*), sum(n) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
    db.close()
END
        "#,
    );
}

#[test]
fn python_sees_the_file_system_it_expects() {
    same_as_on_a_plain_folder(
        "python_sees_the_file_system_it_expects",
        r#"
        python3 - <<'END'
import errno, fcntl, mmap, os, struct, tempfile
with open("f", "w+b") as f:
    f.write(bytes(range(256)) * 400); f.flush()
    m = mmap.mmap(f.fileno(), 0)
    m[5:8] = b"abc"; m.flush(); f.seek(4); print(f.read(5)); m.close()
    os.ftruncate(f.fileno(), 10); print(os.fstat(f.fileno()).st_size)
fd = os.open("f", os.O_RDWR); os.unlink("f"); os.write(fd, b"still"); print(os.pread(fd, 8, 0), os.fstat(fd).st_nlink); os.close(fd)
for call in (lambda: os.open("nope", os.O_RDONLY), lambda: os.mkdir("."), lambda: os.rmdir("nope"), lambda: os.rename("nope", "x"), lambda: os.open(".", os.O_WRONLY), lambda: open("d/x/y", "w"), lambda: os.symlink("a", "link") or os.symlink("a", "link"), lambda: os.open("link", os.O_RDONLY), lambda: os.open("n" * 256, os.O_CREAT)):
    try: call(); print("no error")
    except OSError as e: print(errno.errorcode[e.errno])
a = os.open("log", os.O_WRONLY | os.O_APPEND | os.O_CREAT); b = os.open("log", os.O_WRONLY | os.O_APPEND)
for i in range(100): os.write(a, b"a"); os.write(b, b"b")
print(os.stat("log").st_size)
os.setxattr("log", "user.k", b"v" * 500); print(os.listxattr("log"), len(os.getxattr("log", "user.k")))
l = open("log", "r+b"); fcntl.lockf(l, fcntl.LOCK_EX, 10, 5)
pid = os.fork()
if pid == 0:
    g = open("log", "r+b")
    try: fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 7); os._exit(1)
    except BlockingIOError: os._exit(0)
print("locked out:", os.waitpid(pid, 0)[1] == 0)
os.posix_fallocate(a, 0, 100000); print(os.stat("log").st_size)
os.utime("log", ns=(1, 2)); print(os.stat("log").st_mtime_ns)
with tempfile.TemporaryDirectory(dir=".") as d: open(d + "/x", "w").close(); print(os.listdir(d))
print(sorted(os.listdir(".")), os.path.exists("nope"))
with open("holes", "wb") as h: h.seek(1 << 20); h.write(b"x"); h.flush(); print(os.lseek(h.fileno(), 0, os.SEEK_DATA) >= (1 << 20) - 65536)
END
        "#,
    );
}

#[test]
fn fio_verifies_what_it_wrote() {
    if !can_mount("fio_verifies_what_it_wrote") {
        return;
    }
    for mode in [Mode::Messages, Mode::Direct] {
        fio_verifies(&Mounted::new(mode));
    }
}

fn fio_verifies(mounted: &Mounted) {
    for (name, options) in [
        ("random", "--rw=randrw --bs=4k --iodepth=16 --ioengine=libaio"),
        ("direct", "--rw=randwrite --bs=64k --direct=1 --iodepth=8 --ioengine=libaio"),
        ("mapped", "--rw=randrw --bs=4k --ioengine=mmap"),
        ("long", "--rw=write --bs=1m --ioengine=psync --end_fsync=1"),
    ] {
        let command = format!(
            "fio --name={name} --filename={name} --size=16m {options} --verify=crc32c --verify_fatal=1 --output-format=terse"
        );
        let printed = script(mounted.folder.path(), &command);
        assert!(printed.contains(name), "{printed}");
        assert_eq!(fs::metadata(mounted.exported(name)).expect("the file").len(), 16 << 20);
    }
}

#[test]
fn two_mounts_see_each_other_from_close_to_open() {
    if !can_mount("two_mounts_see_each_other_from_close_to_open") {
        return;
    }
    for mode in [Mode::Messages, Mode::Direct] {
        two_mounts(&Mounted::new(mode));
    }
}

fn two_mounts(mounted: &Mounted) {
    let other = tempfile::tempdir().expect("a folder");
    let second = mounted_at(&mounted.name, other.path(), false);
    for round in 0..20 {
        let text = format!("round {round}").repeat(round + 1);
        fs::write(mounted.path("file"), &text).expect("a write");
        assert_eq!(fs::read_to_string(other.path().join("file")).expect("a read"), text);
        fs::write(other.path().join("file"), text.to_uppercase()).expect("a write");
        assert_eq!(fs::read_to_string(mounted.path("file")).expect("a read"), text.to_uppercase());
    }
    // Appending from both sides loses nothing.
    let append = |path: PathBuf| {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).expect("the log");
        for _ in 0..200 {
            file.write_all(b"0123456789").expect("a write");
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| append(mounted.path("log")));
        scope.spawn(|| append(other.path().join("log")));
    });
    let log = fs::read_to_string(mounted.exported("log")).expect("the log");
    assert_eq!(log, "0123456789".repeat(400));
    second.unmount().expect("unmounted");
}

#[test]
fn a_waiting_lock_is_granted_and_can_be_killed() {
    if !can_mount("a_waiting_lock_is_granted_and_can_be_killed") {
        return;
    }
    let mounted = Mounted::new(Mode::Messages);
    fs::write(mounted.path("file"), "x").expect("a write");
    let holder = "exec 9<>file; flock 9; echo held; read -r _ || true";
    let mut held = Command::new("bash")
        .args(["-c", holder])
        .current_dir(mounted.folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash");
    let mut line = [0; 5];
    std::io::Read::read_exact(held.stdout.as_mut().expect("its output"), &mut line).expect("the lock");
    let waiter =
        || Command::new("flock").args(["file", "true"]).current_dir(mounted.folder.path()).spawn().expect("flock");
    let (mut killed, mut waiting) = (waiter(), waiter());
    thread::sleep(Duration::from_millis(200));
    assert!(killed.try_wait().expect("its status").is_none() && waiting.try_wait().expect("its status").is_none());
    killed.kill().expect("killed");
    assert!(!killed.wait().expect("its end").success());
    drop(held.stdin.take());
    assert!(held.wait().expect("its end").success());
    assert!(waiting.wait().expect("its end").success(), "the lock is granted");
}

#[test]
fn programs_go_on_when_the_server_is_restarted() {
    if !can_mount("programs_go_on_when_the_server_is_restarted") {
        return;
    }
    let mut mounted = Mounted::new(Mode::Messages);
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(mounted.path("file"))
        .expect("a file");
    file.write_all_at(b"before", 0).expect("a write");
    fs::create_dir(mounted.path("folder")).expect("a folder");
    fs::write(mounted.path("folder/inner"), "inner").expect("a file");
    let inner = fs::File::open(mounted.path("folder/inner")).expect("a file");
    fs::rename(mounted.path("folder"), mounted.path("moved")).expect("renamed");
    drop(mounted.server.take());
    let (name, exported) = (mounted.name.clone(), mounted.exported.path().to_owned());
    let restart = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        server(&name, &exported, false, Mode::Messages)
    });
    // This write waits for the server.
    file.write_all_at(b"after!", 6).expect("a write");
    mounted.server = Some(restart.join().expect("a server"));
    assert_eq!(fs::read(mounted.exported("file")).expect("the file"), b"beforeafter!");
    let mut bytes = [0; 5];
    inner.read_exact_at(&mut bytes, 0).expect("a read of a file in a folder that was renamed");
    assert_eq!(&bytes, b"inner");
}

#[test]
fn a_read_only_export_is_mounted_read_only() {
    if !can_mount("a_read_only_export_is_mounted_read_only") {
        return;
    }
    let mounted = Mounted::read_only(Mode::Messages);
    fs::write(mounted.exported("file"), "text").expect("a file");
    assert_eq!(fs::read_to_string(mounted.path("file")).expect("a read"), "text");
    let refused = fs::write(mounted.path("file"), "x").expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
    let refused = fs::set_permissions(mounted.path("file"), fs::Permissions::from_mode(0o600)).expect_err("refused");
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
}

#[test]
fn a_folder_of_many_entries_is_listed_whole() {
    if !can_mount("a_folder_of_many_entries_is_listed_whole") {
        return;
    }
    let mounted = Mounted::new(Mode::Messages);
    let folder = mounted.exported("many");
    fs::create_dir(&folder).expect("a folder");
    for number in 0..20_000 {
        fs::write(folder.join(format!("entry-{number}")), "").expect("a file");
    }
    assert_eq!(fs::read_dir(mounted.path("many")).expect("the folder").count(), 20_000);
    assert_eq!(script(&mounted.path("many"), "ls -l | wc -l").trim(), "20001");
    script(&mounted.path("many"), "rm -r -- entry-*1*");
    let left = fs::read_dir(&folder).expect("the folder").count();
    assert_eq!(left, (0..20_000).filter(|number| !number.to_string().contains('1')).count());
}
