// One time step of the wall. See wall.h for the equation and the README for the scheme.
#include "solid/wall.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

namespace coupling {
namespace {

constexpr int halo_width = 1;

// Conductivity of a face between two equal halves: harmonic mean (S. V. Patankar, Numerical Heat Transfer, ch. 4).
double harmonic(double a, double b) { return 2 * a * b / (a + b); }

}  // namespace

Wall::Wall(const Case& data, const Material& material, Range mine, int rank, int ranks)
    : solid_(data.solid), material_(material), dt_(data.grid.step), dx_(data.grid.cell_width()),
      dy_(solid_.thickness / solid_.rows),
      capacity_(material.density_at(solid_.heat_capacity_temperature) *
                material.specific_heat_at(solid_.heat_capacity_temperature) * solid_.heat_capacity_factor),
      first_(rank == 0), last_(rank + 1 == ranks),
      old_(static_cast<int>(mine.size()), static_cast<int>(solid_.rows), halo_width, solid_.initial_temperature),
      next_(old_), k_(old_), halo_(rank, ranks, halo_width, static_cast<int>(solid_.rows)), left_heat_(solid_.rows),
      right_heat_(solid_.rows), upper_(solid_.rows), surface_(mine.size(), solid_.initial_temperature) {
  for (std::uint32_t column = mine.begin; column < mine.end; ++column) {
    const double x = (column + 0.5) * dx_;
    double coefficient = solid_.bottom_coefficient;
    for (const auto& strip : solid_.strips) {
      if (x >= strip[0] && x < strip[1]) coefficient = solid_.strip_coefficient;
    }
    bottom_coefficient_.push_back(coefficient);
  }
  check_time_step(data);
  halo_.start(old_);
}

double Wall::conductivity(double kelvin) const {
  return solid_.conductivity > 0 ? solid_.conductivity : material_.conductivity_at(kelvin);
}

void Wall::check_time_step(const Case& data) const {
  double largest = solid_.conductivity;
  if (!(largest > 0)) largest = *std::max_element(material_.conductivity.begin(), material_.conductivity.end());
  const double diffusion = 2 * largest / capacity_ * dt_ / (dx_ * dx_);
  if (data.grid.columns > 1 && diffusion > 1) {
    throw std::runtime_error("time.step is too long for the wall: diffusion number " + std::to_string(diffusion) +
                             " along x must not exceed 1");
  }
}

void Wall::face_heat(int i, std::vector<double>& heat) const {
  const double* from = old_.column(i);
  const double* to = old_.column(i + 1);
  const double* k_from = k_.column(i);
  const double* k_to = k_.column(i + 1);
  for (std::size_t row = 0; row < heat.size(); ++row) {
    heat[row] = harmonic(k_from[row], k_to[row]) * dy_ / dx_ * (from[row] - to[row]);
  }
}

void Wall::step(const std::vector<double>& heat_flux) {
  halo_.finish(old_);
  const int count = old_.count();
  for (int i = first_ ? 0 : -1; i < (last_ ? count : count + 1); ++i) {
    for (int row = 0; row < old_.rows(); ++row) k_.column(i)[row] = conductivity(old_.column(i)[row]);
  }
  // The wall's ends are adiabatic; heat through the faces shared with neighbouring ranks enters this rank's balance.
  std::fill(left_heat_.begin(), left_heat_.end(), 0.0);
  if (!first_) face_heat(-1, left_heat_);
  for (const double heat : left_heat_) outer_.add(heat * dt_);
  for (int i = 0; i < count; ++i) {
    if (last_ && i + 1 == count) {
      std::fill(right_heat_.begin(), right_heat_.end(), 0.0);
    } else {
      face_heat(i, right_heat_);
    }
    solve_column(i, heat_flux[static_cast<std::size_t>(i)]);
    left_heat_.swap(right_heat_);
  }
  for (const double heat : left_heat_) outer_.add(-heat * dt_);
  old_.swap(next_);
  halo_.start(old_);
}

void Wall::solve_column(int i, double flux) {
  const std::size_t rows = solid_.rows;
  const auto column = static_cast<std::size_t>(i);
  const double* now = old_.column(i);
  const double* k = k_.column(i);
  double* next = next_.column(i);
  const double inertia = capacity_ * dx_ * dy_ / dt_;
  const auto between = [&](std::size_t row) { return harmonic(k[row], k[row + 1]) * dx_ / dy_; };

  double bottom = 0;  // conductance between the lowest cell and the outside, W/(m K) per metre of depth
  if (solid_.bottom == SolidBottom::fixed) {
    bottom = 2 * harmonic(conductivity(solid_.bottom_temperature), k[0]) * dx_ / dy_;
  } else if (solid_.bottom == SolidBottom::convection) {
    bottom = dx_ / (1 / bottom_coefficient_[column] + dy_ / (2 * k[0]));
  }

  double below = bottom * (solid_.bottom_temperature - now[0]);
  double conductance_below = bottom;
  for (std::size_t row = 0; row < rows; ++row) {
    const bool surface = row + 1 == rows;
    const double conductance_above = surface ? 0 : between(row);
    const double above = surface ? flux * dx_ : conductance_above * (now[row + 1] - now[row]);
    double heat = left_heat_[row] - right_heat_[row] + below + above;
    double pivot = inertia + conductance_below + conductance_above;
    if (row > 0) {
      heat += conductance_below * next[row - 1];
      pivot -= conductance_below * upper_[row - 1];
    }
    next[row] = heat / pivot;
    upper_[row] = conductance_above / pivot;
    below = -above;
    conductance_below = conductance_above;
  }
  for (std::size_t row = rows - 1; row-- > 0;) next[row] += upper_[row] * next[row + 1];
  for (std::size_t row = 0; row < rows; ++row) next[row] += now[row];

  const double k_surface = harmonic(conductivity(surface_[column]), k[rows - 1]);
  surface_[column] = next[rows - 1] + flux * dy_ / (2 * k_surface);

  const double through_bottom = bottom * (solid_.bottom_temperature - next[0]) * dt_;
  outer_.add(through_bottom);
  interface_.add(flux * dx_ * dt_);
  turnover_.add(std::fabs(through_bottom));
  turnover_.add(std::fabs(flux * dx_ * dt_));
}

void Wall::report(RankResult& result) const {
  Sum change;
  for (int i = 0; i < old_.count(); ++i) {
    for (int row = 0; row < old_.rows(); ++row) {
      change.add(capacity_ * dx_ * dy_ * (old_.column(i)[row] - solid_.initial_temperature));
    }
  }
  result.energy_change = change.value();
  result.energy_in = outer_.value();
  result.energy_interface = interface_.value();
  result.energy_turnover = turnover_.value();
}

std::vector<std::uint64_t> Wall::hashes() const {
  std::vector<std::uint64_t> result;
  for (int i = 0; i < old_.count(); ++i) {
    std::uint64_t state = hash_start;
    for (int row = 0; row < old_.rows(); ++row) state = hash(state, old_.column(i)[row]);
    result.push_back(state);
  }
  return result;
}

}  // namespace coupling
