//! Configurations of servers that start other programs: super-servers, mirrors, CGI and FastCGI.
//!
//! What it is: text. All files that a server writes are in one folder (which ends in `/`), and it listens on one port of the loopback interface.
//!
//! What it is not: a way to start servers (`crates/motet-tests` does that).

/// `rsync --daemon` with one module that clients may read and write.
pub fn rsync(folder: &str, module: &str, port: u16) -> String {
    format!(
        "address = 127.0.0.1\nport = {port}\nuse chroot = no\npid file = {folder}rsync.pid\nlog file = {folder}rsync.log\n\
         [{module}]\npath = {folder}{module}\nread only = no\n"
    )
}

/// xinetd with one service: `program`, with the connection as standard input and output. `user` is the service's user.
pub fn xinetd(folder: &str, port: u16, user: &str, program: &str, argument: &str) -> String {
    format!(
        "defaults\n{{\n instances = 20\n log_type = FILE {folder}xinetd.log\n cps = 1000 1\n}}\n\
         service tested\n{{\n type = UNLISTED\n socket_type = stream\n protocol = tcp\n port = {port}\n bind = 127.0.0.1\n wait = no\n \
         user = {user}\n server = {program}\n server_args = {argument}\n}}\n"
    )
}

/// lighttpd with CGI: it runs the files `*.cgi` in `folder`.
pub fn lighttpd(folder: &str, port: u16) -> String {
    format!(
        "server.document-root = \"{folder}\"\nserver.bind = \"127.0.0.1\"\nserver.port = {port}\nserver.modules = (\"mod_cgi\")\n\
         server.upload-dirs = (\"{folder}\")\nserver.max-keep-alive-requests = 1000\ncgi.assign = (\".cgi\" => \"\")\n"
    )
}

/// The lines that load Apache's modules of these names.
fn apache_modules(modules: &str, names: &[&str]) -> String {
    names.iter().map(|name| format!("LoadModule {name}_module {modules}/mod_{name}.so\n")).collect()
}

/// Where Apache writes its files, and its port.
fn apache_place(folder: &str, port: u16) -> String {
    format!(
        "ServerRoot {folder}\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile {folder}apache.pid\nDefaultRuntimeDir {folder}\n\
         ErrorLog {folder}apache.log\nMutex file:{folder}\n"
    )
}

/// Apache with processes (prefork) and CGI by `module`, which is `cgi` or `cgid`. The URL `/cgi/` is `cgi` in `folder`.
pub fn apache(folder: &str, modules: &str, module: &str, port: u16) -> String {
    let place = apache_place(folder, port);
    let load = apache_modules(modules, &["mpm_prefork", "authz_core", "alias", module]);
    let socket = if module == "cgid" { format!("ScriptSock {folder}cgid.sock\n") } else { String::new() };
    format!(
        "{place}{load}{socket}StartServers 2\nMaxRequestWorkers 4\nKeepAlive On\nScriptAlias /cgi/ {folder}cgi/\n\
         <Directory {folder}>\nOptions +ExecCGI\nRequire all granted\n</Directory>\n"
    )
}

/// Apache with one process of 25 threads (mpm_event). The threads pass every connection between them and the epoll set of a listener. Serves the
/// files of `root`.
pub fn apache_event(folder: &str, modules: &str, root: &str, port: u16) -> String {
    let place = apache_place(folder, port);
    let load = apache_modules(modules, &["mpm_event", "authz_core"]);
    format!(
        "{place}{load}StartServers 1\nServerLimit 1\nThreadsPerChild 25\nMaxRequestWorkers 25\nMinSpareThreads 1\nMaxSpareThreads 25\n\
         KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\nDocumentRoot {root}\n"
    )
}

/// HAProxy that passes HTTP requests on to one server on this host. Connections to it stay open.
pub fn haproxy(port: u16, server: u16) -> String {
    format!(
        "global\n maxconn 200\ndefaults\n mode http\n http-reuse always\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n\
         frontend tested\n bind 127.0.0.1:{port}\n default_backend behind\n\
         backend behind\n server one 127.0.0.1:{server}\n"
    )
}

/// PHP's process manager over TCP, with two workers.
pub fn php_fpm(folder: &str, port: u16) -> String {
    format!(
        "[global]\nerror_log = {folder}fpm.log\ndaemonize = no\n[tested]\nlisten = 127.0.0.1:{port}\npm = static\npm.max_children = 2\n\
         php_admin_value[post_max_size] = 32M\nphp_admin_value[memory_limit] = 128M\n"
    )
}

/// nginx that passes all requests to the FastCGI server at port `fast`, which runs `script`. With `keep`, connections to it stay open.
pub fn nginx_fastcgi(folder: &str, port: u16, fast: u16, script: &str, keep: bool) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {folder}{kind};\n"))
        .concat();
    let (kept, keep) = if keep { ("keepalive 2;", "on") } else { ("", "off") };
    format!(
        "daemon off; master_process on; worker_processes 1; pid {folder}pid; error_log stderr warn;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_max_body_size 32m; {temporary} upstream php {{ server 127.0.0.1:{fast}; {kept} }}\n\
         server {{ listen 127.0.0.1:{port}; location / {{ fastcgi_pass php; fastcgi_keep_conn {keep};\n\
         fastcgi_param SCRIPT_FILENAME {script}; fastcgi_param REQUEST_METHOD $request_method;\n\
         fastcgi_param CONTENT_LENGTH $content_length; fastcgi_param CONTENT_TYPE $content_type;\n\
         fastcgi_param REQUEST_URI $request_uri; fastcgi_param QUERY_STRING $query_string; }} }} }}\n"
    )
}
