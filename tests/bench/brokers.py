"""Measures a message that goes through a broker and back to its sender: NATS by its text protocol, RabbitMQ by pika.

    brokers.py nats|amqp PORT   for each line "SIZE MS" of its input prints "MEDIAN MEAN COUNT": ns from publishing to receiving
"""
import os
import socket
import statistics
import sys
import time


class Nats:
    """Two connections, so that the broker passes each message from one to the other."""

    def __init__(self, port):
        self.out, self.into = (self.connect(port) for _ in range(2))
        self.lines = self.into.makefile("rb")
        self.lines.readline()  # INFO
        self.subject = b"to.%d" % os.getpid()  # other callers use the same broker
        self.into.sendall(b"CONNECT {\"verbose\":false}\r\nSUB %s 1\r\nPING\r\n" % self.subject)
        while self.lines.readline() != b"PONG\r\n":
            pass
        self.out.sendall(b"CONNECT {\"verbose\":false}\r\n")

    @staticmethod
    def connect(port):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def pass_on(self, data):
        self.out.sendall(b"PUB %s %d\r\n%s\r\n" % (self.subject, len(data), data))
        while not (head := self.lines.readline()).startswith(b"MSG"):
            if head == b"PING\r\n":
                self.into.sendall(b"PONG\r\n")
            elif not head:
                raise EOFError
        self.lines.read(len(data) + 2)


class Amqp:
    """One connection with a queue of its own."""

    def __init__(self, port):
        import pika

        self.connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
        self.channel = self.connection.channel()
        self.queue = self.channel.queue_declare("", exclusive=True).method.queue
        self.arrived = 0
        self.channel.basic_consume(self.queue, self.take, auto_ack=True)

    def take(self, *_):
        self.arrived += 1

    def pass_on(self, data):
        before = self.arrived
        self.channel.basic_publish("", self.queue, data)
        while self.arrived == before:
            self.connection.process_data_events(time_limit=10)


def measure(broker):
    for line in sys.stdin:
        size, ms = line.split()
        data, times = bytes(int(size)), []
        warm, before = time.perf_counter_ns() + float(ms) * 2e5, 0
        while before < warm:
            broker.pass_on(data)
            before = time.perf_counter_ns()
        begun = before
        while before - begun < float(ms) * 1e6:
            broker.pass_on(data)
            now = time.perf_counter_ns()
            times.append(now - before)
            before = now
        print(statistics.median(times), (before - begun) / len(times), len(times), flush=True)


measure({"nats": Nats, "amqp": Amqp}[sys.argv[1]](int(sys.argv[2])))
