// What a code reports about its run, gathered from all ranks into one file of JSON lines: a line per rank, then a total.
// Not here: fields (vtk.h). Nothing in here is estimated; a time is a clock's reading.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace coupling {

struct RankResult {
  double wall_seconds = 0;      // from the first exchange to the last
  double cpu_seconds = 0;       // user + system, of the whole process
  double coupling_seconds = 0;  // gas: inside remote calls; wall: calls held until a step was complete
  double solve_seconds = 0;     // gas: the wall's own steps as the wall measured them (the slowest part of each
                                // step), contained in coupling_seconds; wall: its own steps
  double calls = 0;             // remote calls made (gas) or served (wall)
  double bytes = 0;             // boundary values sent and received in these calls, without protocol headers
  double energy_change = 0;     // J per metre of depth, since the start
  double energy_in = 0;         // J/m through the outer boundaries, since the start
  double energy_interface = 0;  // J/m from the gas into the wall, since the start
  double energy_turnover = 0;   // J/m, sum of the magnitudes of all of them: the scale of a rounding error
};

// One hash per own column: of its final temperatures, and of its history of interface values.
struct ColumnHashes {
  std::vector<std::uint64_t> field;
  std::vector<std::uint64_t> interface;
};

// User and system time of this process so far, s.
double cpu_seconds();

// Monotonic clock, s.
double now();

// Collective. Rank 0 writes `path`. Hashes are combined in the order of the columns, whatever the layout, so that equal
// fields give equal checksums under every layout. Throws std::runtime_error when the file cannot be written.
void write_results(const std::string& path, const std::string& code, const std::string& case_name,
                   const RankResult& mine, const ColumnHashes& hashes);

}  // namespace coupling
