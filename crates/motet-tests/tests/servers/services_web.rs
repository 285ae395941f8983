//! Web servers that give requests to other programs: CGI by lighttpd and Apache, FastCGI by nginx and PHP's process manager.
//!
//! Each runs without and with Motet, server and clients. Certain, and compared: the status and the digest of every answer. One connection carries
//! all requests of a client, so client and server must find each other; how much went over shared memory is not claimed.

use motet_tests::programs::{Stage, Started, both_ways, free_port, services, skip, source};
use std::fs;
use std::path::Path;

const TERM: i32 = 15;
const INT: i32 = 2;
const QUIT: i32 = 3;
const MODULES: &str = "/usr/lib/apache2/modules";

/// Bodies of 1 B, 64 KiB and 8 MiB; the small one often enough for both ends to find each other.
fn posts(stage: &Stage, port: u16, paths: &[&str]) -> String {
    let (script, port) = (source(stage, "services.py"), port.to_string());
    let sizes = ["1", "1", "1", "1", "65536", "1", "8388608", "1", "65536", "1", "1", "1"];
    paths.iter().map(|path| stage.run(&[&["python3", &script, "post", &port, path], &sizes[..]].concat())).collect()
}

/// Two programs: one reads by way of a shell and names the digest, the other gives the body back.
fn programs(stage: &Stage) {
    stage.run(&["mkdir", &stage.path("cgi")]);
    let head = "printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'";
    // Apache writes all of a body before it reads the answer.
    let whole = "cat > $$.body\ncat $$.body\nrm $$.body";
    for (name, rest) in [("digest.cgi", "sha256sum"), ("echo.cgi", whole)] {
        let path = stage.file(&format!("cgi/{name}"), format!("#!/bin/sh\n{head}\n{rest}\n"));
        stage.run(&["chmod", "755", &path]);
    }
}

fn cgi(test: &str, needs: &[&str], start: impl Fn(&Stage, u16) -> Started, signal: i32) {
    let counters = both_ways(test, needs, |stage| {
        programs(stage);
        let port = free_port();
        let server = start(stage, port).listens(port);
        let told = posts(stage, port, &["/cgi/digest.cgi", "/cgi/echo.cgi"]);
        server.stop(signal);
        told
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 4, "only {} streams were upgraded:\n{}", counters.upgraded, counters.lines);
    }
}

#[test]
fn lighttpd_runs_cgi() {
    let start = |stage: &Stage, port| {
        let configuration = stage.file("lighttpd.conf", services::lighttpd(&stage.path(""), port));
        stage.start(&["lighttpd", "-D", "-f", &configuration])
    };
    cgi("lighttpd_runs_cgi", &["lighttpd", "python3"], start, INT);
}

fn apache(test: &str, module: &str) {
    if !Path::new(MODULES).join("mod_mpm_prefork.so").exists() {
        skip::<()>(test, "apache2-bin is not installed (tests/packages.txt)");
        return;
    }
    let start = |stage: &Stage, port| {
        let text = services::apache(&stage.path(""), MODULES, module, port);
        let configuration = stage.file("apache.conf", text);
        stage.start(&["apache2", "-D", "FOREGROUND", "-f", &configuration])
    };
    cgi(test, &["apache2", "python3"], start, TERM);
}

#[test]
fn apache_prefork_runs_cgi() {
    apache("apache_prefork_runs_cgi", "cgi");
}

#[test]
fn apache_prefork_runs_cgi_by_its_daemon() {
    apache("apache_prefork_runs_cgi_by_its_daemon", "cgid");
}

/// Debian's name of it carries the version.
fn php_fpm() -> Option<String> {
    let all = fs::read_dir("/usr/sbin").into_iter().flatten().flatten();
    let mut names: Vec<String> = all.map(|entry| entry.path().to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("/usr/sbin/php-fpm"));
    names.sort();
    names.pop()
}

#[test]
fn nginx_gives_requests_to_php() {
    let test = "nginx_gives_requests_to_php";
    let Some(program) = php_fpm() else {
        skip::<()>(test, "php-fpm is not installed (tests/packages.txt)");
        return;
    };
    let counters = both_ways(test, &["nginx", "python3"], |stage| {
        let text = "<?php $body = file_get_contents('php://input');\n\
                    echo strpos($_SERVER['REQUEST_URI'], 'echo') ? $body : hash('sha256', $body);\n";
        let (script, folder, fast) = (stage.file("answer.php", text), stage.path(""), free_port());
        let configuration = stage.file("fpm.conf", services::php_fpm(&folder, fast));
        let words = [&program, "--nodaemonize", "--fpm-config", &configuration, "--prefix", &folder];
        let workers = stage.start(&words).listens(fast);
        let mut told = String::new();
        for keep in [false, true] {
            let port = free_port();
            let text = services::nginx_fastcgi(&folder, port, fast, &script, keep);
            let configuration = stage.file("nginx.conf", text);
            let server = stage.start(&["nginx", "-p", &folder, "-e", "stderr", "-c", &configuration]).listens(port);
            told += &posts(stage, port, &["/digest", "/echo"]);
            server.stop(QUIT);
        }
        workers.stop(QUIT);
        told
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 8, "only {} streams were upgraded:\n{}", counters.upgraded, counters.lines);
    }
}
