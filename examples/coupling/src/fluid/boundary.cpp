// Calls to the owners of the boundary.
#include "fluid/boundary.h"

#include <algorithm>
#include <stdexcept>

namespace coupling {
namespace {

Coupling::WallPart_var find(Orb& orb, const Case& data, std::uint32_t part) {
  CORBA::Object_var object = orb.find_part(data.name, part, data.call_timeout);
  Coupling::WallPart_var result = Coupling::WallPart::_narrow(object);
  if (CORBA::is_nil(result)) throw std::runtime_error("what is registered under the wall's name is not a WallPart");
  return result;
}

}  // namespace

Boundary::Boundary(Orb& orb, const Case& data, Range mine) : mine_(mine) {
  Coupling::WallPart_var any = find(orb, data, 0);
  Coupling::Layout_var layout = any->describe();
  if (layout->size != data.grid.columns || layout->length != data.grid.length ||
      layout->time_step != data.grid.step || layout->steps != data.grid.steps) {
    throw std::runtime_error("the wall was started with another grid or time step");
  }
  std::vector<std::uint32_t> starts;
  for (CORBA::ULong i = 0; i < layout->starts.length(); ++i) starts.push_back(layout->starts[i]);
  for (const Overlap& overlap : overlaps(mine, starts)) {
    owners_.push_back({overlap.range, find(orb, data, overlap.part)});
  }
}

void Boundary::fetch(std::uint32_t step, std::vector<double>& temperature) {
  const double begin = now();
  double slowest = 0;
  for (const Owner& owner : owners_) {
    double solve = 0;
    Coupling::Values_var values = owner.part->temperature(step, owner.range.begin, owner.range.size(), solve);
    if (values->length() != owner.range.size()) throw std::runtime_error("the wall sent another number of values");
    std::copy_n(values->get_buffer(), owner.range.size(), temperature.begin() + (owner.range.begin - mine_.begin));
    slowest = std::max(slowest, solve);
    values_ += owner.range.size();
    ++calls_;
  }
  coupling_ += now() - begin;
  solve_ += slowest;
}

void Boundary::exchange(std::uint32_t step, const std::vector<double>& flux, std::vector<double>& temperature) {
  const double begin = now();
  for (const Owner& owner : owners_) {
    // The sequence only borrows the values: nothing is copied before the broker sends them.
    auto* first = const_cast<CORBA::Double*>(flux.data() + (owner.range.begin - mine_.begin));
    const Coupling::Values values(owner.range.size(), owner.range.size(), first, false);
    owner.part->put_heat_flux(step, owner.range.begin, values);
    values_ += owner.range.size();
    ++calls_;
  }
  coupling_ += now() - begin;
  fetch(step, temperature);
}

void Boundary::report(RankResult& result) const {
  result.coupling_seconds = coupling_;
  result.solve_seconds = solve_;
  result.calls = static_cast<double>(calls_);
  result.bytes = 8.0 * static_cast<double>(values_);
}

}  // namespace coupling
