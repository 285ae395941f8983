//! omniORBpy, and with it omniORB 4.3, as a Python program has it: the interpreter loads the ORB as what a module of its own is linked to,
//! so the adapter has to find its ORB in a plug-in.
//!
//! omniORBpy with the other ORBs: `omniorb/other_orbs.rs`. What happens to connections: `omniorb/calls.rs`.

use motet_tests::programs::{Stage, Started, both_ways, builds, skip, source};
use motet_tests::tool;
use std::path::Path;

const REPORT: &str = "adapters";

/// How both ends are started: `omniorb`, and the ORB's threading policy (a thread for each connection, or a pool).
struct Way {
    adapter: &'static str,
    policy: &'static str,
}

/// The program with its stubs and its interpreter, where their user can read them.
struct Scene<'a> {
    stage: &'a Stage,
    way: &'a Way,
    python: String,
    program: String,
}

impl<'a> Scene<'a> {
    fn new(stage: &'a Stage, orb: &Path, way: &'a Way) -> Self {
        let orb = stage.lent(orb);
        let orb = orb.to_str().expect("UTF-8");
        source(stage, "orb_types.idl");
        stage.follow(&builds::omniorbpy(orb, &stage.path(""), "orb_types"), &[]).finish();
        Self { stage, way, python: builds::omniorbpys_python(orb), program: source(stage, "orb_types.py") }
    }

    fn start(&self, words: &[&str]) -> Started {
        let report = self.stage.path(REPORT);
        let environment = [
            ("MOTET_OMNIORB", self.way.adapter),
            ("ORBthreadPerConnectionPolicy", self.way.policy),
            ("MOTET_SHIM_REPORT", report.as_str()),
        ];
        self.stage.start_with(&[&[self.python.as_str(), &self.program], words].concat(), &environment)
    }

    /// Everything that a caller and a server can tell one another.
    fn play(&self) -> String {
        let server = self.start(&["serve"]).says("\n");
        let printed = server.printed();
        let object = printed.trim().strip_prefix("object ").expect("the object's reference");
        let told = self.start(&["call", object]).finish();
        assert!(told.ends_with("all ok\n"), "{told}");
        let time = self.start(&["time", object, "200"]).finish();
        assert!(time.trim().parse::<u64>().is_ok_and(|ns| ns > 0), "no time: {time}");
        if self.stage.has_motet() {
            self.check_adapter(&server);
        }
        self.start(&["end", object]).finish();
        let ended = server.finish();
        assert!(ended.ends_with("ended\n"), "{ended}");
        told
    }

    /// The adapter for this ORB is in the server when it is asked for, and all connections are its.
    fn check_adapter(&self, server: &Started) {
        let wanted = self.way.adapter == "on";
        let mapped = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
        assert_eq!(mapped.contains("libmotet_omniorb43.so"), wanted, "{mapped}");
        let report = std::fs::read_to_string(self.stage.path(REPORT)).unwrap_or_default();
        assert_eq!(report.lines().any(|line| line.starts_with("adapter=omniorb ")), wanted, "{report}");
    }
}

#[test]
fn the_adapter_finds_the_orb_of_a_python_module() {
    let test = "the_adapter_finds_the_orb_of_a_python_module";
    let Some(orb) = tool("omniorbpy") else {
        skip::<()>(test, "omniORBpy has not been fetched (scripts/setup --tests)");
        return;
    };
    let ways = [("on", "1"), ("on", "0"), ("off", "1")].map(|(adapter, policy)| Way { adapter, policy });
    for way in &ways {
        let counters = both_ways(test, &[], |stage| Scene::new(stage, &orb, way).play());
        let Some(counters) = counters else { return };
        counters.went_over_shared_memory(4);
    }
}
