//! Commands that start servers on a port of the loopback interface, with all data in one folder and nothing kept afterwards.

use crate::find;
use std::path::PathBuf;

fn words(all: &[&str]) -> Vec<String> {
    all.iter().map(|word| (*word).to_owned()).collect()
}

/// Redis without persistence. It prints "Ready to accept connections".
pub fn redis(port: &str) -> Vec<String> {
    words(&["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
}

/// memcached over TCP only. It has 256 MB because it evicts keys with the default of 64.
pub fn memcached(port: &str) -> Vec<String> {
    words(&["memcached", "-l", "127.0.0.1", "-U", "0", "-m", "256", "-p", port])
}

/// A configuration of nginx that serves the files of `folder` (which ends in `/`) and keeps its own files there.
pub fn nginx_configuration(folder: &str, port: u16, workers: usize, sendfile: &str) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}{kind};\n"))
        .concat();
    format!(
        "daemon off; master_process on; worker_processes {workers}; pid {folder}pid; error_log stderr warn;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile {sendfile}; tcp_nopush on; keepalive_requests 100000000; {temporary}\
         server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
}

/// nginx with a configuration file.
pub fn nginx(folder: &str, configuration: &str) -> Vec<String> {
    words(&["nginx", "-p", folder, "-e", "stderr", "-c", configuration])
}

/// Finds a program of PostgreSQL. Debian keeps the server's programs out of PATH.
pub fn postgresql_program(name: &str) -> Option<String> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = versions.map(|v| v.path().join("bin").join(name)).filter(|p| p.exists()).collect();
    found.sort();
    found.pop().or_else(|| find(name)).map(|path| path.to_string_lossy().into_owned())
}

/// Makes a data folder whose user `tester` needs no password. `None`: PostgreSQL is not installed.
pub fn postgresql_data(data: &str) -> Option<Vec<String>> {
    let initdb = postgresql_program("initdb")?;
    Some(words(&[&initdb, "-D", data, "-A", "trust", "-U", "tester", "--no-sync", "-E", "UTF8", "--locale", "C"]))
}

/// The server of a data folder, over TCP only. It prints "ready to accept connections".
pub fn postgresql(data: &str, port: &str) -> Option<Vec<String>> {
    let mut all = words(&[&postgresql_program("postgres")?, "-D", data]);
    let settings = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "shared_buffers=32MB",
        "max_connections=40",
    ];
    for setting in settings.map(str::to_owned).into_iter().chain([format!("port={port}")]) {
        all.extend(["-c".to_owned(), setting]);
    }
    Some(all)
}

/// The JDK's registry for RMI. It needs the interfaces' classes in `CLASSPATH`.
pub fn rmiregistry(port: &str) -> Vec<String> {
    words(&["rmiregistry", "-J-Djava.rmi.server.hostname=127.0.0.1", port])
}

/// PHP's process manager. Debian's name of it contains the version.
pub fn php_fpm() -> Option<String> {
    let all = std::fs::read_dir("/usr/sbin").into_iter().flatten().flatten();
    let paths = all.map(|entry| entry.path().to_string_lossy().into_owned());
    paths.filter(|path| path.starts_with("/usr/sbin/php-fpm")).max()
}

/// Makes a data folder of MariaDB whose user `root` needs no password.
pub fn mariadb_data(data: &str) -> Vec<String> {
    let mut all =
        words(&["mariadb-install-db", "--no-defaults", "--skip-test-db", "--auth-root-authentication-method=normal"]);
    all.push(format!("--datadir={data}"));
    all
}

/// The server of a data folder, over TCP and a socket in that folder. It prints "ready for connections".
pub fn mariadb(data: &str, port: &str) -> Vec<String> {
    let mut all =
        words(&["mariadbd", "--no-defaults", "--bind-address=127.0.0.1", "--innodb-flush-log-at-trx-commit=0"]);
    all.extend([format!("--datadir={data}"), format!("--socket={data}/socket"), format!("--port={port}")]);
    all
}

/// The script that starts RabbitMQ. Debian's command of that name runs as one user only.
pub fn rabbitmq() -> Option<String> {
    let script = "/usr/lib/rabbitmq/bin/rabbitmq-server";
    PathBuf::from(script).exists().then(|| script.to_owned())
}

/// The settings of a node of RabbitMQ that keeps its files in `folder` (which ends in `/`). `inner` are ports of Erlang's own.
pub fn rabbitmq_environment(folder: &str, port: u16, inner: [u16; 2]) -> Vec<(&'static str, String)> {
    vec![
        ("HOME", folder.to_owned()),
        ("ERL_EPMD_PORT", inner[0].to_string()),
        ("RABBITMQ_DIST_PORT", inner[1].to_string()),
        ("RABBITMQ_NODENAME", "tested@localhost".to_owned()),
        ("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".to_owned()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_MNESIA_BASE", format!("{folder}db")),
        ("RABBITMQ_LOG_BASE", format!("{folder}log")),
        ("RABBITMQ_PID_FILE", format!("{folder}pid")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", format!("{folder}plugins")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
    ]
}
