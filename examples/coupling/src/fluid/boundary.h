// The gas rank's view of the wall: the parts that own its columns, called over CORBA.
// Not here: what the values mean to the gas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "case/case_file.h"
#include "case/partition.h"
#include "coupling.hh"
#include "coupling/orb.h"
#include "output/results.h"

namespace coupling {

class Boundary {
 public:
  // Finds the owners of `mine`. Throws std::runtime_error when the wall does not come up, or solves another case.
  Boundary(Orb& orb, const Case& data, Range mine);

  // Fetches the wall's temperature (K, one per own column) at the end of time step `step`.
  void fetch(std::uint32_t step, std::vector<double>& temperature);

  // Brings the mean heat flux into the wall over time step `step` (W/m^2) and fetches the temperature at its end.
  // All owners get their heat fluxes before the first is asked, so that they work at once.
  void exchange(std::uint32_t step, const std::vector<double>& flux, std::vector<double>& temperature);

  // Adds times, calls and bytes to a result.
  void report(RankResult& result) const;

 private:
  struct Owner {
    Range range;
    Coupling::WallPart_var part;
  };

  Range mine_;
  std::vector<Owner> owners_;
  double coupling_ = 0, solve_ = 0;  // s
  std::uint64_t calls_ = 0, values_ = 0;
};

}  // namespace coupling
