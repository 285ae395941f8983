// The remote interface of one part of the wall.
#include "solid/wall_part.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "output/results.h"
#include "output/sums.h"

namespace coupling {

WallPart::WallPart(const Case& data, std::vector<std::uint32_t> starts, Range mine, Wall& wall,
                   std::function<void(std::uint32_t)> after_step)
    : data_(data), starts_(std::move(starts)), mine_(mine), wall_(wall), after_step_(std::move(after_step)),
      flux_(mine.size()), interface_hashes_(mine.size(), hash_start) {}

Coupling::Layout* WallPart::describe() {
  Coupling::Layout_var layout = new Coupling::Layout;
  layout->size = data_.grid.columns;
  layout->length = data_.grid.length;
  layout->time_step = data_.grid.step;
  layout->steps = data_.grid.steps;
  layout->starts.length(static_cast<CORBA::ULong>(starts_.size()));
  for (std::size_t i = 0; i < starts_.size(); ++i) layout->starts[static_cast<CORBA::ULong>(i)] = starts_[i];
  return layout._retn();
}

void WallPart::put_heat_flux(CORBA::ULong step, CORBA::ULong start, const Coupling::Values& flux) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::uint64_t end = static_cast<std::uint64_t>(start) + flux.length();
  if (step != step_ + 1 || step > data_.grid.steps || start < mine_.begin || end > mine_.end ||
      received_ + flux.length() > mine_.size()) {
    fail("heat fluxes of step " + std::to_string(step) + ", columns " + std::to_string(start) + " to " +
         std::to_string(end) + ", do not fit step " + std::to_string(step_ + 1) + " of columns " +
         std::to_string(mine_.begin) + " to " + std::to_string(mine_.end));
    return;
  }
  std::copy_n(flux.get_buffer(), flux.length(), flux_.begin() + (start - mine_.begin));
  received_ += flux.length();
  values_ += flux.length();
  ++calls_;
  if (received_ == mine_.size()) take_step();
}

void WallPart::take_step() {
  try {
    const double begin = now();
    wall_.step(flux_);
    const std::vector<double>& surface = wall_.surface();
    for (std::size_t i = 0; i < flux_.size(); ++i) {
      interface_hashes_[i] = hash(hash(interface_hashes_[i], flux_[i]), surface[i]);
    }
    solve_ = now() - begin;
    solve_total_ += solve_;
    ++step_;
    received_ = 0;
    after_step_(step_);
    step_taken_.notify_all();
  } catch (const std::exception& error) {
    fail(error.what());
  }
}

Coupling::Values* WallPart::temperature(CORBA::ULong step, CORBA::ULong start, CORBA::ULong count,
                                        CORBA::Double& solve_seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  const std::uint64_t end = static_cast<std::uint64_t>(start) + count;
  if (start < mine_.begin || end > mine_.end) throw Coupling::Refused("these columns are not served here");
  if (step_ < step && failure_.empty()) {
    const double begin = now();
    step_taken_.wait_for(lock, std::chrono::duration<double>(data_.call_timeout),
                         [&] { return step_ >= step || !failure_.empty(); });
    held_ += now() - begin;
  }
  if (!failure_.empty()) throw Coupling::Refused(failure_.c_str());
  if (step_ < step) throw Coupling::Refused("not all heat fluxes came in time");
  if (step_ > step) throw Coupling::Refused("that step is past");

  Coupling::Values_var values = new Coupling::Values;
  values->length(count);
  std::copy_n(wall_.surface().begin() + (start - mine_.begin), count, values->get_buffer());
  solve_seconds = step == 0 ? 0 : solve_;
  last_fetch_ = now();
  if (step == 0 && first_fetch_ == 0) first_fetch_ = last_fetch_;
  values_ += count;
  ++calls_;
  if (step == data_.grid.steps) {
    fetched_ += count;
    if (fetched_ >= mine_.size()) progress_.notify_all();
  }
  return values._retn();
}

void WallPart::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  step_taken_.notify_all();
  progress_.notify_all();
}

void WallPart::wait_until_done(double patience) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto finished = [&] { return fetched_ >= mine_.size() || !failure_.empty(); };
  std::uint64_t seen = calls_;
  while (!progress_.wait_for(lock, std::chrono::duration<double>(patience), finished)) {
    if (calls_ == seen) throw std::runtime_error("no call came from the gas for " + std::to_string(patience) + " s");
    seen = calls_;
  }
  if (!failure_.empty()) throw std::runtime_error(failure_);
}

void WallPart::report(RankResult& result) const {
  result.wall_seconds = last_fetch_ - first_fetch_;
  result.coupling_seconds = held_;
  result.solve_seconds = solve_total_;
  result.calls = static_cast<double>(calls_);
  result.bytes = 8.0 * static_cast<double>(values_);
}

}  // namespace coupling
