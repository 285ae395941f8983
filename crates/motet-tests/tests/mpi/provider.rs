//! The libfabric provider with unmodified MPI libraries. The programs are those of `tests/mpi`; each ends its job with an error if a guarantee of MPI
//! is broken. Messages must use Motet, because no other provider is allowed.

use motet_programs::find;
use motet_tests::folder;
use motet_tests::mpi::{self, root, skip};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The provider's folder. `None`, with a message, if it is not built or a program is missing.
fn provider(test: &str, programs: &[&str]) -> Option<PathBuf> {
    let folder = mpi::provider(test)?;
    if let Some(missing) = programs.iter().find(|name| find(name).is_none()) {
        skip(test, &format!("{missing} is not installed (tests/programs/packages.txt)"));
        return None;
    }
    Some(folder)
}

/// Compiles a program of `tests/mpi`.
fn compile(compiler: &str, name: &str, into: &Path) -> PathBuf {
    let program = into.join(format!("{name}-{compiler}"));
    let source = root().join("tests/mpi").join(format!("{name}.c"));
    let compiled =
        Command::new(compiler).args(["-O2", "-pthread", "-o"]).arg(&program).arg(source).output().expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// Runs a program on `ranks` ranks of Open MPI. Returns the output of rank 0.
fn open_mpi(provider: &Path, ranks: &str, layers: &[&str], program: &Path, arguments: &[&str]) -> String {
    let _exclusive = crate::exclusive_cpus();
    let ran = Command::new("timeout")
        .args(["300", "mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", ranks])
        .args(layers)
        .arg(program)
        .args(arguments)
        .env("FI_PROVIDER_PATH", provider)
        .env("FI_PROVIDER", "motet")
        .output()
        .expect("timeout");
    assert!(ran.status.success(), "{ranks} ranks: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

const MATCHED_BY_LIBFABRIC: [&str; 6] = ["--mca", "pml", "cm", "--mca", "mtl", "ofi"];

#[test]
fn open_mpi_messages_keep_mpi_semantics() {
    let test = "open_mpi_messages_keep_mpi_semantics";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "messages", &folder("mpi"));
    for ranks in ["2", "4"] {
        assert_eq!(open_mpi(&provider, ranks, &MATCHED_BY_LIBFABRIC, &program, &[]), format!("ok {ranks}\n"));
    }
}

#[test]
fn open_mpi_threads_share_an_endpoint() {
    let test = "open_mpi_threads_share_an_endpoint";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "threads", &folder("mpi-threads"));
    match open_mpi(&provider, "2", &MATCHED_BY_LIBFABRIC, &program, &[]).as_str() {
        "no threads\n" => skip(test, "this Open MPI is not for several threads"),
        printed => assert_eq!(printed, "ok 2\n"),
    }
}

#[test]
fn open_mpi_windows_use_regions() {
    let test = "open_mpi_windows_use_regions";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "windows", &folder("mpi-windows"));
    let by_puts = ["--mca", "osc", "rdma", "--mca", "btl", "ofi,self"];
    let by_messages = ["--mca", "osc", "pt2pt", "--mca", "btl", "self"];
    for (windows, arguments) in [(by_puts, &["no-compare"][..]), (by_messages, &[])] {
        let layers = [&MATCHED_BY_LIBFABRIC[..], &windows].concat();
        assert_eq!(open_mpi(&provider, "3", &layers, &program, arguments), "ok 3\n");
    }
}

/// Many more ranks than CPUs: waiting ranks sleep, so all of them make progress.
#[test]
fn oversubscribed_ranks_make_progress() {
    let test = "oversubscribed_ranks_make_progress";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "oversubscribed", &folder("mpi-oversubscribed"));
    for (ranks, rounds, wait) in [("64", "2", "auto"), ("2", "50", "sleep"), ("8", "2", "poll")] {
        let wait = format!("FI_MOTET_WAIT={wait}");
        let layers = [&MATCHED_BY_LIBFABRIC[..], &["-x", &wait]].concat();
        let printed = open_mpi(&provider, ranks, &layers, &program, &[rounds]);
        assert_eq!(printed.lines().next(), Some(&*format!("ok {ranks}, carried by {ranks}")), "{wait}: {printed}");
    }
}

/// Calls that return only when another rank has answered, by ranks that share CPUs.
#[test]
fn blocked_ranks_let_others_answer() {
    let test = "blocked_ranks_let_others_answer";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "shift", &folder("mpi-shift"));
    for ranks in ["3", "8"] {
        assert_eq!(open_mpi(&provider, ranks, &MATCHED_BY_LIBFABRIC, &program, &[]), format!("ok {ranks}\n"));
    }
}

/// Messages use the provider; windows use Open MPI's own shared memory, whose owner must poll to serve them, also if the user asks for sleep.
#[test]
fn ranks_serve_windows_without_doorbells() {
    let test = "ranks_serve_windows_without_doorbells";
    let Some(provider) = provider(test, &["mpicc.openmpi", "mpirun.openmpi"]) else { return };
    let program = compile("mpicc.openmpi", "locks", &folder("mpi-locks"));
    for (wait, times) in [("auto", "1000"), ("sleep", "1000")] {
        let wait = format!("FI_MOTET_WAIT={wait}");
        let windows = ["--mca", "osc", "rdma", "--mca", "btl", "vader,self", "-x", &wait];
        let layers = [&MATCHED_BY_LIBFABRIC[..], &windows].concat();
        assert_eq!(open_mpi(&provider, "4", &layers, &program, &[times]), "ok 4\n", "{wait}");
    }
}

/// Compiles and runs a program of `tests/libfabric`. Returns its output.
fn fabric_program(provider: &Path, name: &str, arguments: &[&str]) -> String {
    let source = root().join("tests/libfabric").join(format!("{name}.c"));
    let program = folder(&format!("libfabric-{name}")).join(name);
    let compiled = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-rdynamic", "-I"])
        .arg(root().join("include"))
        .arg("-o")
        .arg(&program)
        .arg(source)
        .args(["-lfabric", "-lpthread", "-ldl"])
        .output()
        .expect("a compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let ran = Command::new("timeout")
        .arg("120")
        .arg(program)
        .args(arguments)
        .env("FI_PROVIDER_PATH", provider)
        .output()
        .expect("timeout");
    assert!(ran.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

#[test]
fn endpoint_calls_match_their_documentation() {
    let Some(provider) = provider("endpoint_calls_match_their_documentation", &["fi_info"]) else { return };
    assert_eq!(fabric_program(&provider, "endpoints", &[]), "endpoints do what they say\n");
}

#[test]
fn requested_capabilities_are_offered_or_refused() {
    let Some(provider) = provider("requested_capabilities_are_offered_or_refused", &["fi_info"]) else { return };
    assert_eq!(fabric_program(&provider, "asks", &[]), "asked and answered\n");
}

#[test]
fn empty_reads_yield_on_oversubscribed_cpus() {
    let Some(provider) = provider("empty_reads_yield_on_oversubscribed_cpus", &["fi_info"]) else { return };
    for wait in ["auto", "poll", "sleep"] {
        assert_eq!(fabric_program(&provider, "waits", &[wait]), "waits as asked\n", "{wait}");
    }
}

#[test]
fn sleeper_on_one_of_two_queues_is_woken() {
    let Some(provider) = provider("sleeper_on_one_of_two_queues_is_woken", &["fi_info"]) else { return };
    assert_eq!(fabric_program(&provider, "sleepers", &["20000"]), "every sleeper was woken\n");
}

#[test]
fn fi_pingpong_verifies_its_data() {
    let test = "fi_pingpong_verifies_its_data";
    let Some(provider) = provider(test, &["fi_pingpong", "fi_info"]) else { return };
    let run = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["60", "fi_pingpong", "-p", "motet", "-e", "rdm", "-c", "-I", "100"]).args(arguments);
        command
            .env("FI_PROVIDER_PATH", &provider)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        command
    };
    let port = motet_programs::free_port().expect("a port").to_string();
    let server = run(&["-B", &port]).spawn().expect("fi_pingpong");
    // The client asks for the server's address over TCP, and exits with status 0 and no output if the server does not listen yet.
    let printed = (0..200).find_map(|_| {
        let ran = run(&["-P", &port, "127.0.0.1"]).output().expect("fi_pingpong");
        let printed = String::from_utf8_lossy(&ran.stdout).into_owned();
        if printed.is_empty() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        (ran.status.success() && !printed.is_empty()).then_some(printed)
    });
    let served = server.wait_with_output().expect("its end");
    assert!(served.status.success(), "{}", String::from_utf8_lossy(&served.stderr));
    let printed = printed.expect("a round that succeeds");
    assert!(printed.lines().any(|line| line.starts_with("1m ")), "{printed}");
}
