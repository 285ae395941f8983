// One time step of the gas. See gas.h for the equation and the README for the scheme.
#include "fluid/gas.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace coupling {
namespace {
constexpr int halo_width = 2;  // the limited flux looks two columns upstream
}

Gas::Gas(const Case& data, const Material& material, Range mine, int rank, int ranks)
    : fluid_(data.fluid), dt_(data.grid.step), dx_(data.grid.cell_width()), dy_(fluid_.height / fluid_.rows),
      k_(fluid_.conductivity > 0 ? fluid_.conductivity : material.conductivity_at(fluid_.reference_temperature)),
      capacity_(material.density_at(fluid_.reference_temperature) *
                material.specific_heat_at(fluid_.reference_temperature)),
      side_(k_ * dx_ / dy_), wall_(2 * side_), top_(fluid_.top == FluidTop::fixed ? 2 * side_ : 0), first_(rank == 0),
      last_(rank + 1 == ranks),
      old_(static_cast<int>(mine.size()), static_cast<int>(fluid_.rows), halo_width, fluid_.initial_temperature),
      next_(old_), halo_(rank, ranks, halo_width, static_cast<int>(fluid_.rows)), left_heat_(fluid_.rows),
      right_heat_(fluid_.rows), wall_flux_(mine.size(), 0.0), start_temperature_(fluid_.initial_temperature) {
  for (std::uint32_t row = 0; row < fluid_.rows; ++row) {
    // The mean of the parabola over the cell, so that the rows carry exactly the mean velocity.
    const double low = static_cast<double>(row) / fluid_.rows;
    const double high = static_cast<double>(row + 1) / fluid_.rows;
    const auto carried = [](double y) { return 3 * y * y - 2 * y * y * y; };
    velocity_.push_back(fluid_.mean_velocity * (carried(high) - carried(low)) * fluid_.rows);
  }
  check_time_step(data);
  factorise();
  if (first_) {  // what the limiter sees upstream of the inlet
    for (Columns* field : {&old_, &next_}) {
      for (int i = -halo_width; i < 0; ++i) std::fill_n(field->column(i), fluid_.rows, fluid_.inlet_temperature);
    }
  }
}

void Gas::check_time_step(const Case& data) const {
  const double fastest = *std::max_element(velocity_.begin(), velocity_.end());
  const double courant = fastest * dt_ / dx_;
  const double diffusion = 2 * k_ / capacity_ * dt_ / (dx_ * dx_);
  if (data.grid.columns > 1 && courant + diffusion > 1) {
    throw std::runtime_error("time.step is too long for the gas: Courant number " + std::to_string(courant) +
                             " + diffusion number " + std::to_string(diffusion) + " along x must not exceed 1");
  }
}

void Gas::factorise() {
  const double inertia = capacity_ * dx_ * dy_ / dt_;
  const int rows = static_cast<int>(fluid_.rows);
  double previous = 0;
  for (int row = 0; row < rows; ++row) {
    const double diagonal = inertia + (row == 0 ? wall_ : side_) + (row + 1 == rows ? top_ : side_);
    const double pivot = diagonal - (row == 0 ? 0 : side_ * previous);
    previous = side_ / pivot;
    inverse_pivot_.push_back(1 / pivot);
    upper_.push_back(previous);
  }
}

void Gas::face_heat(int i, std::vector<double>& heat) const {
  const double* far = old_.column(std::max(i - 1, -halo_width));
  const double* from = old_.column(i);
  const double* to = old_.column(i + 1);
  const double conductance = k_ * dy_ / dx_;
  for (std::size_t row = 0; row < heat.size(); ++row) {
    const double behind = from[row] - far[row];
    const double ahead = to[row] - from[row];
    // van Leer's limiter (J. Comput. Phys. 14, 1974), in Lax-Wendroff form: second order in space and time.
    const double slope = behind * ahead > 0 ? 2 * behind * ahead / (behind + ahead) : 0;
    const double courant = velocity_[row] * dt_ / dx_;
    const double carried = from[row] + 0.5 * (1 - courant) * slope;
    heat[row] = capacity_ * velocity_[row] * dy_ * (carried - start_temperature_) - conductance * ahead;
  }
}

void Gas::step(const std::vector<double>& wall_temperature) {
  halo_.start(old_);
  halo_.finish(old_);
  const std::size_t rows = fluid_.rows;
  const int count = old_.count();

  // Energies are counted from the start temperature, which keeps the sums small.
  if (first_) {
    for (std::size_t row = 0; row < rows; ++row) {
      left_heat_[row] = capacity_ * velocity_[row] * dy_ * (fluid_.inlet_temperature - start_temperature_);
      inflow_.add(left_heat_[row] * dt_);
      turnover_.add(std::fabs(left_heat_[row] * dt_));
    }
  } else {
    face_heat(-1, left_heat_);
  }
  for (int i = 0; i < count; ++i) {
    const double* now = old_.column(i);
    double* next = next_.column(i);
    if (last_ && i + 1 == count) {  // outlet: carried out, no conduction
      for (std::size_t row = 0; row < rows; ++row) {
        right_heat_[row] = capacity_ * velocity_[row] * dy_ * (now[row] - start_temperature_);
        inflow_.add(-right_heat_[row] * dt_);
        turnover_.add(std::fabs(right_heat_[row] * dt_));
      }
    } else {
      face_heat(i, right_heat_);
    }

    // The change over the step solves a tridiagonal system whose right-hand side is the heat that the old field brings.
    const double wall = wall_temperature[static_cast<std::size_t>(i)];
    double below = wall_ * (wall - now[0]);
    for (std::size_t row = 0; row < rows; ++row) {
      const double above = row + 1 == rows ? top_ * (fluid_.top_temperature - now[row]) : side_ * (now[row + 1] - now[row]);
      double heat = left_heat_[row] - right_heat_[row] + below + above;
      if (row > 0) heat += side_ * next[row - 1];
      next[row] = heat * inverse_pivot_[row];
      below = -above;
    }
    for (std::size_t row = rows - 1; row-- > 0;) next[row] += upper_[row] * next[row + 1];
    for (std::size_t row = 0; row < rows; ++row) next[row] += now[row];

    const double flux = wall_ * (next[0] - wall) / dx_;
    wall_flux_[static_cast<std::size_t>(i)] = flux;
    interface_.add(flux * dx_ * dt_);
    turnover_.add(std::fabs(flux * dx_ * dt_));
    const double through_top = top_ * (fluid_.top_temperature - next[rows - 1]) * dt_;
    inflow_.add(through_top);
    turnover_.add(std::fabs(through_top));
    left_heat_.swap(right_heat_);
  }
  if (!first_ || !last_) {
    // Heat through the faces shared with neighbouring ranks, for this rank's own balance.
    if (!last_) {
      for (const double heat : left_heat_) inflow_.add(-heat * dt_);
    }
    if (!first_) {
      face_heat(-1, left_heat_);
      for (const double heat : left_heat_) inflow_.add(heat * dt_);
    }
  }
  old_.swap(next_);
}

void Gas::report(RankResult& result) const {
  Sum change;
  for (int i = 0; i < old_.count(); ++i) {
    for (int row = 0; row < old_.rows(); ++row) {
      change.add(capacity_ * dx_ * dy_ * (old_.column(i)[row] - start_temperature_));
    }
  }
  result.energy_change = change.value();
  result.energy_in = inflow_.value();
  result.energy_interface = interface_.value();
  result.energy_turnover = turnover_.value();
}

std::vector<std::uint64_t> Gas::hashes() const {
  std::vector<std::uint64_t> result;
  for (int i = 0; i < old_.count(); ++i) {
    std::uint64_t state = hash_start;
    for (int row = 0; row < old_.rows(); ++row) state = hash(state, old_.column(i)[row]);
    result.push_back(state);
  }
  return result;
}

}  // namespace coupling
