// corba.cc: two ends of CORBA calls, which it measures and checks. It is an ordinary omniORB program and knows nothing of Motet.
//
//   corba serve                  prints "object URI" and serves until its object gets the call `end`
//   corba call URI               for each line "OP TYPE SIZE MS" of its input prints "MEDIAN P99 MEAN COUNT": ns of one OP, and how many
//                                OP TYPE SIZE NUMBERx: makes exactly NUMBER calls, not timed, and prints "NUMBER"
//   corba check URI SIZE...      every OP and every TYPE with data of these sizes; prints which data were equal, and ends the server
//
// Each takes options of the ORB at the end (-ORBendPoint giop:unix:PATH, -ORBgiopMaxMsgSize BYTES).
//   OP     null | in | out | inout | refill: calls as corba.idl says; refill is an `out` into memory that the caller has
//          encode | decode | redecode: marshalling without a call, in this process; into a new sequence, or into an existing one
//   TYPE   long | double | octet | struct | string; SIZE: bytes of the data in memory, at least one element's
// MEDIAN is over blocks of calls as tests/bench/peer.h has it, P99 over calls each timed for itself in the last quarter of the time.
#include "corba_data.h"

#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

static CORBA::ORB_var orb;

// ---- serving --------------------------------------------------------------------------------------------------------------

/// The calls of a servant for any sequence type.
template <class Sequence, class T> struct Serve {
    static CORBA::ULongLong in(Key key, const Sequence &data) { return key ? checksum(data.get_buffer(), data.length()) : 0; }
    static Sequence *out(Key key, Count count) { return new Sequence(count, count, prepared<T>(count, key), false); }
    static void inout(Key key, Count count, Sequence &data)
    {
        if (data.length() != count)
            data.replace(count, count, prepared<T>(count, key), false);
        else if (key)
            std::reverse(data.get_buffer(), data.get_buffer() + count);
    }
};

#define MOTET_SERVE(NAME, SEQUENCE, T) \
    CORBA::ULongLong in_##NAME(Key key, const motet_bench::SEQUENCE &data) override { return Serve<motet_bench::SEQUENCE, T>::in(key, data); } \
    void out_##NAME(Key key, Count count, motet_bench::SEQUENCE##_out data) override { data = Serve<motet_bench::SEQUENCE, T>::out(key, count); } \
    void inout_##NAME(Key key, Count count, motet_bench::SEQUENCE &data) override { Serve<motet_bench::SEQUENCE, T>::inout(key, count, data); }

class Servant : public POA_motet_bench::Peer {
public:
    void null() override {}
    MOTET_SERVE(long, Longs, CORBA::Long)
    MOTET_SERVE(double, Doubles, CORBA::Double)
    MOTET_SERVE(octet, Octets, CORBA::Octet)
    MOTET_SERVE(struct, Structs, Mixed)

    CORBA::ULongLong in_string(Key key, const char *data) override { return key ? checksum(data, std::strlen(data)) : 0; }
    void out_string(Key key, Count count, CORBA::String_out data) override { data = Text::fresh(count, key); }
    void inout_string(Key key, Count count, char *&data) override
    {
        // The length of a string is not passed: only a check reads it.
        if (key && std::strlen(data) == count) {
            std::reverse(data, data + count);
        } else if (key) {
            CORBA::string_free(data);
            data = Text::fresh(count, key);
        }
    }

    void end() override
    {
        std::thread([] { orb->shutdown(true); }).detach(); // not from within a call
    }
};

static int serve()
{
    CORBA::Object_var found = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
    Servant servant;
    PortableServer::ObjectId_var id = poa->activate_object(&servant);
    poa->the_POAManager()->activate();
    Peer::_var_type peer = servant._this();
    CORBA::String_var uri = orb->object_to_string(peer);
    std::printf("object %s\n", uri.in());
    std::fflush(stdout);
    orb->run();
    return 0;
}

// ---- measuring ------------------------------------------------------------------------------------------------------------

using Block = std::function<void(long)>;

static double now()
{
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The quantile `part` of all values.
static double quantile(std::vector<double> &values, double part)
{
    std::sort(values.begin(), values.end());
    return values[std::min(values.size() - 1, (size_t)(part * values.size()))];
}

static double timed(const Block &block, long count)
{
    double begun = now();
    block(count);
    return (now() - begun) / count;
}

/// A fifth of the time to warm up; then blocks of about 0.3 ms, then single calls.
static void measure(const Block &block, double ms)
{
    double start = now(), last;
    long probe = 1;
    do {
        last = timed(block, probe);
        probe = last * probe < 1e5 ? std::min(probe * 2, 4096l) : probe;
    } while (now() - start < ms * 2e5);
    long count = std::max(1l, (long)(3e5 / last));
    std::vector<double> blocks, singles;
    double begun = now();
    do {
        blocks.push_back(timed(block, count));
    } while (now() - begun < ms * 0.75e6);
    double mean = (now() - begun) / (blocks.size() * (double)count);
    if (count == 1) singles = blocks; // calls that take longer than a block are all timed one by one
    while (now() - begun < ms * 1e6 || singles.empty()) singles.push_back(timed(block, 1));
    long all = blocks.size() * count + (count == 1 ? singles.size() - blocks.size() : singles.size());
    double median = quantile(blocks, 0.5);
    std::printf("%.1f %.1f %.1f %ld\n", median, quantile(singles, 0.99), mean, all);
    std::fflush(stdout);
}

/// Data that are marshalled once into memory of their length.
template <class Type> struct Marshalled {
    cdrMemoryStream stream;

    static size_t length(const typename Type::Data &data)
    {
        cdrMemoryStream sets; // for its code sets, which a string needs
        cdrCountingStream counted(sets.TCS_C(), sets.TCS_W());
        Type::encode(data, counted);
        return counted.total();
    }
    explicit Marshalled(const typename Type::Data &data) : stream(length(data) + 64) { Type::encode(data, stream); }
};

/// A function that makes OP `count` times on data of `elements`; none where the mapping has no such call.
template <class Type> Block block_of(const Type &type, const std::string &op, motet_bench::Peer_ptr peer, Count elements)
{
    auto data = std::make_shared<typename Type::Data>();
    Type::make(*data, elements, 1);
    if (op == "in") return [=](long count) { while (count-- > 0) (peer->*type.in)(0, *data); };
    if (op == "inout") return [=](long count) { while (count-- > 0) (peer->*type.inout)(0, elements, *data); };
    if (op == "out")
        return [=](long count) {
            while (count-- > 0) {
                typename Type::Received received;
                (peer->*type.out)(0, elements, received.out());
            }
        };
    if (op == "refill" && Type::can_be_warm) {
        auto room = std::make_shared<std::vector<typename Type::T>>(elements);
        return [=](long count) {
            while (count-- > 0) {
                Type::empty(*data, *room);
                (peer->*type.inout)(0, elements, *data);
            }
        };
    }
    auto marshalled = std::make_shared<Marshalled<Type>>(*data);
    if (op == "encode")
        return [=](long count) {
            while (count-- > 0) {
                marshalled->stream.rewindPtrs();
                Type::encode(*data, marshalled->stream);
            }
        };
    if (op == "decode")
        return [=](long count) {
            while (count-- > 0) {
                typename Type::Data fresh;
                marshalled->stream.rewindInputPtr();
                Type::decode(fresh, marshalled->stream);
            }
        };
    if (op == "redecode" && Type::can_be_warm)
        return [=](long count) {
            while (count-- > 0) {
                marshalled->stream.rewindInputPtr();
                Type::decode(*data, marshalled->stream);
            }
        };
    return nullptr;
}

static int call(motet_bench::Peer_ptr peer)
{
    for (std::string line; std::getline(std::cin, line);) {
        std::string op, type;
        size_t size = 0;
        double ms = 0;
        char unit = 0;
        std::istringstream(line) >> op >> type >> size >> ms >> unit;
        Block block;
        if (op == "null") block = [=](long count) { while (count-- > 0) peer->null(); };
        for_each_type([&](const char *name, auto kind) {
            if (type == name && !block) block = block_of(kind, op, peer, std::max<size_t>(1, size / sizeof(typename decltype(kind)::T)));
        });
        if (!block || ms <= 0) {
            std::fprintf(stderr, "corba: cannot measure `%s`\n", line.c_str());
            return 2;
        }
        if (unit == 'x') {
            block((long)ms);
            std::printf("%ld\n", (long)ms);
            std::fflush(stdout);
        } else {
            measure(block, ms);
        }
    }
    return 0;
}

// ---- checking -------------------------------------------------------------------------------------------------------------

/// Whether `data` are the elements that `key` stands for, forwards or in reverse.
template <class Type> bool equal(const typename Type::Data &data, Count count, Key key, bool reversed)
{
    if (Type::length(data) != count) return false;
    const auto *found = Type::begin(data);
    for (Count i = 0; i < count; i++)
        if (!same(found[i], made<typename Type::T>(reversed ? count - 1 - i : i, key))) return false;
    return true;
}

/// The names of the calls whose data were equal, for one type at one size.
template <class Type> std::string checked(const Type &type, motet_bench::Peer_ptr peer, Count count, Key key)
{
    std::string good;
    typename Type::Data data;
    Type::make(data, count, key);
    if ((peer->*type.in)(key, data) == checksum(Type::begin(data), count)) good += " in";
    typename Type::Received received;
    (peer->*type.out)(key + 1, count, received.out());
    if (equal<Type>(received, count, key + 1, false)) good += " out";
    const auto *place = Type::begin(data);
    (peer->*type.inout)(key, count, data);
    if (equal<Type>(data, count, key, true)) good += " inout";
    if (Type::can_be_warm && Type::begin(data) == place) good += " in-place";
    std::vector<typename Type::T> room(count);
    Type::empty(data, room);
    (peer->*type.inout)(key + 2, count, data);
    if (equal<Type>(data, count, key + 2, false)) good += " refill";
    if (Type::can_be_warm && Type::begin(data) == room.data()) good += " in-place";
    Marshalled<Type> marshalled(data);
    typename Type::Data decoded;
    Type::decode(decoded, marshalled.stream);
    if (equal<Type>(decoded, count, key + 2, false)) good += " marshalled";
    return good;
}

static void check(motet_bench::Peer_ptr peer, size_t size, Key key)
{
    peer->null();
    for_each_type([&](const char *name, auto type) {
        Count count = std::max<size_t>(1, size / sizeof(typename decltype(type)::T));
        std::printf("%s %u elements:%s\n", name, count, checked(type, peer, count, key).c_str());
    });
}

int main(int argc, char **argv)
{
    try {
        orb = CORBA::ORB_init(argc, argv);
        std::string verb = argc > 1 ? argv[1] : "";
        int status = 2;
        if (verb == "serve" && argc == 2) {
            status = serve();
        } else if ((verb == "call" && argc == 3) || (verb == "check" && argc > 3)) {
            CORBA::Object_var found = orb->string_to_object(argv[2]);
            Peer::_var_type peer = Peer::_narrow(found);
            status = verb == "call" ? call(peer) : 0;
            for (int i = 3; i < argc; i++) check(peer, std::strtoull(argv[i], nullptr, 0), 10 * i);
            if (verb == "check") peer->end();
        } else {
            std::fprintf(stderr, "corba: usage: serve | call URI | check URI SIZE... [-ORBOPTION VALUE]...\n");
        }
        orb->destroy();
        return status;
    } catch (const CORBA::Exception &exception) {
        std::fprintf(stderr, "corba: %s\n", exception._name());
        return 1;
    }
}
