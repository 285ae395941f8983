"""Locks as POSIX and Linux have them. Prints what happens, for a folder of any file system; each step waits for a condition, never for a time."""

import errno, fcntl, os, select, signal, struct, sys

FLOCK = "hhqqi4x"


def call(what, *arguments):
    """The result of a call: its error, or what it returns."""
    try:
        return what(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]


def lock(fd, kind, start=0, length=0, command=fcntl.F_SETLK):
    asked = struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0)
    found = call(fcntl.fcntl, fd, command, asked)
    return found if isinstance(found, str) else "done"


def holder(fd, kind, start=0, length=0):
    found = struct.unpack(FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack(FLOCK, kind, os.SEEK_SET, start, length, 0)))
    return "free" if found[0] == fcntl.F_UNLCK else (found[0], found[2], found[3], found[4])


def child(work):
    """What a forked process returns from work, as text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def others(start=0, length=0):
    """What another process gets that asks for an exclusive lock."""
    def work():
        fd = os.open("file", os.O_RDWR)
        return lock(fd, fcntl.F_WRLCK, start, length)
    return child(work)


class Interrupted(Exception):
    """A call was interrupted by a signal."""


class Helper:
    """A forked process that makes one call after the other as it is asked, and answers."""

    calls = False

    def __init__(self):
        self.asks, asked = os.pipe()
        answers, self.answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGUSR1, self.interrupt)
            fds = {}
            while True:
                text = os.read(self.asks, 4096).decode()
                try:
                    Helper.calls = True
                    answer = str(eval(text))
                except Interrupted:
                    answer = "interrupted"
                Helper.calls = False
                os.write(self.answers, answer.encode())
        self.asks, self.answers = asked, answers

    @staticmethod
    def interrupt(*_):
        if Helper.calls:
            Helper.calls = False
            raise Interrupted

    def begin(self, text):
        os.write(self.asks, text.encode())

    def answer(self):
        return os.read(self.answers, 4096).decode()

    def has_answered(self, seconds):
        return bool(select.select([self.answers], [], [], seconds)[0])

    def do(self, text):
        self.begin(text)
        return self.answer()

    def end(self):
        # Other helpers have copies of the pipes, so their ends say nothing.
        self.begin("os._exit(0)")
        os.waitpid(self.pid, 0)
        os.close(self.asks)
        os.close(self.answers)


def of_processes():
    one, two = os.open("file", os.O_RDWR), os.open("file", os.O_RDWR)
    print("two opens", lock(one, fcntl.F_WRLCK, 0, 10), lock(two, fcntl.F_WRLCK, 5, 10), others(14, 1))
    print("merged", child(lambda: holder(one, fcntl.F_WRLCK)[:3]), holder(one, fcntl.F_WRLCK))
    own = os.getpid()
    print("the holder", child(lambda: holder(os.open("file", os.O_RDWR), fcntl.F_RDLCK)[3] == own))
    print("a child", child(lambda: (lock(one, fcntl.F_UNLCK), lock(one, fcntl.F_WRLCK), os.close(one))), others(0, 1))
    print("a part", lock(two, fcntl.F_UNLCK, 3, 4), others(3, 4), others(2, 1), others(7, 1))
    print("a kind", lock(two, fcntl.F_RDLCK, 0, 3), child(lambda: holder(one, fcntl.F_WRLCK)[:3]), others(1, 1))
    third = os.open("file", os.O_RDONLY)
    os.close(third)
    print("closed", others())
    lock(one, fcntl.F_WRLCK)
    copy = os.dup(one)
    os.close(copy)
    print("a copy closed", others())
    reader, writer = os.open("file", os.O_RDONLY), os.open("file", os.O_WRONLY)
    print("by access", lock(reader, fcntl.F_RDLCK, 0, 5), lock(writer, fcntl.F_WRLCK, 5, 5), others(0, 5), others(9, 1))
    print("without access", lock(reader, fcntl.F_WRLCK), lock(writer, fcntl.F_RDLCK))
    print("wrong", lock(one, 77), lock(one, fcntl.F_WRLCK, -1), lock(one, fcntl.F_WRLCK, 5, -5), others(0, 5))
    for fd in (one, two, reader, writer):
        os.close(fd)


def of_open_files():
    set_lock = getattr(fcntl, "F_OFD_SETLK", 37)
    one, two = os.open("file", os.O_RDWR), os.open("file", os.O_RDWR)
    print("open files", lock(one, fcntl.F_WRLCK, 0, 9, set_lock), lock(two, fcntl.F_WRLCK, 5, 9, set_lock), others(0, 1))
    copy = os.dup(one)
    print("a child shares", child(lambda: lock(one, fcntl.F_WRLCK, 0, 20, set_lock)), others(19, 1))
    os.close(one)
    print("a copy is left", others(19, 1), lock(two, fcntl.F_WRLCK, 5, 9, set_lock))
    for round in range(50):
        os.close(copy)
        free = lock(two, fcntl.F_WRLCK, 0, 0, set_lock)
        if free != "done":
            print("not free after close", round, free)
        lock(two, fcntl.F_UNLCK, 0, 0, set_lock)
        copy = os.open("file", os.O_RDWR)
        lock(copy, fcntl.F_WRLCK, 0, 0, set_lock)
    os.close(copy)
    print("by others after close", others())
    os.close(two)


def of_flock():
    one, two = os.open("file", os.O_RDONLY), os.open("file", os.O_RDWR)
    flock = lambda fd, kind: call(fcntl.flock, fd, kind) or "done"
    print("flock", flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB), flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB))
    print("shared", flock(one, fcntl.LOCK_SH), flock(two, fcntl.LOCK_SH | fcntl.LOCK_NB))
    # Both want it alone: one gets it, since who converts a lock gives up what it had.
    for fd in (one, two):
        flock(fd, fcntl.LOCK_UN)
        os.close(fd)
    helpers = [Helper(), Helper()]
    for helper in helpers:
        print("a shared one", helper.do("fds.update(a=os.open('file', os.O_RDWR)) or call(fcntl.flock, fds['a'], fcntl.LOCK_SH)"))
    for helper in helpers:
        helper.begin("call(fcntl.flock, fds['a'], fcntl.LOCK_EX)")
    print("converted", *(helper.answer() + helper.do("call(fcntl.flock, fds['a'], fcntl.LOCK_UN)") for helper in in_turn(helpers)))
    for helper in helpers:
        helper.end()


def in_turn(helpers):
    """Helpers in the order in which they answer."""
    helpers = list(helpers)
    while helpers:
        ready = select.select([helper.answers for helper in helpers], [], [])[0]
        answered = next(helper for helper in helpers if helper.answers in ready)
        helpers.remove(answered)
        yield answered


def circle(count):
    """Processes each of which waits for the next one. Exactly one is refused; when it releases its own the others go on."""
    helpers = [Helper() for _ in range(count)]
    for number, helper in enumerate(helpers):
        helper.do("fds.update(a=os.open('file', os.O_RDWR))")
        helper.do(f"lock(fds['a'], fcntl.F_WRLCK, {number}, 1)")
    for number, helper in enumerate(helpers):
        helper.begin(f"lock(fds['a'], fcntl.F_WRLCK, {(number + 1) % count}, 1, fcntl.F_SETLKW)")
    answers = []
    for helper in in_turn(helpers):
        answers.append(helper.answer())
        helper.do("lock(fds['a'], fcntl.F_UNLCK)")
    print("a circle of", count, *answers)
    for helper in helpers:
        helper.end()


def of_waiters():
    for count in (2, 3, 5):
        circle(count)
    fd = os.open("file", os.O_RDWR)
    lock(fd, fcntl.F_WRLCK)
    one, two = Helper(), Helper()
    wait = "lock(fds['a'], fcntl.F_WRLCK, 1, 1, fcntl.F_SETLKW)"
    for helper in (one, two):
        helper.do("fds.update(a=os.open('file', os.O_RDWR))")
    one.begin(wait)
    while not one.has_answered(0.05):
        os.kill(one.pid, signal.SIGUSR1)
    print("a signal", one.answer())
    print("and no more than that", one.do("lock(fds['a'], fcntl.F_WRLCK, 1, 1)"))
    two.begin(wait)
    print("waits", not two.has_answered(0.2))
    os.kill(two.pid, signal.SIGKILL)
    os.waitpid(two.pid, 0)
    print("killed", lock(fd, fcntl.F_UNLCK), one.do(wait))
    os.close(two.asks)
    os.close(two.answers)
    # A lock that is given from hand to hand.
    taken = [child_that_counts() for _ in range(4)]
    one.do("lock(fds['a'], fcntl.F_UNLCK)")
    for pid in taken:
        os.waitpid(pid, 0)
    with open("count") as count:
        print("counted", count.read())
    one.end()


def child_that_counts(folder="."):
    pid = os.fork()
    if pid == 0:
        fd = os.open(f"{folder}/file", os.O_RDWR)
        for _ in range(25):
            lock(fd, fcntl.F_WRLCK, 1, 1, fcntl.F_SETLKW)
            count = os.open(f"{folder}/count", os.O_RDWR)
            number = int(os.pread(count, 20, 0))
            os.pwrite(count, str(number + 1).encode(), 0)
            os.close(count)
            lock(fd, fcntl.F_UNLCK, 1, 1)
        os._exit(0)
    return pid


def between(other):
    """The same file by another way. A process of this host is known to each."""
    here, there = os.open("file", os.O_RDWR), Helper()
    there.do(f"fds.update(a=os.open('{other}/file', os.O_RDWR))")
    lock(here, fcntl.F_WRLCK, 0, 10)
    print("there", there.do("lock(fds['a'], fcntl.F_WRLCK, 5, 1)"))
    there.do("lock(fds['a'], fcntl.F_WRLCK, 50, 10)")
    print("here", lock(here, fcntl.F_RDLCK, 55, 1))
    print("the holder", holder(here, fcntl.F_RDLCK, 55, 1)[3] == there.pid)
    there.begin("lock(fds['a'], fcntl.F_WRLCK, 0, 1, fcntl.F_SETLKW)")
    print("waits", not there.has_answered(0.2))
    print("released", lock(here, fcntl.F_UNLCK), there.answer())
    there.end()
    counting = [child_that_counts(folder) for folder in (".", other, ".", other)]
    for pid in counting:
        os.waitpid(pid, 0)
    with open("count") as count:
        print("counted", count.read())


os.chdir(sys.argv[1])
with open("file", "w") as made:
    made.write("x" * 100)
with open("count", "w") as made:
    made.write("0")
sys.stdout.reconfigure(line_buffering=True)
if sys.argv[2:3] == ["between"]:
    between(sys.argv[3])
else:
    for part in (of_processes, of_open_files, of_flock, of_waiters):
        part()
