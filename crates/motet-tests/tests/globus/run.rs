//! `motet run -- globus-gridftp-server …`: the driver is set up without a file or an option of the user.

use crate::{Channel, LIMIT, Site, same};
use motet_tests::{engine, programs as real};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// A folder as an installation has it, for `MOTET_LIBDIR`: command, engine, sockets adapter and the driver of this checkout. `None`, with a message, if something
/// is not built.
pub fn installed(site: &Site, test: &str) -> Option<PathBuf> {
    let built = engine()?.parent()?;
    let folder = site.path("motet");
    fs::create_dir_all(folder.join("globus")).expect("a folder");
    for name in ["motet", "libmotet.so.0", "libmotet_sockets.so"] {
        if !built.join(name).exists() {
            return real::skip(test, &format!("{name} is not built (make build)"));
        }
        real::copy(&built.join(name), &folder.join(name));
    }
    let name = "libglobus_xio_motet_driver.so";
    real::copy(&site.driver.join(name), &folder.join("globus").join(name));
    Some(folder)
}

/// A command under `motet run` with these words before the program.
pub fn under_motet(site: &Site, folder: &Path, words: &[&str], program: &str) -> Command {
    let mut command = site.command(folder.join("motet"));
    command.env_remove("LD_LIBRARY_PATH").env("MOTET_LIBDIR", folder);
    command.arg("run").args(words).arg("--").arg(program);
    command
}

pub fn anonymous() -> Vec<String> {
    let user = if real::is_root() { &["-aa", "-anonymous-user", "root"][..] } else { &["-aa"] };
    user.iter().map(|word| (*word).to_owned()).collect()
}

#[test]
fn servers_under_motet_use_shared_memory_and_allow_the_driver() {
    let test = "motet run, server to server";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    let servers = [(); 2].map(|()| {
        site.serve_with(under_motet(&site, &folder, &["-v"], "globus-gridftp-server"), Channel::Tcp, &anonymous())
    });
    let source = site.file("source", 16 << 20);
    let target = site.path("out/target");
    for words in [&["-p", "2"][..], &["-dcstack", "motet"]] {
        site.until_shared_memory(2, || {
            site.copy(&[words, &[&servers[0].url(&source), &servers[1].url(&target)]].concat());
            assert!(same(&source, &target));
            fs::remove_file(&target).expect("the copy");
        });
    }
    let said = fs::read_to_string(site.path(&format!("server-{}", servers[0].port))).expect("the server's output");
    assert!(said.contains("GridFTP") && said.contains("-dc-whitelist motet,tcp,gsi"), "{said}");
}

#[test]
fn a_client_under_motet_downloads_over_shared_memory() {
    let test = "motet run, client";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    let server = site.serve_with(under_motet(&site, &folder, &[], "globus-gridftp-server"), Channel::Tcp, &anonymous());
    let source = site.file("source", 48 << 20);
    let target = site.path("out/target");
    site.until_shared_memory(2, || {
        let mut client = under_motet(&site, &folder, &[], "globus-url-copy");
        client.args([server.url(&source), format!("file://{}", target.display())]);
        crate::succeeded(&client.output().expect("motet"));
        assert!(same(&source, &target));
        fs::remove_file(&target).expect("the copy");
    });
}

#[test]
fn the_users_own_stack_is_left_alone() {
    let test = "motet run, own stack";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    let words = [anonymous(), ["-dc-default", "tcp,gsi"].map(str::to_owned).into()].concat();
    let server = site.serve_with(under_motet(&site, &folder, &["-v"], "globus-gridftp-server"), Channel::Tcp, &words);
    let source = site.file("source", 1 << 20);
    let target = site.path("out/target");
    site.copy(&[&server.url(&source), &format!("file://{}", target.display())]);
    assert!(same(&source, &target));
    let said = fs::read_to_string(site.path(&format!("server-{}", server.port))).expect("the server's output");
    assert!(said.contains("GridFTP keeps its own data channel"), "{said}");
}

#[test]
fn without_motet_nothing_is_added() {
    let test = "motet run --off";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    let server =
        site.serve_with(under_motet(&site, &folder, &["--off"], "globus-gridftp-server"), Channel::Tcp, &anonymous());
    let began = Instant::now();
    let line = fs::read(format!("/proc/{}/cmdline", server.child.id())).expect("its command line");
    assert!(!String::from_utf8_lossy(&line).contains("motet,tcp") && began.elapsed() < LIMIT);
}

#[test]
fn the_example_compares_transfers() {
    let test = "examples/globus/transfer";
    let Some(site) = Site::new(test) else { return };
    let Some(folder) = installed(&site, test) else { return };
    let mut command = site.command(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/globus/transfer"));
    command.args(["--size", "16", "--rounds", "1", "--motet"]).arg(folder.join("motet")).env("MOTET_LIBDIR", &folder);
    let said = crate::succeeded(&command.output().expect("python3"));
    assert!(said.starts_with("16 MiB from server to server") && said.contains("every copy is equal"), "{said}");
    assert!(["without Motet", "Motet's XIO driver", "motet run"].iter().all(|way| said.contains(way)), "{said}");
}
