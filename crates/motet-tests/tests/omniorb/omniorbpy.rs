//! omniORBpy, with omniORB 4.3, in a Python program: the interpreter loads the ORB as a dependency of a module, so the adapter has to find its ORB in
//! a plug-in.
//!
//! omniORBpy with other ORBs: `omniorb/other_orbs.rs`. Connections: `omniorb/calls.rs`.

use motet_tests::programs::{Sandbox, Started, both_ways, builds, skip, source};
use motet_tests::tool;
use std::path::Path;

const REPORT: &str = "adapters";

/// Settings of both ends: the value of MOTET_OMNIORB, and the ORB's threading policy (a thread for each connection, or a pool).
struct Setup {
    adapter: &'static str,
    policy: &'static str,
}

/// The program, its stubs and its interpreter, readable by the programs' user.
struct Case<'a> {
    sandbox: &'a Sandbox,
    setup: &'a Setup,
    python: String,
    program: String,
}

impl<'a> Case<'a> {
    fn new(sandbox: &'a Sandbox, orb: &Path, setup: &'a Setup) -> Self {
        let orb = sandbox.readable(orb);
        let orb = orb.to_str().expect("UTF-8");
        source(sandbox, "orb_types.idl");
        sandbox.follow(&builds::omniorbpy(orb, &sandbox.path(""), "orb_types"), &[]).finish();
        Self { sandbox, setup, python: builds::omniorbpys_python(orb), program: source(sandbox, "orb_types.py") }
    }

    fn start(&self, words: &[&str]) -> Started {
        let report = self.sandbox.path(REPORT);
        let environment = [
            ("MOTET_OMNIORB", self.setup.adapter),
            ("ORBthreadPerConnectionPolicy", self.setup.policy),
            ("MOTET_SHIM_REPORT", report.as_str()),
        ];
        self.sandbox.start_with(&[&[self.python.as_str(), &self.program], words].concat(), &environment)
    }

    /// Runs every call between a client and a server.
    fn check(&self) -> String {
        let server = self.start(&["serve"]).says("\n");
        let printed = server.printed();
        let object = printed.trim().strip_prefix("object ").expect("the object's reference");
        let output = self.start(&["call", object]).finish();
        assert!(output.ends_with("all ok\n"), "{output}");
        let time = self.start(&["time", object, "200"]).finish();
        assert!(time.trim().parse::<u64>().is_ok_and(|ns| ns > 0), "no time: {time}");
        if self.sandbox.has_motet() {
            self.check_adapter(&server);
        }
        self.start(&["end", object]).finish();
        let ended = server.finish();
        assert!(ended.ends_with("ended\n"), "{ended}");
        output
    }

    /// The server loads the adapter of this ORB if the settings say so, and all connections are the adapter's.
    fn check_adapter(&self, server: &Started) {
        let wanted = self.setup.adapter == "on";
        let mapped = std::fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
        assert_eq!(mapped.contains("libmotet_omniorb43.so"), wanted, "{mapped}");
        let report = std::fs::read_to_string(self.sandbox.path(REPORT)).unwrap_or_default();
        assert_eq!(report.lines().any(|line| line.starts_with("adapter=omniorb ")), wanted, "{report}");
    }
}

#[test]
fn adapter_finds_the_orb_of_a_python_module() {
    let test = "adapter_finds_the_orb_of_a_python_module";
    let Some(orb) = tool("omniorbpy") else {
        skip::<()>(test, "omniORBpy has not been fetched (scripts/setup --tests)");
        return;
    };
    let setups = [("on", "1"), ("on", "0"), ("off", "1")].map(|(adapter, policy)| Setup { adapter, policy });
    for setup in &setups {
        let counters = both_ways(test, &[], |sandbox| Case::new(sandbox, &orb, setup).check());
        let Some(counters) = counters else { return };
        counters.went_over_shared_memory(4);
    }
}
