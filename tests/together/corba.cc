// corba.cc: calls of omniORB. The ORB serves in threads of its own.
#include "together.h"
#include "together.hh"

namespace together {
namespace {

class Servant : public POA_together::Echo {
public:
    void back(Bytes &) override {}
};

class Corba : public Library {
public:
    Corba()
    {
        int count = 1;
        char name[] = "together", *words[] = {name, nullptr};
        orb_ = CORBA::ORB_init(count, words);
    }

    ~Corba() override { orb_->destroy(); }

    std::string where() override
    {
        CORBA::Object_var found = orb_->resolve_initial_references("RootPOA");
        PortableServer::POA_var poa = PortableServer::POA::_narrow(found);
        PortableServer::Servant_var<Servant> servant = new Servant;
        PortableServer::ObjectId_var id = poa->activate_object(servant);
        poa->the_POAManager()->activate();
        Echo_var echo = servant->_this();
        CORBA::String_var text = orb_->object_to_string(echo);
        return text.in();
    }

    void meet(const std::string &where) override
    {
        CORBA::Object_var found = orb_->string_to_object(where.c_str());
        echo_ = Echo::_narrow(found);
        if (CORBA::is_nil(echo_)) fail("the reference is of something else");
    }

    void serve(size_t) override {}

    void exchange(std::vector<unsigned char> &bytes) override
    {
        const auto length = static_cast<CORBA::ULong>(bytes.size());
        Bytes data(length, length, bytes.data(), false); // borrowed; the answer comes into it
        echo_->back(data);
        if (data.length() != length) fail("CORBA: another length");
        if (data.get_buffer() != bytes.data()) bytes.assign(data.get_buffer(), data.get_buffer() + length);
    }

    void end() override {}

private:
    CORBA::ORB_var orb_;
    Echo_var echo_;
};

} // namespace

std::unique_ptr<Library> corba() { return std::make_unique<Corba>(); }

} // namespace together
