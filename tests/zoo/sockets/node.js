// A forked server process and its clients (see the program's file).
const { fork } = require("child_process"), crypto = require("crypto"), http = require("http"), http2 = require("http2"), net = require("net");
const { WebSocket, WebSocketServer } = require("ws");
const digest = data => crypto.createHash("sha256").update(data).digest("hex").slice(0, 16);
const bytes = (seed, n) => { const key = crypto.createHash("sha256").update(String(seed)).digest();
  return crypto.createCipheriv("aes-256-ctr", key, Buffer.alloc(16)).update(Buffer.alloc(n)); };
const answer = (request, response) => { const hash = crypto.createHash("sha256"); let n = 0;
  request.on("data", part => { hash.update(part); n += part.length; });
  request.on("end", () => request.method === "GET" ? response.end(bytes(request.url, 1e6)) : response.end(hash.digest("hex").slice(0, 16) + " " + n)); };

if (process.argv[2] === "serve") {
  const listen = server => new Promise(done => server.listen(0, "127.0.0.1", () => done(server.address().port)));
  (async () => {
    const web = http.createServer(answer);
    new WebSocketServer({ server: web, maxPayload: 1 << 26 }).on("connection", ws => ws.on("message", (data, binary) => ws.send(data, { binary })));
    const ports = [await listen(web), await listen(http2.createServer(answer)), await listen(net.createServer(socket => socket.pipe(socket)))];
    process.send(ports);
    process.on("message", () => process.exit(0));
  })();
} else {
  const child = fork(__filename, ["serve"]);
  child.once("message", async ([web, two, raw]) => {
    const { Pool } = require("undici");
    const pool = new Pool(`http://127.0.0.1:${web}`, { connections: 4, pipelining: 8 });
    const posts = await Promise.all([...Array(200).keys()].map(async n => {
      const body = bytes(n, n * 1111), { body: got } = await pool.request({ path: "/", method: "POST", body });
      return (await got.text()) === `${digest(body)} ${body.length}`; }));
    console.log("undici posts", posts.filter(Boolean).length);
    const gets = await Promise.all([...Array(40).keys()].map(async n => {
      const { body } = await pool.request({ path: `/${n}`, method: "GET" }); return digest(Buffer.from(await body.arrayBuffer())) === digest(bytes(`/${n}`, 1e6)); }));
    console.log("undici gets", gets.filter(Boolean).length);
    await pool.close();
    const fetched = await Promise.all([...Array(50).keys()].map(async n => (await fetch(`http://127.0.0.1:${web}/`, { method: "POST", body: bytes(n, 10 * n) })).text()));
    console.log("fetch", digest(fetched.join()));
    await new Promise((done, fail) => { const ws = new WebSocket(`ws://127.0.0.1:${web}`, { maxPayload: 1 << 26 }); let next = 0;
      const send = () => next === 400 ? ws.close() : ws.send(bytes(next, next % 50 === 49 ? 3e6 : next * 3));
      ws.on("open", send).on("error", fail).on("close", () => { console.log("ws", next); done(); })
        .on("message", data => { if (digest(data) !== digest(bytes(next, data.length))) fail(new Error(`message ${next}`)); next++; send(); }); });
    const session = http2.connect(`http://127.0.0.1:${two}`);
    const streams = await Promise.all([...Array(60).keys()].map(n => new Promise(done => {
      const body = bytes(n, n * 5000), stream = session.request({ ":method": "POST", ":path": "/" }); let got = "";
      stream.on("data", part => got += part).on("end", () => done(got === `${digest(body)} ${body.length}`)).end(body); })));
    console.log("http2", streams.filter(Boolean).length);
    session.close();
    const piped = await Promise.all([...Array(8).keys()].map(n => new Promise(done => {
      const data = bytes(n, 5e6), hash = crypto.createHash("sha256"), socket = net.connect(raw, "127.0.0.1");
      socket.on("data", part => { hash.update(part); if (Math.random() < 0.02) { socket.pause(); setTimeout(() => socket.resume(), 1); } })
        .on("end", () => done(hash.digest("hex").slice(0, 16) === digest(data))).end(data); })));
    console.log("net", piped.filter(Boolean).length);
    child.send("end");
    child.on("exit", code => console.log("server", code));
  });
}
