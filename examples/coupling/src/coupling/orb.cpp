// omniORB's set-up for both codes: everything stays on 127.0.0.1, boundaries may be large, nothing waits forever.
#include "coupling/orb.h"

#include <omniORB4/Naming.hh>

#include <chrono>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace coupling {
namespace {

CosNaming::Name context_name(const std::string& case_name) {
  CosNaming::Name name;
  name.length(1);
  name[0].id = case_name.c_str();
  name[0].kind = "case";
  return name;
}

CosNaming::Name part_name(const std::string& case_name, std::uint32_t rank) {
  CosNaming::Name name = context_name(case_name);
  name.length(2);
  name[1].id = std::to_string(rank).c_str();
  name[1].kind = "part";
  return name;
}

}  // namespace

std::string describe(const CORBA::Exception& error) {
  std::ostringstream text;
  text << "CORBA " << error._name();
  if (const auto* system = dynamic_cast<const CORBA::SystemException*>(&error)) {
    const char* minor = system->NP_minorString();
    text << " (" << (minor != nullptr ? minor : "no details") << ")";
  }
  return text.str();
}

Orb::Orb(const std::string& naming, double call_timeout) : naming_(naming) {
  const std::string reference = "NameService=corbaname::" + naming;
  const std::string timeout = std::to_string(static_cast<long>(call_timeout * 1000));
  const char* options[][2] = {
      {"InitRef", reference.c_str()},
      {"endPoint", "giop:tcp:127.0.0.1:"},
      {"giopMaxMsgSize", "2000000000"},          // a boundary of 1e6 values is 8 MB; the default limit is 2 MiB
      {"clientCallTimeOutPeriod", timeout.c_str()},
      {"maxServerThreadPerConnection", "1"},     // a gas rank's calls are served in order by one thread
      {"outConScanPeriod", "0"},                 // no connection is closed for being idle
      {"inConScanPeriod", "0"},
      {nullptr, nullptr},
  };
  int argc = 0;
  try {
    orb_ = CORBA::ORB_init(argc, nullptr, "omniORB4", options);
  } catch (const CORBA::Exception& error) {
    throw std::runtime_error("the object request broker does not start: " + describe(error));
  }
}

Orb::~Orb() {
  try {
    orb_->destroy();
  } catch (const CORBA::Exception&) {  // nothing left to do: the process is ending
  }
}

void Orb::serve() {
  CORBA::Object_var object = orb_->resolve_initial_references("RootPOA");
  PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
  PortableServer::POAManager_var manager = poa->the_POAManager();
  manager->activate();
}

void Orb::register_part(const std::string& case_name, std::uint32_t rank, CORBA::Object_ptr object) {
  try {
    CORBA::Object_var initial = orb_->resolve_initial_references("NameService");
    CosNaming::NamingContext_var root = CosNaming::NamingContext::_narrow(initial);
    try {
      CosNaming::NamingContext_var created = root->bind_new_context(context_name(case_name));
    } catch (const CosNaming::NamingContext::AlreadyBound&) {  // another rank came first
    }
    root->rebind(part_name(case_name, rank), object);
  } catch (const CORBA::Exception& error) {
    throw std::runtime_error("cannot register with the naming service at " + naming_ + ": " + describe(error));
  }
}

CORBA::Object_var Orb::find_part(const std::string& case_name, std::uint32_t rank, double patience) {
  const auto begin = std::chrono::steady_clock::now();
  std::string reason;
  for (;;) {
    try {
      CORBA::Object_var initial = orb_->resolve_initial_references("NameService");
      CosNaming::NamingContext_var root = CosNaming::NamingContext::_narrow(initial);
      return root->resolve(part_name(case_name, rank));
    } catch (const CosNaming::NamingContext::NotFound&) {
      reason = "not registered";
    } catch (const CORBA::Exception& error) {
      reason = describe(error);
    }
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    if (waited.count() > patience) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw std::runtime_error("part " + std::to_string(rank) + " of the wall of case " + case_name +
                           " cannot be found at the naming service " + naming_ + ": " + reason);
}

}  // namespace coupling
