//! Hostile node files, created by this process. One test, as all of its files belong to one process.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::{finish, json, motet};
use motet_wire::stats_table::StatsFormat;
use motet_wire::stream::stats::StreamFormat;
use rustix::fs::{MemfdFlags, memfd_create};

const HEAD: usize = 4096;
const RECORD: usize = motet_wire::stream::record::SIZE;

fn node(size: u64, head: &[(usize, &[u8])]) -> File {
    let file = File::from(memfd_create("motet-node", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(size).unwrap();
    for (at, bytes) in head {
        file.write_all_at(bytes, *at as u64).unwrap();
    }
    file
}

/// Magic, version, bytes of a record, capacity, used.
fn head(record: u32, capacity: u32, used: u32) -> Vec<u8> {
    head_of(StreamFormat::VERSION, record, capacity, used)
}

fn head_of(version: u32, record: u32, capacity: u32, used: u32) -> Vec<u8> {
    let mut bytes = StreamFormat::MAGIC.to_ne_bytes().to_vec();
    for word in [version, record, capacity, used] {
        bytes.extend(word.to_ne_bytes());
    }
    bytes
}

fn own_entry() -> serde_json::Value {
    let (code, out, err) = finish(&mut motet(["ps", "--json"]));
    assert_eq!(code, 0, "{err}");
    let report = json(&out);
    let entry = report["processes"].as_array().unwrap().iter().find(|p| p["pid"] == std::process::id());
    entry.expect("this process is listed").clone()
}

#[test]
fn hostile_node_files_are_reported_and_never_followed() {
    let size = |records: usize| (HEAD + records * RECORD) as u64;
    let record = RECORD as u32;
    let noise: Vec<u8> = (0..HEAD + 64 * RECORD).map(|n| (n * 31 % 251) as u8).collect();
    let files: Vec<(&str, File)> = vec![
        ("empty", node(0, &[])),
        ("noise", node(noise.len() as u64, &[(0, &noise)])),
        ("cut", node(12, &[(0, &head(record, 1, 1)[..12])])),
        ("more records than the file holds", node(size(1), &[(0, &head(record, 1 << 30, 1 << 30))])),
        ("more used than there are", node(size(4), &[(0, &head(record, 4, 5))])),
        ("huge", node(size(u32::MAX as usize), &[(0, &head(record, u32::MAX, u32::MAX))])),
        ("records of no size", node(size(4), &[(0, &head(0, 4, 4))])),
        ("another version", node(size(4), &[(0, &head_of(StreamFormat::VERSION - 1, record, 4, 4))])),
        ("a later version", node(size(4), &[(0, &head_of(StreamFormat::VERSION + 1, record, 4, 4))])),
        (
            "larger records under the same version",
            node((HEAD + 4 * (RECORD + 64)) as u64, &[(0, &head(record + 64, 4, 4))]),
        ),
    ];
    for (what, file) in files {
        let entry = own_entry();
        assert_eq!(entry["status"], "unreadable", "{what}: {entry}");
        for arguments in [&["ps", "-l"][..], &["why"], &["top", "--once", "-i", "0.05"]] {
            let (code, out, err) = finish(&mut motet(arguments));
            assert!(code == 0 && err.is_empty(), "{what}: {err}");
            assert!(out.contains("node file unreadable"), "{what}: {out}");
        }
        drop(file);
    }

    // A valid head over records of noise, owned by this process: the records are shown as they are.
    let noisy = node(size(64), &[(HEAD, &noise[..64 * RECORD]), (0, &head(record, 64, 64))]);
    for index in 0..64 {
        let life = HEAD + index * RECORD + std::mem::offset_of!(motet_wire::stream::record::StreamRecord, lifecycle);
        let state = life + std::mem::offset_of!(motet_wire::stream::record::Lifecycle, state);
        let owner = life + std::mem::offset_of!(motet_wire::stream::record::Lifecycle, owner);
        noisy.write_all_at(&2u32.to_ne_bytes(), state as u64).unwrap();
        noisy.write_all_at(&std::process::id().to_ne_bytes(), owner as u64).unwrap();
    }
    let entry = own_entry();
    assert_eq!((entry["status"].as_str(), entry["streams"].as_array().unwrap().len()), (Some("active"), 64));
    for arguments in [&["ps", "-l"][..], &["why"], &["why", "--json"], &["top", "--once", "-i", "0.05"]] {
        let (code, out, _) = finish(&mut motet(arguments));
        assert!(code == 0 && !out.chars().any(|c| c.is_control() && c != '\n'), "{arguments:?}");
    }
}
