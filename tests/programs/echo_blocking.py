"""Blocking echo between two Python processes; prints the hash of what came back."""
import hashlib
import os
import random
import socket

listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    connection, _ = listener.accept()
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
    os._exit(0)
rng = random.Random(4)
digest = hashlib.sha256()
with socket.create_connection(listener.getsockname()) as connection:
    for i in range(600):
        out = rng.randbytes(rng.randrange(1, 200 if i % 9 else 60000))
        connection.sendall(out)
        back = bytearray()
        while len(back) < len(out):
            back += connection.recv(65536)
        assert back == out
        digest.update(back)
_, status = os.waitpid(child, 0)
print(digest.hexdigest(), status)
