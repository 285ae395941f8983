#!/usr/bin/env python3
"""Black-box tests of scripts/hosts, with their own set of hosts. Run by scripts/test, or directly: python3 tests/hosts.py"""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
HOSTS = os.path.join(ROOT, "scripts", "hosts")
SET = f"t{os.getpid()}"

SERVER = """
import hashlib, socket
listener = socket.create_server(("10.77.0.2", 7000))
print("listening", flush=True)
peer, address = listener.accept()
digest, total = hashlib.sha256(), 0
while data := peer.recv(1 << 20):
    digest.update(data); total += len(data)
print(address[0], total, digest.hexdigest())
"""
CLIENT = """
import hashlib, socket
block, digest = bytes(range(256)) * 4096, hashlib.sha256()
peer = socket.create_connection(("beta", 7000), timeout=20)
for _ in range(64):
    peer.sendall(block); digest.update(block)
print(digest.hexdigest())
"""


def hosts(*words, **options):
    return subprocess.run([HOSTS, "--set", SET, *words], capture_output=True, text=True, timeout=60, check=False, **options)


def inside(name, *command):
    return hosts("exec", name, "--", *command)


def holders():
    """Pids of the processes that hold the namespaces of this set."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if b"--holder\0" in (line := file.read()) and f"/{SET}\0".encode() in line:
                    found.append(int(entry))
        except OSError:
            pass
    return found


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def setUpModule():
    result = hosts("up", "alpha", "beta")
    if result.returncode == 3:
        raise unittest.SkipTest(result.stderr.strip())
    assert result.returncode == 0, result.stderr


def tearDownModule():
    hosts("down")
    assert not holders()


class Hosts(unittest.TestCase):
    """Tests that share one pair of hosts."""

    def test_each_host_has_its_own_identity(self):
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            ids = {file.read()}
        for name in ("alpha", "beta"):
            self.assertEqual(inside(name, "uname", "-n").stdout, f"{name}\n")
            ids.add(inside(name, "cat", "/proc/sys/kernel/random/boot_id").stdout)
        self.assertEqual(len(ids), 3)
        for kind in ("net", "mnt", "uts", "ipc", "pid"):
            links = {os.readlink(f"/proc/self/ns/{kind}") + "\n"}
            links |= {inside(name, "readlink", f"/proc/self/ns/{kind}").stdout for name in ("alpha", "beta")}
            self.assertEqual(len(links), 3, kind)

    def test_shared_memory_files_are_not_shared(self):
        self.assertEqual(inside("alpha", "touch", "/dev/shm/motet-test").returncode, 0)
        self.assertNotEqual(inside("beta", "test", "-e", "/dev/shm/motet-test").returncode, 0)
        self.assertFalse(os.path.exists("/dev/shm/motet-test"))

    def test_hosts_talk_tcp_by_name(self):
        server = subprocess.Popen([HOSTS, "--set", SET, "exec", "beta", "--", sys.executable, "-c", SERVER],
                                  stdout=subprocess.PIPE, text=True)
        self.assertEqual(server.stdout.readline(), "listening\n")
        client = inside("alpha", sys.executable, "-c", CLIENT)
        said, _ = server.communicate(timeout=30)
        self.assertEqual(client.stderr, "")
        self.assertEqual(said.split(), ["10.77.0.1", str(64 << 20), client.stdout.strip()])

    def test_machine_outside_has_no_interface_to_hosts(self):
        with open("/proc/net/dev", encoding="ascii") as file:
            self.assertNotIn("to-alpha", file.read())

    def test_status_directory_and_input_pass_through(self):
        self.assertEqual(inside("alpha", "sh", "-c", "exit 7").returncode, 7)
        self.assertEqual(inside("alpha", "no-such-command-here").returncode, 127)
        self.assertEqual(inside("alpha", "sh", "-c", "kill -USR1 $$").returncode, -signal.SIGUSR1)
        with tempfile.TemporaryDirectory() as directory:
            self.assertEqual(hosts("exec", "alpha", "--", "pwd", cwd=directory).stdout, directory + "\n")
        self.assertEqual(hosts("exec", "alpha", "--", "cat", input="words").stdout, "words")

    def test_signals_are_forwarded(self):
        script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        process = subprocess.Popen([HOSTS, "--set", SET, "exec", "alpha", "--", "sh", "-c", script],
                                   stdout=subprocess.PIPE, text=True)
        self.assertEqual(process.stdout.readline(), "ready\n")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.communicate(timeout=10)[0], "got\n")
        self.assertEqual(process.returncode, 5)

    def test_killed_exec_leaves_nothing_running(self):
        process = subprocess.Popen([HOSTS, "--set", SET, "exec", "alpha", "--", "sleep", "7331"])
        running = lambda: "sleep 7331" in inside("alpha", "ps", "-eo", "args").stdout  # noqa: E731
        self.assertTrue(until(running))
        process.kill()
        process.wait()
        self.assertTrue(until(lambda: not running()))

    def test_repeated_up_changes_nothing_and_other_names_are_refused(self):
        before = hosts("list").stdout
        self.assertEqual(hosts("up", "alpha", "beta").returncode, 0)
        self.assertEqual(hosts("list").stdout, before)
        refused = hosts("up", "alpha", "gamma")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("scripts/hosts down", refused.stderr)

    def test_bad_usage_exits_with_status_2(self):
        for words in ((), ("up", "one"), ("up", "a", "a"), ("up", "a", "UPPER"), ("exec", "alpha", "true"), ("down", "x")):
            self.assertEqual(hosts(*words).returncode, 2, words)


class Lifetime(unittest.TestCase):
    """Tests that make and remove hosts, in another set."""

    def setUp(self):
        global SET
        self.outer, SET = SET, f"{SET}-l"

    def tearDown(self):
        global SET
        hosts("down")
        SET = self.outer

    def test_down_ends_what_runs_inside_and_is_idempotent(self):
        self.assertEqual(hosts("up", "a", "b", "c").returncode, 0)
        self.assertEqual(inside("c", "ping", "-c", "1", "-W", "5", "a").returncode, 0)
        left = subprocess.Popen([HOSTS, "--set", SET, "exec", "b", "--", "sleep", "7332"])
        self.assertTrue(until(lambda: "sleep 7332" in inside("b", "ps", "-eo", "args").stdout))
        self.assertEqual(hosts("down").returncode, 0)
        self.assertNotEqual(left.wait(timeout=10), 0)
        self.assertEqual(holders(), [])
        self.assertEqual(hosts("down").returncode, 0)

    def test_leftovers_of_killed_up_are_removed(self):
        self.assertEqual(hosts("up", "a", "b").returncode, 0)
        base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
        os.remove(os.path.join(base, f"motet-hosts.{os.getuid()}", SET, "state.json"))
        self.assertEqual(len(holders()), 2)
        self.assertEqual(hosts("down").returncode, 0)
        self.assertEqual(holders(), [])
        for delay in (0.08, 0.12, 0.16, 0.2):
            process = subprocess.Popen([HOSTS, "--set", SET, "up", "a", "b", "c"], stdout=subprocess.DEVNULL)
            time.sleep(delay)
            process.kill()
            process.wait()
        self.assertEqual(hosts("down").returncode, 0)
        self.assertTrue(until(lambda: not holders()))

    def test_dead_host_is_recreated(self):
        self.assertEqual(hosts("up", "a", "b").returncode, 0)
        os.kill(int(hosts("list").stdout.split()[3]), signal.SIGKILL)
        self.assertTrue(until(lambda: len(holders()) == 1))
        self.assertEqual(hosts("up", "a", "b").returncode, 0)
        self.assertEqual(inside("a", "ping", "-c", "1", "-W", "5", "b").returncode, 0)

    def test_hosts_work_without_root(self):
        if os.geteuid() != 0:
            self.skipTest("already without root")
        with tempfile.TemporaryDirectory() as directory:
            os.chown(directory, 65534, 65534)
            unprivileged = {"user": 65534, "group": 65534, "extra_groups": [], "env": {**os.environ, "XDG_RUNTIME_DIR": directory}}
            if subprocess.run(["test", "-x", HOSTS], check=False, user=65534).returncode:
                self.skipTest("this checkout is not readable by other users")
            try:
                made = hosts("up", "a", "b", **unprivileged)
                if made.returncode == 3:
                    self.skipTest(made.stderr.strip())
                self.assertEqual(made.returncode, 0, made.stderr)
                self.assertEqual(hosts("exec", "a", "--", "uname", "-n", **unprivileged).stdout, "a\n")
                self.assertEqual(hosts("exec", "a", "--", "ping", "-c", "1", "-W", "5", "b", **unprivileged).returncode, 0)
            finally:
                self.assertEqual(hosts("down", **unprivileged).returncode, 0)
            self.assertEqual(holders(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
