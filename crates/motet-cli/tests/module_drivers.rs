//! Modules in the process of a node: shared objects, Java classes, Python modules.

mod common;

use common::module_session::{Session, is_running};
use rustix::process::{Signal, kill_process};
use std::path::PathBuf;
use std::process::Command;

const C_MODULE: &str = r#"
#include <motet_module.h>
#include <stdlib.h>
#include <string.h>
static const struct motet_module_host *host;
static int load(const struct motet_module_host *given) {
    host = given;
    if (given->version != MOTET_MODULE_VERSION || given->size < sizeof *given || given->attribute(given, "NONE"))
        return 90;
    given->log(given, given->name);
    const char *code = given->attribute(given, "LOAD");
    return code ? atoi(code) : 0;
}
static int start(void) {
    const char *what = host->attribute(host, "START");
    if (what && strcmp(what, "crash") == 0)
        abort();
    host->log(host, "starts");
    return what ? atoi(what) : 0;
}
static int stop(void) { host->log(host, "stops"); return 0; }
const struct motet_module motet_module = {
    .version = VERSION, .size = sizeof(struct motet_module), .load = load, .start = start, .stop = stop };
"#;

/// Compiles a module with a version of its table.
fn compile(session: &Session, name: &str, version: &str) {
    let include = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let include = format!("-I{}", include.display());
    let options = ["-shared", "-fPIC", "-Wall", "-Werror", &include, &format!("-DVERSION={version}")];
    session.0.compile(name, C_MODULE, &options);
}

/// Writes 9 MiB to standard output, in lines.
const LOUD: &str = r#"
#include <motet_module.h>
#include <stdio.h>
static int load(const struct motet_module_host *given) { return given->version != MOTET_MODULE_VERSION; }
static int start(void) {
    for (int line = 0; line < 9 * 1024 * 16; line++)
        printf("%63d\n", line);
    puts("the last line");
    return fflush(stdout);
}
static int stop(void) { return 0; }
const struct motet_module motet_module = {
    .version = MOTET_MODULE_VERSION, .size = sizeof(struct motet_module), .load = load, .start = start, .stop = stop };
"#;

#[test]
fn output_of_the_default_node_is_kept_within_a_limit() {
    let session = Session::up("loud");
    let include = format!("-I{}", PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../include").display());
    session.0.compile("loud.so", LOUD, &["-shared", "-fPIC", &include]);
    let log = session.path().join("sessions/default/node.log");
    let old = log.with_file_name("node.log.old");
    session.ok(&["load", "--start", &session.descriptor("loud", "shared", "loud.so", "")]);
    session.until("the log is short", |_| old.exists() && std::fs::metadata(&log).unwrap().len() <= 4 << 20);
    let kept = std::fs::read_to_string(&old).unwrap();
    assert!(kept.len() <= 8 << 20 && kept.len() > 1 << 20, "{} bytes", kept.len());
    let both = kept + &std::fs::read_to_string(&log).unwrap();
    assert!(both.contains("the last line\n"), "the newest part is kept");
}

#[test]
fn shared_object_is_a_module() {
    let session = Session::up("shared");
    compile(&session, "good.so", "MOTET_MODULE_VERSION");
    let shared = |name: &str, object: &str, more: &str| session.descriptor(name, "shared", object, more);
    assert_eq!(session.ok(&["load", "--start", &shared("good", "good.so", "")]), "loaded and started: good\n");
    assert_eq!(session.module("good")["state"], "running");
    assert_eq!(session.log("good"), "good\nstarts\n");
    session.ok(&["stop", "good"]);
    session.ok(&["start", "good"]);
    assert_eq!(session.log("good"), "good\nstarts\nstops\nstarts\n");
    let mapped = || {
        let node = session.default_node().as_raw_nonzero();
        std::fs::read_to_string(format!("/proc/{node}/maps")).unwrap().contains("/good.so")
    };
    assert!(mapped());
    session.ok(&["unload", "good"]);
    assert!(!mapped(), "its code is gone with it");
    // What fails, and how that is said.
    assert_eq!(session.fails(&["load", &shared("one", "good.so", "LOAD = 7")]), "motet: load returns 7\n");
    let refusal = session.fails(&["load", "--start", &shared("two", "good.so", "START = 8")]);
    assert_eq!(refusal, "motet: two does not start: start returns 8\n");
    compile(&session, "other.so", "99");
    let refusal = session.fails(&["load", &shared("three", "other.so", "")]);
    assert!(refusal.contains("version 99") && refusal.contains("takes version 1"), "{refusal}");
    session.0.compile("empty.so", "int x;", &["-shared", "-fPIC"]);
    assert!(session.fails(&["load", &shared("four", "empty.so", "")]).contains("does not define motet_module"));
    session.0.file("text.so", "no object", 0o644);
    assert!(session.fails(&["load", &shared("five", "text.so", "")]).contains("text.so"));
    session.0.compile("lacks.so", "void missing(void); void f(void) { missing(); }", &["-shared", "-fPIC"]);
    assert!(session.fails(&["load", &shared("six", "lacks.so", "")]).contains("missing"));
    assert!(session.modules().is_empty());
}

#[test]
fn crash_in_the_node_ends_the_node_alone() {
    let session = Session::up("shared-crash");
    compile(&session, "crash.so", "MOTET_MODULE_VERSION");
    session.ok(&["load", "--start", &session.shell("beside", "exec sleep 1000", "")]);
    let (node, beside) = (session.default_node(), session.pid("beside"));
    session.ok(&["load", &session.descriptor("crash", "shared", "crash.so", "START = \"crash\"")]);
    let why = session.fails_with(&["start", "crash"]);
    assert!(why.contains("the node has ended"), "{why}");
    session.until_gone(node);
    session.until_gone(beside);
    session.until("its modules are gone", |session| session.modules().is_empty());
    let log = std::fs::read_to_string(session.path().join("sessions/default/gatekeeper.log")).unwrap();
    assert!(log.contains("the default node has ended: signal: 6"), "{log}");
    assert_eq!(session.ok(&["load", "--start", "beside.toml"]), "loaded and started: beside\n");
}

const PYTHON_MODULE: &str = r#"
import ctypes, json, threading, time
print("loads", json.dumps(motet_attributes))
stopping = threading.Event()
def work():
    while not stopping.is_set():
        with open("beats", "a") as beats:
            beats.write("x")
        time.sleep(0.005)
def start():
    global thread
    if motet_attributes.get("FAIL") == "yes":
        raise ValueError("it is\nnot to be")
    if motet_attributes.get("FAIL") == "code":
        return 5
    thread = threading.Thread(target=work)
    thread.start()
    print("starts")
def stop():
    stopping.set()
    thread.join()
    print("stops")
"#;

#[test]
fn python_module_is_a_module() {
    let session = Session::up("python");
    let beats = session.path().join("beats");
    let source = PYTHON_MODULE.replace("\"beats\"", &format!("{beats:?}"));
    session.0.file("worker.py", &source, 0o644);
    let python = |name: &str, file: &str, more: &str| session.descriptor(name, "python", file, more);
    let out = session.ok(&["load", "--start", &python("one", "worker.py", "SIZE = 3")]);
    assert_eq!(out, "loaded and started: one\n");
    assert_eq!(session.log("one"), "loads {\"SIZE\": \"3\"}\nstarts\n");
    let length = || std::fs::metadata(&beats).map_or(0, |meta| meta.len());
    session.until("its thread runs while no operation does", |_| length() > 3);
    // Two modules of one file do not share their names.
    session.ok(&["load", &python("two", "worker.py", "")]);
    session.ok(&["unload", "two"]);
    session.ok(&["stop", "one"]);
    assert!(session.log("one").ends_with("stops\n"));
    session.ok(&["unload", "one"]);
    // A module that was unloaded is read again.
    session.0.file("worker.py", "print('another one')", 0o644);
    session.ok(&["load", "--start", "one.toml"]);
    assert_eq!(session.log("one"), "another one\n");
    // What fails, and how that is said.
    session.0.file("worker2.py", &source, 0o644);
    let refusal = session.fails(&["load", "--start", &python("fails", "worker2.py", "FAIL = \"yes\"")]);
    assert_eq!(refusal, "motet: fails does not start: ValueError: it is not to be\n");
    let refusal = session.fails(&["load", "--start", &python("code", "worker2.py", "FAIL = \"code\"")]);
    assert!(refusal.contains("start() returns 5"), "{refusal}");
    session.0.file("wrong.py", "def start(:", 0o644);
    assert!(session.fails(&["load", &python("wrong", "wrong.py", "")]).contains("SyntaxError"));
    session.0.file("leave.py", "import sys; sys.exit(3)", 0o644);
    assert!(session.fails(&["load", &python("leave", "leave.py", "")]).contains("SystemExit: 3"));
    session.0.file("text.txt", "", 0o644);
    assert!(session.fails(&["load", &python("text", "text.txt", "")]).contains("does not end in .py"));
    assert_eq!(session.states(), ["one running"]);
    // Signals stay the node's.
    let node = session.default_node();
    kill_process(node, Signal::TERM).unwrap();
    session.until("the node ends", |_| !is_running(node));
}

#[test]
fn busy_node_is_seen() {
    let session = Session::up("busy");
    let (began, go_on) = (session.path().join("began"), session.path().join("go-on"));
    let source = format!(
        "import os, time\ndef start():\n    open({began:?}, 'w')\n    while not os.path.exists({go_on:?}): time.sleep(0.005)\n"
    );
    session.0.file("slow.py", &source, 0o644);
    session.ok(&["load", &session.descriptor("slow", "python", "slow.py", "")]);
    session.ok(&["load", "--start", &session.shell("quick", "echo here; exec sleep 1000", "")]);
    let mut starting = session.motet(&["start", "slow"]).spawn().unwrap();
    session.until("it starts", |_| began.exists());
    assert_eq!(session.states(), ["quick running", "slow loaded"]);
    session.until("logs are read meanwhile", |session| session.log("quick").ends_with("here\n"));
    assert_eq!(starting.try_wait().unwrap(), None);
    std::fs::write(&go_on, "").unwrap();
    assert!(starting.wait().unwrap().success());
    assert_eq!(session.states(), ["quick running", "slow running"]);
}

#[test]
fn python_library_that_is_none_is_said() {
    let session = Session::up("no-python");
    session.0.file("m.py", "", 0o644);
    let library = |path: &str| session.descriptor("m", "python", "m.py", &format!("library = {path:?}"));
    assert!(session.fails(&["load", &library("/does/not/exist.so")]).contains("/does/not/exist.so"));
    session.0.compile("none.so", "int x;", &["-shared", "-fPIC"]);
    let none = session.path().join("none.so");
    assert!(session.fails(&["load", &library(none.to_str().unwrap())]).contains("lacks functions"));
}

/// Compiles a class into a folder of its own.
fn compile_java(session: &Session, folder: &str, source: &str) {
    let classes = session.path().join(folder);
    std::fs::create_dir_all(&classes).unwrap();
    let file = session.0.file(&format!("{folder}/Mesh.java"), source, 0o644);
    let done = Command::new("javac").arg("-d").arg(&classes).arg(file).output().expect("a JDK is installed");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn java_class_is_a_module() {
    let session = Session::up("java");
    let out = session.path().join("out");
    let class = |word: &str| {
        format!(
            "import java.nio.file.*;
            public class Mesh {{
                static int starts = 0;
                static void say(String text) throws Exception {{
                    Files.writeString(Path.of({out:?}), text + \"\\n\", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
                }}
                public static void start(String[] attributes) throws Exception {{
                    boolean own = Thread.currentThread().getContextClassLoader() == Mesh.class.getClassLoader();
                    say(\"{word} \" + String.join(\",\", attributes) + \" \" + (++starts) + \" \" + own);
                    if (attributes.length > 1) throw new IllegalStateException(\"too many\\nattributes\");
                }}
                public static void stop() throws Exception {{ say(\"{word} stops\"); }}
            }}"
        )
    };
    let said = || std::fs::read_to_string(&out).unwrap_or_default();
    compile_java(&session, "first", &class("first"));
    compile_java(&session, "second", &class("second"));
    let java = |name: &str, units: &str, more: &str| session.descriptor(name, "java", units, more);
    session.ok(&["load", "--start", &java("one", "first", "class = \"Mesh\"\nSIZE = 3")]);
    assert_eq!(session.module("one")["state"], "running");
    assert_eq!(said(), "first SIZE=3 1 true\n");
    // Another class of the same name lives beside it, and one that is loaded again begins anew.
    session.ok(&["load", "--start", &java("two", "second", "class = \"Mesh\"")]);
    session.ok(&["stop", "one"]);
    session.ok(&["start", "one"]);
    session.ok(&["unload", "one"]);
    session.ok(&["load", "--start", "one.toml"]);
    let lines =
        "first SIZE=3 1 true\nsecond  1 true\nfirst stops\nfirst SIZE=3 2 true\nfirst stops\nfirst SIZE=3 1 true\n";
    assert_eq!(said(), lines);
    // What fails, and how that is said.
    let refusal = session.fails(&["load", "--start", &java("three", "first", "class = \"Mesh\"\nA = 1\nB = 2")]);
    assert_eq!(refusal, "motet: three does not start: java.lang.IllegalStateException: too many attributes\n");
    let refusal = session.fails(&["load", &java("four", "first", "class = \"Missing\"")]);
    assert!(refusal.contains("java.lang.ClassNotFoundException: Missing"), "{refusal}");
    let refusal = session.fails(&["load", &java("five", "first", "class = \"java.lang.Object\"")]);
    assert!(refusal.contains("has no public static void start(String[])"), "{refusal}");
    assert!(session.fails(&["load", &java("six", "first", "")]).contains("the option class is missing"));
    assert_eq!(session.states(), ["one running", "two running"]);
    // Signals stay the node's: it stops its modules in order.
    let node = session.default_node();
    kill_process(node, Signal::TERM).unwrap();
    session.until("the node ends", |_| !is_running(node));
    assert!(said().ends_with("first stops\nsecond stops\n"), "{}", said());
}
