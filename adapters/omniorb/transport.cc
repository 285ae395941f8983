/* transport.cc: the transport `giop:tcp` in the place of omniORB's own.
 *
 * What it is:   an entry in omniORB's list of transports. The list has the built-in one first and the first that matches a name is
 *               taken, so the built-in one gives its name up. It stays in the list and is asked for all that is not ours to know:
 *               which addresses are valid, which interfaces there are, what an IOR says.
 * What it isn't: visible. The names in IORs, options and logs are the same. */
#include "adapter.h"

#include <omniORB4/tcpTransportImpl.h>

namespace motet_omniorb {

static const char *const NAME = "giop:tcp";

class Transport : public omni::giopTransportImpl {
public:
    explicit Transport(omni::giopTransportImpl *own) : giopTransportImpl(NAME), own_(own) {}
    omni::giopEndpoint *toEndpoint(const char *param) override { return own_->isValid(param) ? new_endpoint(param) : nullptr; }
    omni::giopAddress *toAddress(const char *param) override
    {
        IIOP::Address address;
        return omni::tcpTransportImpl::parseAddress(param, address) ? new_address(address) : nullptr;
    }
    CORBA::Boolean isValid(const char *param) override { return own_->isValid(param); }
    CORBA::Boolean addToIOR(const char *param, omni::IORPublish *eps) override { return own_->addToIOR(param, eps); }
    const omnivector<const char *> *getInterfaceAddress() override { return own_->getInterfaceAddress(); }

private:
    omni::giopTransportImpl *const own_;
};

bool stand_in_for_tcp()
{
    omni::giopTransportImpl *own = omni::giopTransportImpl::str2Transport("giop:tcp:127.0.0.1:1");
    if (!own || !dynamic_cast<omni::tcpTransportImpl *>(own)) return false;
    own->type = "giop:kernel-tcp";
    new Transport(own); /* enters itself into the list, for as long as the process lives */
    return true;
}

} // namespace motet_omniorb
