/* transport.cc: the transport `giop:tcp` that replaces omniORB's own.
 *
 * What it is:   an entry in omniORB's list of transports. The built-in transport is first in the list and the first match is taken, so the
 *               built-in one gets another name. It stays in the list and answers what this adapter does not know: valid addresses,
 *               interfaces, the content of IORs.
 * What it isn't: visible. Names in IORs, options and logs are unchanged. */
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

bool replace_tcp_transport()
{
    omni::giopTransportImpl *own = omni::giopTransportImpl::str2Transport("giop:tcp:127.0.0.1:1");
    if (!own || !dynamic_cast<omni::tcpTransportImpl *>(own)) return false;
    own->type = "giop:kernel-tcp";
    new Transport(own); /* registers itself in the list, for the life of the process */
    return true;
}

} // namespace motet_omniorb
