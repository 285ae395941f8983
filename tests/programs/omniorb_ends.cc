// Events that end or disturb omniORB's connections: forwards, time limits, stopped peers, scavengers, forks, kills.
//
//   omniorb_ends serve PORT [FORWARD]    prints "ready", serves "desk" and "agent", which forwards to the desk at port FORWARD
//   omniorb_ends end PORT                ends the server
//   omniorb_ends add PORT COUNT          calls COUNT times; prints "added"
//   omniorb_ends asks PORT COUNT         calls COUNT times, prints each result or exception
//   omniorb_ends forwarded PORT          calls the agent; kills the server to which it forwards, prints "gone"; continues when that server runs again
//   omniorb_ends mirrors PORT SIZE..     calls with SIZE bytes in each direction; -SIZE: in the reply only
//   omniorb_ends stopped PORT            calls a server that is stopped, with and without a time limit
//   omniorb_ends waiting PORT            calls of several threads with time limits of their own
//   omniorb_ends unanswered PORT         calls whose connection is never accepted
//   omniorb_ends scavenged PORT WHO      is idle until WHO ("client", "server") has closed the connection, and calls again
//   omniorb_ends forks PORT              forks with open connections: children exit, execute this program, or stay for a while
//   omniorb_ends forked PORT             the server forks
//   omniorb_ends orphaned PORT           the server is killed while a child of it holds its connections
//   omniorb_ends many PORT COUNT         COUNT objects in one server
//   omniorb_ends callback PORT           calls that the server answers by calling back
//   omniorb_ends late PORT               calls that take longer than their limit, and others between them
//   omniorb_ends calling PORT WHAT       calls without end: "upcall", "large" or "replies"
#include "omniorb_ends.hh"

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <functional>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

using namespace motet_test;
using steady = std::chrono::steady_clock;

static CORBA::ORB_var orb;
static const char *port;

static void pause_for(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

static void say(const char *text)
{
    std::puts(text);
    std::fflush(stdout);
}

static Desk_ptr at(const char *name, const char *where = port)
{
    CORBA::Object_var found = orb->string_to_object((std::string("corbaloc:iiop:1.2@127.0.0.1:") + where + "/" + name).c_str());
    return Desk::_unchecked_narrow(found);
}

// ---- the server

static void child_of_the_server(const std::string &what)
{
    pid_t child = fork();
    if (child == 0) {
        if (what == "execs") execl("/bin/true", "true", nullptr);
        if (what == "stays") usleep(1500000);
        _exit(0);
    }
    if (what != "stays") waitpid(child, nullptr, 0);
}

class TheDesk : public POA_motet_test::Desk {
    std::atomic<CORBA::LongLong> sum{0};

public:
    CORBA::LongLong add(CORBA::LongLong more) override { return sum += more; }
    CORBA::Long pid() override { return getpid(); }
    void rest(CORBA::Long ms) override { pause_for(ms); }
    Bytes *mirror(const Bytes &data) override { return new Bytes(data); }
    Bytes *blob(CORBA::Long size) override
    {
        Bytes_var data = new Bytes;
        data->length(size);
        std::memset(data->get_buffer(), 'b', size);
        return data._retn();
    }
    CORBA::LongLong ask(Desk_ptr who, CORBA::LongLong more) override { return who->add(more); }
    Desks *open(CORBA::Long count) override
    {
        Desks_var desks = new Desks;
        desks->length(count);
        for (CORBA::Long i = 0; i < count; i++) desks[i] = (new TheDesk)->_this();
        return desks._retn();
    }
    void fork(const char *what) override { child_of_the_server(what); }
    void end() override
    {
        std::thread([] { orb->shutdown(true); }).detach();
    }
};

// Forwards every call by an exception, as a servant may do.
class TheAgent : public TheDesk {
    const std::string to;

public:
    explicit TheAgent(const char *to) : to(to) {}
    CORBA::LongLong add(CORBA::LongLong) override { throw omniORB::LOCATION_FORWARD(at("desk", to.c_str())); }
    CORBA::Long pid() override { throw omniORB::LOCATION_FORWARD(at("desk", to.c_str())); }
};

static void activate()
{
    CORBA::Object_var found = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var root = PortableServer::POA::_narrow(found);
    root->the_POAManager()->activate();
}

static int serve(const char *forward)
{
    activate();
    CORBA::Object_var found = orb->resolve_initial_references("omniINSPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
    TheDesk desk;
    TheAgent agent(forward);
    poa->activate_object_with_id(PortableServer::ObjectId_var(PortableServer::string_to_ObjectId("desk")), &desk);
    poa->activate_object_with_id(PortableServer::ObjectId_var(PortableServer::string_to_ObjectId("agent")), &agent);
    poa->the_POAManager()->activate();
    say("ready");
    orb->run();
    orb->destroy();
    say("ended");
    return 0;
}

// ---- shared by clients

// Name of the system exception that a call raises, or "nothing".
template <class Call> static std::string raised(Call call)
{
    try {
        call();
    } catch (const CORBA::SystemException &e) {
        // The step in which the connection broke depends on timing.
        bool broke = std::strcmp(e._name(), "COMM_FAILURE") == 0;
        return std::string(e._name()) + (!broke && e.NP_minorString() ? std::string(" ") + e.NP_minorString() : "");
    }
    return "nothing";
}

// Waits at most as long as a test may take. The test reports a hang.
static void until(const char *what, const std::function<bool()> &reached)
{
    for (auto begun = steady::now(); !reached(); pause_for(20)) {
        if (steady::now() - begun < std::chrono::seconds(40)) continue;
        std::printf("never: %s\n", what);
        std::exit(1);
    }
}

static int sockets_of(pid_t process)
{
    std::string folder = "/proc/" + std::to_string(process) + "/fd";
    DIR *all = opendir(folder.c_str());
    int count = 0;
    for (dirent *entry; all && (entry = readdir(all));) {
        char target[64] = "";
        if (readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target - 1) > 0) count += std::strncmp(target, "socket:", 7) == 0;
    }
    if (all) closedir(all);
    return count;
}

static Bytes *bytes(long size)
{
    Bytes_var data = new Bytes;
    data->length(size);
    for (long i = 0; i < size; i++) data[i] = (CORBA::Octet)(i * 7);
    return data._retn();
}

// Makes a call with a time limit, and reports whether the limit was kept.
static std::string limited(Desk_ptr desk, int ms, const std::function<void()> &call)
{
    omniORB::setClientCallTimeout(desk, ms);
    auto begun = steady::now();
    std::string what = raised(call);
    double took = std::chrono::duration<double, std::milli>(steady::now() - begun).count();
    if (what.find("TIMEOUT") != 0 && what.find("TRANSIENT") != 0) return what;
    return what + (took < ms - 5 ? " early" : took > ms + 15000 ? " late" : "");
}

// ---- the clients

static void forwarded()
{
    Desk_var agent = at("agent"), desk = at("desk");
    CORBA::LongLong sum = 0;
    for (int i = 0; i < 300; i++) sum = agent->add(1);
    std::printf("forwarded %lld, %s\n", (long long)sum, agent->pid() != desk->pid() ? "to another" : "to itself");
    kill(agent->pid(), SIGKILL);
    // The ORB asks the agent again, which forwards it to the same place, until the time limit has passed.
    std::string what = limited(agent, 1000, [&] { agent->add(1); });
    std::printf("then %s\n", what.c_str());
    std::printf("the agent's server has %lld\n", (long long)desk->add(5));
    say("gone");
    until("there is one again", [&] { return raised([&] { agent->add(1); }) == "nothing"; });
    std::printf("forwarded %lld\n", (long long)agent->add(0));
}

static void mirrors(Desk_ptr desk, const std::vector<std::string> &sizes)
{
    for (const std::string &words : sizes) {
        long size = std::stol(words);
        std::string what = raised([&] {
            Bytes_var sent = bytes(size < 0 ? 0 : size), got = size < 0 ? desk->blob(-size) : desk->mirror(sent);
            if (got->length() != (CORBA::ULong)std::labs(size)) throw CORBA::UNKNOWN();
        });
        std::printf("%ld: %s\n", size, what.c_str());
    }
    std::printf("then %lld\n", (long long)desk->add(1));
}

// Stops a process. It takes the signal when it runs next.
static void stop(pid_t process)
{
    kill(process, SIGSTOP);
    until("it has stopped", [&] {
        char line[256] = "";
        FILE *file = std::fopen(("/proc/" + std::to_string(process) + "/stat").c_str(), "r");
        bool read = file && std::fgets(line, sizeof line, file);
        if (file) std::fclose(file);
        return read && std::strstr(line, ") T ");
    });
}

static void stopped(Desk_ptr desk)
{
    pid_t server = desk->pid();
    Bytes_var large = bytes(1500000);
    for (int i = 0; i < 20; i++) desk->add(1);
    stop(server);
    std::printf("a call: %s\n", limited(desk, 300, [&] { desk->add(1); }).c_str());
    std::printf("another, which connects: %s\n", limited(desk, 300, [&] { desk->add(1); }).c_str());
    std::printf("a large one: %s\n", limited(desk, 300, [&] { Bytes_var back = desk->mirror(large); }).c_str());
    std::thread later([&] {
        pause_for(300);
        kill(server, SIGCONT);
    });
    std::printf("without a limit: %s\n", limited(desk, 0, [&] { Bytes_var back = desk->mirror(large); }).c_str());
    later.join();
    // Then a stop in the middle of a call on a connection in use.
    stop(server);
    std::thread again([&] {
        pause_for(300);
        kill(server, SIGCONT);
    });
    std::printf("and once more: %s\n", limited(desk, 0, [&] { desk->add(1); }).c_str());
    again.join();
    desk->add(1);
}

static void waiting(Desk_ptr desk)
{
    std::vector<std::string> told(8);
    std::vector<std::thread> threads;
    for (int t = 0; t < 8; t++)
        threads.emplace_back([&, t] {
            Desk_var own = at("desk");
            // Every other thread has a long limit. The threads share connections.
            for (int i = 0; i < 3; i++) told[t] += " " + limited(own, t % 2 ? 20000 : 150, [&] { own->rest(t % 2 ? 50 : 1000); });
        });
    for (std::thread &thread : threads) thread.join();
    for (const std::string &one : told) std::printf("%s\n", one.c_str());
    omniORB::setClientCallTimeout(desk, 0);
    std::string what = raised([&] { desk->add(1); });
    std::printf("then %s\n", what.c_str());
}

// A listener that does not accept, with a full backlog: the kernel answers no further connection.
static void unanswered(Desk_ptr)
{
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (sockaddr *)&address, size) || listen(listener, 0) || getsockname(listener, (sockaddr *)&address, &size)) std::exit(1);
    for (int i = 0; i < 4; i++) connect(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), (sockaddr *)&address, size);
    pause_for(50);
    std::string where = std::to_string(ntohs(address.sin_port));
    Desk_var desk = at("desk", where.c_str());
    std::printf("a call: %s\n", limited(desk, 300, [&] { desk->add(1); }).c_str());
    omniORB::setClientConnectTimeout(200);
    std::printf("a connection: %s\n", limited(desk, 0, [&] { desk->add(1); }).c_str());
}

static void scavenged(Desk_ptr desk, const std::string &who)
{
    for (int i = 0; i < 50; i++) desk->add(1);
    pid_t one = who == "client" ? getpid() : desk->pid();
    int connected = sockets_of(one);
    until("the idle connection is closed", [&] { return sockets_of(one) < connected; });
    std::printf("closed, then %lld\n", (long long)desk->add(1));
}

static int status_of(pid_t child)
{
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void forks(Desk_ptr desk, char *self)
{
    for (int i = 0; i < 20; i++) desk->add(1);
    for (const char *what : {"exits", "execs", "stays"}) {
        pid_t child = fork();
        if (child == 0) {
            if (*what == 'e' && what[2] == 'e') execl(self, self, "add", port, "20", nullptr);
            if (*what == 's') usleep(300000);
            _exit(7);
        }
        for (int i = 0; i < 200; i++) desk->add(1); // beside the child
        std::printf("it %s with %d", what, status_of(child));
        for (int i = 0; i < 200; i++) desk->add(1);
        std::printf(", then %lld\n", (long long)desk->add(0));
    }
}

static void forked(Desk_ptr desk)
{
    for (int i = 0; i < 20; i++) desk->add(1);
    for (const char *what : {"exits", "execs", "stays"}) {
        desk->fork(what);
        for (int i = 0; i < 200; i++) desk->add(1);
        // One further connection while the child has the others.
        std::thread beside([&] { desk->rest(50); });
        for (int i = 0; i < 20; i++) desk->add(1);
        beside.join();
        std::printf("its child %s, then %lld\n", what, (long long)desk->add(0));
    }
}

static void orphaned(Desk_ptr desk)
{
    for (int i = 0; i < 20; i++) desk->add(1);
    pid_t server = desk->pid();
    desk->fork("stays");
    kill(server, SIGKILL);
    // The connection is open as long as the child is.
    std::string what = raised([&] { desk->add(1); });
    std::printf("the child has it: %s\n", what.c_str());
}

static void many(Desk_ptr desk, int count)
{
    Desks_var desks = desk->open(count);
    CORBA::LongLong sum = 0;
    for (int round = 1; round <= 2; round++)
        for (CORBA::ULong i = 0; i < desks->length(); i++) sum += desks[i]->add(i);
    std::printf("%u objects, sum %lld\n", desks->length(), (long long)sum);
}

static void callback(Desk_ptr desk)
{
    activate();
    Desk_var own = (new TheDesk)->_this();
    CORBA::LongLong sum = 0;
    for (int i = 1; i <= 30; i++) sum += desk->ask(own, i);
    std::printf("called back, sum %lld\n", (long long)sum);
}

static void late(Desk_ptr desk)
{
    for (int i = 0; i < 2; i++) {
        std::printf("%s\n", limited(desk, 100, [&] { desk->rest(400); }).c_str());
        std::printf("then %s\n", limited(desk, 0, [&] { desk->add(1); }).c_str());
    }
}

static void calling(Desk_ptr desk, const std::string &what)
{
    desk->add(1);
    say("calling");
    Bytes_var large = bytes(1500000);
    for (;;) {
        if (what == "upcall") desk->rest(800);
        if (what == "large") Bytes_var back = desk->mirror(large);
        if (what == "replies") Bytes_var back = desk->blob(20000000);
    }
}

int main(int argc, char **argv)
{
    if (argc < 3) return 2;
    std::string verb = argv[1], endpoint = "giop:tcp:127.0.0.1:" + std::string(argv[2]);
    const char *serves[][2] = {{"endPoint", endpoint.c_str()}, {nullptr, nullptr}}, *calls[][2] = {{nullptr, nullptr}};
    orb = CORBA::ORB_init(argc, argv, "omniORB4", verb == "serve" ? serves : calls);
    port = argv[2];
    std::string what = argc > 3 ? argv[3] : "";
    if (verb == "serve") return serve(what.c_str());
    {
        Desk_var desk = at("desk");
        if (verb == "end") desk->end();
        if (verb == "add") {
            for (int i = std::stoi(what); i > 0; i--) desk->add(1);
            say("added");
        }
        if (verb == "asks")
            for (int i = std::stoi(what); i > 0; i--) {
                std::string ended = raised([&] { desk->add(1); });
                std::printf("%s\n", ended.c_str());
            }
        if (verb == "forwarded") forwarded();
        if (verb == "mirrors") mirrors(desk, {argv + 3, argv + argc});
        if (verb == "stopped") stopped(desk);
        if (verb == "waiting") waiting(desk);
        if (verb == "unanswered") unanswered(desk);
        if (verb == "scavenged") scavenged(desk, what);
        if (verb == "forks") forks(desk, argv[0]);
        if (verb == "forked") forked(desk);
        if (verb == "orphaned") orphaned(desk);
        if (verb == "many") many(desk, std::stoi(what));
        if (verb == "callback") callback(desk);
        if (verb == "late") late(desk);
        if (verb == "calling") calling(desk, what);
    }
    orb->destroy();
    return 0;
}
