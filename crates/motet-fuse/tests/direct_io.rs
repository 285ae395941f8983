//! Programs that open files of a mount with O_DIRECT: past the page caches of their host and of the server's.

#[path = "../../motet-files/tests/disk/mod.rs"]
mod disk;
#[path = "scene/mod.rs"]
mod scene;

use disk::{Disk, cached, drop_cache};
use rustix::fs::OFlags;
use scene::{MODES, Mode, Mounted, can_mount, script, server};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const BLOCK: usize = 4096;

/// Memory whose address is a multiple of a block.
struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    fn new(length: usize) -> Self {
        let bytes = vec![0; length + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start, length }
    }

    fn of(content: &[u8]) -> Self {
        let mut aligned = Self::new(content.len());
        aligned.get_mut().copy_from_slice(content);
        aligned
    }

    fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.length]
    }

    fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}

/// Opens a file with O_DIRECT, and makes it if it does not exist.
fn direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits().cast_signed();
    let opened = OpenOptions::new().read(true).write(true).create(true).custom_flags(flags).open(path);
    opened.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 + at / 251) as u8).collect()
}

/// One test at a time: a process that another one starts has the files of this one open until its program begins, and a mount in use cannot be unmounted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls `with` with a mount of an export that is on a new disk.
fn on_disk(test: &str, modes: &[Mode], megabytes: u64, mut with: impl FnMut(&mut Mounted, Mode)) {
    let _alone = alone();
    for &mode in modes {
        if !can_mount(test) {
            return;
        }
        let Some(disk) = Disk::new(test, megabytes) else { return };
        with(&mut mounted(&disk.path(), mode), mode);
    }
}

/// A mount of an export of a new folder.
fn mounted(beneath: &Path, mode: Mode) -> Mounted {
    let exported = tempfile::tempdir_in(beneath).expect("a folder");
    fs::set_permissions(exported.path(), fs::Permissions::from_mode(0o755)).expect("permissions");
    Mounted::of(exported, false, mode, false)
}

#[test]
fn o_direct_goes_past_the_page_cache_of_the_server() {
    on_disk("o_direct_goes_past_the_page_cache_of_the_server", &MODES, 64, |mounted, mode| {
        let bytes = pattern(1 << 20);
        let (file, exported) = (direct(&mounted.path("data")), mounted.exported("data"));
        file.write_all_at(Aligned::of(&bytes).get(), 0).expect("a write");
        assert_eq!(cached(&exported), 0, "{mode:?}: written past the cache");
        let mut read = Aligned::new(bytes.len());
        file.read_exact_at(read.get_mut(), 0).expect("a read");
        for at in (0..bytes.len()).step_by(16 * BLOCK) {
            file.read_exact_at(&mut read.get_mut()[at..][..BLOCK], at as u64).expect("a read");
        }
        assert!(read.get() == bytes);
        assert_eq!(cached(&exported), 0, "{mode:?}: read past the cache");
        assert_eq!(cached(&mounted.path("data")), 0, "{mode:?}: nothing in the cache of the program's host");
        // Without O_DIRECT the cache is used, so the numbers above mean something.
        fs::read(mounted.path("data")).expect("a read");
        assert!(cached(&exported) > 0, "{mode:?}: read through the cache");
    });
}

#[test]
fn dd_reads_and_writes_with_direct_flags() {
    on_disk("dd_reads_and_writes_with_direct_flags", &MODES, 64, |mounted, mode| {
        fs::write(mounted.exported("source"), pattern(3 << 20)).expect("a file");
        drop_cache(&mounted.exported("source"));
        script(
            mounted.folder.path(),
            "dd if=source of=copy iflag=direct oflag=direct bs=256K status=none; cmp source copy",
        );
        // `cmp` has read both through the cache.
        for name in ["source", "copy"] {
            drop_cache(&mounted.exported(name));
        }
        script(mounted.folder.path(), "dd if=copy of=/dev/null iflag=direct bs=4K status=none");
        assert_eq!(cached(&mounted.exported("copy")), 0, "{mode:?}");
    });
}

#[test]
fn ranges_that_are_no_blocks_arrive_whole_by_messages() {
    on_disk("ranges_that_are_no_blocks_arrive_whole_by_messages", &[Mode::Messages], 64, |mounted, _| {
        let mut expected = pattern(100_000);
        fs::write(mounted.exported("data"), &expected).expect("a file");
        let file = direct(&mounted.path("data"));
        for (offset, length) in [(1, 1), (4000, 200), (8192, 100), (50_001, 20_000), (99_990, 100), (4096, 8192)] {
            let written = vec![length as u8; length];
            file.write_all_at(&written, offset as u64).expect("a write");
            expected.resize(expected.len().max(offset + length), 0);
            expected[offset..offset + length].copy_from_slice(&written);
            let mut read = vec![0; 3000];
            let at = offset.saturating_sub(777).min(expected.len() - read.len());
            file.read_exact_at(&mut read, at as u64).expect("a read");
            assert!(read == expected[at..][..read.len()], "around {offset}");
        }
        assert!(fs::read(mounted.exported("data")).expect("the file") == expected);
    });
}

#[test]
fn direct_cached_and_mapped_content_of_a_mount_agree() {
    on_disk("direct_cached_and_mapped_content_of_a_mount_agree", &MODES, 64, |mounted, mode| {
        let path = mounted.path("data");
        let cached = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
        let file = direct(&path);
        let mut read = Aligned::new(2 * BLOCK);
        for round in 0..20_u8 {
            cached.write_all_at(&[round; 2 * BLOCK], 0).expect("a write");
            file.read_exact_at(read.get_mut(), 0).expect("a read");
            assert!(read.get().iter().all(|&byte| byte == round), "{mode:?}: a direct read after a cached write");
            file.write_all_at(Aligned::of(&[round + 100; BLOCK]).get(), BLOCK as u64).expect("a write");
            let mut both = [0; 2 * BLOCK];
            cached.read_exact_at(&mut both, 0).expect("a read");
            assert_eq!((both[0], both[BLOCK]), (round, round + 100), "{mode:?}: a cached read after a direct write");
        }
        let by_map = "import mmap, os
f = os.open('data', os.O_RDWR)
m = mmap.mmap(f, 8192)
m[:] = b'm' * 8192
m.flush()";
        script(mounted.folder.path(), &format!("python3 -c \"{by_map}\""));
        file.read_exact_at(read.get_mut(), 0).expect("a read");
        assert!(read.get().iter().all(|&byte| byte == b'm'), "{mode:?}: a direct read after a write to mapped memory");
    });
}

#[test]
fn a_restarted_server_reads_past_its_cache_again() {
    on_disk("a_restarted_server_reads_past_its_cache_again", &[Mode::Messages], 64, |mounted, mode| {
        let bytes = pattern(1 << 20);
        fs::write(mounted.exported("data"), &bytes).expect("a file");
        let file = direct(&mounted.path("data"));
        drop(mounted.server.take());
        mounted.server = Some(server(&mounted.name, mounted.exported.path(), false, mode));
        drop_cache(&mounted.exported("data"));
        let mut read = Aligned::new(bytes.len());
        file.read_exact_at(read.get_mut(), 0).expect("a read");
        assert!(read.get() == bytes);
        assert_eq!(cached(&mounted.exported("data")), 0);
    });
}

#[test]
fn fio_verifies_direct_io() {
    let test = "fio_verifies_direct_io";
    if !Command::new("fio").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return scene::skip(test, "fio is not installed");
    }
    on_disk(test, &MODES, 64, |mounted, _| {
        let fio = "fio --name=job --filename=data --size=4m --direct=1 --verify=crc32c --do_verify=1 --verify_fatal=1 --output=log --fallocate=none";
        script(
            mounted.folder.path(),
            &format!("{fio} --rw=randwrite --bsrange=4k-64k --ba=4k --ioengine=psync --numjobs=1"),
        );
        script(mounted.folder.path(), &format!("{fio} --rw=randrw --bs=4k --ioengine=libaio --iodepth=16"));
    });
}

#[test]
fn a_full_disk_gives_enospc_to_direct_writes() {
    on_disk("a_full_disk_gives_enospc_to_direct_writes", &MODES, 16, |mounted, mode| {
        assert_eq!(fill(mounted), rustix::io::Errno::NOSPC.raw_os_error(), "{mode:?}");
    });
}

#[test]
fn a_quota_gives_edquot_to_direct_writes() {
    let test = "a_quota_gives_edquot_to_direct_writes";
    let _alone = alone();
    for mode in MODES {
        if !can_mount(test) {
            return;
        }
        let Some(disk) = Disk::btrfs(test, 256) else { return };
        let mounted = mounted(&disk.limited_folder(), mode);
        assert_eq!(fill(&mounted), rustix::io::Errno::DQUOT.raw_os_error(), "{mode:?}");
    }
}

/// Writes to a new file with O_DIRECT until that fails; returns the error number. What was written must be there.
fn fill(mounted: &Mounted) -> i32 {
    let bytes = Aligned::of(&pattern(64 << 10));
    let file = direct(&mounted.path("full"));
    let mut length = 0;
    let error = loop {
        match file.write_at(bytes.get(), length) {
            // A write that stops in its middle: the next one at the same place fails.
            Ok(written) if written < bytes.length => {}
            Ok(written) => length += written as u64,
            Err(error) => break error.raw_os_error().expect("an error number"),
        }
        assert!(length < 1 << 30, "there is no limit");
    };
    assert!(length > 1 << 20, "{length} bytes were written");
    let mut read = Aligned::new(bytes.length);
    for at in (0..length).step_by(bytes.length) {
        file.read_exact_at(read.get_mut(), at).expect("a read");
        assert!(read.get() == bytes.get(), "what was written at {at} is lost");
    }
    error
}

#[test]
fn signals_that_interrupt_a_programs_direct_io_lose_nothing() {
    let program = r#"
import mmap, os, random, signal
seen = 0
def handler(*_):
    global seen
    seen += 1
signal.signal(signal.SIGALRM, handler)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
file = os.open('data', os.O_RDWR | os.O_CREAT | os.O_DIRECT)
random.seed(22)
size = 65536
out, back = mmap.mmap(-1, size), mmap.mmap(-1, size)
rounds = 0
while rounds < 100 or seen < 20:
    assert rounds < 1000000, 'no signals come'
    length, at = 4096 * random.randint(1, 16), 4096 * random.randint(0, 500)
    out[:length] = bytes([rounds % 256]) * length
    done = 0
    while done < length:
        written = os.pwritev(file, [memoryview(out)[done:length]], at + done)
        assert written > 0 and written % 4096 == 0, written
        done += written
    done = 0
    while done < length:
        read = os.preadv(file, [memoryview(back)[done:length]], at + done)
        assert read > 0 and read % 4096 == 0, read
        done += read
    assert back[:length] == out[:length], (rounds, at, length)
    rounds += 1
# At its end Python has the default action of the signal again, which ends it.
signal.setitimer(signal.ITIMER_REAL, 0)
"#;
    on_disk("signals_that_interrupt_a_programs_direct_io_lose_nothing", &MODES, 64, |mounted, mode| {
        let output = Command::new("python3").args(["-c", program]).current_dir(mounted.folder.path()).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{mode:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    });
}
