use super::*;
use rustix::fs::MemfdFlags;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicU64, Ordering};

/// An unlinked file of `length` bytes on a disk.
fn disk(length: u64) -> File {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("motet-files-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file.set_len(length).unwrap();
    file
}

fn memory(length: u64, seals: SealFlags) -> File {
    let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, length).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    File::from(file)
}

fn content(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

fn me() -> u32 {
    std::process::id()
}

#[test]
fn unaligned_region_touches_no_byte_beside_it() {
    for (mut file, is_memory) in [(disk(10_000), false), (memory(10_000, SealFlags::SHRINK), true)] {
        let part = FileRegion::open(&file, 4099, 5000, true, true).unwrap();
        assert_eq!((part.length(), part.memory().is_some()), (5000, is_memory));
        part.write(0, &[1; 100]).unwrap();
        part.write(4999, &[2]).unwrap();
        let source = vec![3u8; 4000];
        assert_eq!(part.copy_from(me(), source.as_ptr() as u64, 200, 4000), Ok(4000));
        let mut expected = vec![0; 10_000];
        expected[4099..4199].fill(1);
        expected[4299..8299].fill(3);
        expected[9098] = 2;
        assert!(content(&mut file) == expected);
        let mut bytes = vec![9; 5000];
        part.read(0, &mut bytes).unwrap();
        assert!(bytes == expected[4099..9099]);
        let mut copied = vec![0; 5000];
        assert_eq!(process_vm::read_from(me(), part.address(0, 5000).unwrap(), &mut copied), Ok(5000));
        assert!(copied == bytes);
        if let Some(view) = part.memory() {
            view.read(200, &mut copied[..8]).unwrap();
            assert_eq!((view.length(), copied[0]), (5000, 3));
        }
        for (at, length) in [(0, 5001), (5000, 1), (5001, 0), (usize::MAX, 2), (1, usize::MAX)] {
            assert!(
                part.address(at, length).is_none() && part.sync(at, length) == Err(FileError::BeyondEnd),
                "{at} {length}"
            );
            assert_eq!(part.copy_from(me(), source.as_ptr() as u64, at, length), Err(FileError::BeyondEnd));
        }
        assert_eq!(
            (part.write(4999, &[1; 2]), part.read(4999, &mut [0; 2])),
            (Err(FileError::BeyondEnd), Err(FileError::BeyondEnd))
        );
        assert_eq!((part.write(5000, &[]), part.read(5000, &mut [])), (Ok(()), Ok(())));
        assert_eq!((part.sync(0, 5000), part.sync(4999, 1), part.sync(5000, 0)), (Ok(()), Ok(()), Ok(())));
        assert!(content(&mut file) == expected, "no byte beside it");
    }
}

#[test]
fn truncated_file_gives_errors_and_no_fault() {
    let mut file = disk(1 << 20);
    let part = FileRegion::open(&file, 5, (1 << 20) - 5, true, true).unwrap();
    part.write(1000, &[1; 100]).unwrap();
    assert!(part.address(0, 1 << 18).is_some());
    let address = part.address(1 << 19, 1 << 18).unwrap();
    let source = vec![7u8; 1 << 18];
    file.set_len(1100).unwrap();
    let mut bytes = vec![0; 1 << 18];
    assert_eq!(part.read(1 << 19, &mut bytes), Err(FileError::BeyondEnd));
    assert_eq!(part.read(1000, &mut bytes[..96]), Err(FileError::BeyondEnd), "the last byte");
    assert_eq!(part.read(1000, &mut bytes[..95]), Ok(()));
    assert_eq!(part.write(1 << 19, &bytes), Err(FileError::BeyondEnd));
    assert_eq!(part.write(1000, &[1; 96]), Err(FileError::BeyondEnd));
    assert_eq!(part.copy_from(me(), source.as_ptr() as u64, 0, 1 << 18), Err(FileError::BeyondEnd));
    assert!(part.address(0, 1 << 18).is_none());
    assert_eq!(part.sync(0, 1 << 19), Err(FileError::BeyondEnd));
    assert_eq!(part.sync(0, 1000), Ok(()));
    assert!(
        process_vm::read_from(me(), address, &mut bytes).is_err(),
        "an address from before the truncation gives an error"
    );
    assert_eq!(content(&mut file).len(), 1100, "the file is not extended");
    // The kernel's copy into pages behind the end fails, too.
    let RegionMapping::Pages(pages) = &part.map else { panic!("mapped") };
    // SAFETY: inside the pages, which are mapped as long as `part`; the view is used by the kernel only, which turns faults into an error.
    let into = unsafe { SharedBytes::new(pages.base.cast::<u8>().add(1 << 19), 1 << 18) };
    assert!(process_vm::read_into_shared(me(), source.as_ptr() as u64, &into).is_err());
    file.set_len(1 << 20).unwrap();
    part.read(1 << 19, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0), "an extended file is readable again");
}

#[test]
fn seal_added_later_gives_an_error() {
    let file = memory(4096, SealFlags::GROW);
    let part = FileRegion::open(&file, 0, 4096, true, true).unwrap();
    assert!(part.memory().is_none(), "it can shrink");
    file.set_len(100).unwrap();
    assert_eq!(part.write(0, &[1; 101]), Err(FileError::BeyondEnd));
    assert_eq!(rustix::io::pwrite(&part.file, &[1; 8], 4000), Err(Errno::PERM));
    rustix::fs::fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).unwrap();
    assert_eq!(part.write(0, &[1; 8]), Err(FileError::System(Errno::PERM)));
}

#[test]
fn unfit_files_and_ranges_are_refused() {
    let path = std::env::current_exe().unwrap();
    let executable = File::open(&path).unwrap();
    let open =
        |file: &File, at, length, writes| FileRegion::open(file, at, length, true, writes).map(|part| part.length());
    assert_eq!(open(&executable, 0, 4, true), Err(Errno::ACCESS));
    assert_eq!(open(&executable, 1, 4, false), Ok(4));
    let read_only = FileRegion::open(&executable, 0, 100_000, true, false).unwrap();
    assert!(read_only.address(0, 100_000).is_some());
    let source = [0u8; 64];
    assert!(read_only.copy_from(me(), source.as_ptr() as u64, 0, 64).is_err(), "a read-only region takes no copy");
    assert!(matches!(read_only.write(0, &source), Err(FileError::System(Errno::BADF))));
    let file = disk(100);
    for (at, length, expected) in [
        (0, 100, Ok(100)),
        (99, 1, Ok(1)),
        (0, 101, Err(Errno::RANGE)),
        (100, 1, Err(Errno::RANGE)),
        (0, 0, Err(Errno::INVAL)),
        (u64::MAX, 2, Err(Errno::RANGE)),
        (1, u64::MAX, Err(Errno::RANGE)),
        (0, u64::MAX, Err(Errno::RANGE)),
        (i64::MAX as u64, 1, Err(Errno::RANGE)),
    ] {
        assert_eq!(open(&file, at, length, true), expected, "{at} {length}");
    }
    assert_eq!(open(&File::open("/").unwrap(), 0, 1, false), Err(Errno::ISDIR));
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert_eq!(open(&File::from(pipe), 0, 1, false), Err(Errno::SPIPE));
    assert_eq!(open(&File::open("/dev/zero").unwrap(), 0, 1, false), Err(Errno::SPIPE));
    let as_path = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap();
    assert_eq!(open(&File::from(as_path), 0, 1, false), Err(Errno::BADF));
    let appending = disk(100);
    rustix::fs::fcntl_setfl(&appending, OFlags::APPEND).unwrap();
    assert_eq!((open(&appending, 0, 9, true), open(&appending, 0, 9, false)), (Err(Errno::INVAL), Ok(9)));
    let sealed = memory(100, SealFlags::WRITE);
    assert_eq!((open(&sealed, 0, 9, true), open(&sealed, 0, 9, false)), (Err(Errno::ACCESS), Ok(9)));
    let huge = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB);
    if let Ok(huge) = huge {
        assert_eq!(open(&File::from(huge), 0, 1, true), Err(Errno::OPNOTSUPP));
    }
}

#[test]
fn write_only_region_needs_no_read_access() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../target/motet-write-{}", me()));
    let mut file = File::create(&path).unwrap();
    file.write_all(&[0; 100]).unwrap();
    assert_eq!(FileRegion::open(&file, 0, 100, true, true).map(drop), Err(Errno::ACCESS));
    let part = FileRegion::open(&file, 10, 50, false, true).unwrap();
    part.write(0, &[1; 50]).unwrap();
    assert_eq!((part.sync(0, 50), part.address(0, 50)), (Ok(()), None));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(bytes, [[0; 10].as_slice(), &[1; 50], &[0; 40]].concat());
}
