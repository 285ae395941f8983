"""gRPC between two Python processes, without generated code: messages are bytes.

    grpc_echo.py serve [HOST]         prints "port N"; ends at the call that requests it
    grpc_echo.py call PORT ROUNDS     single calls, streams both ways, an error; prints a hash of all answers and ends the server
    grpc_echo.py measure PORT [HOST]  for each line "SIZE MS" of its input prints "MEDIAN MEAN COUNT": ns for a single call
"""
import hashlib
import random
import statistics
import sys
import threading
import time
from concurrent import futures

import grpc

ENDED = threading.Event()


def back(request, context):
    return request[::-1]


def refuse(request, context):
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.decode())


def each(requests, context):
    for request in requests:
        yield request[::-1]


def end(request, context):
    ENDED.set()
    return b""


def serve(host):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    handlers = {
        "Back": grpc.unary_unary_rpc_method_handler(back),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
        "Each": grpc.stream_stream_rpc_method_handler(each),
        "End": grpc.unary_unary_rpc_method_handler(end),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("motet.Echo", handlers),))
    port = server.add_insecure_port(f"{host}:0")
    server.start()
    print("port", port, flush=True)
    ENDED.wait()
    server.stop(5).wait()


def messages(count, seed):
    rng = random.Random(seed)
    return [rng.randbytes(rng.randrange(0, 300 if i % 20 else 300000)) for i in range(count)]


def call(channel, rounds):
    digest = hashlib.sha256()
    single = channel.unary_unary("/motet.Echo/Back")
    for message in messages(rounds, 1):
        answer = single(message, timeout=30)
        assert answer == message[::-1]
        digest.update(answer)
    at_once = messages(rounds, 2)
    for message, answer in zip(at_once, [single.future(message, timeout=30) for message in at_once]):
        assert answer.result() == message[::-1]
    sent = messages(rounds, 3)
    for message, answer in zip(sent, channel.stream_stream("/motet.Echo/Each")(iter(sent), timeout=30), strict=True):
        assert answer == message[::-1]
        digest.update(answer)
    try:
        channel.unary_unary("/motet.Echo/Refuse")(b"on purpose", timeout=30)
    except grpc.RpcError as error:
        digest.update(f"{error.code()} {error.details()}".encode())
    channel.unary_unary("/motet.Echo/End")(b"", timeout=30)
    print(digest.hexdigest())


def measure(channel):
    single = channel.unary_unary("/motet.Echo/Back")
    for line in sys.stdin:
        size, ms = line.split()
        data, times = bytes(int(size)), []
        warm, before = time.perf_counter_ns() + float(ms) * 2e5, 0
        while before < warm:
            single(data)
            before = time.perf_counter_ns()
        begun = before
        while before - begun < float(ms) * 1e6:
            single(data)
            now = time.perf_counter_ns()
            times.append(now - before)
            before = now
        print(statistics.median(times), (before - begun) / len(times), len(times), flush=True)


if sys.argv[1] == "serve":
    serve((sys.argv[2:] or ["127.0.0.1"])[0])
else:
    HOST = sys.argv[3] if sys.argv[1] == "measure" and len(sys.argv) > 3 else "127.0.0.1"
    with grpc.insecure_channel(f"{HOST}:{sys.argv[2]}") as connected:
        if sys.argv[1] == "call":
            call(connected, int(sys.argv[3]))
        else:
            measure(connected)
