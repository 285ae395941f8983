#!/usr/bin/env python3
"""A launch agent for MPI on test hosts (scripts/hosts), which have no sshd: it runs a command on another host.

    agent.py --serve                        on each host: runs received commands until it is killed
    agent.py [-OPTION...] HOST COMMAND...   as a launch agent: runs COMMAND by a shell on HOST, with the server's environment

Only for the private networks of tests: the port gives a shell without authentication.
"""

import os
import socket
import subprocess
import sys
import threading

PORT = 7100


def serve():
    listener = socket.create_server(("", PORT), reuse_port=False)
    print("ready", flush=True)
    while True:
        caller, _ = listener.accept()
        threading.Thread(target=run, args=(caller,), daemon=True).start()


def run(caller):
    """Reads a command up to its zero byte and runs it with its output on the connection, which closes at its end."""
    with caller:
        line = b""
        while not line.endswith(b"\0"):
            more = caller.recv(65536)
            if not more:
                return
            line += more
        subprocess.run(["sh", "-c", line[:-1].decode()], stdin=subprocess.DEVNULL, stdout=caller, stderr=caller, check=False)


def call(words):
    while words and words[0].startswith("-"):
        words = words[1:]
    host, command = words[0], " ".join(words[1:])
    with socket.create_connection((host, PORT), timeout=20) as server:
        server.settimeout(None)
        server.sendall(f"cd {os.getcwd()!r} && {command}\0".encode())
        while data := server.recv(65536):
            os.write(1, data)


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    elif len(sys.argv) > 2:
        call(sys.argv[1:])
    else:
        sys.exit(__doc__)
