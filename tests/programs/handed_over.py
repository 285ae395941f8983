"""The holder of handed_over.c as a Python program. Usage: handed_over.py HOW READER LISTENER CONTROL PHASE FATE.

HOW: python-popen (subprocess with the connection as standard input), python-spawn and python-forkserver (multiprocessing, which passes the
connection), python-forking (socketserver.ForkingMixIn). handed_over.h defines the words of the control file; phases and fates are those of
handed_over.c.
"""
import fcntl
import mmap
import multiprocessing
import os
import select
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import termios
import time
import zlib

OPEN, LOOKED, SENT, STOP, STOPPED, HANDED, MISSED, PEER, READ_BEFORE, ENDED, STRICT = range(8, 19)
FIRST, IDLE, UNREAD_BYTES, LARGE, ALL_SENT, PEER_STOPPED, STOPPED_TILL_READ, STOPPED_IN_LARGE = range(8)
KEEPS, CLOSES, BOTH = range(3)
PRELUDE, RECORD, ANSWERED, BEFORE = 20480, 64, 1 << 18, 1 << 20


def make(length):
    """The first bytes that the peer sends, equal to byte_at() of handed_over.h."""
    mask, words = (1 << 64) - 1, []
    for i in range(1, length // 8 + 1):
        x = i * 0x9E3779B97F4A7C15 & mask
        x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9 & mask
        words.append(x ^ x >> 32)
    return struct.pack(f"<{len(words)}Q", *words)


def exact(connection, length):
    data = bytearray()
    while len(data) < length:
        more = connection.recv(length - len(data))
        assert more, "an early end of file"
        data += more
    return bytes(data)


def serve(connection, path, slot, bulk):
    """Reads, counts and answers like serve() of handed_over.h."""
    control = os.open(path, os.O_RDWR)
    done = crc = total = 0
    connection.sendall(b"h" * RECORD * 16)
    while data := connection.recv(1 << 16):
        done, crc, total = done + len(data), zlib.crc32(data, crc), total + sum(data)
        os.pwrite(control, struct.pack("=4Q", done, crc, total, 0), 32 * slot)
    os.pwrite(control, struct.pack("=4Q", done, crc, total, 1), 32 * slot)
    if bulk:
        connection.sendall(make(bulk))
    connection.sendall(f"a {done} {crc} {total}".encode().ljust(RECORD))


class Cell:
    def __init__(self, how, reader, listener, path, phase, fate):
        self.how, self.reader, self.path, self.phase, self.fate = how.removeprefix("python-"), reader, path, int(phase), int(fate)
        self.listener = socket.socket(fileno=int(listener))
        with open(path, "r+b") as file:
            self.words = mmap.mmap(file.fileno(), 0)
        self.bulk = 0 if self.fate == BOTH else ANSWERED

    def word(self, at):
        return struct.unpack_from("=Q", self.words, 8 * at)[0]

    def say(self, at, value=1):
        struct.pack_into("=Q", self.words, 8 * at, value)

    def wait(self, at):
        while not self.word(at):
            time.sleep(0.0002)

    def look(self, connection):
        for _ in range(3):
            select.select([connection], [], [], 0)

    def waiting(self, connection):
        """Bytes that a receive would find."""
        return struct.unpack("i", fcntl.ioctl(connection, termios.FIONREAD, b"\0" * 4))[0]

    def outside_of_tcp(self, connection):
        """Bytes that a receive would find outside the kernel's socket."""
        everything = self.waiting(connection)
        ports = [f"{end[1]:04X}" for end in (connection.getsockname(), connection.getpeername())]
        with open("/proc/net/tcp") as table:
            for line in table:
                words = line.split()
                if [word[-4:] for word in words[1:3]] == ports:
                    return everything - int(words[4].split(":")[1], 16)
        return 0

    def demand(self, found):
        if "HANDED_OVER_OUTSIDE" in os.environ and found <= 0:
            self.say(MISSED)
            signal.pause()

    def prepare(self, connection):
        if self.phase != FIRST:
            for i in range(64):
                assert exact(connection, RECORD) == bytes([i]) * RECORD
                connection.sendall(bytes([i]) * RECORD)
            connection.sendall(make(PRELUDE))
        self.look(connection)
        self.say(OPEN)
        if self.phase != FIRST:
            while self.waiting(connection) < RECORD:
                time.sleep(0.0001)
            found = self.outside_of_tcp(connection)
            self.demand(found)
            exact(connection, RECORD)
            self.look(connection)
            self.say(LOOKED)
        self.wait(SENT)
        if self.phase in (LARGE, ALL_SENT, STOPPED_IN_LARGE):
            exact(connection, BEFORE)
            self.say(READ_BEFORE, BEFORE)
            self.look(connection)
            time.sleep(0.003)
        for _ in range(300):
            if self.phase == ALL_SENT and not self.word(ENDED):
                time.sleep(0.001)
        if self.phase == STOPPED_IN_LARGE:
            self.say(STOP)
        if self.phase >= PEER_STOPPED:
            self.wait(STOPPED)
        large = self.phase in (LARGE, STOPPED_IN_LARGE) and self.word(STRICT)
        if large or self.phase in (UNREAD_BYTES, PEER_STOPPED, STOPPED_TILL_READ):
            self.demand(self.outside_of_tcp(connection))

    def hand_on(self, connection):
        """Hands the connection over. Returns a function that waits for the end of the reader."""
        if self.how == "popen":
            command = [self.reader, "0", "0", self.path, "1", str(self.bulk)]
            return subprocess.Popen(command, stdin=connection).wait
        context = multiprocessing.get_context(self.how)
        process = context.Process(target=serve, args=(connection, self.path, 1, self.bulk))
        process.start()

        def ended():
            process.join()
            return process.exitcode

        return ended

    def run(self):
        if self.how == "forkserver":  # it starts before the connection exists
            multiprocessing.get_context("forkserver").Process(target=int).start()
        connection, _ = self.listener.accept()
        self.listener.close()
        self.prepare(connection)
        self.say(HANDED)
        ended = self.hand_on(connection)
        if self.fate == CLOSES:
            connection.close()
        if self.fate == BOTH:
            serve(connection, self.path, 0, 0)
        assert ended() == 0
        connection.close()

    def run_forking(self):
        """The forked child owns the connection from its first byte on. It prepares the cell like other holders, then serves."""
        cell = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                cell.prepare(self.request)
                cell.say(HANDED)
                serve(self.request, cell.path, 1, cell.bulk)

        class Server(socketserver.ForkingMixIn, socketserver.TCPServer):
            block_on_close = True

            def handle_error(self, request, client_address):
                raise

        server = Server(self.listener.getsockname(), Handler, bind_and_activate=False)
        server.socket.close()
        server.socket = self.listener
        server.handle_request()
        server.server_close()


if __name__ == "__main__":
    cell = Cell(*sys.argv[1:])
    cell.run_forking() if cell.how == "forking" else cell.run()
