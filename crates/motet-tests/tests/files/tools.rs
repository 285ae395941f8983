//! Programs that people use, on files beneath a prefix.

use crate::{has, same_script};

#[test]
fn files_are_listed_copied_moved_and_removed() {
    let printed = same_script(
        "coreutils",
        r#"cd $D; mkdir -p a/b/c; echo 1 > a/x; echo 2 > a/b/y; ln -s ../x a/b/l; ln -s $D/a/x abs; touch -d 2020-01-01 a a/* a/b/* a/b/c; chmod 640 a/x
        ls -l --time-style=+%F a | tail -n +2; ls -1FR $D; find $D | sort; find . | sort; find a/b -name y -exec cat {} \;
        cp -r $D/a $D/copy; mv $D/copy $D/moved; cat $D/moved/b/l $D/abs; rm -rf $D/a; find $D | sort; cd moved/b; ls ../..; cat ../x
        stat -c %n ../../moved; realpath .. ; readlink -f l; du -a $D/moved | cut -f2; rm -rf ../../moved; ls $D; df $D > /dev/null"#,
    );
    assert!(printed.contains("moved/b/l"), "{printed}");
}

#[test]
fn tar_and_rsync_keep_trees() {
    let tar = r#"mkdir $D/s; for i in 1 2 3; do head -c 100000 /dev/zero | tr '\0' $i > $D/s/$i; done; ln -s 1 $D/s/l; ln $D/s/2 $D/s/h
        tar cf $D/t.tar -C $D s; mkdir $D/o; tar xf $D/t.tar -C $D/o; diff -r $D/s $D/o/s && echo same; cd $D; tar czf t.tgz s; tar tzf t.tgz | sort"#;
    assert!(same_script("tar", tar).contains("same"));
    if has("rsync") {
        let rsync = r#"mkdir -p $D/s/t; for i in 1 2 3; do echo $i > $D/s/$i; done; rsync -a --out-format=%n $D/s/ $D/o/ | sort; echo 4 >> $D/s/3
            rsync -a --delete --out-format=%n $D/s/ $D/o/; diff -r $D/s $D/o && echo same"#;
        assert!(same_script("rsync", rsync).contains("same"));
    }
}

#[test]
fn git_commits_and_clones() {
    if !has("git") {
        return;
    }
    let printed = same_script(
        "git",
        r#"set -e; cd $D; export GIT_AUTHOR_DATE='2020-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2020-01-01 00:00:00 +0000' GIT_CONFIG_NOSYSTEM=1 HOME=$D
        git init -q repo; cd repo; git config user.email a@b; git config user.name n; echo x > f; git add f; git commit -qm one; git log --format=%H
        git status --short; cd ..; git clone -q repo clone; git -C clone log --oneline; git -C $D/clone status; cd clone; git rev-parse --show-toplevel
        git remote -v; git gc -q; git fsck; git worktree add -q ../tree; cd ../tree; git status; printf '#!/bin/sh\necho hook $0\n' > $D/clone/.git/hooks/pre-commit
        chmod +x $D/clone/.git/hooks/pre-commit; echo y > g; git add g; git -c user.name=n -c user.email=a@b commit -qm two 2>&1; git log --format=%s"#,
    );
    assert!(printed.contains("hook") && printed.contains("two"), "{printed}");
}

#[test]
fn gcc_and_make_build_a_project() {
    let printed = same_script(
        "make",
        r#"cd $D; mkdir -p src inc; printf '#include "../inc/h.h"\n#include <stdio.h>\nint main(){puts(NAME __FILE__);return 0;}\n' > src/m.c
        echo '#define NAME "hello "' > inc/h.h
        printf 'all: prog\nprog: src/m.o\n\tgcc -o $@ $^\nsrc/m.o: src/m.c inc/h.h\n\tgcc -g -c -o $@ $(CURDIR)/$<\n' > Makefile
        make; ./prog; $D/prog; make -C $D; cd src; make -C ..; gcc -M m.c | grep inc/h; PATH=$D:$PATH; prog; cd /; prog; touch $D/inc/h.h; make -C $D"#,
    );
    assert!(printed.contains("hello"), "{printed}");
}

#[test]
fn two_sqlite_processes_lock_each_other_out() {
    if !has("sqlite3") {
        return;
    }
    let printed = same_script(
        "sqlite",
        r#"cd $D; sqlite3 db 'create table t(a)'; for p in 1 2; do (for n in $(seq 20); do sqlite3 -cmd '.timeout 60000' $D/db "insert into t values($n)"; done) & done; wait
        sqlite3 $D/db 'select count(*), sum(a) from t; pragma integrity_check; pragma journal_mode=wal; insert into t values(1); select count(*) from t'"#,
    );
    assert!(printed.starts_with("40|420\nok\nwal\n41"), "{printed}");
}

#[test]
fn python_uses_files_folders_and_children() {
    let program = r#"
import glob, mmap, os, pathlib, shutil, subprocess, sys, tempfile, fcntl
d = os.environ["D"]
os.makedirs(d + "/x/y")
open(d + "/x/f", "w").write("abc")
print([(root, sorted(folders), sorted(files)) for root, folders, files in sorted(os.walk(d))])
with open(d + "/x/f", "r+b") as f:
    m = mmap.mmap(f.fileno(), 0)
    m[0:1] = b"Z"
    m.flush()
    print(m[:])
    m.close()
    fcntl.lockf(f, fcntl.LOCK_EX)
print(pathlib.Path(d + "/x/f").read_text(), pathlib.Path(d, "x").resolve(), list(pathlib.Path(d).rglob("f")))
print(subprocess.run(["cat", "f"], cwd=d + "/x", capture_output=True).stdout)
print(subprocess.run(["/bin/pwd"], cwd=d + "/x/y", env={}, capture_output=True).stdout, os.getcwd())
print(subprocess.run(["cat", d + "/x/f"], env={"A": "b"}, capture_output=True))
t = tempfile.mkdtemp(dir=d)
print(t.startswith(d))
os.rmdir(t)
with tempfile.NamedTemporaryFile(dir=d) as t:
    print(t.name.startswith(d), os.path.exists(t.name))
os.chdir(d + "/x")
print(os.getcwd(), os.path.realpath("y"), os.path.abspath(".."), sorted(os.listdir("..")))
os.symlink(d + "/x/f", d + "/l")
print(os.readlink(d + "/l"), open(d + "/l").read(), os.path.realpath(d + "/l"), os.readlink("/proc/self/cwd"))
fd = os.open(".", os.O_RDONLY)
print(sorted(os.listdir(fd)), os.stat("f", dir_fd=fd).st_size, os.readlink("/proc/self/fd/%d" % fd))
print(sorted(glob.glob(d + "/*")), glob.glob("../x/f"))
if os.fork() == 0:
    os.chdir("..")
    print(os.getcwd(), flush=True)
    os._exit(0)
os.wait()
print(os.getcwd())
for call in (lambda: open(d + "/none/a"), lambda: os.mkdir(d + "/x"), lambda: os.rmdir(d + "/x")):
    try:
        call()
    except OSError as e:
        print(e)
shutil.copytree(d + "/x", d + "/z")
shutil.rmtree(d + "/z")
shutil.move(d + "/x/f", d + "/g")
print(sorted(os.listdir(d)), os.statvfs(d).f_namemax, os.access(d, os.W_OK))
"#;
    let printed = same_script("python", &format!("cat > $D/p.py <<'END'{program}END\npython3 -u $D/p.py"));
    assert!(printed.contains("Zbc"), "{printed}");
}

#[test]
fn java_walks_maps_and_starts() {
    if !has("javac") {
        return;
    }
    let program = r#"
import java.nio.*;
import java.nio.channels.*;
import java.nio.file.*;
public class T {
    public static void main(String[] a) throws Exception {
        Path d = Path.of(System.getenv("D"));
        Files.createDirectories(d.resolve("q/w"));
        Files.writeString(d.resolve("q/f"), "hello");
        try (var s = Files.walk(d.resolve("q"))) { s.sorted().forEach(System.out::println); }
        try (FileChannel c = FileChannel.open(d.resolve("q/f"), StandardOpenOption.READ, StandardOpenOption.WRITE)) {
            MappedByteBuffer m = c.map(FileChannel.MapMode.READ_WRITE, 0, 5);
            m.put(0, (byte) 74);
            m.force();
        }
        System.out.println(Files.readString(d.resolve("q/f")) + " " + d.resolve("q/../q/f").toRealPath());
        System.out.println(new java.io.File("q").getCanonicalPath() + " " + Path.of("").toAbsolutePath());
        Files.move(d.resolve("q/f"), d.resolve("q/g"));
        Files.createSymbolicLink(d.resolve("l"), d.resolve("q/g"));
        System.out.println(Files.readString(d.resolve("l")) + Files.readSymbolicLink(d.resolve("l")));
        var child = new ProcessBuilder("/bin/pwd").directory(d.resolve("q").toFile()).start();
        System.out.println(new String(child.getInputStream().readAllBytes()));
    }
}
"#;
    let printed =
        same_script("java", &format!("cd $D; cat > T.java <<'END'{program}END\njavac T.java && java -cp $D T; ls $D"));
    assert!(printed.contains("Jello"), "{printed}");
}

#[test]
fn vim_edits() {
    if !has("vim") {
        return;
    }
    let printed = same_script(
        "vim",
        r#"cd $D; printf 'one\ntwo\n' > t.txt; vim -es -N -u NONE -c '%s/two/three/' -c wq $D/t.txt; cat t.txt; vim -es -N -u NONE -c '%s/one/1/' -c wq t.txt; cat $D/t.txt; ls -A"#,
    );
    assert!(printed.contains("1\nthree"), "{printed}");
}

#[test]
fn bash_changes_folders_redirects_and_globs() {
    let printed = same_script(
        "bash",
        r##"cd $D; echo a > 1; echo b > $D/2; cat < $D/2; echo *; echo $D/*; cd $D/; pwd; pwd -P; mkdir -p s/t; cd s/t; pwd; cd ..; pwd; cd -P ..; pwd
        pushd s/t; popd; ls ../../no-such-name 2> /dev/null; [ -e $D/1 ] && echo yes; [ -d $D ] && echo folder; echo x >> $D/1; cat $D/1
        printf '#!/bin/sh\necho $0 $@\n' > sc; chmod +x sc; ./sc a; $D/sc b; cd /; $D/sc c; PATH=$D:$PATH sc d; printf "#!$D/sc x\n" > $D/sd; chmod +x $D/sd; $D/sd y
        printf 'echo no first line $0\n' > $D/se; chmod +x $D/se; $D/se; env -i $D/sc z; env -i /bin/cat $D/1; . $D/se; exec 5<> $D/1; cat <&5; readlink /dev/fd/5
        mkfifo $D/p; (echo f > $D/p &); cat $D/p; realpath $D/s/../1; rmdir $D/s/t; ls -d $D/s/; cat <(cat $D/1); (cd $D/s; echo y > ../3); cat $D/3; [[ $D/1 -ef $D/s/../1 ]] && echo equal"##,
    );
    assert!(printed.contains("equal"), "{printed}");
}
