# A forked server process and its clients (see the program's file).
from gevent import monkey; monkey.patch_all()
import gevent, hashlib, os, random, signal, sys
from gevent.server import StreamServer
from gevent.pywsgi import WSGIServer
import requests, socket

def echo(conn, _):
    while data := conn.recv(65536): conn.sendall(data)

def app(environ, start):
    body = environ["wsgi.input"].read()
    start("200 OK", [("Content-Type", "text/plain")])
    return [hashlib.sha256(body).hexdigest().encode()]

read, write = os.pipe()
child = os.fork()
if child == 0:
    stream = StreamServer(("127.0.0.1", 0), echo); stream.start()
    web = WSGIServer(("127.0.0.1", 0), app, log=None); web.start()
    os.write(write, f"{stream.server_port} {web.server_port}".encode())
    gevent.signal_handler(signal.SIGTERM, sys.exit, 0)
    gevent.wait()
ports = [int(word) for word in os.read(read, 100).split()]

def client(seed):
    source = random.Random(seed); data = source.randbytes(3_000_000); got = hashlib.sha256(); left = len(data)
    conn = socket.create_connection(("127.0.0.1", ports[0]))
    sender = gevent.spawn(conn.sendall, data)
    while left:
        part = conn.recv(source.randrange(1, 100000)); left -= len(part); got.update(part)
        if source.random() < 0.05: gevent.sleep(0.001)
    sender.join(); conn.close()
    return got.digest() == hashlib.sha256(data).digest()

def post(seed):
    with requests.Session() as session:
        for i in range(30):
            data = random.Random(seed * 100 + i).randbytes(seed * 777 * i)
            if session.post(f"http://127.0.0.1:{ports[1]}/", data=data).text != hashlib.sha256(data).hexdigest(): return False
    return True

for what in (client, post):
    jobs = [gevent.spawn(what, seed) for seed in range(16)]; gevent.joinall(jobs)
    print([job.value for job in jobs])
os.kill(child, signal.SIGTERM); print(os.waitpid(child, 0)[1])
