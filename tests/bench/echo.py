"""Measures echo in Python: over blocking sockets, and over streams of asyncio.

    echo.py serve blocking|asyncio         prints "port N" and serves until it is ended
    echo.py call blocking|asyncio PORT     for each line "SIZE MS" of its input prints "MEDIAN MEAN COUNT" as tests/bench/peer.h
                                           says: ns for one round trip; each block of messages begins with their size and number
"""
import asyncio
import socket
import statistics
import struct
import sys
import threading
import time

PLAN = struct.Struct("QQ")


def whole(connection, size):
    data = connection.recv(size)
    while 0 < len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            break
        data += more
    return data


def serve_one(connection):
    with connection:
        while plan := whole(connection, PLAN.size):
            size, count = PLAN.unpack(plan)
            for _ in range(count):
                connection.sendall(whole(connection, size))


def serve_blocking():
    listener = socket.create_server(("127.0.0.1", 0))
    print("port", listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=serve_one, args=(connection,), daemon=True).start()


async def serve_asyncio():
    async def one(reader, writer):
        try:
            while True:
                size, count = PLAN.unpack(await reader.readexactly(PLAN.size))
                for _ in range(count):
                    writer.write(await reader.readexactly(size))
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(one, "127.0.0.1", 0)
    print("port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def measure(block, size, ms):
    """`block(size, count)` makes `count` round trips. It never awaits if its sockets block."""
    count, start = 8, time.perf_counter_ns()
    while True:
        last = time.perf_counter_ns()
        await block(size, count)
        now = time.perf_counter_ns()
        if now - start >= ms * 2e5:
            break
    count = max(1, int(3e6 * count / (now - last)))  # 3 ms: the loop around it is Python too
    blocks = []
    begun = before = time.perf_counter_ns()
    while before - begun < ms * 1e6:
        await block(size, count)
        now = time.perf_counter_ns()
        blocks.append((now - before) / count)
        before = now
    print(statistics.median(blocks), (before - begun) / len(blocks) / count, len(blocks) * count, flush=True)


async def call(kind, port):
    if kind == "blocking":
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        async def block(size, count):
            data = bytes(size)
            connection.sendall(PLAN.pack(size, count))
            for _ in range(count):
                connection.sendall(data)
                whole(connection, size)
    else:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)

        async def block(size, count):
            data = bytes(size)
            writer.write(PLAN.pack(size, count))
            for _ in range(count):
                writer.write(data)
                await reader.readexactly(size)

    for line in sys.stdin:
        size, ms = line.split()
        await measure(block, int(size), float(ms))


if sys.argv[1:] == ["serve", "blocking"]:
    serve_blocking()
elif sys.argv[1:] == ["serve", "asyncio"]:
    asyncio.run(serve_asyncio())
else:
    asyncio.run(call(sys.argv[2], int(sys.argv[3])))
