// The solid: a row of columns of a wall. In each step every rank takes heat from the fluid (circuit); rank 0 serves the account of it (CORBA).
//   solid FLUID-RANKS SOLID-RANKS STEPS
#include "coupled.h"
#include "coupled.hh"

#include <condition_variable>
#include <mutex>

using namespace coupled;

namespace {

constexpr double kConduction = 0.1, kCapacity = 4.0;

// The CORBA object. The broker's thread waits in book() until the step is done; the code waits for the fluid's word whether it was the last one.
class Account : public POA_Coupled::Solid {
 public:
  CORBA::Double book(CORBA::ULong step, CORBA::Double, CORBA::Boolean last) override {
    std::unique_lock<std::mutex> lock(mutex_);
    booked_ = step;
    last_ = last;
    changed_.notify_all();
    changed_.wait(lock, [&] { return done_ >= step; });
    return heat_;
  }

  // The step is done with this heat. Returns whether it was the last one.
  bool finish(CORBA::ULong step, double heat) {
    std::unique_lock<std::mutex> lock(mutex_);
    heat_ = heat;
    done_ = step;
    changed_.notify_all();
    changed_.wait(lock, [&] { return booked_ >= step; });
    return last_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  CORBA::ULong booked_ = 0, done_ = 0;
  double heat_ = 0;
  bool last_ = false;
};

// Sends the object's reference to all members of the circuit.
void announce(CORBA::ORB_ptr orb, const Session& session, Account* account) {
  std::vector<char> text(4096);
  if (session.rank == 0) {
    CORBA::Object_var object = orb->resolve_initial_references("RootPOA");
    PortableServer::POA_var poa = PortableServer::POA::_narrow(object);
    PortableServer::ObjectId_var id = poa->activate_object(account);
    CORBA::Object_var reference = poa->id_to_reference(id);
    CORBA::String_var ior = orb->object_to_string(reference);
    std::snprintf(text.data(), text.size(), "%s", static_cast<const char*>(ior));
    PortableServer::POAManager_var manager = poa->the_POAManager();
    manager->activate();
  }
  check(motet_circuit_broadcast(session.boundary, session.fluids, text.data(), text.size()), "the object's reference");
}

void run(int argc, char** argv) {
  const int fluids = number(argc, argv, 1), solids = number(argc, argv, 2);
  Session session("solid", kFirstSolid, fluids, solids);
  const Range here = Range::of(session.rank, session.size);
  std::vector<double> wall(here.size() + 2, 300.0), heat(here.size());
  int no_options = 0;
  // If the fluid is on another host: the address by which it knows this one.
  const char* address = std::getenv("SOLID_ADDRESS");
  const std::string endpoint = std::string("giop:tcp:") + (address != nullptr ? address : "127.0.0.1") + ":";
  const char* options[][2] = {{"endPoint", endpoint.c_str()}, {nullptr, nullptr}};
  CORBA::ORB_var orb = CORBA::ORB_init(no_options, nullptr, "omniORB4", options);
  Account account;
  announce(orb, session, &account);
  double received = 0;
  int step = 0, last = 0;
  while (!last) {
    step++;
    session.receive(kHeat, heat.data(), here, 0, fluids);
    session.halo(wall);
    std::vector<double> next = wall;
    double own_heat = 0;
    for (int i = 1; i <= here.size(); i++) {
      next[i] += kConduction * (wall[i - 1] - 2 * wall[i] + wall[i + 1]) + heat[i - 1] / kCapacity;
      own_heat += heat[i - 1];
    }
    wall.swap(next);
    session.send(kTemperature, wall.data() + 1, here, 0, fluids);
    const double total = sum(own_heat);
    if (session.rank == 0) {
      received += total;
      last = account.finish(step, total);
    }
    MPI_Bcast(&last, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  if (session.rank == 0) std::printf("solid: %d ranks, %d steps, received %.3f J\n", session.size, step, received);
  motet_circuit_barrier(session.boundary);  // the fluid's last call has its answer
  orb->destroy();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run(argc, argv);
  } catch (const CORBA::Exception& error) {
    std::fprintf(stderr, "solid: CORBA %s\n", error._name());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
