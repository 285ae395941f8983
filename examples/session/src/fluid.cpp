// The fluid: a row of columns of hot gas along the wall. In each step every rank gives heat to the wall (circuit), and the sum is booked there (CORBA).
//   fluid FLUID-RANKS SOLID-RANKS STEPS [REPORTS]    goes on after STEPS until monitors have got so many reports
#include "coupled.h"
#include "coupled.hh"

#include <cmath>
#include <optional>

using namespace coupled;

namespace {

constexpr double kExchange = 0.02, kMixing = 0.2, kHeating = 0.5;

// The group "watch": rank 0 of the fluid, and monitors, which join when they like. Each gets reports on a circuit of its own.
class Monitors {
 public:
  explicit Monitors(const Session& session) { check(motet_group_join(session.membership, "watch", 0, &group_), "watch"); }

  // Looks at each view since the last call, and sends a report to all monitors that are there. Returns how many reports were sent so far.
  int report(const Report& report) {
    motet_view view = MOTET_INIT(motet_view);
    std::vector<motet_member> members = room();
    while (motet_group_next_view(group_, known_, 0, &view, members.data(), kMost) == 0) {
      std::printf("fluid: view %llu of watch has %u members\n", static_cast<unsigned long long>(view.number), view.members);
      for (unsigned at = 0; at < view.members && at < kMost; at++)
        if (static_cast<int>(at) != view.rank && (known_ == 0 || members[at].since > known_)) welcome(members[at].since);
      known_ = view.number;
    }
    for (Monitor& monitor : monitors_) {
      if (monitor.circuit == 0) continue;
      if (motet_circuit_send(monitor.circuit, monitor.rank, kReport, &report, sizeof report) == 0) {
        sent_++;
      } else {  // the monitor has gone: the codes go on
        motet_circuit_close(monitor.circuit);
        monitor.circuit = 0;
      }
    }
    return sent_;
  }

  ~Monitors() {
    for (const Monitor& monitor : monitors_)
      if (monitor.circuit != 0) motet_circuit_close(monitor.circuit);
    motet_group_leave(group_);
  }

 private:
  static constexpr unsigned kMost = 64;
  struct Monitor {
    motet_circuit circuit;
    unsigned rank;
  };

  static std::vector<motet_member> room() {
    std::vector<motet_member> members(kMost);
    members[0].size = sizeof(motet_member);
    return members;
  }

  // Opens the circuit of the monitor that has joined in this view.
  void welcome(std::uint64_t since) {
    const std::string name = "watch-" + std::to_string(since);
    motet_circuit circuit = 0;
    motet_circuit_state state = MOTET_INIT(motet_circuit_state);
    std::vector<motet_member> members = room();
    if (motet_circuit_open(group_, name.c_str(), in(10), &circuit) != 0) return;
    motet_circuit_info(circuit, &state, members.data(), kMost);
    for (unsigned at = 0; at < state.members && at < kMost; at++)
      if (members[at].since == since) return monitors_.push_back({circuit, at});
    motet_circuit_close(circuit);
  }

  motet_group group_ = 0;
  std::uint64_t known_ = 0;
  std::vector<Monitor> monitors_;
  int sent_ = 0;
};

// The solid's object, whose reference its rank 0 sends over the circuit.
Coupled::Solid_var find_solid(CORBA::ORB_ptr orb, const Session& session) {
  std::vector<char> text(4096);
  check(motet_circuit_broadcast(session.boundary, session.fluids, text.data(), text.size()), "the solid's reference");
  CORBA::Object_var object = orb->string_to_object(text.data());
  return Coupled::Solid::_narrow(object);
}

void run(int argc, char** argv) {
  const int fluids = number(argc, argv, 1), solids = number(argc, argv, 2), steps = number(argc, argv, 3);
  const int reports = argc > 4 ? number(argc, argv, 4) : 0;
  Session session("fluid", 0, fluids, solids);
  const Range here = Range::of(session.rank, session.size);
  std::vector<double> gas(here.size() + 2, 900.0), wall(here.size(), 300.0), heat(here.size());
  int no_options = 0;
  CORBA::ORB_var orb = CORBA::ORB_init(no_options, nullptr);
  Coupled::Solid_var solid = find_solid(orb, session);
  double given = 0, received = 0;
  int step = 0, last = 0;
  {
    std::optional<Monitors> monitors;
    if (session.rank == 0) monitors.emplace(session);
    while (!last) {
      step++;
      session.halo(gas);
      std::vector<double> next = gas;
      for (int i = 1; i <= here.size(); i++) {
        heat[i - 1] = kExchange * (gas[i] - wall[i - 1]);
        next[i] += kMixing * (gas[i - 1] - 2 * gas[i] + gas[i + 1]) + kHeating - heat[i - 1];
      }
      gas.swap(next);
      session.send(kHeat, heat.data(), here, fluids, solids);
      session.receive(kTemperature, wall.data(), here, fluids, solids);
      double own_heat = 0, own_gas = 0, own_wall = 0;
      for (int i = 0; i < here.size(); i++) own_heat += heat[i], own_gas += gas[i + 1], own_wall += wall[i];
      const double total = sum(own_heat);
      const Report report{static_cast<std::uint32_t>(step), sum(own_gas) / kColumns, sum(own_wall) / kColumns};
      if (session.rank == 0) {
        last = monitors->report(report) >= reports && step >= steps;
        given += total;
        received += solid->book(step, total, last);
      }
      MPI_Bcast(&last, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (session.rank == 0) {
      const bool agree = std::fabs(given - received) <= 1e-12 * given;
      std::printf("fluid: %d ranks, %d steps, gave %.3f J; the solid's account %s\n", session.size, step, given,
                  agree ? "agrees" : "DIFFERS");
    }
    motet_circuit_barrier(session.boundary);
  }
  orb->destroy();
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  try {
    run(argc, argv);
  } catch (const CORBA::Exception& error) {
    std::fprintf(stderr, "fluid: CORBA %s\n", error._name());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  MPI_Finalize();
}
