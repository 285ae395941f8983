"""An omniORBpy program for orb_types.idl, whose stubs are in the same folder: every operation, with results compared to what was sent.

  orb_types.py serve            prints `object IOR:...`, serves until end() is called, prints `ended`
  orb_types.py call URI         `NAME ok` or `NAME WRONG what` for each operation, then `all ok`; status 1 if anything is wrong
  orb_types.py end URI          ends the server
  orb_types.py time URI COUNT   median time of COUNT calls of remembered(), in ns

The variants in other languages have the same commands, so any of them can call any other."""

import math
import os
import struct
import sys
import time

import omniORB
from omniORB import CORBA

# omniORBpy 4.3.0 receives a wchar as if it were a char. In GIOP 1.2 it is a length and as many bytes: two, for all that is sent here.
omniORB.tcInternal.tv_wchar = (omniORB.tcInternal.tv_array, omniORB.tcInternal.tv_octet, 3)
import orb_types_idl  # noqa: E402,F401  (fills the two modules below)
import motet_types as types
import motet_types__POA

# The ORB name of the Java server.
JACORB = "JacORB"

# A reply contains three of them, and the ORBs accept messages below 2 MiB.
LARGEST = 650_000


class Echo(motet_types__POA.Echo):
    """Returns its arguments. An object of the caller also counts the server's calls of it."""

    def __init__(self, orb):
        self.orb, self.kept_level, self.kept, self.calls, self.total = orb, 0.0, 0, 0, 0

    def _get_orb(self):
        return "omniORBpy " + omniORB.coreVersion()

    def _get_level(self):
        return self.kept_level

    def _set_level(self, value):
        self.kept_level = value

    def echo_everything(self, v, i):
        return v, v, i

    echo_octets = echo_doubles = echo_particles = echo_everything

    def echo_longs(self, v, i):
        self.calls += 1
        self.total += sum(v)
        return v, v, i

    def echo_few(self, v):
        return v

    echo_names = echo_rows = echo_choice = echo_sign = echo_nodes = echo_reference = echo_object = echo_few

    def echo_any(self, v):
        return v, v.typecode().kind()._v

    def refuse(self, why, code):
        raise types.Refused(why, code)

    def bad_parameter(self):
        raise CORBA.BAD_PARAM(77, CORBA.COMPLETED_NO)

    def remember(self, v):
        self.kept = v

    def remembered(self):
        return self.kept

    def call_back(self, who, times):
        return sum(sum(who.echo_longs([number], [])[0]) for number in range(times))

    def end(self):
        self.orb.shutdown(False)


# ---- equality ---------------------------------------------------------------------------------------------------------

def same(a, b):
    """Whether two values of IDL types are equal, to the bit; for nodes of a value type also which lists share them."""
    return alike(a, b, {})


def alike(a, b, met):
    if isinstance(a, CORBA.Any):
        return isinstance(b, CORBA.Any) and a.typecode().equal(b.typecode()) and alike(a.value(), b.value(), met)
    if isinstance(a, CORBA.TypeCode):
        return isinstance(b, CORBA.TypeCode) and bool(a.equal(b))
    if isinstance(a, CORBA.Object):
        return isinstance(b, CORBA.Object) and bool(a._is_equivalent(b))
    if isinstance(a, CORBA.ValueBase):
        if id(a) in met:
            return met[id(a)] is b
        met[id(a)] = b
        return isinstance(b, types.Node) and a.value == b.value and alike(a.next, b.next, met)
    if isinstance(a, omniORB.Union):
        return isinstance(b, type(a)) and alike(a._d, b._d, met) and alike(a._v, b._v, met)
    if isinstance(a, omniORB.StructBase):
        return type(a) is type(b) and alike(list(vars(a).items()), list(vars(b).items()), met)
    if isinstance(a, float):
        return isinstance(b, float) and struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(alike(x, y, met) for x, y in zip(a, b))
    return a == b


# ---- values -----------------------------------------------------------------------------------------------------------

def particle(number):
    return types.Particle(number, [number / 3, -1.5 * number, 1e300], number % 2 == 0, number % 256)


def wide(character):
    return b"\2" + character.encode("utf-16-be")


def matrix(first):
    return [[first, 0, -1], [2**31 - 1, -(2**31), 77]]


def everythings(peer):
    """Ordinary values, and the limits of each type. JacORB 3.9 takes a char that is ASCII, and drops the leading zeros of a fixed."""
    char, least = ("e", "-999999.999") if peer == JACORB else ("é", "-0.001")
    yield types.Everything(
        True, 255, char, wide("漢"), -(2**15), 2**16 - 1, -(2**31), 2**32 - 1, -(2**63), 2**64 - 1,
        struct.unpack("f", b"\xff\xff\x7f\x7f")[0], sys.float_info.max, "déjà vu", "żółw 漢字 ☃ ß", types.blue,
        "12345678", CORBA.fixed("999999.999"), matrix(9), particle(41))
    yield types.Everything(
        False, 0, "a", wide("z"), 2**15 - 1, 0, 2**31 - 1, 0, 2**63 - 1, 0,
        -0.0, 5e-324, "", "", types.red, "", CORBA.fixed(least), matrix(0), particle(0))


def choices():
    yield types.Choice(types.red, -(2**31))
    yield types.Choice(types.green, ["", "two", "x" * 5000])
    yield types.Choice(types.green, [])
    yield types.Choice(types.blue, particle(3))


def signs():
    yield types.Sign(True, "because")
    yield types.Sign(True, "")
    yield types.Sign(False, None)


def nodes():
    """One node is in two lists and in the sequence twice; there is a nil."""
    last = types.Node(1, None)
    shared = types.Node(2, last)
    return [types.Node(3, shared), types.Node(-(2**31), shared), None, shared, shared]


def anys(own, peer):
    """Of all types but wchar, and what has one within: see above. JacORB 3.9 cannot send a value type in an any so that another ORB reads it, it
    refuses the type of a union over an enumeration as omniORBpy 4.3 sends it, and omniORBpy crashes on the Object that JacORB returns."""
    char, price = ("e", "-123456.789") if peer == JACORB else ("é", "12.345")
    values = [("Node", nodes()[0]), ("Node", None), ("Nodes", nodes()), ("Choice", types.Choice(types.blue, particle(8)))]

    def of(name):
        return getattr(types, "_tc_" + name)

    basic = [
        (CORBA.TC_short, -7), (CORBA.TC_ushort, 65535), (CORBA.TC_long, -(2**31)), (CORBA.TC_ulong, 2**32 - 1),
        (CORBA.TC_longlong, -(2**63)), (CORBA.TC_ulonglong, 2**64 - 1), (CORBA.TC_float, 0.25), (CORBA.TC_double, math.pi),
        (CORBA.TC_boolean, True), (CORBA.TC_char, char), (CORBA.TC_octet, 200),
        (CORBA.TC_string, "text"), (CORBA.TC_string, ""), (CORBA.TC_wstring, "漢字"), (CORBA.TC_null, None), (CORBA.TC_void, None),
        (CORBA.TC_TypeCode, of("Everything")), (CORBA.TC_TypeCode, CORBA.TC_long),
        (CORBA.TC_any, CORBA.Any(CORBA.TC_any, CORBA.Any(CORBA.TC_string, "within")))]
    own_types = [
        ("Particle", particle(5)), ("Colour", types.green), ("Price", CORBA.fixed(price)),
        ("Short_name", "short"), ("Matrix", matrix(4)), ("Octets", bytes(range(256))), ("Longs", [1, -1]), ("Doubles", []),
        ("Few", [1.0, 2.0, 3.0, 4.0]), ("Names", ["one", ""]), ("Rows", [[1], [], [2, 3]]), ("Particles", [particle(1)]),
        ("Sign", types.Sign(False, None)), ("Echo", own), ("Echo", None)]
    if peer != JACORB:
        basic += [(CORBA.TC_Object, own)]
        own_types += values
    return [CORBA.Any(kind, value) for kind, value in basic + [(of(name), value) for name, value in own_types]]


# ---- calling ----------------------------------------------------------------------------------------------------------

class Wrong(Exception):
    pass


def expect(good, what):
    if not good:
        raise Wrong(what)


def returned(operation, values):
    for number, value in enumerate(values):
        expect(same(value, operation(value)), f"value {number}")


def three_times(operation, pairs):
    """Operations with in, out and inout."""
    for number, (v, i) in enumerate(pairs):
        for what, sent, came in zip(("result", "out", "inout"), (v, v, i), operation(v, i)):
            expect(same(sent, came), f"{what} of value {number}")


def raises(kind, call):
    try:
        call()
    except kind as caught:
        return caught
    raise Wrong(f"no {kind.__name__}")


class Caller:
    """Calls every operation; one method for each, in the order of the IDL."""

    def __init__(self, orb, echo):
        self.echo, self.peer = echo, echo._get_orb()
        self.servant = Echo(orb)
        self.own = self.servant._this()

    def orb(self):
        expect(self.peer, "nothing")

    def level(self):
        for value in (1.5, -0.0, math.inf, sys.float_info.min):
            self.echo._set_level(value)
            expect(same(self.echo._get_level(), value), value)

    def echo_everything(self):
        one, other = everythings(self.peer)
        three_times(self.echo.echo_everything, [(one, other), (other, one)])

    def echo_octets(self):
        sizes = [(0, 0), (1, 7), (8191, 8193), (65536, 0), (0, 65537), (LARGEST, LARGEST)]
        pattern = bytes(range(251)) * (LARGEST // 251 + 2)
        three_times(self.echo.echo_octets, [(pattern[:v], pattern[1 : 1 + i]) for v, i in sizes])

    def echo_longs(self):
        ends = [-(2**31), -1, 0, 1, 2**31 - 1]
        many = [(n * 2654435761) % 2**32 - 2**31 for n in range(100_000)]
        three_times(self.echo.echo_longs, [([], []), (ends, []), ([], ends), (many, many[::-1])])

    def echo_doubles(self):
        ends = [math.inf, -math.inf, math.nan, -0.0, 5e-324, sys.float_info.max, -sys.float_info.max]
        many = [n / 7 for n in range(50_000)]
        three_times(self.echo.echo_doubles, [([], []), (ends, [0.1]), (many, many[::-1])])

    def echo_few(self):
        returned(self.echo.echo_few, [[], [1.0], [math.e] * 4])

    def echo_names(self):
        returned(self.echo.echo_names, [[], [""], ["one", "", "Größe", "x" * 100_000], ["y"] * 10_000])

    def echo_rows(self):
        returned(self.echo.echo_rows, [[], [[]], [[1, 2, 3], [], [-(2**31)]], [list(range(n)) for n in range(300)]])

    def echo_particles(self):
        many = [particle(n) for n in range(5000)]
        three_times(self.echo.echo_particles, [([], []), (many[:1], []), (many, many[::-1])])

    def echo_choice(self):
        returned(self.echo.echo_choice, choices())

    def echo_sign(self):
        returned(self.echo.echo_sign, signs())

    def echo_any(self):
        for number, value in enumerate(anys(self.own, self.peer)):
            came, kind = self.echo.echo_any(value)
            expect(kind == value.typecode().kind()._v, f"kind of value {number}: {kind}")
            expect(same(value, came), f"value {number}: {value} is {came}")

    def echo_nodes(self):
        returned(self.echo.echo_nodes, [[], [None], nodes()])

    def echo_reference(self):
        returned(self.echo.echo_reference, [self.echo, self.own])
        expect(self.echo.echo_reference(None) is None, "nil")
        self.servant.kept = 12
        expect(self.echo.echo_reference(self.own).remembered() == 12, "a call of the own object")
        expect(self.echo.echo_reference(self.echo)._get_orb() == self.echo._get_orb(), "a call of the server's object")

    def echo_object(self):
        returned(self.echo.echo_object, [self.echo, self.own])
        expect(self.echo.echo_object(None) is None, "nil")
        expect(self.echo.echo_object(self.echo)._narrow(types.Echo) is not None, "narrowed")

    def refuse(self):
        for why, code in (("no", 7), ("", -(2**31)), ("x" * 10_000, 2**31 - 1)):
            caught = raises(types.Refused, lambda: self.echo.refuse(why, code))
            expect((caught.why, caught.code) == (why, code), caught)

    def bad_parameter(self):
        caught = raises(CORBA.BAD_PARAM, self.echo.bad_parameter)
        expect((caught.minor, caught.completed) == (77, CORBA.COMPLETED_NO), caught)

    def remember(self):
        self.echo.remember(2**31 - 1)
        self.await_memory(2**31 - 1)

    def remembered(self):
        for value in (-(2**31), 0, 5):
            self.echo.remember(value)
            self.await_memory(value)

    def await_memory(self, value):
        """Waits for a oneway call: a server may answer the next request before it has processed the oneway one."""
        end = time.monotonic() + 20
        while self.echo.remembered() != value:
            expect(time.monotonic() < end, f"never {value}")

    def call_back(self):
        for times in (0, 1, 100):
            self.servant.calls = self.servant.total = 0
            total = self.echo.call_back(self.own, times)
            expect((self.servant.calls, self.servant.total) == (times, total), f"{times}: {self.servant.calls} calls, {total}")


def call(orb, echo):
    good = True
    caller = Caller(orb, echo)
    for name in [name for name in vars(Caller) if not name.startswith("_") and name != "await_memory"]:
        try:
            getattr(caller, name)()
            print(name, "ok", flush=True)
        except Exception as why:
            good = False
            print(name, "WRONG", type(why).__name__, why, flush=True)
    if good:
        print("all ok", flush=True)
    return good


def median_of(echo, count):
    def timed():
        began = time.perf_counter_ns()
        echo.remembered()
        return time.perf_counter_ns() - began

    for _ in range(count // 10 + 1):
        timed()
    return sorted(timed() for _ in range(count))[count // 2]


def leave(orb):
    """Threads of the ORB end shortly after the ORB. A thread that needs the interpreter after its end aborts the process."""
    orb.destroy()
    end = time.monotonic() + 5
    while len(os.listdir("/proc/self/task")) > 1 and time.monotonic() < end:
        time.sleep(0.001)


def main(words):
    orb = CORBA.ORB_init(words, CORBA.ORB_ID)
    poa = orb.resolve_initial_references("RootPOA")
    poa._get_the_POAManager().activate()
    if words[1] == "serve":
        servant = Echo(orb)
        print("object", orb.object_to_string(servant._this()), flush=True)
        orb.run()
        leave(orb)
        print("ended", flush=True)
        return
    echo, good = orb.string_to_object(words[2])._narrow(types.Echo), True
    if words[1] == "call":
        good = call(orb, echo)
    elif words[1] == "end":
        echo.end()
    elif words[1] == "time":
        print(median_of(echo, int(words[3])))
    leave(orb)
    sys.exit(0 if good else 1)


main(sys.argv)
