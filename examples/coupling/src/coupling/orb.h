// The object request broker of one rank, as a scope, and its names in the naming service.
// Not here: the coupling interface (idl/coupling.idl) nor what is done with it.
#pragma once

#include <omniORB4/CORBA.h>

#include <cstdint>
#include <string>

namespace coupling {

class Orb {
 public:
  // `naming`: HOST:PORT of the naming service. `call_timeout`: s, after which a remote call is given up.
  // Throws std::runtime_error.
  Orb(const std::string& naming, double call_timeout);
  Orb(const Orb&) = delete;
  Orb& operator=(const Orb&) = delete;
  ~Orb();  // waits for calls in progress

  // Starts serving objects of this process.
  void serve();

  // Registers an object as <case>/<rank>. Replaces an older entry.
  void register_part(const std::string& case_name, std::uint32_t rank, CORBA::Object_ptr object);

  // The object registered as <case>/<rank>; asks again until it is there. Throws std::runtime_error after `patience` s.
  CORBA::Object_var find_part(const std::string& case_name, std::uint32_t rank, double patience);

 private:
  CORBA::ORB_var orb_;
  std::string naming_;
};

// One line for a person about a CORBA exception.
std::string describe(const CORBA::Exception& error);

}  // namespace coupling
