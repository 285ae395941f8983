// An omniORB object in one process, called from another process over GIOP on TCP.
//
//   omniorb_echo serve PORT              prints "ready", serves until a call ends it
//   omniorb_echo call PORT ROUNDS        every kind of call, from two threads too; prints the answers and ends the server
//   omniorb_echo measure PORT            for each line "SIZE MS" of its input prints "MEDIAN MEAN COUNT", ns for a call that takes
//                                        SIZE bytes there and back
#include "omniorb_echo.hh"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

using motet_test::Bytes;
using motet_test::Echo_ptr;

static CORBA::ORB_var orb;

class Desk : public POA_motet_test::Echo {
    CORBA::LongLong sum = 0, noted = 0;

public:
    CORBA::LongLong add(CORBA::LongLong more) override { return sum += more; }

    Bytes *reverse(const Bytes &data) override
    {
        auto *back = new Bytes;
        back->length(data.length());
        std::reverse_copy(data.get_buffer(), data.get_buffer() + data.length(), back->get_buffer());
        return back;
    }

    motet_test::Words *numbered(CORBA::Long count) override
    {
        auto *all = new motet_test::Words;
        all->length(count);
        for (CORBA::Long i = 0; i < count; i++) (*all)[i] = ("word " + std::to_string(i + noted)).c_str();
        return all;
    }

    void refuse(const char *why) override { throw motet_test::Refused(why); }

    void note(CORBA::LongLong value) override { noted = value; }

    void end() override
    {
        std::thread([] { orb->shutdown(true); }).detach();
    }
};

static int serve()
{
    CORBA::Object_var found = orb->resolve_initial_references("omniINSPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
    Desk desk;
    PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId("echo");
    poa->activate_object_with_id(id, &desk);
    poa->the_POAManager()->activate();
    std::puts("ready");
    std::fflush(stdout);
    orb->run();
    orb->destroy();
    return 0;
}

static unsigned long long hash(unsigned long long hash, const Bytes &data)
{
    for (CORBA::ULong i = 0; i < data.length(); i++) hash = (hash ^ data[i]) * 0x100000001b3ull;
    return hash;
}

/// Calls with sizes from 0 to a few hundred kB. True when every answer is the reverse of what was sent.
static bool reversed(Echo_ptr echo, int rounds, unsigned long long &sum)
{
    for (int i = 0; i < rounds; i++) {
        Bytes data;
        data.length(i % 50 == 0 ? 400000 : i % 300);
        for (CORBA::ULong j = 0; j < data.length(); j++) data[j] = (CORBA::Octet)(j * 7 + i);
        motet_test::Bytes_var back = echo->reverse(data);
        if (back->length() != data.length() || !std::equal(data.get_buffer(), data.get_buffer() + data.length(), std::make_reverse_iterator(back->get_buffer() + back->length()))) return false;
        sum = hash(sum, back.in());
    }
    return true;
}

static int call(Echo_ptr echo, int rounds)
{
    CORBA::LongLong sum = 0;
    for (int i = 0; i < rounds; i++) sum = echo->add(i);
    unsigned long long first = 1, second = 2;
    bool good = false;
    std::thread other([&] { good = reversed(echo, rounds, first); }); // a connection of its own
    bool same = reversed(echo, rounds, second);
    other.join();
    std::string said;
    try {
        echo->refuse("on purpose");
    } catch (const motet_test::Refused &refused) {
        said = refused.why;
    }
    echo->note(41);
    echo->add(0); // behind the note on the same connection
    motet_test::Words_var words = echo->numbered(3000);
    std::printf("%lld %d%d %llx %llx %s, %u words to '%s'\n", (long long)sum, good, same, first, second, said.c_str(), words->length(), (const char *)words[words->length() - 1]);
    echo->end();
    return good && same ? 0 : 1;
}

static void measure(Echo_ptr echo, unsigned size, double ms)
{
    using clock = std::chrono::steady_clock;
    auto since = [](clock::time_point then) { return std::chrono::duration<double, std::nano>(clock::now() - then).count(); };
    Bytes data;
    data.length(size);
    auto block = [&](long count) {
        auto begun = clock::now();
        while (count-- > 0) motet_test::Bytes_var(echo->reverse(data));
        return since(begun);
    };
    double last = 0;
    for (auto start = clock::now(); since(start) < ms * 2e5;) last = block(64);
    long count = std::max(1l, (long)(3e5 * 64 / last));
    std::vector<double> blocks;
    auto begun = clock::now();
    while (since(begun) < ms * 1e6) blocks.push_back(block(count) / count);
    double mean = since(begun) / blocks.size() / count;
    std::sort(blocks.begin(), blocks.end());
    std::printf("%.1f %.1f %ld\n", blocks[blocks.size() / 2], mean, (long)blocks.size() * count);
    std::fflush(stdout);
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    std::string verb = argv[1], endpoint = std::string("giop:tcp:127.0.0.1:") + (verb == "serve" ? argv[2] : "");
    const char *options[][2] = {{"endPoint", endpoint.c_str()}, {nullptr, nullptr}};
    int none = 1;
    orb = CORBA::ORB_init(none, argv, "omniORB4", options);
    if (verb == "serve") return serve();
    CORBA::Object_var found = orb->string_to_object((std::string("corbaloc:iiop:127.0.0.1:") + argv[2] + "/echo").c_str());
    motet_test::Echo_var echo = motet_test::Echo::_narrow(found);
    int status = 0;
    if (verb == "call") {
        status = call(echo, std::atoi(argv[3]));
    } else {
        unsigned size;
        for (double ms; std::scanf("%u %lf", &size, &ms) == 2;) measure(echo, size, ms);
    }
    orb->destroy();
    return status;
}
