# A peer that speaks correct GIOP until its connection is on the fast path, and then breaks the protocol.
#
#   giop_raw.py client PORT CASE   asks the server a few times for its object, then does CASE; prints what arrives, and how the connection ends
#   giop_raw.py client all         prints the names of the cases
#   giop_raw.py server PORT        answers each connection correctly a few times, then with the next case; prints "ready"
#
# It knows GIOP 1.2 in little endian, and of the types only what tests/programs/omniorb_ends.idl needs.
import socket
import struct
import sys
import time

REQUEST, REPLY, LOCATE_REQUEST, LOCATE_REPLY, CLOSE, ERROR, FRAGMENT = 0, 1, 3, 4, 5, 6, 7
NAMES = ["Request", "Reply", "CancelRequest", "LocateRequest", "LocateReply", "CloseConnection", "MessageError", "Fragment"]
POLITE = 12  # exchanges: more than the sockets adapter counts before it upgrades a connection


def message(kind, body=b"", magic=b"GIOP", version=(1, 2), flags=1, size=None):
    return magic + struct.pack("<BBBBI", *version, flags, kind, len(body) if size is None else size) + body


def target(key=b"desk"):
    return struct.pack("<HHI", 0, 0, len(key)) + key


def locate(number, key=b"desk"):
    return message(LOCATE_REQUEST, struct.pack("<I", number) + target(key))


def request(number, operation, arguments=b"", **how):
    name = operation.encode() + b"\0"
    body = struct.pack("<IBBBB", number, 3, 0, 0, 0) + target()
    body += struct.pack("<I", len(name)) + name
    body += b"\0" * (-len(body) % 4) + struct.pack("<I", 0)
    body += b"\0" * ((-len(body) - 12) % 8 if arguments else 0)  # alignment counts from the header on
    return message(REQUEST, body + arguments, **how)


def reply(number, result):
    body = struct.pack("<III", number, 0, 0)
    return message(REPLY, body + b"\0" * ((-len(body) - 12) % 8) + struct.pack("<q", result))


ADD = struct.pack("<q", 1)
NOISE = bytes((i * 197 + 31) % 256 for i in range(100000))

# What a client does: bytes, and whether it closes its side after them. Cases named "..., then nothing" leave the server waiting: only a
# scavenger ends them.
CLIENT = {
    "noise": (NOISE, False),
    "a wrong magic": (message(REQUEST, b"x" * 40, magic=b"GOIP"), False),
    "a wrong version": (message(REQUEST, b"x" * 40, version=(3, 9)), False),
    "an unknown type": (message(99, b"x" * 40), False),
    "a length of 4 GiB": (message(REQUEST, b"x" * 40, size=0xFFFFFFFF), False),
    "a length of 1 GiB, then nothing": (request(50, "add", ADD, size=1 << 30), False),
    "lengths inside that are too long": (message(REQUEST, struct.pack("<IIHHI", 50, 3, 0, 0, 0xFFFFFFF0) + b"x" * 40), False),
    "a request without its arguments": (request(50, "add"), True),
    "an unknown operation": (request(50, "unknown"), True),
    "a fragment of no message": (message(FRAGMENT, struct.pack("<I", 77) + b"x" * 40), True),
    "a reply that was not asked for": (reply(77, 1), False),
    "a truncated message": (request(50, "add", ADD)[:-5], True),
    "a truncated header": (b"GIO", True),
    "an error": (message(ERROR), False),
    "a farewell": (message(CLOSE), False),
    "a farewell and an end": (message(CLOSE), True),
    "a request and an end": (request(50, "add", ADD), True),
    "nothing": (b"", False),
    "half a message, then nothing": (request(50, "add", ADD)[:-5], False),
    "half a header, then nothing": (b"GIOP\1", False),
    "a first fragment, then nothing": (request(50, "add", ADD, flags=3), False),
    "a large request that ends early": (request(50, "mirror", struct.pack("<I", 1500000) + NOISE, size=1500100), True),
    "a large reply that is not read": (request(50, "blob", struct.pack("<I", 50000000)), None),
}


def receive(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def one(connection):
    header = receive(connection, 12)
    order = "<" if header[6] & 1 else ">"
    size = struct.unpack(order + "I", header[8:])[0]
    return header[7], receive(connection, size)


def client(port, case):
    sent, ends = CLIENT[case]
    connection = socket.create_connection(("127.0.0.1", port))
    connection.settimeout(40)
    for number in range(POLITE):
        connection.sendall(locate(number))
        kind, body = one(connection)
        assert (NAMES[kind], struct.unpack("<II", body[:8])) == ("LocateReply", (number, 1)), (kind, body)
    told = []
    try:
        if sent:
            connection.sendall(sent)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        if ends is None:
            while is_open_over_there(connection):
                time.sleep(0.02)
        while True:
            kind, body = one(connection)
            told.append(f"{NAMES[kind]} {struct.unpack('<I', body[4:8])[0]}" if kind == REPLY else NAMES[kind])
    except EOFError:
        told.append("end")
    except ConnectionError:
        told.append("end")  # whether this is a reset or an end of file depends on what was unread
    except socket.timeout:
        told.append("nothing for long")
    print(f"{case}: {', '.join(told)}")


def is_open_over_there(connection):
    """Whether the other end still has the connection. Its last bytes are unread before the end of file, and hide it."""
    here, there = ("0100007F:%04X" % end[1] for end in (connection.getsockname(), connection.getpeername()))
    rows = (line.split() for line in open("/proc/net/tcp"))
    return any(row[1:4] == [there, here, "01"] for row in rows)


# What a server answers: bytes, and whether it closes the connection after them.
SERVER = [
    ("noise", NOISE, False),
    ("a wrong magic", message(REPLY, b"x" * 40, magic=b"GOIP"), False),
    ("a wrong version", message(REPLY, b"x" * 40, version=(3, 9)), False),
    ("a length of 4 GiB", message(REPLY, b"x" * 40, size=0xFFFFFFFF), False),
    ("a reply to an unknown request", reply(9999, 1), True),
    ("a truncated reply", reply(0, 1)[:-3], True),
    ("half a header", b"GIOP\1", True),
    ("a request", request(2, "add", ADD), False),
    ("an error", message(ERROR), False),
    ("a farewell", message(CLOSE), True),
    ("an end", b"", True),
    ("a first fragment, then nothing", message(REPLY, struct.pack("<III", 0, 0, 0), flags=3), None),
    ("half a reply, then nothing", reply(0, 1)[:-3], None),
]


def answer(connection, count):
    while count > 0:
        kind, body = one(connection)
        if kind == CLOSE:
            return
        number = struct.unpack("<I", body[:4])[0]
        if kind == LOCATE_REQUEST:
            connection.sendall(message(LOCATE_REPLY, struct.pack("<II", number, 1)))
        else:
            count -= 1
            connection.sendall(reply(number, count))


def server(port):
    listener = socket.create_server(("127.0.0.1", port), backlog=50)
    print("ready", flush=True)
    kept = []
    for case, sent, ends in SERVER:
        connection, _ = listener.accept()
        connection.settimeout(40)
        answer(connection, POLITE)
        number = struct.unpack("<I", one(connection)[1][:4])[0]
        if sent[:4] == b"GIOP" and len(sent) >= 16 and sent[12:16] == bytes(4):
            sent = sent[:12] + struct.pack("<I", number) + sent[16:]
        try:
            connection.sendall(sent)
        except ConnectionError:
            pass  # the client has read enough
        if ends:
            connection.close()
        kept.append(connection)
    # The client still works at the end.
    connection, _ = listener.accept()
    try:
        answer(connection, 1 << 30)
    except EOFError:
        pass


if __name__ == "__main__":
    if sys.argv[2] == "all":
        print("\n".join(CLIENT))
    elif sys.argv[1] == "client":
        client(int(sys.argv[2]), sys.argv[3])
    else:
        server(int(sys.argv[2]))
