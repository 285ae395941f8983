//! Object request brokers among themselves: each serves each, with every type of `tests/programs/orb_types.idl` in every direction, without
//! and with Motet, with both ends under Motet and with one.
//!
//! An ORB is a row of [`ORBS`]: a program with the words `serve`, `call URI` and `end URI` (`tests/programs/orb_types.cc` says what they do).
//! `omniorb/calls.rs`, `omniorb/omniorbpy.rs` and `servers/middleware.rs` have what only omniORB can do.

use motet_tests::programs::{Alone, Counters, Stage, Started, both_ways_with, builds, find, skip};
use motet_tests::{folder, script, tool};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// An ORB and its form of the program.
struct Orb {
    name: &'static str,
    /// Builds what has to be built, once; or says why there is no such program here. Files and folders that it needs when it runs.
    files: fn() -> Result<&'static [PathBuf], &'static str>,
    /// The words that start it, from the files where its user can read them.
    words: fn(&[String]) -> Vec<String>,
    /// Whether Motet has an adapter for it, which `MOTET_OMNIORB` turns on.
    adapter: bool,
}

const ORBS: [Orb; 3] = [
    Orb { name: "omniORB", files: omniorb, words: <[String]>::to_vec, adapter: true },
    Orb { name: "omniORBpy", files: omniorbpy, words: python, adapter: true },
    Orb { name: "JacORB", files: jacorb, words: java, adapter: false },
];

const REPORT: &str = "adapters";

/// What a caller prints when all is well.
const ALL_OK: &str = "orb ok\nlevel ok\necho_everything ok\necho_octets ok\necho_longs ok\necho_doubles ok\necho_few ok\n\
    echo_names ok\necho_rows ok\necho_particles ok\necho_choice ok\necho_sign ok\necho_any ok\necho_nodes ok\necho_reference ok\n\
    echo_object ok\nrefuse ok\nbad_parameter ok\nremember ok\nremembered ok\ncall_back ok\nall ok\n";

// ---- what is built ---------------------------------------------------------------------------------------------------

/// Copies of sources of `tests/programs` in a folder of their own, and a recipe for them, which must succeed.
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

/// The program, and what JacORB is made of.
fn jacorb() -> Result<&'static [PathBuf], &'static str> {
    static BUILT: OnceLock<Result<Vec<PathBuf>, &str>> = OnceLock::new();
    let made = BUILT.get_or_init(|| {
        if ["java", "javac", "jar"].iter().any(|program| find(program).is_none()) {
            return Err("Java is not installed (tests/programs/packages.txt)");
        }
        // The last of its files that is fetched.
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

/// Java has no ORB of its own since version 11. Small machines need no more: the compiler threads are what takes the time of short runs.
fn java(jars: &[String]) -> Vec<String> {
    let path = class_path(jars);
    let orb = "-Dorg.omg.CORBA.ORBClass=org.jacorb.orb.ORB";
    let singleton = "-Dorg.omg.CORBA.ORBSingletonClass=org.jacorb.orb.ORBSingleton";
    let words =
        ["java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Xmx256m", orb, singleton, "-cp", &path, "OrbTypes"];
    words.map(str::to_owned).into()
}

// ---- how they meet ---------------------------------------------------------------------------------------------------

/// A server of one ORB and a caller of another (or the same), in a stage.
struct Pair<'a> {
    stage: &'a Stage,
    server: Vec<String>,
    caller: Vec<String>,
    /// Whether adapters are on.
    adapter: bool,
}

impl Pair<'_> {
    fn start(&self, before: &[&str], program: &[String], more: &[&str]) -> Started {
        let report = self.stage.path(REPORT);
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        let adapter = if self.adapter { "on" } else { "off" };
        let environment = [("MOTET_OMNIORB", adapter), ("MOTET_SHIM_REPORT", report.as_str())];
        self.stage.start_with(&[before, &program, more].concat(), &environment)
    }

    /// One server, one caller, the end; these words stand before the server's and the caller's command. What both printed but for the
    /// reference.
    fn meet(&self, before: [&[&str]; 2]) -> String {
        let server = self.start(before[0], &self.server, &["serve"]).says("\n");
        let printed = server.printed();
        let uri = printed.trim().strip_prefix("object ").expect("the object's reference");
        let told = self.start(before[1], &self.caller, &["call", uri]).finish();
        assert_eq!(told, ALL_OK, "not everything came back");
        self.start(before[1], &self.caller, &["end", uri]).finish();
        let served = server.finish();
        let ended = served.strip_prefix(&printed).expect("the reference first");
        assert_eq!(ended, "ended\n");
        told + ended
    }

    /// Whether any connection was an adapter's.
    fn used_an_adapter(&self) -> bool {
        let report = std::fs::read_to_string(self.stage.path(REPORT)).unwrap_or_default();
        report.lines().any(|line| line.starts_with("adapter=omniorb "))
    }
}

/// The scene for those pairs of a server and a caller, without and with Motet; then judges what the run under Motet counted.
fn each_with_each(
    test: &str,
    adapter: bool,
    alone: Alone,
    wanted: fn(&Orb, &Orb) -> bool,
    scene: impl Fn(&Pair<'_>) -> String,
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
        let counters = both_ways_with(&name, &[], alone, |stage| {
            let words = |orb: &Orb, files: &[PathBuf]| {
                let lent = files.iter().map(|file| stage.lent(file).to_str().expect("UTF-8").to_owned());
                (orb.words)(&lent.collect::<Vec<_>>())
            };
            let (server, caller) = (words(pair[0], files[0]), words(pair[1], files[1]));
            scene(&Pair { stage, server, caller, adapter })
        });
        if let Some(counters) = counters {
            judge(&counters);
        }
    }
}

/// The caller's connection and the one over which it is called back have two ends each.
const STREAMS: u64 = 4;

#[test]
fn orbs_pass_every_type_over_shared_memory() {
    let scene = |pair: &Pair<'_>| pair.meet([&[], &[]]);
    each_with_each(
        "orbs_pass_every_type_over_shared_memory",
        false,
        Alone::WithMotet,
        |_, _| true,
        scene,
        |counters| {
            counters.went_over_shared_memory(STREAMS);
        },
    );
}

#[test]
fn orbs_pass_every_type_with_an_adapter_at_one_end_or_both() {
    let scene = |pair: &Pair<'_>| {
        let told = pair.meet([&[], &[]]);
        assert_eq!(pair.used_an_adapter(), pair.stage.has_motet(), "connections of an adapter");
        told
    };
    let test = "orbs_pass_every_type_with_an_adapter_at_one_end_or_both";
    let wanted = |server: &Orb, caller: &Orb| server.adapter || caller.adapter;
    each_with_each(test, true, Alone::WithMotet, wanted, scene, |counters| counters.went_over_shared_memory(STREAMS));
}

#[test]
fn orbs_pass_every_type_when_one_end_is_without_motet() {
    const PLAIN: &[&str] = &["env", "-u", "LD_PRELOAD"];
    let scene = |pair: &Pair<'_>| pair.meet([PLAIN, &[]]) + &pair.meet([&[], PLAIN]);
    // Of two different ORBs one at least has an adapter, and JacORB is where the sockets adapter is alone.
    let wanted = |server: &Orb, caller: &Orb| server.name != caller.name;
    let test = "orbs_pass_every_type_when_one_end_is_without_motet";
    each_with_each(test, true, Alone::Neither, wanted, scene, |counters| {
        assert!(!counters.lines.is_empty(), "no end was under Motet");
        assert_eq!((counters.upgraded, counters.sent_fast), (0, 0), "{}", counters.lines);
    });
}
