# A server process and its client (see the program's file). Argument: asyncio or uvloop.
import asyncio, hashlib, multiprocessing, random, sys
import aiohttp, uvloop
from aiohttp import web

def digest(data): return hashlib.sha256(data).hexdigest()[:16]

async def upload(request):
    seen = hashlib.sha256()
    async for part in request.content.iter_any(): seen.update(part)
    return web.Response(text=seen.hexdigest()[:16])

async def chunks(request):
    answer = web.StreamResponse(); await answer.prepare(request)
    source = random.Random(int(request.query["seed"]))
    for _ in range(40): await answer.write(source.randbytes(source.randrange(1, 200000)))
    await answer.write_eof(); return answer

async def socket(request):
    ws = web.WebSocketResponse(max_msg_size=0); await ws.prepare(request)
    async for message in ws:
        if message.type == aiohttp.WSMsgType.BINARY: await ws.send_bytes(message.data[::-1])
    return ws

def serve(pipe):
    async def main():
        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.post("/", upload), web.get("/", chunks), web.get("/ws", socket)])
        runner = web.AppRunner(app); await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0); await site.start()
        pipe.send(site._server.sockets[0].getsockname()[1])
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await runner.cleanup()
    asyncio.run(main())

async def client(port):
    url = f"http://127.0.0.1:{port}/"
    async with aiohttp.ClientSession() as session:
        async def up(seed):
            data = random.Random(seed).randbytes(seed * 1000)
            async with session.post(url, data=data) as answer: return await answer.text() == digest(data)
        async def down(seed):
            async with session.get(url, params={"seed": seed}) as answer: return digest(await answer.read())
        async def talk(seed):
            source = random.Random(seed)
            async with session.ws_connect(url + "ws", max_msg_size=0) as ws:
                for _ in range(300):
                    data = source.randbytes(source.choice([1, 10, 125, 126, 4000, 70000]))
                    await ws.send_bytes(data)
                    assert (await ws.receive_bytes()) == data[::-1]
            return True
        print(await asyncio.gather(*map(up, range(1, 2000, 97))))
        print(*await asyncio.gather(*map(down, range(12))))
        print(await asyncio.gather(*map(talk, range(6))))

if __name__ == "__main__":
    if sys.argv[1] == "uvloop": asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=serve, args=(there,)); server.start()
    asyncio.run(client(here.recv()))
    here.send(None); server.join(); print(server.exitcode)
