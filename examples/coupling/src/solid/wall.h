// The channel's wall: finite volumes for heat conduction, k(T) from a table, on a rank's block of columns.
// Not here: how heat fluxes come and where wall temperatures go (wall_part.h).
//
//   rho c dT/dt = d/dx (k(T) dT/dx) + d/dy (k(T) dT/dy)
//
// Implicit along y (a line solve per column, k from the old temperatures), explicit along x. As in the gas, a column's
// new values do not depend on the layout.
#pragma once

#include <cstdint>
#include <vector>

#include "case/case_file.h"
#include "case/material.h"
#include "case/partition.h"
#include "output/results.h"
#include "output/sums.h"
#include "parallel/columns.h"

namespace coupling {

class Wall {
 public:
  // Throws std::runtime_error when the time step is too long for the explicit direction.
  Wall(const Case& data, const Material& material, Range mine, int rank, int ranks);

  // One time step with the given heat flux into the surface (W/m^2, one per own column). Collective over the ranks of
  // the wall, but not synchronous: it waits only for the neighbours' previous step.
  void step(const std::vector<double>& heat_flux);

  // Temperature of the surface, K, one per own column.
  const std::vector<double>& surface() const { return surface_; }

  const Columns& temperature() const { return old_; }  // K

  void report(RankResult& result) const;
  std::vector<std::uint64_t> hashes() const;

 private:
  double conductivity(double kelvin) const;
  void check_time_step(const Case& data) const;
  // Heat through the face between columns `i` and `i + 1`, W per metre of depth, per row.
  void face_heat(int i, std::vector<double>& heat) const;
  void solve_column(int i, double flux);

  SolidCase solid_;
  const Material& material_;
  double dt_, dx_, dy_, capacity_;
  bool first_, last_;
  std::vector<double> bottom_coefficient_;  // W/(m^2 K), one per own column, used with convection
  Columns old_, next_, k_;
  HaloExchange halo_;
  std::vector<double> left_heat_, right_heat_, upper_;
  std::vector<double> surface_;
  Sum outer_, interface_, turnover_;
};

}  // namespace coupling
