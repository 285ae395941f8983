"""asyncio echo: one server process, one client process with many connections; prints a hash."""
import asyncio
import hashlib
import os
import random
import socket

CLIENTS, ROUNDS = 16, 60


async def serve(listener):
    finished = asyncio.Event()
    left = CLIENTS

    async def one(reader, writer):
        nonlocal left
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        left -= 1
        if left == 0:
            finished.set()

    server = await asyncio.start_server(one, sock=listener)
    async with server:
        await finished.wait()


async def call(port, number):
    rng = random.Random(number)
    digest = hashlib.sha256()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for i in range(ROUNDS):
        out = rng.randbytes(rng.randrange(1, 300 if i % 7 else 50000))
        writer.write(out)
        back = await reader.readexactly(len(out))
        assert back == out
        digest.update(back)
    writer.close()
    await writer.wait_closed()
    return digest.hexdigest()


listener = socket.create_server(("127.0.0.1", 0))
child = os.fork()
if child == 0:
    asyncio.run(serve(listener))
    os._exit(0)
port = listener.getsockname()[1]
listener.close()


async def main():
    return await asyncio.gather(*(call(port, n) for n in range(CLIENTS)))


digests = asyncio.run(main())
_, status = os.waitpid(child, 0)
print(hashlib.sha256("".join(digests).encode()).hexdigest(), status)
