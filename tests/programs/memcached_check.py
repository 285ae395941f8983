"""memcached's text protocol over a few connections: sets, gets of many keys at once, large values; prints a hash."""
import hashlib
import random
import socket
import sys

port = int(sys.argv[1])
rng = random.Random(11)
digest = hashlib.sha256()
files = []
for _ in range(4):
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    files.append((connection, bytearray()))


def line(n):
    connection, held = files[n]
    while (end := held.find(b"\r\n")) < 0:
        held += connection.recv(65536)
    out = bytes(held[:end])
    del held[: end + 2]
    return out


def exactly(n, count):
    connection, held = files[n]
    while len(held) < count:
        held += connection.recv(65536)
    out = bytes(held[:count])
    del held[:count]
    return out


values = {}
for i in range(4000):
    n, key = i % 4, b"key%d" % rng.randrange(500)
    if i % 3 == 0 or key not in values:
        values[key] = rng.randbytes(rng.randrange(1, 400 if i % 50 else 300000))
        files[n][0].sendall(b"set %s 0 0 %d\r\n" % (key, len(values[key])) + values[key] + b"\r\n")
        answer = line(n)
        assert answer == b"STORED", answer
    else:
        keys = [key] + rng.sample(sorted(values), min(5, len(values)))
        files[n][0].sendall(b"get " + b" ".join(keys) + b"\r\n")
        while (head := line(n)) != b"END":
            _, name, _, size = head.split()
            body = exactly(n, int(size))
            assert line(n) == b"" and body == values[name], name
            digest.update(name + body)
files[0][0].sendall(b"quit\r\n")
assert files[0][0].recv(1) == b""
print(digest.hexdigest())
