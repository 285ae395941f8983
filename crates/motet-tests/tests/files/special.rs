//! Links that lead beneath a prefix, several prefixes, read-only exports, environments that a program changes.

use crate::{PREFIX, adapter, finish, mapped, real};
use motet_tests::temporary::Temporary;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

#[track_caller]
fn prints(script: &str, mappings: &str, wanted: &str) {
    let (status, printed, errors) = finish(mapped(&["bash", "-c", script], mappings));
    assert_eq!((status, printed.as_str()), (Some(0), wanted), "{errors}");
}

fn file(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, text).expect("a file");
}

#[test]
fn links_lead_beneath_a_prefix_and_out_of_it() {
    let (outside, real) = real("links");
    let outside = outside.path().canonicalize().expect("a path");
    file(&real.join("s/f"), "inside\n");
    file(&outside.join("o"), "outside\n");
    symlink(format!("{PREFIX}/s"), outside.join("into")).expect("a link");
    symlink(PREFIX, outside.join("top")).expect("a link");
    symlink(format!("{PREFIX}/new"), outside.join("new")).expect("a link");
    symlink(format!("../..{PREFIX}/s/f"), real.join("s/over")).expect("a link");
    symlink(outside.join("o"), real.join("out")).expect("a link");
    let (at, mappings) = (outside.display(), format!("{PREFIX}={}", real.display()));
    let script = format!(
        "set -e; cat {at}/into/f {at}/top/s/f {PREFIX}/out; cd {at}/into; pwd -P; readlink -f {at}/top/s/f; echo made > {at}/new; cat {at}/top/new; \
         cd /; cat .{at}/into/f; python3 -c 'import os,sys; print(os.path.realpath(sys.argv[1]))' {at}/into/../s/f"
    );
    let wanted = format!("inside\ninside\noutside\n{PREFIX}/s\n{PREFIX}/s/f\nmade\ninside\n{PREFIX}/s/f\n");
    prints(&script, &mappings, &wanted);
    assert_eq!(fs::read_to_string(real.join("new")).expect("the file"), "made\n");
}

#[test]
fn the_longest_prefix_wins_and_one_that_exists_is_hidden() {
    let (parent, real) = real("longest");
    let (hidden, other) = (parent.join("hidden"), parent.path().canonicalize().expect("a path").join("other"));
    file(&real.join("f"), "real\n");
    file(&other.join("f"), "other\n");
    file(&hidden.join("f"), "hidden\n");
    let hidden = hidden.canonicalize().expect("a path");
    let mappings = format!("{0}={1}:{0}/o={2}", hidden.display(), real.display(), other.display());
    let script = format!(
        "cd {0}; cat f o/f {0}/o/../f; cd o; pwd; cat ../f; cd ..; pwd; cat {0}/nothing/f 2>/dev/null || echo none",
        hidden.display()
    );
    let wanted = format!("real\nother\nreal\n{0}/o\nreal\n{0}\nnone\n", hidden.display());
    prints(&script, &mappings, &wanted);
}

#[test]
fn a_read_only_export_refuses_changes() {
    let (_real, real) = real("read-only");
    file(&real.join("s/f"), "text\n");
    let mappings = format!("{PREFIX}={}=ro", real.display());
    let refused = [
        "echo x > $D/new",
        "echo x > $D/s/f",
        "mkdir $D/d",
        "rm -f $D/s/f",
        "mv $D/s $D/t",
        "chmod 600 $D/s/f",
        "ln -s a $D/b",
        "ln $D/s/f $D/h",
        "touch $D/s/f",
        "mkfifo $D/p",
        "truncate -s 0 $D/s/f",
        "cd $D && echo x > new",
        "cd $D/s && rm -f f",
        "cd $D/s && touch f",
        "mktemp $D/XXXXXX",
        "rm -rf $D/s",
        "cd $D/s && echo x > ../new",
        "setfattr -n user.x -v y $D/s/f || false",
        "python3 -c 'import os; os.fchmod(os.open(os.environ[\"D\"] + \"/s/f\", os.O_RDONLY), 0)'",
        "python3 -c 'import os; os.truncate(os.environ[\"D\"] + \"/s/f\", 0)'",
    ];
    for script in refused {
        let mut command = mapped(&["bash", "-c", script], &mappings);
        command.env("D", PREFIX);
        let (status, _, errors) = finish(command);
        let missing = errors.contains("command not found");
        assert!(status != Some(0) && (missing || errors.contains("Read-only file system")), "{script}: {errors}");
    }
    let mut names: Vec<_> =
        fs::read_dir(&real).expect("the folder").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["s"]);
    assert_eq!(fs::read_to_string(real.join("s/f")).expect("the file"), "text\n");
    let script =
        format!("set -e; cd {PREFIX}; cat s/f {PREFIX}/s/f; mkdir -p s; ls; [ ! -w s/f ]; exec 3< s/f; cat <&3");
    prints(&script, &mappings, "text\ntext\ns\ntext\n");
}

#[test]
fn the_exported_folder_itself_stays() {
    let (_real, real) = real("root");
    file(&real.join("f"), "x");
    let mappings = format!("{PREFIX}={}", real.display());
    let script = format!(
        "rm -rf {PREFIX} 2>&1 | grep -c busy; mv {PREFIX} {PREFIX}2 2>/dev/null || echo stays; mkdir {PREFIX} 2>&1 | grep -c exists"
    );
    prints(&script, &mappings, "1\nstays\n1\n");
    assert!(real.is_dir() && fs::read_dir(&real).expect("the folder").next().is_none());
}

/// Children see the files whatever a program does to the environment, unless it sets MOTET_FILES.
#[test]
fn children_see_files_without_their_parents_environment() {
    let (_real, real) = real("environment");
    file(&real.join("f"), "text\n");
    let mappings = format!("{PREFIX}={}", real.display());
    let object = adapter().display();
    let script = format!(
        "env -i /bin/cat {PREFIX}/f; unset LD_PRELOAD; cat {PREFIX}/f; LD_PRELOAD=/none.so cat {PREFIX}/f 2>/dev/null; \
         env -i A=b /usr/bin/env | sort; env MOTET_FILES= cat {PREFIX}/f 2>/dev/null || echo none"
    );
    let wanted = format!("text\ntext\ntext\nA=b\nLD_PRELOAD={object}\nMOTET_FILES={mappings}\nnone\n");
    prints(&script, &mappings, &wanted);
    // Without the variable the adapter does nothing.
    let mut command = crate::command(&["env", "-i", &format!("LD_PRELOAD={object}"), "/usr/bin/env"]);
    command.env("LD_PRELOAD", adapter());
    assert_eq!(finish(command).1, format!("LD_PRELOAD={object}\n"));
}

/// A program of another C library would not start with the object.
#[test]
#[cfg(target_arch = "x86_64")]
fn programs_with_another_loader_start_without_the_adapter() {
    let (_real, real) = real("loader");
    let options = [
        "-nostdlib",
        "-static-pie",
        "-fPIE",
        "-O2",
        "-fno-builtin",
        "-fno-tree-loop-distribute-patterns",
        "-fno-stack-protector",
        "-fcf-protection=none",
    ];
    let loader = motet_tests::Built::program("other_loader", &real, &options);
    file(&real.join("m.c"), "int main(void) { return 0; }\n");
    file(&real.join("script"), &format!("#!{PREFIX}/m\n"));
    let mappings = format!("{PREFIX}={}", real.display());
    let script = format!(
        "set -e; cd {PREFIX}; gcc -o m m.c -Wl,--dynamic-linker={}; chmod +x script; ./m; {PREFIX}/m; env -i {PREFIX}/m; {PREFIX}/script; ./script; \
         LD_PRELOAD=$LD_PRELOAD:/none.so ./m 2>/dev/null; PATH={PREFIX}:$PATH; m; \
         python3 -c 'import os, subprocess; subprocess.run([\"m\"]); os.posix_spawnp(\"m\", [\"m\"], os.environ); os.wait()'",
        loader.display()
    );
    let (none, empty) = ("LD_PRELOAD=\n", "\n");
    let wanted = [none, none, empty, none, none, "LD_PRELOAD=/none.so\n", none, none, none].concat();
    prints(&script, &mappings, &wanted);
}

/// The loader looks for libraries without libc's functions.
#[test]
fn programs_find_libraries_beneath_a_prefix() {
    let (_real, real) = real("libraries");
    file(&real.join("l.c"), "int f(void) { return 7; }\n");
    file(&real.join("m.c"), "int f(void); int main(void) { return f(); }\n");
    let mappings = format!("{PREFIX}={}", real.display());
    let script = format!(
        "set -e; cd {PREFIX}; mkdir lib; gcc -shared -fPIC -o lib/libl.so l.c; gcc -o m m.c -Llib -ll; gcc -o o m.c -Llib -ll -Wl,-rpath,'$ORIGIN/lib'; \
         LD_LIBRARY_PATH={PREFIX}/lib ./m || echo $?; ./o || echo $?; python3 -c 'import ctypes,sys; print(ctypes.CDLL(sys.argv[1]).f())' {PREFIX}/lib/libl.so"
    );
    prints(&script, &mappings, "7\n7\n7\n");
}

/// Paths with links, `..`, `.` and double slashes that lead in and out: each is what it is without the adapter on a folder of the same name.
#[test]
fn random_paths_are_what_they_are_on_a_folder() {
    let script = motet_tests::script("path_walks.py");
    let script = script.to_str().expect("UTF-8");
    for seed in 1..=8 {
        let number = seed.to_string();
        let (beside, (elsewhere, real)) = (real("walks-plain").0, real("walks-mapped"));
        let above = |temporary: &Temporary| temporary.path().canonicalize().expect("a path").join("above/real");
        let (plain, prefix) = (above(&beside), above(&elsewhere));
        fs::create_dir_all(&plain).expect("folders");
        fs::create_dir(elsewhere.join("above")).expect("a folder");
        let (plain, prefix) = (plain.to_str().expect("UTF-8"), prefix.to_str().expect("UTF-8"));
        let one = finish(crate::command(&["python3", script, plain, &number]));
        let mappings = format!("{prefix}={}", real.display());
        let other = finish(mapped(&["python3", script, prefix, &number], &mappings));
        assert_eq!(one.0, Some(0), "{}", one.2);
        for (line, (one, other)) in one.1.lines().zip(other.1.lines()).enumerate() {
            assert_eq!(one, other, "seed {seed}, line {line}");
        }
        assert_eq!(one, other, "seed {seed}");
    }
}
