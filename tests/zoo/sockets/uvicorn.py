# The server's application, and its client with the port as argument (see the program's file).
import asyncio, hashlib, random, sys
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

app = FastAPI()

@app.post("/digest")
async def digest(request: Request):
    seen = hashlib.sha256()
    async for part in request.stream(): seen.update(part)
    return {"sum": seen.hexdigest()[:16]}

@app.get("/bytes/{seed}")
async def some(seed: int):
    source = random.Random(seed)
    async def parts():
        for _ in range(50): yield source.randbytes(source.randrange(1, 50000))
    return StreamingResponse(parts())

async def client(port):
    import httpx
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        async def up(n):
            data = random.Random(n).randbytes(n * 3001)
            return (await http.post("/digest", content=data)).json()["sum"] == hashlib.sha256(data).hexdigest()[:16]
        async def down(n):
            answer = await http.get(f"/bytes/{n}")
            return hashlib.sha256(answer.content).hexdigest()[:8]
        for begin in range(0, 200, 20): print(await asyncio.gather(*map(up, range(begin, begin + 20))))
        print(await asyncio.gather(*map(down, range(20))))

if __name__ == "__main__": asyncio.run(client(int(sys.argv[1])))
