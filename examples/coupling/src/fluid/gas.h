// The gas in the channel: finite volumes for advection and diffusion of temperature, on a rank's block of columns.
// Not here: how wall temperatures come and where heat fluxes go (main.cpp).
//
//   rho cp (dT/dt + u(y) dT/dx) = k (d2T/dx2 + d2T/dy2),   u(y) = 6 U y/H (1 - y/H)
//
// Implicit along y (a line solve per column), explicit along x, with a second-order limited upwind flux. A column's new
// values depend on nothing but neighbouring columns, never on the layout: results are the same bits on any ranks.
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

class Gas {
 public:
  // Throws std::runtime_error when the time step is too long for the explicit direction.
  Gas(const Case& data, const Material& material, Range mine, int rank, int ranks);

  // One time step with the given temperatures of the wall's surface (K, one per own column, fixed over the step).
  // Collective over the ranks of the gas.
  void step(const std::vector<double>& wall_temperature);

  // Heat flux into the wall during the last step, W/m^2, one per own column.
  const std::vector<double>& wall_flux() const { return wall_flux_; }

  const Columns& temperature() const { return old_; }  // K

  // Adds the energy balance to a result.
  void report(RankResult& result) const;

  // A hash of every own column's temperatures.
  std::vector<std::uint64_t> hashes() const;

 private:
  void check_time_step(const Case& data) const;
  void factorise();
  // Heat through the face on the right of column `i`, W per metre of depth, per row.
  void face_heat(int i, std::vector<double>& heat) const;

  FluidCase fluid_;
  double dt_, dx_, dy_;    // s, m, m
  double k_, capacity_;    // W/(m K), J/(m^3 K)
  double side_, wall_, top_;  // conductances of a cell's faces along y, W/(m K) per metre of depth
  bool first_, last_;      // owns the inlet, the outlet
  std::vector<double> velocity_;                  // m/s per row
  std::vector<double> upper_, inverse_pivot_;     // factorised line matrix, the same for all columns
  Columns old_, next_;
  HaloExchange halo_;
  std::vector<double> left_heat_, right_heat_;
  std::vector<double> wall_flux_;
  Sum inflow_, interface_, turnover_;
  double start_temperature_;
};

}  // namespace coupling
