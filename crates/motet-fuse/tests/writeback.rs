//! A mount whose kernel keeps written data: what a close or an fsync has returned is at the server, and pages that are written in part are whole.

#[path = "scene/mod.rs"]
mod scene;

use motet_files::client::{Client, Source};
use motet_fuse::{Mount, Options};
use scene::{Mode, can_mount, open_folder, script, server};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

#[test]
fn written_data_are_at_the_server_after_close_and_fsync() {
    if !can_mount("written_data_are_at_the_server_after_close_and_fsync") {
        return;
    }
    let (exported, folder) = (open_folder(), open_folder());
    let name = format!("writeback-{}", std::process::id());
    let _server = server(&name, exported.path(), false, Mode::Messages);
    let client = Client::connect(Source::Name(name.clone()), None).expect("a client");
    let options = Options { name, validity: Duration::from_secs(1), other_users: false, threads: 4, writeback: true };
    let mount = Mount::start(client, folder.path(), &options).expect("a mount");
    let (path, exported) = (folder.path(), exported.path());
    let file = fs::File::create(path.join("file")).expect("a file");
    for at in 0..1000_u64 {
        file.write_all_at(&at.to_le_bytes(), at * 1000).expect("a write");
    }
    file.sync_all().expect("synchronised");
    let bytes = fs::read(exported.join("file")).expect("the file");
    assert_eq!(bytes.len(), 999_008);
    assert!((0..1000_u64).all(|at| bytes[at as usize * 1000..][..8] == at.to_le_bytes()));
    drop(file);
    // A descriptor that cannot read, and parts of pages that exist.
    let file = fs::OpenOptions::new().write(true).open(path.join("file")).expect("the file");
    file.write_all_at(b"here", 5001).expect("a write");
    file.set_len(6000).expect("shorter");
    drop(file);
    let mut expected = bytes[..6000].to_vec();
    expected[5001..5005].copy_from_slice(b"here");
    assert!(fs::read(exported.join("file")).expect("the file") == expected);
    let append = "for at in $(seq 500); do echo line $at; done > log; for at in $(seq 500); do echo more $at >> log; done; wc -l < log; \
                  git init -q one; cd one; git config user.email a@b; git config user.name n; cp ../log .; git add .; git commit -qm first; \
                  cd ..; git clone -q one two; cmp log two/log; sqlite3 db 'create table t (x); insert into t values (1), (2); select sum(x) from t'";
    assert_eq!(script(path, append), "1000\n3\n");
    assert_eq!(fs::read_to_string(exported.join("log")).expect("the log").lines().count(), 1000);
    mount.unmount().expect("unmounted");
}
