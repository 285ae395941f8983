//! Redis, without and with Motet: answers, pipelines, a background save under load, and shutdown.

use motet_tests::programs::{Sandbox, Started, both_ways, find, free_port, servers};

struct Redis {
    server: Started,
    port: String,
}

impl Redis {
    fn start(sandbox: &Sandbox) -> Self {
        let port = free_port();
        let name = port.to_string();
        Self {
            server: sandbox.follow(&servers::redis(&name), &[]).says("Ready to accept connections").listens(port),
            port: name,
        }
    }

    fn ask(&self, sandbox: &Sandbox, words: &[&str]) -> String {
        let mut all = vec!["redis-cli", "-p", &self.port];
        all.extend(words);
        sandbox.run(&all)
    }

    /// Runs redis-benchmark, which must report no error.
    fn load(&self, sandbox: &Sandbox, words: &[&str]) {
        let mut all = vec!["redis-benchmark", "-p", &self.port, "-q"];
        all.extend(words);
        let printed = sandbox.run(&all);
        assert!(printed.contains("requests per second") && !printed.contains("rror"), "{printed}");
    }

    fn end(self, sandbox: &Sandbox) {
        let mut all = vec!["redis-cli", "-p", &self.port];
        all.extend(["shutdown", "nosave"]);
        sandbox.run(&all);
        let printed = self.server.finish();
        assert!(printed.contains("ready to exit"), "{printed}");
    }
}

const NEEDS: [&str; 3] = ["redis-server", "redis-cli", "redis-benchmark"];

#[test]
fn redis_answers_as_without_motet() {
    let counters = both_ways("redis_answers_as_without_motet", &NEEDS, |sandbox| {
        let redis = Redis::start(sandbox);
        // One connection, thousands of commands; every answer is compared between the two runs.
        let mut script = String::new();
        for i in 0..3000 {
            let value: String = (0..i % 97).map(|n| char::from(b'a' + ((n * 7 + i) % 26) as u8)).collect();
            script += &format!("SET key:{i} \"{value}\"\nAPPEND key:{} x\nGET key:{}\nSTRLEN key:{i}\n", i / 2, i / 3);
        }
        script += "MGET key:1 key:2 key:2999\nDBSIZE\nEVAL \"return redis.sha1hex(table.concat(redis.call('SORT','s','ALPHA')))\" 0\n";
        let script = sandbox.file("script", script);
        let answers = sandbox.run(&["sh", "-c", &format!("exec redis-cli -p {} <{script}", redis.port)]);
        // Large values in both directions.
        let big = sandbox.file("big", "0123456789abcdef".repeat(400_000));
        sandbox.run(&["sh", "-c", &format!("exec redis-cli -p {} -x SET big <{big}", redis.port)]);
        let sum = sandbox.run(&["sh", "-c", &format!("redis-cli -p {} --raw GET big | sha256sum", redis.port)]);
        let same = redis.ask(sandbox, &["EVAL", "return redis.sha1hex(redis.call('GET','big'))", "0"]);
        redis.end(sandbox);
        format!("{answers}{sum}{same}")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(2);
    }
}

#[test]
fn redis_serves_one_client_fifty_and_pipelines() {
    let counters = both_ways("redis_serves_one_client_fifty_and_pipelines", &NEEDS, |sandbox| {
        let redis = Redis::start(sandbox);
        redis.load(sandbox, &["-t", "set,get,lpush,lrange_100", "-c", "1", "-n", "3000"]);
        redis.load(sandbox, &["-t", "set,get,incr", "-c", "50", "-n", "20000"]);
        redis.load(sandbox, &["-t", "set,get", "-c", "50", "-n", "40000", "-P", "16"]);
        redis.load(sandbox, &["-t", "set,get", "-c", "4", "-n", "400", "-d", "300000"]);
        redis.load(sandbox, &["-t", "set,get", "-c", "16", "-n", "20000", "--threads", "2"]);
        // INCR loses nothing and counts nothing twice.
        let counter = redis.ask(sandbox, &["GET", "counter:__rand_int__"]);
        redis.end(sandbox);
        counter
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(100);
    }
}

#[test]
fn redis_saves_in_the_background_under_load() {
    if find("redis-check-rdb").is_none() {
        return motet_tests::programs::skip("redis_saves_in_the_background_under_load", "no redis-check-rdb")
            .unwrap_or(());
    }
    let counters = both_ways("redis_saves_in_the_background_under_load", &NEEDS, |sandbox| {
        let redis = Redis::start(sandbox);
        redis.ask(sandbox, &["DEBUG", "POPULATE", "20000", "key", "500"]);
        redis.ask(sandbox, &["EVAL", "for i=1,20000 do redis.call('SET','key:'..i,string.rep('v',500)..i) end", "0"]);
        let words = ["redis-benchmark", "-p", &redis.port, "-q", "-t", "set,get", "-c", "20", "-n", "60000"];
        let load = sandbox.start(&words);
        let mut saved = Vec::new();
        for _ in 0..3 {
            redis.ask(sandbox, &["BGSAVE", "SCHEDULE"]);
            for _ in 0..400 {
                if redis.ask(sandbox, &["INFO", "persistence"]).contains("rdb_bgsave_in_progress:0") {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            let output = redis.ask(sandbox, &["INFO", "persistence"]);
            saved.push(output.contains("rdb_last_bgsave_status:ok") && output.contains("rdb_bgsave_in_progress:0"));
        }
        load.finish();
        let file = sandbox.path("dump.rdb");
        let checked = sandbox.run(&["redis-check-rdb", &file]).contains("RDB looks OK");
        let size = redis.ask(sandbox, &["EVAL", "local n=0 for i=1,20000 do if redis.call('GET','key:'..i)==string.rep('v',500)..i then n=n+1 end end return n", "0"]);
        redis.end(sandbox);
        format!("{saved:?} {checked} {size}")
    });
    if let Some(counters) = counters {
        counters.went_over_shared_memory(20);
    }
}
