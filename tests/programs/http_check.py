"""Fetches files over kept-alive HTTP connections, whole and in ranges; prints a hash of everything received."""
import hashlib
import http.client
import sys

port, names = int(sys.argv[1]), sys.argv[2:]
digest = hashlib.sha256()
connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for _ in range(4)]
for turn in range(40):
    connection = connections[turn % len(connections)]
    for name in names:
        headers = {"Range": f"bytes={turn * 7}-{turn * 999 + 50}"} if turn % 3 == 1 else {}
        connection.request("GET", name, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        digest.update(b"%d %d " % (answer.status, len(body)) + body)
for connection in connections:
    connection.close()
print(digest.hexdigest())
