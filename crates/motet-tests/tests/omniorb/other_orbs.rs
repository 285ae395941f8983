//! Object request brokers with each other: each serves each, with every type of `tests/programs/orb_types.idl` in every direction, without Motet,
//! with both ends under Motet, and with one.
//!
//! An ORB is a row of [`ORBS`]: a program with the commands `serve`, `call URI` and `end URI` (`tests/programs/orb_types.cc` describes them).
//! `omniorb/calls.rs`, `omniorb/omniorbpy.rs` and `servers/middleware.rs` test omniORB alone.

use motet_tests::programs::{Counters, Exclusive, Sandbox, Started, both_ways_with, builds, find, skip};
use motet_tests::{folder, script, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// An ORB and its version of the program.
struct Orb {
    name: &'static str,
    /// Builds the program once, or says why it cannot be built. Returns the files and folders that it needs at run time.
    files: fn() -> Result<&'static [PathBuf], &'static str>,
    /// The command that starts the program, from the readable paths of these files.
    words: fn(&[String]) -> Vec<String>,
    /// Whether Motet has an adapter for it, which `MOTET_OMNIORB` enables.
    adapter: bool,
}

const ORBS: [Orb; 3] = [
    Orb { name: "omniORB", files: omniorb, words: <[String]>::to_vec, adapter: true },
    Orb { name: "omniORBpy", files: omniorbpy, words: python, adapter: true },
    Orb { name: "JacORB", files: jacorb, words: java, adapter: false },
];

const REPORT: &str = "adapters";

/// The output of a successful client.
const ALL_OK: &str = "orb ok\nlevel ok\necho_everything ok\necho_octets ok\necho_longs ok\necho_doubles ok\necho_few ok\n\
    echo_names ok\necho_rows ok\necho_particles ok\necho_choice ok\necho_sign ok\necho_any ok\necho_nodes ok\necho_reference ok\n\
    echo_object ok\nrefuse ok\nbad_parameter ok\nremember ok\nremembered ok\ncall_back ok\nall ok\n";

// ---- building --------------------------------------------------------------------------------------------------------

/// Copies sources of `tests/programs` to a folder and runs the build commands, which must succeed.
#[track_caller]
fn built(folder: &Path, sources: &[&str], recipe: impl IntoIterator<Item = Vec<String>>) {
    for source in sources {
        let file = Path::new(source).file_name().expect("a file");
        std::fs::copy(script(source), folder.join(file)).expect("a copy of the source");
    }
    for step in recipe {
        let output = Command::new(&step[0]).args(&step[1..]).output().unwrap_or_else(|e| panic!("{}: {e}", step[0]));
        assert!(output.status.success(), "{step:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

fn omniorb() -> Result<&'static [PathBuf], &'static str> {
    static BUILT: OnceLock<Result<Vec<PathBuf>, &str>> = OnceLock::new();
    let made = BUILT.get_or_init(|| {
        if find("omniidl").is_none() || !Path::new("/usr/include/omniORB4/CORBA.h").exists() {
            return Err("omniORB is not installed (examples/coupling/packages.txt)");
        }
        let folder = folder("orb-types-omniorb");
        let sources = ["orb_types.idl", "orb_types.cc", "orb_types_values.h"];
        built(&folder, &sources, builds::omniorb_any(folder.to_str().expect("UTF-8"), "orb_types"));
        Ok(vec![folder.join("orb_types")])
    });
    made.as_deref().map_err(|reason| *reason)
}

/// omniORBpy with its Python, and the program with its stubs.
fn omniorbpy() -> Result<&'static [PathBuf], &'static str> {
    static BUILT: OnceLock<Result<Vec<PathBuf>, &str>> = OnceLock::new();
    let made = BUILT.get_or_init(|| {
        let orb = tool("omniorbpy").ok_or("omniORBpy has not been fetched (scripts/setup --tests)")?;
        let folder = folder("orb-types-omniorbpy");
        let [orb_path, path] = [&orb, &folder].map(|path| path.to_str().expect("UTF-8"));
        built(&folder, &["orb_types.idl", "orb_types.py"], [builds::omniorbpy(orb_path, path, "orb_types")]);
        Ok(vec![orb, folder])
    });
    made.as_deref().map_err(|reason| *reason)
}

fn python(folders: &[String]) -> Vec<String> {
    vec![builds::omniorbpys_python(&folders[0]), format!("{}/orb_types.py", folders[1])]
}

/// The program, and JacORB's libraries.
fn jacorb() -> Result<&'static [PathBuf], &'static str> {
    static BUILT: OnceLock<Result<Vec<PathBuf>, &str>> = OnceLock::new();
    let made = BUILT.get_or_init(|| {
        if ["java", "javac", "jar"].iter().any(|program| find(program).is_none()) {
            return Err("Java is not installed (tests/programs/packages.txt)");
        }
        // This is the last file that scripts/setup fetches.
        let orb = tool("jacorb").filter(|orb| orb.join("java_cup-0.9e.jar").exists());
        let orb = orb.ok_or("JacORB has not been fetched (scripts/setup --programs)")?;
        let files = std::fs::read_dir(orb).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut jars: Vec<PathBuf> = files.filter(|file| file.extension().is_some_and(|e| e == "jar")).collect();
        let folder = folder("orb-types-jacorb");
        let sources = ["orb_types.idl", "java/OrbTypes.java", "java/OrbTypesValues.java"];
        let recipe = builds::jacorb(
            &class_path(&jars),
            folder.to_str().expect("UTF-8"),
            "orb_types",
            &["OrbTypes.java", "OrbTypesValues.java"],
        );
        built(&folder, &sources, recipe);
        jars.push(folder.join("orb_types.jar"));
        Ok(jars)
    });
    made.as_deref().map_err(|reason| *reason)
}

fn class_path(jars: &[impl AsRef<Path>]) -> String {
    let jars: Vec<&str> = jars.iter().map(|jar| jar.as_ref().to_str().expect("UTF-8")).collect();
    jars.join(":")
}

/// Java has had no ORB of its own since version 11. The options suit short runs: the compiler threads take most of the time.
fn java(jars: &[String]) -> Vec<String> {
    let path = class_path(jars);
    let orb = "-Dorg.omg.CORBA.ORBClass=org.jacorb.orb.ORB";
    let singleton = "-Dorg.omg.CORBA.ORBSingletonClass=org.jacorb.orb.ORBSingleton";
    let words =
        ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx256m", orb, singleton, "-cp", &path, "OrbTypes"];
    words.map(str::to_owned).into()
}

// ---- running ---------------------------------------------------------------------------------------------------------

/// A server of one ORB and a client of the same or another one, in a sandbox.
struct Pair<'a> {
    sandbox: &'a Sandbox,
    server: Vec<String>,
    caller: Vec<String>,
    /// Whether adapters are enabled.
    adapter: bool,
}

impl Pair<'_> {
    fn start(&self, before: &[&str], program: &[String], more: &[&str]) -> Started {
        let report = self.sandbox.path(REPORT);
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        let adapter = if self.adapter { "on" } else { "off" };
        let environment = [("MOTET_OMNIORB", adapter), ("MOTET_SHIM_REPORT", report.as_str())];
        self.sandbox.start_with(&[before, &program, more].concat(), &environment)
    }

    /// Runs one server and one client to the end. The words `before` go before the server's and the client's command. Returns the output of both but
    /// the reference.
    fn meet(&self, before: [&[&str]; 2]) -> String {
        let server = self.start(before[0], &self.server, &["serve"]).says("\n");
        let printed = server.printed();
        let uri = printed.trim().strip_prefix("object ").expect("the object's reference");
        let output = self.start(before[1], &self.caller, &["call", uri]).finish();
        assert_eq!(output, ALL_OK, "not everything came back");
        self.start(before[1], &self.caller, &["end", uri]).finish();
        let served = server.finish();
        let ended = served.strip_prefix(&printed).expect("the reference first");
        assert_eq!(ended, "ended\n");
        output + ended
    }

    /// Whether an adapter reported a connection.
    fn used_an_adapter(&self) -> bool {
        let report = std::fs::read_to_string(self.sandbox.path(REPORT)).unwrap_or_default();
        report.lines().any(|line| line.starts_with("adapter=omniorb "))
    }
}

/// Runs a case for the wanted pairs of server and client, without and with Motet, then checks the counters of the run under Motet.
fn each_with_each(
    test: &str,
    adapter: bool,
    exclusive: Exclusive,
    wanted: fn(&Orb, &Orb) -> bool,
    case: impl Fn(&Pair<'_>) -> String,
    judge: impl Fn(&Counters),
) {
    let all = ORBS.iter().flat_map(|server| ORBS.iter().map(move |caller| [server, caller]));
    for pair in all.filter(|[server, caller]| wanted(server, caller)) {
        let name = format!("{test} ({} serves {})", pair[0].name, pair[1].name);
        let files = match (pair[0].files)().and_then(|server| Ok([server, (pair[1].files)()?])) {
            Ok(files) => files,
            Err(reason) => {
                skip::<()>(&name, reason);
                continue;
            }
        };
        let counters = both_ways_with(&name, &[], exclusive, |sandbox| {
            let words = |orb: &Orb, files: &[PathBuf]| {
                let readable = files.iter().map(|file| sandbox.readable(file).to_str().expect("UTF-8").to_owned());
                (orb.words)(&readable.collect::<Vec<_>>())
            };
            let (server, caller) = (words(pair[0], files[0]), words(pair[1], files[1]));
            case(&Pair { sandbox, server, caller, adapter })
        });
        if let Some(counters) = counters {
            judge(&counters);
        }
    }
}

/// The two ends of the client's connection. The connection for callbacks is short: it may end before both of its ends are upgraded.
const STREAMS: u64 = 2;

#[test]
fn orbs_pass_every_type_over_shared_memory() {
    let case = |pair: &Pair<'_>| pair.meet([&[], &[]]);
    each_with_each(
        "orbs_pass_every_type_over_shared_memory",
        false,
        Exclusive::WithMotet,
        |_, _| true,
        case,
        |counters| {
            counters.went_over_shared_memory(STREAMS);
        },
    );
}

#[test]
fn orbs_pass_every_type_with_adapter_at_one_or_both_ends() {
    let case = |pair: &Pair<'_>| {
        let output = pair.meet([&[], &[]]);
        assert_eq!(pair.used_an_adapter(), pair.sandbox.has_motet(), "connections of an adapter");
        output
    };
    let test = "orbs_pass_every_type_with_adapter_at_one_or_both_ends";
    let wanted = |server: &Orb, caller: &Orb| server.adapter || caller.adapter;
    each_with_each(test, true, Exclusive::WithMotet, wanted, case, |counters| {
        counters.went_over_shared_memory(STREAMS)
    });
}

#[test]
fn orbs_pass_every_type_with_motet_at_one_end() {
    const WITHOUT_MOTET: &[&str] = &["env", "-u", "LD_PRELOAD"];
    let case = |pair: &Pair<'_>| pair.meet([WITHOUT_MOTET, &[]]) + &pair.meet([&[], WITHOUT_MOTET]);
    // Of two different ORBs at least one has an adapter; JacORB uses the sockets adapter alone.
    let wanted = |server: &Orb, caller: &Orb| server.name != caller.name;
    let test = "orbs_pass_every_type_with_motet_at_one_end";
    each_with_each(test, true, Exclusive::Neither, wanted, case, |counters| {
        assert!(!counters.lines.is_empty(), "no end was under Motet");
        assert_eq!((counters.upgraded, counters.sent_fast), (0, 0), "{}", counters.lines);
    });
}
