//! PostgreSQL over TCP, without and with Motet: the postmaster forks a process for each connection.

use motet_tests::programs::servers::{self, postgresql_program as program};
use motet_tests::programs::{Sandbox, Started, both_ways, free_port, skip};

const INT: i32 = 2; // fast shutdown

fn start(sandbox: &Sandbox) -> (Started, String) {
    let port = free_port().to_string();
    let data = sandbox.path("data");
    sandbox.follow(&servers::postgresql_data(&data).expect("checked before"), &[]).finish();
    let words = servers::postgresql(&data, &port).expect("checked before");
    (sandbox.follow(&words, &[]).says("ready to accept connections"), port)
}

#[test]
fn postgresql_answers_pgbench_and_psql() {
    let test = "postgresql_answers_pgbench_and_psql";
    if ["initdb", "postgres", "pgbench", "psql"].iter().any(|name| program(name).is_none()) {
        skip::<()>(test, "postgresql is not installed (tests/programs/packages.txt)");
        return;
    }
    let counters = both_ways(test, &[], |sandbox| {
        let (server, port) = start(sandbox);
        let pgbench = program("pgbench").expect("checked before");
        let psql = program("psql").expect("checked before");
        let at = ["-h", "127.0.0.1", "-p", &port, "-U", "tester"];
        let run = |program: &str, words: &[&str]| {
            let all: Vec<&str> = [program].iter().chain(&at).chain(words).copied().collect();
            sandbox.run(&all)
        };
        run(&pgbench, &["-i", "-q", "-s", "1", "postgres"]);
        let mut output = String::new();
        let modes: [&[&str]; 4] = [
            &["-S", "-c", "1", "-t", "2000", "-M", "simple"],
            &["-S", "-c", "1", "-t", "2000", "-M", "prepared"],
            &["-S", "-c", "16", "-j", "2", "-t", "300", "-M", "extended"],
            &["-c", "4", "-j", "2", "-t", "100"],
        ];
        for mode in modes {
            let words: Vec<&str> = mode.iter().chain(&["-n", "postgres"]).copied().collect();
            let printed = run(&pgbench, &words);
            for line in printed.lines().filter(|l| l.contains("actually processed") || l.contains("failed")) {
                output += &format!("{line}\n");
            }
        }
        // Large answers in rows and by COPY, both ways; the sums of balances agree for any random choice of pgbench.
        let script = "CREATE TABLE t AS SELECT n, md5(n::text) AS h, repeat(md5((n*7)::text), n % 40) AS r \
                          FROM generate_series(1, 20000) n;\n\
                      SELECT * FROM t ORDER BY n;\n\
                      SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches);\n\
                      SELECT count(*) FROM pgbench_history;\n\
                      \\copy t TO 'copied'\n\
                      CREATE TABLE u (LIKE t);\n\
                      \\copy u FROM 'copied'\n\
                      SELECT count(*), md5(string_agg(h || r, '' ORDER BY n)) FROM u;\n";
        let script = sandbox.file("script.sql", script);
        output += &run(&psql, &["-X", "-q", "-A", "-v", "ON_ERROR_STOP=1", "-f", &script, "postgres"]);
        let log = server.stop(INT);
        assert!(!log.contains("PANIC") && !log.contains("terminated by signal"), "{log}");
        output
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}
