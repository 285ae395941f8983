// What both codes share: the session, the circuit across both groups, and the division of the columns.
#pragma once

#include <mpi.h>

#include <motet_group.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

namespace coupled {

constexpr int kColumns = 240;
// Members are in the order of the ranks that they ask for: the fluid's ranks, then the solid's.
constexpr int kFirstSolid = 1000;

enum Tag : std::uint32_t { kHeat = 1, kTemperature = 2, kReport = 3 };

// One report to a monitor.
struct Report {
  std::uint32_t step;
  double fluid, solid;  // mean temperatures, K
};

// Ends the whole MPI job: MPI_Abort does so where exit() would leave the other ranks waiting.
[[noreturn]] inline void fail(const char* what, int error) {
  std::fprintf(stderr, "%s: %s\n", what, std::strerror(-error));
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

inline void check(int result, const char* what) {
  if (result < 0) fail(what, result);
}

// The deadline `seconds` from now.
inline std::int64_t in(int seconds) {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (t.tv_sec + seconds) * INT64_C(1000000000) + t.tv_nsec;
}

// The columns of one part of `parts`.
struct Range {
  int first, last;  // one beyond
  static Range of(int part, int parts) { return {kColumns * part / parts, kColumns * (part + 1) / parts}; }
  int size() const { return last - first; }
  Range intersection(Range other) const {
    const int from = first > other.first ? first : other.first, to = last < other.last ? last : other.last;
    return {from, to > from ? to : from};
  }
};

// A code's place: its MPI_COMM_WORLD, its own group, and the circuit "boundary" across both groups.
struct Session {
  int rank = 0, size = 0;           // in MPI_COMM_WORLD
  int fluids = 0, solids = 0;       // ranks of the two codes
  motet_node node = 0;
  motet_membership membership = 0;
  motet_group own = 0, both = 0;
  motet_circuit boundary = 0;

  Session(const char* code, int first_rank, int fluids_, int solids_) : fluids(fluids_), solids(solids_) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    check(motet_node_open(nullptr, &node), "node");
    check(motet_session_attach(node, nullptr, &membership), "session");
    check(motet_group_join(membership, code, rank, &own), code);
    check(motet_group_wait(own, static_cast<unsigned>(size), in(60)), "the ranks of this code");
    check(motet_group_join(membership, "coupled", first_rank + rank, &both), "coupled");
    check(motet_group_wait(both, static_cast<unsigned>(fluids + solids), in(60)), "the other code");
    check(motet_circuit_open(both, "boundary", in(60), &boundary), "boundary");
  }

  // Exchanges the outermost columns with the neighbours, by MPI: values[0] and values[size + 1] are theirs, or copies of this rank's at both ends.
  void halo(std::vector<double>& values) const {
    const int n = static_cast<int>(values.size()) - 2;
    const int left = rank > 0 ? rank - 1 : MPI_PROC_NULL, right = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
    values.front() = values[1];
    values.back() = values[n];
    MPI_Sendrecv(&values[1], 1, MPI_DOUBLE, left, 0, &values[n + 1], 1, MPI_DOUBLE, right, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(&values[n], 1, MPI_DOUBLE, right, 1, &values[0], 1, MPI_DOUBLE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }

  // Sends to each rank of the other code the values of the columns that it owns, and receives its values of the columns here.
  void send(Tag tag, const double* values, Range here, int first, int parts) const {
    for (int part = 0; part < parts; part++) {
      const Range common = here.intersection(Range::of(part, parts));
      if (common.size() == 0) continue;
      check(motet_circuit_send(boundary, first + part, tag, values + common.first - here.first, common.size() * sizeof(double)), "send");
    }
  }
  void receive(Tag tag, double* values, Range here, int first, int parts) const {
    for (int part = 0; part < parts; part++) {
      const Range common = here.intersection(Range::of(part, parts));
      if (common.size() == 0) continue;
      double* into = values + common.first - here.first;
      check(motet_circuit_receive(boundary, first + part, tag, into, common.size() * sizeof(double), in(60), nullptr), "receive");
    }
  }

  ~Session() {
    motet_circuit_barrier(boundary);  // the others have got everything
    motet_circuit_close(boundary);
    motet_group_leave(both);
    motet_group_leave(own);
    motet_session_detach(membership);
    motet_node_close(node);
  }
};

inline double sum(double value) {
  double all = 0;
  MPI_Allreduce(&value, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

inline int number(int argc, char** argv, int at) {
  const int value = argc > at ? std::atoi(argv[at]) : 0;
  if (value > 0) return value;
  std::fprintf(stderr, "usage: %s FLUID-RANKS SOLID-RANKS STEPS [REPORTS]\n", argv[0]);
  std::exit(2);
}

}  // namespace coupled
