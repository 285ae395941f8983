//! The disk under real programs: nbdcopy, nbdinfo, qemu-img, qemu-io, fio, a file system in it. Each test is skipped, and says so, without its program.

mod support;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use support::{Scene, pattern, tool, try_tool};

const MIB: u64 = 1 << 20;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of the test")
}

#[test]
fn nbdcopy_writes_and_reads_back() {
    let scene = Scene::new(40 * MIB);
    let (source, back) = (scene.path("source"), scene.path("back"));
    let bytes = pattern(40 << 20, 1);
    fs::write(&source, &bytes).expect("a file");
    let options = ["--connections=4", "--requests=64", "--flush"];
    let copied = tool("nbdcopy", &[&options[..], &[text(&source), &scene.uri()]].concat());
    if copied.is_none() {
        return;
    }
    assert!(fs::read(scene.disk()).expect("the disk") == bytes, "written wrong");
    tool("nbdcopy", &[&options[..], &[&scene.uri(), text(&back)]].concat());
    assert!(fs::read(back).expect("the copy") == bytes, "read wrong");
}

#[test]
fn nbdcopy_takes_requests_of_every_size() {
    for size in ["--request-size=4096", "--request-size=65536", "--request-size=33554432"] {
        // A disk whose end is no multiple of anything.
        let bytes = pattern((35 << 20) + 4097, 2);
        let scene = Scene::new(bytes.len() as u64);
        let (source, back) = (scene.path("source"), scene.path("back"));
        fs::write(&source, &bytes).expect("a file");
        if tool("nbdcopy", &[size, text(&source), &scene.uri()]).is_none() {
            return;
        }
        assert!(fs::read(scene.disk()).expect("the disk") == bytes, "{size}: written wrong");
        tool("nbdcopy", &[size, &scene.uri(), text(&back)]);
        assert!(fs::read(back).expect("the copy") == bytes, "{size}: read wrong");
    }
}

#[test]
fn nbdinfo_sees_the_disk_and_its_holes() {
    let scene = Scene::new(8 * MIB);
    let disk = OpenOptions::new().write(true).open(scene.disk()).expect("the disk");
    disk.write_all_at(&pattern(1 << 20, 3), MIB).expect("a write");
    disk.write_all_at(&pattern(1 << 20, 4), 5 * MIB).expect("a write");
    let Some(size) = tool("nbdinfo", &["--size", &scene.uri()]) else { return };
    assert_eq!(size.trim(), (8 * MIB).to_string());
    let map = tool("nbdinfo", &["--map", &scene.uri()]).expect("nbdinfo is there");
    let extents: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
    let m = |count: u64| (count * MIB).to_string();
    let expected = [
        (m(0), m(1), "hole,zero"),
        (m(1), m(1), "data"),
        (m(2), m(3), "hole,zero"),
        (m(5), m(1), "data"),
        (m(6), m(2), "hole,zero"),
    ];
    let seen: Vec<_> = extents.iter().map(|extent| (extent[0].to_owned(), extent[1].to_owned(), extent[3])).collect();
    assert_eq!(seen, expected);
    let listed = tool("nbdinfo", &["--list", &scene.uri()]).expect("nbdinfo is there");
    for line in ["export=\"d\"", "can_multi_conn: true", "can_fua: true", "can_fast_zero: true", "base:allocation"] {
        assert!(listed.contains(line), "{line} in {listed}");
    }
    for can in ["trim", "zero", "cache", "df", "flush", "fua"] {
        tool("nbdinfo", &["--can", can, &scene.uri()]);
    }
}

#[test]
fn qemu_img_converts_to_the_disk_and_back() {
    let scene = Scene::new(16 * MIB);
    let (source, image) = (scene.path("source"), scene.path("image.qcow2"));
    fs::write(&source, [pattern(3 << 20, 5), vec![0; 10 << 20], pattern(3 << 20, 6)].concat()).expect("a file");
    let uri = scene.uri();
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", text(&source), &uri];
    if tool("qemu-img", &convert).is_none() {
        return;
    }
    assert!(fs::read(scene.disk()).expect("the disk") == fs::read(&source).expect("the file"), "written wrong");
    let occupied = fs::metadata(scene.disk()).expect("the disk").blocks() * 512;
    assert!(occupied < 8 * MIB, "zeroes occupy space: {occupied} bytes");
    tool("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &uri, text(&image)]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", &uri, text(&image)]);
    let map = tool("qemu-img", &["map", "-f", "raw", "--output=json", &uri]).expect("qemu-img is there");
    assert!(map.contains("\"zero\": true") && map.contains("\"zero\": false"), "{map}");
}

#[test]
fn qemu_io_verifies_writes_zeroes_and_trims() {
    let scene = Scene::new(64 * MIB);
    let commands = [
        "write -P 0xab 0 64k",
        "read -P 0xab 0 64k",
        "write -f -P 0xcd 1000 5000", // with FUA
        "read -P 0xcd 1000 5000",
        "read -P 0xab 6000 100",
        "write -z 4k 4k", // zeroes that occupy space
        "read -P 0 4k 4k",
        "write -z -u 8k 8k", // zeroes that may be a hole
        "read -P 0 8k 8k",
        "write -P 0x11 8M 30M", // longer than one part
        "read -P 0x11 8M 30M",
        "discard 8M 1M",
        "read -P 0x11 9M 1M",
        "aio_write -P 0x22 40M 1M",
        "aio_write -P 0x33 41M 1M",
        "aio_flush",
        "read -P 0x22 40M 1M",
        "read -P 0x33 41M 1M",
        "flush",
    ];
    let uri = scene.uri();
    let mut arguments = vec!["-f", "raw"];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    arguments.push(&uri);
    let Some(printed) = tool("qemu-io", &arguments) else { return };
    assert!(!printed.contains("erification failed") && !printed.contains("rror"), "{printed}");
}

#[test]
fn a_read_only_disk_refuses_changes() {
    let scene = Scene::with(MIB, true);
    let source = scene.path("source");
    fs::write(&source, pattern(1 << 20, 7)).expect("a file");
    let Some((succeeded, _)) = try_tool("nbdcopy", &[text(&source), &scene.uri()]) else { return };
    assert!(!succeeded, "a write to a read-only disk");
    assert!(fs::read(scene.disk()).expect("the disk").iter().all(|byte| *byte == 0));
    tool("nbdinfo", &["--is", "read-only", &scene.uri()]);
}

#[test]
fn fio_verifies_random_writes() {
    let scene = Scene::new(32 * MIB);
    let uri = format!("--uri={}", scene.uri());
    let job = [
        "--name=verify",
        "--ioengine=nbd",
        &uri,
        "--rw=randwrite",
        "--bsrange=512-256k",
        "--iodepth=16",
        "--size=32m",
        "--verify=crc32c",
        "--do_verify=1",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--randseed=5",
    ];
    if try_tool("fio", &["--enghelp=nbd"]).is_none_or(|(succeeded, _)| !succeeded) {
        eprintln!("SKIPPED: fio has no engine for NBD");
        return;
    }
    tool("fio", &job);
}

#[test]
fn a_file_system_lives_in_the_disk() {
    let scene = Scene::new(64 * MIB);
    let (folder, mounted) = (scene.path("fuse"), scene.path("mounted"));
    fs::create_dir(&folder).expect("a folder");
    fs::create_dir(&mounted).expect("a folder");
    let image = folder.join("nbd");
    // nbdfuse makes a file of the disk; without FUSE it cannot.
    let mut fuse = match std::process::Command::new("nbdfuse").arg(&image).arg(scene.uri()).spawn() {
        Ok(child) => child,
        Err(error) => return eprintln!("SKIPPED: nbdfuse: {error}"),
    };
    let ready = loop {
        if fs::metadata(&image).is_ok() {
            break true;
        }
        if fuse.try_wait().expect("a child").is_some() {
            break false;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    if !ready {
        return eprintln!("SKIPPED: nbdfuse does not work here");
    }
    let unmount = || tool("umount", &[text(&folder)]);
    if tool("mkfs.ext4", &["-q", "-F", text(&image)]).is_none() {
        unmount();
        fuse.wait().expect("its end");
        return;
    }
    tool("fsck.ext4", &["-n", "-f", text(&image)]);
    match try_tool("mount", &["-o", "loop", text(&image), text(&mounted)]) {
        Some((true, _)) => {
            fs::write(mounted.join("file"), pattern(5 << 20, 8)).expect("a file in the file system");
            fs::set_permissions(mounted.join("file"), fs::Permissions::from_mode(0o640)).expect("permissions");
            let build = "set -e; cd \"$0\"; export HOME=$PWD; git init -q one; cd one; git config user.email a@b; git config user.name n
                printf 'int main(void) { return 0; }' > main.c; printf 'main: main.c\\n\\tcc -o main main.c\\n' > Makefile
                git add .; git commit -qm first; cd ..; git clone -q one two; cd two; make -s; ./main; test \"$(git status --short)\" = '?? main'";
            tool("bash", &["-c", build, text(&mounted)]);
            tool("umount", &[text(&mounted)]);
            tool("mount", &["-o", "loop,ro", text(&image), text(&mounted)]);
            let same = fs::read(mounted.join("file")).expect("the file") == pattern(5 << 20, 8);
            tool("umount", &[text(&mounted)]);
            assert!(same, "the file has other content after a second mount");
            tool("fsck.ext4", &["-n", "-f", text(&image)]);
        }
        failed => eprintln!("SKIPPED: mount of the file system: {failed:?}"),
    }
    unmount();
    fuse.wait().expect("its end");
    // The file of the export is the same file system.
    tool("fsck.ext4", &["-n", "-f", text(&scene.disk())]);
}
