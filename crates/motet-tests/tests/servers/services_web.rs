//! Web servers that pass requests to other programs: CGI by lighttpd and Apache, FastCGI by nginx and PHP's process manager.
//!
//! Each runs without and with Motet, server and clients. The status and the digest of every answer are compared. One connection carries all requests
//! of a client and must be upgraded; how many bytes use shared memory is not checked.

use motet_tests::programs::{Sandbox, Started, both_ways, free_port, servers, services, skip, source};
use std::path::Path;

const TERM: i32 = 15;
const INT: i32 = 2;
const QUIT: i32 = 3;
const MODULES: &str = "/usr/lib/apache2/modules";

/// Bodies of 1 B, 64 KiB and 8 MiB; the small one often enough for the upgrade.
fn posts(sandbox: &Sandbox, port: u16, paths: &[&str]) -> String {
    let (script, port) = (source(sandbox, "services.py"), port.to_string());
    let sizes = ["1", "1", "1", "1", "65536", "1", "8388608", "1", "65536", "1", "1", "1"];
    paths.iter().map(|path| sandbox.run(&[&["python3", &script, "post", &port, path], &sizes[..]].concat())).collect()
}

/// Makes two programs: one reads in a shell pipe and prints the digest, the other returns the body.
fn programs(sandbox: &Sandbox) {
    sandbox.run(&["mkdir", &sandbox.path("cgi")]);
    let head = "printf 'Content-Type: application/octet-stream\\r\\n\\r\\n'";
    // Apache writes the whole body before it reads the answer.
    let whole = "cat > $$.body\ncat $$.body\nrm $$.body";
    for (name, rest) in [("digest.cgi", "sha256sum"), ("echo.cgi", whole)] {
        let path = sandbox.file(&format!("cgi/{name}"), format!("#!/bin/sh\n{head}\n{rest}\n"));
        sandbox.run(&["chmod", "755", &path]);
    }
}

fn cgi(test: &str, needs: &[&str], start: impl Fn(&Sandbox, u16) -> Started, signal: i32) {
    let counters = both_ways(test, needs, |sandbox| {
        programs(sandbox);
        let port = free_port();
        let server = start(sandbox, port).listens(port);
        let output = posts(sandbox, port, &["/cgi/digest.cgi", "/cgi/echo.cgi"]);
        server.stop(signal);
        output
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 4, "only {} streams were upgraded:\n{}", counters.upgraded, counters.lines);
    }
}

#[test]
fn lighttpd_runs_cgi() {
    let start = |sandbox: &Sandbox, port| {
        let configuration = sandbox.file("lighttpd.conf", services::lighttpd(&sandbox.path(""), port));
        sandbox.start(&["lighttpd", "-D", "-f", &configuration])
    };
    cgi("lighttpd_runs_cgi", &["lighttpd", "python3"], start, INT);
}

fn apache(test: &str, module: &str) {
    if !Path::new(MODULES).join("mod_mpm_prefork.so").exists() {
        skip::<()>(test, "apache2-bin is not installed (tests/packages.txt)");
        return;
    }
    let start = |sandbox: &Sandbox, port| {
        let text = services::apache(&sandbox.path(""), MODULES, module, port);
        let configuration = sandbox.file("apache.conf", text);
        sandbox.start(&["apache2", "-D", "FOREGROUND", "-f", &configuration])
    };
    cgi(test, &["apache2", "python3"], start, TERM);
}

#[test]
fn apache_prefork_runs_cgi() {
    apache("apache_prefork_runs_cgi", "cgi");
}

#[test]
fn apache_prefork_runs_cgi_by_cgid() {
    apache("apache_prefork_runs_cgi_by_cgid", "cgid");
}

#[test]
fn nginx_passes_requests_to_php() {
    let test = "nginx_passes_requests_to_php";
    let Some(program) = servers::php_fpm() else {
        skip::<()>(test, "php-fpm is not installed (tests/packages.txt)");
        return;
    };
    let counters = both_ways(test, &["nginx", "python3"], |sandbox| {
        let text = "<?php $body = file_get_contents('php://input');\n\
                    echo strpos($_SERVER['REQUEST_URI'], 'echo') ? $body : hash('sha256', $body);\n";
        let (script, folder, fast) = (sandbox.file("answer.php", text), sandbox.path(""), free_port());
        let configuration = sandbox.file("fpm.conf", services::php_fpm(&folder, fast));
        let words = [&program, "--nodaemonize", "--fpm-config", &configuration, "--prefix", &folder];
        let workers = sandbox.start(&words).listens(fast);
        let mut output = String::new();
        for keep in [false, true] {
            let port = free_port();
            let text = services::nginx_fastcgi(&folder, port, fast, &script, keep);
            let configuration = sandbox.file("nginx.conf", text);
            let server = sandbox.start(&["nginx", "-p", &folder, "-e", "stderr", "-c", &configuration]).listens(port);
            output += &posts(sandbox, port, &["/digest", "/echo"]);
            server.stop(QUIT);
        }
        workers.stop(QUIT);
        output
    });
    if let Some(counters) = counters {
        assert!(counters.upgraded >= 8, "only {} streams were upgraded:\n{}", counters.upgraded, counters.lines);
    }
}
