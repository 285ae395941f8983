// Every type of orb_types.idl between omniORB in C++ and another ORB. The variants of this program for other ORBs have the same commands and
// the same output.
//
//   orb_types serve            prints "object IOR:..." and serves; "ended" when its object was told to end
//   orb_types call URI         every operation, in the IDL's order: "NAME ok" or "NAME WRONG what"; then "all ok", or status 1
//   orb_types end URI          ends the server
//   orb_types time URI COUNT   the median time of COUNT calls, in ns (after some uncounted ones)
#include "orb_types_values.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <omniORB4/codeSets.h>
#include <omniORB4/dynAny.h>
#include <thread>

using namespace motet_types;
using Times = std::chrono::steady_clock;

static CORBA::ORB_var orb;
static PortableServer::POA_var poa;

// ---- the object ------------------------------------------------------------------------------------------------------

class TheEcho : public POA_motet_types::Echo {
    std::atomic<double> height{0};
    std::atomic<CORBA::Long> last{0};

    // Operations with in, out and inout parameters of one type.
    template <class T, class Out> static T *twice(const T &v, Out &o)
    {
        o = values::copy(v);
        return values::copy(v);
    }

public:
    // Number of calls of echo_longs and the sum of its results: the callback's side compares with them.
    std::atomic<CORBA::Long> calls{0}, returned{0};

    char *orb() override { return CORBA::string_dup("omniORB in C++"); }
    CORBA::Double level() override { return height; }
    void level(CORBA::Double to) override { height = to; }

    Everything *echo_everything(const Everything &v, Everything_out o, Everything &) override { return twice(v, o); }
    Octets *echo_octets(const Octets &v, Octets_out o, Octets &) override { return twice(v, o); }
    Doubles *echo_doubles(const Doubles &v, Doubles_out o, Doubles &) override { return twice(v, o); }
    Particles *echo_particles(const Particles &v, Particles_out o, Particles &) override { return twice(v, o); }
    Longs *echo_longs(const Longs &v, Longs_out o, Longs &) override
    {
        calls++;
        for (CORBA::ULong i = 0; i < v.length(); i++) returned += v[i];
        return twice(v, o);
    }

    Few *echo_few(const Few &v) override { return new Few(v); }
    Names *echo_names(const Names &v) override { return new Names(v); }
    Rows *echo_rows(const Rows &v) override { return new Rows(v); }
    Choice *echo_choice(const Choice &v) override { return new Choice(v); }
    Sign *echo_sign(const Sign &v) override { return new Sign(v); }
    Nodes *echo_nodes(const Nodes &v) override { return new Nodes(v); }
    Echo_ptr echo_reference(Echo_ptr v) override { return motet_types::Echo::_duplicate(v); }
    CORBA::Object_ptr echo_object(CORBA::Object_ptr v) override { return CORBA::Object::_duplicate(v); }

    CORBA::Any *echo_any(const CORBA::Any &v, CORBA::Long &kind) override
    {
        CORBA::TypeCode_var type = v.type();
        kind = type->kind();
        return new CORBA::Any(v);
    }

    void refuse(const char *why, CORBA::Long code) override { throw Refused(why, code); }
    void bad_parameter() override { throw CORBA::BAD_PARAM(77, CORBA::COMPLETED_NO); }
    void remember(CORBA::Long v) override { last = v; }
    CORBA::Long remembered() override { return last; }

    CORBA::Long call_back(Echo_ptr who, CORBA::Long times) override
    {
        CORBA::Long sum = 0;
        for (CORBA::Long number = 0; number < times; number++) {
            Longs sent, kept;
            sent.length(1);
            sent[0] = number;
            Longs_var out, back = who->echo_longs(sent, out, kept);
            for (CORBA::ULong i = 0; i < back->length(); i++) sum += back[i];
        }
        return sum;
    }

    void end() override
    {
        std::thread([] { ::orb->shutdown(true); }).detach();
    }
};

// ---- the checks: each returns what is wrong, or nothing -------------------------------------------------------------------------------

using Wrong = std::string;

// The bytes that the ORB would send. Equal values have equal bytes, infinities and -0.0 included.
template <class T> static std::string bytes(const T &value)
{
    cdrMemoryStream stream(0, true);
    stream.TCS_W(omni::omniCodeSet::getTCS_W(omni::omniCodeSet::ID_UTF_16, GIOP::Version{1, 2}));
    value >>= stream;
    return std::string(static_cast<const char *>(stream.bufPtr()), stream.bufSize());
}

template <class T> static Wrong unlike(const char *what, size_t which, const T &sent, const T &came)
{
    return bytes(sent) == bytes(came) ? "" : std::string(what) + " of value " + std::to_string(which) + " is another";
}

template <class T> static Wrong one_way(Echo_ptr echo, T *(_objref_Echo::*call)(const T &), const std::vector<T> &values)
{
    Wrong wrong;
    for (size_t i = 0; i < values.size() && wrong.empty(); i++) {
        typename T::_var_type back = (echo->*call)(values[i]);
        wrong = unlike<T>("the result", i, values[i], back.in());
    }
    return wrong;
}

// Passes each value as `in` and its neighbour as `inout`.
template <class T, class Out> static Wrong all_ways(Echo_ptr echo, T *(_objref_Echo::*call)(const T &, Out, T &), const std::vector<T> &values)
{
    Wrong wrong;
    for (size_t i = 0; i < values.size() && wrong.empty(); i++) {
        const T &beside = values[(i + 1) % values.size()];
        T kept;
        kept = beside;
        typename T::_var_type out, back = (echo->*call)(values[i], out, kept);
        wrong = unlike<T>("the result", i, values[i], back.in()) + unlike<T>("out", i, values[i], out.in()) + unlike<T>("inout", i, beside, kept);
    }
    return wrong;
}

static Wrong level(Echo_ptr echo)
{
    for (double height : {1.25, -0.0, values::most<double>()}) {
        echo->level(height);
        double back = echo->level();
        if (std::memcmp(&height, &back, sizeof back) != 0) return "it is " + std::to_string(back);
    }
    return "";
}

// Compares part by part: the bytes of anys and type codes contain padding with arbitrary values.
static bool equal(DynamicAny::DynAnyFactory_ptr factory, const CORBA::Any &left, const CORBA::Any &right)
{
    DynamicAny::DynAny_var one = factory->create_dyn_any(left), other = factory->create_dyn_any(right);
    bool same = one->equal(other);
    one->destroy(), other->destroy();
    return same;
}

static Wrong any(Echo_ptr echo)
{
    CORBA::Object_var found = orb->resolve_initial_references("DynAnyFactory");
    DynamicAny::DynAnyFactory_var factory = DynamicAny::DynAnyFactory::_narrow(found);
    CORBA::String_var peer = echo->orb();
    auto all = values::anys(echo, std::strstr(peer, "omniORBpy"));
    for (size_t i = 0; i < all.size(); i++) {
        CORBA::Long kind = -1;
        CORBA::Any_var back = echo->echo_any(all[i], kind);
        CORBA::TypeCode_var sent = all[i].type();
        if (kind != CORBA::Long(sent->kind())) return "the server sees kind " + std::to_string(kind) + " for any " + std::to_string(i);
        if (!equal(factory, all[i], back)) return "any " + std::to_string(i) + " is another";
    }
    return "";
}

// Nodes as text: the values along each list, and which entries are the same node.
static std::string shape(const Nodes &nodes)
{
    std::string told;
    for (CORBA::ULong i = 0; i < nodes.length(); i++) {
        for (const Node *node = nodes[i]; node; node = node->next()) {
            told += std::to_string(node->value());
            for (CORBA::ULong j = 0; j < nodes.length(); j++) told += node == nodes[j] ? " is " + std::to_string(j) : "";
            told += node->next() ? ", " : "";
        }
        told += "; ";
    }
    return told;
}

static Wrong nodes(Echo_ptr echo)
{
    Nodes none, some = values::nodes();
    Nodes_var nothing = echo->echo_nodes(none), back = echo->echo_nodes(some);
    if (nothing->length() != 0) return "none came back as some";
    return shape(some) == shape(back) ? "" : "they came back as " + shape(back);
}

static Wrong references(Echo_ptr echo, Echo_ptr own, const std::function<CORBA::Object_ptr(CORBA::Object_ptr)> &call)
{
    CORBA::Object_var nil = call(CORBA::Object::_nil()), theirs = call(echo), mine = call(own);
    if (!CORBA::is_nil(nil)) return "nil is no longer nil";
    if (!theirs->_is_equivalent(echo) || !mine->_is_equivalent(own)) return "another object came back";
    if (theirs->_non_existent() || !theirs->_is_a("IDL:motet_types/Base:1.0")) return "the object is another";
    return "";
}

static Wrong refuse(Echo_ptr echo)
{
    for (const char *why : {"", "there is no more"}) {
        try {
            echo->refuse(why, values::least<CORBA::Long>());
            return "nothing was thrown";
        } catch (const Refused &e) {
            if (std::strcmp(e.why, why) != 0 || e.code != values::least<CORBA::Long>()) return std::string("it says ") + e.why.in();
        }
    }
    return "";
}

static Wrong bad_parameter(Echo_ptr echo)
{
    try {
        echo->bad_parameter();
    } catch (const CORBA::BAD_PARAM &e) {
        bool right = e.minor() == 77 && e.completed() == CORBA::COMPLETED_NO;
        return right ? "" : "its minor code is " + std::to_string(e.minor()) + ", completed " + std::to_string(e.completed());
    }
    return "nothing was thrown";
}

// Waits until a oneway call has arrived: the server may have several threads.
static Wrong remembered(Echo_ptr echo, CORBA::Long expected)
{
    for (int i = 0; i < 1000 && echo->remembered() != expected; i++) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    CORBA::Long last = echo->remembered();
    return last == expected ? "" : "it is " + std::to_string(last);
}

static Wrong call_back(Echo_ptr echo, TheEcho &own, Echo_ptr reference)
{
    constexpr CORBA::Long TIMES = 50;
    CORBA::Long sum = echo->call_back(reference, TIMES);
    if (own.calls != TIMES) return std::to_string(own.calls) + " calls came back";
    return sum == own.returned && sum != 0 ? "" : "the sum is " + std::to_string(sum) + ", not " + std::to_string(own.returned);
}

static int call(Echo_ptr echo)
{
    PortableServer::Servant_var<TheEcho> own = new TheEcho; // the adapter may keep it longer than this function
    PortableServer::ObjectId_var id = poa->activate_object(own);
    Echo_var mine = own->_this();
    const std::pair<const char *, std::function<Wrong()>> checks[] = {
        {"orb", [&] { CORBA::String_var name = echo->orb(); return Wrong(*name.in() ? "" : "it is empty"); }},
        {"level", [&] { return level(echo); }},
        {"echo_everything", [&] { return all_ways(echo, &_objref_Echo::echo_everything, values::everything()); }},
        {"echo_octets", [&] { return all_ways(echo, &_objref_Echo::echo_octets, values::octets()); }},
        {"echo_longs", [&] { return all_ways(echo, &_objref_Echo::echo_longs, values::longs()); }},
        {"echo_doubles", [&] { return all_ways(echo, &_objref_Echo::echo_doubles, values::doubles()); }},
        {"echo_few", [&] { return one_way(echo, &_objref_Echo::echo_few, values::few()); }},
        {"echo_names", [&] { return one_way(echo, &_objref_Echo::echo_names, values::names()); }},
        {"echo_rows", [&] { return one_way(echo, &_objref_Echo::echo_rows, values::rows()); }},
        {"echo_particles", [&] { return all_ways(echo, &_objref_Echo::echo_particles, values::particles()); }},
        {"echo_choice", [&] { return one_way(echo, &_objref_Echo::echo_choice, values::choices()); }},
        {"echo_sign", [&] { return one_way(echo, &_objref_Echo::echo_sign, values::signs()); }},
        {"echo_any", [&] { return any(echo); }},
        {"echo_nodes", [&] { return nodes(echo); }},
        {"echo_reference", [&] { return references(echo, mine, [&](CORBA::Object_ptr v) {
             Echo_var narrow = Echo::_narrow(v);
             return echo->echo_reference(narrow);
         }); }},
        {"echo_object", [&] { return references(echo, mine, [&](CORBA::Object_ptr v) { return echo->echo_object(v); }); }},
        {"refuse", [&] { return refuse(echo); }},
        {"bad_parameter", [&] { return bad_parameter(echo); }},
        {"remember", [&] { echo->remember(-5); return remembered(echo, -5); }},
        {"remembered", [&] { echo->remember(6); return remembered(echo, 6); }},
        {"call_back", [&] { return call_back(echo, *own, mine); }},
    };
    bool right = true;
    for (const auto &[name, run] : checks) {
        Wrong wrong;
        try {
            wrong = run();
        } catch (const CORBA::Exception &e) {
            auto *system = CORBA::SystemException::_downcast(&e);
            wrong = std::string("it throws ") + e._name() + (system && system->NP_minorString() ? std::string(" ") + system->NP_minorString() : "");
        }
        std::printf("%s %s%s\n", name, wrong.empty() ? "ok" : "WRONG ", wrong.c_str());
        right = right && wrong.empty();
    }
    if (right) std::puts("all ok");
    poa->deactivate_object(id);
    return right ? 0 : 1;
}

// ---- the rest --------------------------------------------------------------------------------------------------------

static int serve()
{
    PortableServer::Servant_var<TheEcho> echo = new TheEcho;
    PortableServer::ObjectId_var id = poa->activate_object(echo);
    {
        Echo_var reference = echo->_this();
        CORBA::String_var uri = orb->object_to_string(reference);
        std::printf("object %s\n", uri.in());
        std::fflush(stdout);
    }
    orb->run();
    std::puts("ended");
    return 0;
}

static int time(Echo_ptr echo, size_t count)
{
    for (int i = 0; i < 20000; i++) echo->remembered();
    std::vector<Times::duration> took(count);
    for (Times::duration &one : took) {
        Times::time_point began = Times::now();
        echo->remembered();
        one = Times::now() - began;
    }
    std::nth_element(took.begin(), took.begin() + count / 2, took.end());
    std::printf("%lld\n", static_cast<long long>(std::chrono::nanoseconds(took[count / 2]).count()));
    return 0;
}

int main(int argc, char **argv)
{
    const char *options[][2] = {{"endPoint", "giop:tcp:127.0.0.1:"}, {nullptr, nullptr}};
    orb = CORBA::ORB_init(argc, argv, "omniORB4", options);
    CORBA::ValueFactoryBase_var factory = new Node_init, before = orb->register_value_factory(_tc_Node->id(), factory);
    CORBA::Object_var found = orb->resolve_initial_references("RootPOA");
    poa = PortableServer::POA::_narrow(found);
    PortableServer::POAManager_var manager = poa->the_POAManager();
    manager->activate();
    std::string verb = argc > 1 ? argv[1] : "";
    int status = 2;
    if (verb == "serve") status = serve();
    if (verb != "serve" && argc > 2) {
        CORBA::Object_var object = orb->string_to_object(argv[2]);
        Echo_var echo = Echo::_narrow(object);
        if (verb == "call") status = call(echo);
        if (verb == "time" && argc > 3 && std::atol(argv[3]) > 0) status = time(echo, std::atol(argv[3]));
        if (verb == "end") echo->end(), status = 0;
    }
    orb->destroy();
    return status;
}
