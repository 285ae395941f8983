"""Servers that hand their connections over, and clients that compare what comes back with what they sent.

    services.py serve KIND PORT     KIND: forking, threading (socketserver), subprocess, sudo
    services.py talk PORT WHAT ROUNDS SIZE...
                                    ROUNDS records of 16 bytes in each direction, then the word WHAT, then SIZE bytes; what comes back is compared
    services.py pipe PORT WHAT SIZE...   SIZE bytes at once, without a word before them
    services.py post PORT PATH SIZE...   as pipe, in the body of a POST, over one connection
    services.py tree FOLDER BYTES   makes a tree of files
    services.py sum FOLDER          its digest: names, sizes, contents

WHAT is "echo" or "digest" ("shell": a digest through a shell). The port's connections carry only these bytes, so lost, duplicated or
reordered bytes change a digest. A digest of bytes that both sides generate is the same in every run.
"""
import hashlib
import http.client
import os
import random
import socket
import socketserver
import subprocess
import sys
import threading

RECORD = 16
PROGRAMS = {b"echo": ["cat"], b"digest": ["sha256sum"], b"shell": ["sh", "-c", "cat | sha256sum"]}


def payload(size):
    return random.Random(size).randbytes(size)


def record(text):
    return text.ljust(RECORD, b".")


def exactly(connection, size):
    got = b""
    while len(got) < size:
        more = connection.recv(size - len(got))
        if not more:
            raise EOFError(f"the stream ended after {len(got)} of {size} bytes")
        got += more
    return got


def hear(connection):
    """Answers records until a record names a program."""
    while True:
        said = exactly(connection, RECORD)
        word = said.rstrip(b".")
        if word in PROGRAMS:
            return word
        connection.sendall(said)


def in_python(connection):
    word, digest = hear(connection), hashlib.sha256()
    while got := connection.recv(65536):
        digest.update(got)
        if word == b"echo":
            connection.sendall(got)
    if word != b"echo":
        connection.sendall(f"{digest.hexdigest()}  -\n".encode())


def by_program(connection, before=()):
    """The program gets the connection itself, not a copy of its bytes."""
    subprocess.run([*before, *PROGRAMS[hear(connection)]], stdin=connection, stdout=connection, check=True)


class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        in_python(self.request)


class Forking(socketserver.ForkingMixIn, socketserver.TCPServer):
    allow_reuse_address = True


class Threading(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True


def serve(kind, port):
    if kind in ("forking", "threading"):
        with (Forking if kind == "forking" else Threading)(("127.0.0.1", port), Handler) as server:
            print("ready", flush=True)
            server.serve_forever()
    before = ["sudo", "-n", "-u", "nobody", "--"] if kind == "sudo" else []
    with socket.create_server(("127.0.0.1", port)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                by_program(connection, before)


def exchange(connection, what, data):
    """Sends in a separate thread, so that neither side waits for the other. Returns everything that came back."""

    def send():
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    got = b""
    while more := connection.recv(1 << 16):
        got += more
    sender.join()
    expected = data if what == "echo" else f"{hashlib.sha256(data).hexdigest()}  -\n".encode()
    if got != expected:
        same = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        sys.exit(f"{what} of {len(data)}: {len(got)} of {len(expected)} bytes came, the first {same} of them right")
    print(what, len(data), hashlib.sha256(got).hexdigest())


def talk(port, what, rounds, sizes):
    for size in sizes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for i in range(rounds):
                said = record(b"record %d" % i)
                connection.sendall(said)
                if exactly(connection, RECORD) != said:
                    sys.exit(f"record {i} came back as another")
            # The body follows the word at once: part of it is unread when the other side hands the connection over.
            connection.sendall(record(what.encode()))
            exchange(connection, "digest" if what == "shell" else what, payload(size))


def pipe(port, what, sizes):
    for size in sizes:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            exchange(connection, what, payload(size))


def post(port, path, sizes):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    for size in sizes:
        body = payload(size)
        connection.request("POST", path, body, {"Content-Type": "application/octet-stream"})
        answer = connection.getresponse()
        got = answer.read()
        expected = body if "echo" in path else hashlib.sha256(body).hexdigest().encode()
        if answer.status != 200 or (got != expected and not got.startswith(expected + b" ")):
            sys.exit(f"{path} of {size}: status {answer.status}, {len(got)} bytes: {got[:200]}")
        print(path, size, answer.status, hashlib.sha256(got).hexdigest())


def tree(folder, size):
    """Makes many small files, some of medium size, and large ones."""
    numbers = random.Random(7)
    left, n = size, 0
    while left > 0:
        length = min(left, [numbers.randrange(2000), numbers.randrange(200_000), 4_000_000][min(n % 10, 8) // 4])
        inside = os.path.join(folder, f"d{n % 7}")
        os.makedirs(inside, exist_ok=True)
        with open(os.path.join(inside, f"f{n}"), "wb") as file:
            file.write(numbers.randbytes(length))
        left, n = left - length, n + 1


def sum_of(folder):
    digest, count, size = hashlib.sha256(), 0, 0
    for inside, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(inside, name)
            with open(path, "rb") as file:
                data = file.read()
            digest.update(f"{os.path.relpath(path, folder)} {len(data)}\n".encode() + data)
            count, size = count + 1, size + len(data)
    print(count, "files,", size, "bytes", digest.hexdigest())


def main(verb, *rest):
    if verb == "serve":
        serve(rest[0], int(rest[1]))
    elif verb == "talk":
        talk(int(rest[0]), rest[1], int(rest[2]), [int(size) for size in rest[3:]])
    elif verb == "pipe":
        pipe(int(rest[0]), rest[1], [int(size) for size in rest[2:]])
    elif verb == "post":
        post(int(rest[0]), rest[1], [int(size) for size in rest[2:]])
    elif verb == "tree":
        tree(rest[0], int(rest[1]))
    else:
        sum_of(rest[0])


main(*sys.argv[1:])
