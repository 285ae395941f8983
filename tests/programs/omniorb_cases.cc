// Connections of omniORB beyond plain calls: how they end, time limits, callbacks, many at once.
//
//   omniorb_cases serve PORT             prints "ready", serves until a call ends it
//   omniorb_cases idle PORT              calls once, prints "called", then keeps its connection and does nothing until its input ends
//   omniorb_cases end PORT               ends the server
//   omniorb_cases add PORT COUNT         calls COUNT times; prints "added"
//   omniorb_cases killed PORT            kills the server while a call is in progress; prints the exception, and "soon" (5 s: no more is said of a busy machine) or
//                                        how late it came, in ms
//   omniorb_cases late PORT              a call that takes longer than its limit, then one that does not
//   omniorb_cases callback PORT [bidir]  calls that the server answers by calling back; with bidir over the same connection
//   omniorb_cases together PORT          calls of several threads at once, short ones beside long ones
#include "omniorb_cases.hh"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace motet_test;
using steady = std::chrono::steady_clock;

static CORBA::ORB_var orb;

static double ms_since(steady::time_point then) { return std::chrono::duration<double, std::milli>(steady::now() - then).count(); }

class TheDesk : public POA_motet_test::Desk {
    std::atomic<CORBA::LongLong> sum{0};

public:
    CORBA::LongLong add(CORBA::LongLong more) override { return sum += more; }
    CORBA::Long pid() override { return getpid(); }
    void rest(CORBA::Long ms) override { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
    CORBA::Long ask(Caller_ptr who, CORBA::Long depth) override { return who->again(depth) + 1; }
    void end() override
    {
        std::thread([] { orb->shutdown(true); }).detach();
    }
};

class TheCaller : public POA_motet_test::Caller {
    Desk_var desk;

public:
    explicit TheCaller(Desk_ptr desk) : desk(Desk::_duplicate(desk)) {}
    CORBA::Long again(CORBA::Long depth) override { return depth > 0 ? desk->ask(_this(), depth - 1) + 1 : 0; }
};

static PortableServer::POA_ptr own_poa(bool bidir)
{
    CORBA::Object_var found = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var root = PortableServer::POA::_narrow(found);
    PortableServer::POAManager_var manager = root->the_POAManager();
    manager->activate();
    if (!bidir) return root._retn();
    CORBA::PolicyList policies;
    policies.length(1);
    policies[0] = new BiDirPolicy::BidirectionalPolicy(BiDirPolicy::BOTH);
    return root->create_POA("both", manager, policies);
}

static int serve()
{
    PortableServer::POA_var with_bidir = own_poa(true);
    CORBA::Object_var found = orb->resolve_initial_references("omniINSPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
    TheDesk desk;
    PortableServer::ObjectId_var id = PortableServer::string_to_ObjectId("desk");
    poa->activate_object_with_id(id, &desk);
    poa->the_POAManager()->activate();
    std::puts("ready");
    std::fflush(stdout);
    orb->run();
    orb->destroy();
    std::puts("ended");
    return 0;
}

// Name of the system exception that a call raises, or "nothing".
template <class Call> static std::string raised(Call call)
{
    try {
        call();
    } catch (const CORBA::SystemException &e) {
        return std::string(e._name()) + (e.NP_minorString() ? std::string(" ") + e.NP_minorString() : "");
    }
    return "nothing";
}

static void killed(Desk_ptr desk)
{
    pid_t server = desk->pid();
    std::atomic<steady::rep> when{0};
    std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        when = steady::now().time_since_epoch().count();
        kill(server, SIGKILL);
    });
    std::string what = raised([&] { desk->rest(20000); });
    double late = ms_since(steady::time_point(steady::duration(when)));
    killer.join();
    std::printf("%s %s\n", what.c_str(), late <= 5000 ? "soon" : std::to_string(late).c_str());
    // The socket may outlive the process for a moment.
    what = raised([&] { desk->add(1); });
    std::printf("then %s\n", what.find("TRANSIENT") == 0 || what.find("COMM_FAILURE") == 0 ? "an error" : what.c_str());
}

static void late(Desk_ptr desk)
{
    omniORB::setClientCallTimeout(desk, 200);
    auto begun = steady::now();
    std::string what = raised([&] { desk->rest(3000); });
    double took = ms_since(begun);
    std::printf("%s after %s\n", what.c_str(), took >= 195 && took < 1500 ? "its time" : std::to_string(took).c_str());
    omniORB::setClientCallTimeout(desk, 5000);
    long long last = 0;
    for (int i = 0; i < 1000; i++) last = desk->add(1);
    std::printf("then %lld\n", last);
}

static void callback(Desk_ptr desk, bool bidir)
{
    PortableServer::POA_var poa = own_poa(bidir);
    TheCaller *caller = new TheCaller(desk);
    PortableServer::ObjectId_var id = poa->activate_object(caller);
    CORBA::Object_var object = poa->id_to_reference(id);
    Caller_var reference = Caller::_narrow(object);
    int sum = 0;
    for (int i = 0; i < 50; i++) sum += desk->ask(reference, i % 3);
    std::printf("called back %d\n", sum);
}

static void together(Desk_ptr desk)
{
    std::vector<std::thread> threads;
    std::atomic<int> done{0};
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 40; i++) {
                if (t % 4 == 0) desk->rest(5);
                else desk->add(1);
                done++;
            }
        });
    for (std::thread &thread : threads) thread.join();
    std::printf("together %d, sum %lld\n", done.load(), (long long)desk->add(0));
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    std::string verb = argv[1], endpoint = "giop:tcp:127.0.0.1:" + std::string(verb == "serve" ? argv[2] : "");
    const char *options[][2] = {{"endPoint", endpoint.c_str()}, {"offerBiDirectionalGIOP", "1"}, {"acceptBiDirectionalGIOP", "1"}, {nullptr, nullptr}};
    bool bidir = verb == "serve" || (argc > 3 && std::string(argv[3]) == "bidir");
    if (!bidir) options[1][0] = nullptr;
    int none = 1;
    orb = CORBA::ORB_init(none, argv, "omniORB4", options);
    if (verb == "serve") return serve();
    CORBA::Object_var found = orb->string_to_object((std::string("corbaloc:iiop:127.0.0.1:") + argv[2] + "/desk").c_str());
    {
        Desk_var desk = Desk::_narrow(found);
        if (verb == "end") desk->end();
        if (verb == "killed") killed(desk);
        if (verb == "late") late(desk);
        if (verb == "callback") callback(desk, bidir);
        if (verb == "together") together(desk);
        if (verb == "add") {
            for (int i = std::atoi(argv[3]); i > 0; i--) desk->add(1);
            std::puts("added");
        }
        if (verb == "idle") {
            desk->add(0);
            std::puts("called");
            std::fflush(stdout);
            while (std::getchar() != EOF) {}
        }
    }
    orb->destroy();
    return 0;
}
