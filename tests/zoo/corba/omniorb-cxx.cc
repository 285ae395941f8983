// `serve FILE`, `ask REFERENCE`, `end REFERENCE` (see the program's file).
#include "zoo.hh"
#include <atomic>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static CORBA::ORB_var orb;

struct Servant : POA_Zoo::Cage {
    std::atomic<long long> sum{0};
    Zoo::Items* turned(const Zoo::Items& all) override {
        auto* back = new Zoo::Items;
        back->length(all.length());
        for (CORBA::ULong i = 0; i < all.length(); i++) (*back)[i] = all[all.length() - 1 - i];
        return back;
    }
    Zoo::Bytes* plus(const Zoo::Bytes& data, CORBA::Octet n) override {
        auto* back = new Zoo::Bytes(data);
        for (CORBA::ULong i = 0; i < back->length(); i++) (*back)[i] += n;
        return back;
    }
    Zoo::Either* other(const Zoo::Either& one) override {
        auto* back = new Zoo::Either;
        if (!one._d()) {
            if (one.data().length() == 13) throw Zoo::Refused("thirteen", 13);
            back->text(std::to_string(one.data().length()).c_str());
        } else {
            Zoo::Bytes data;
            data.length(std::stoul(one.text()));
            for (CORBA::ULong i = 0; i < data.length(); i++) data[i] = CORBA::Octet(i);
            back->data(data);
        }
        return back;
    }
    void note(CORBA::Long n) override { sum += n; }
    CORBA::LongLong noted() override { return sum; }
    void end() override { orb->shutdown(false); }
};

static void ask(Zoo::Cage_ptr cage, int seed, std::atomic<int>& right) {
    for (int i = 0; i < 200; i++) {
        Zoo::Items items;
        items.length(i % 40);
        for (CORBA::ULong k = 0; k < items.length(); k++) {
            items[k].name = ("item " + std::to_string(k)).c_str();
            items[k].value = k * 1.5;
            items[k].numbers.length(k * 3);
            for (CORBA::ULong n = 0; n < k * 3; n++) items[k].numbers[n] = n * seed;
        }
        Zoo::Items_var back = cage->turned(items);
        bool good = back->length() == items.length();
        for (CORBA::ULong k = 0; good && k < items.length(); k++) {
            const auto& item = back[items.length() - 1 - k];
            good = !strcmp(item.name, items[k].name) && item.value == items[k].value && item.numbers.length() == k * 3 && (!k || item.numbers[k * 3 - 1] == CORBA::Long((k * 3 - 1) * seed));
        }
        right += good;
        Zoo::Bytes data;
        data.length(i % 20 == 19 ? 5000000 : i * 333);
        for (CORBA::ULong k = 0; k < data.length(); k++) data[k] = CORBA::Octet(k * seed);
        Zoo::Bytes_var more = cage->plus(data, 7);
        good = more->length() == data.length();
        for (CORBA::ULong k = 0; good && k < data.length(); k++) good = more[k] == CORBA::Octet(data[k] + 7);
        right += good;
        Zoo::Either one;
        if (i % 2) one.text(std::to_string(i * 100).c_str());
        else data.length(i % 26), one.data(data);
        try {
            Zoo::Either_var got = cage->other(one);
            right += i % 2 ? !got->_d() && got->data().length() == CORBA::ULong(i * 100) : got->_d() && std::to_string(i % 26) == (const char*)got->text();
        } catch (const Zoo::Refused& refused) {
            right += i % 26 == 13 && refused.code == 13;
        }
        cage->note(i);
    }
}

int main(int argc, char** argv) {
    orb = CORBA::ORB_init(argc, argv);
    std::string verb = argv[1];
    if (verb == "serve") {
        CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
        PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
        auto* servant = new Servant;
        PortableServer::ObjectId_var id = poa->activate_object(servant);
        object = servant->_this();
        CORBA::String_var ior = orb->object_to_string(object);
        std::ofstream(argv[2]) << ior << std::endl;
        PortableServer::POAManager_var manager = poa->the_POAManager();
        manager->activate();
        orb->run();
        return 0;
    }
    CORBA::Object_var object = orb->string_to_object(argv[2]);
    Zoo::Cage_var cage = Zoo::Cage::_narrow(object);
    if (verb == "end") {
        cage->end();
    } else {
        std::atomic<int> right{0};
        std::vector<std::thread> threads;
        long long before = cage->noted();
        for (int seed = 1; seed <= 8; seed++) threads.emplace_back([&, seed] { ask(cage, seed, right); });
        for (auto& one : threads) one.join();
        for (int i = 0; i < 100 && cage->noted() - before != 8 * 19900; i++) usleep(50000);
        printf("%d of 4800, notes %lld\n", right.load(), (long long)cage->noted() - before);
    }
    orb->destroy();
    return 0;
}
