// The CORBA object of one wall rank: collects heat fluxes, takes the time step, hands out surface temperatures.
// Not here: conduction (wall.h).
//
// There is no hand-over between threads: the thread that brings the last missing heat flux takes the step itself, and
// its client's next call finds the temperatures ready. Only callers that come earlier wait, blocked, not spinning.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "case/case_file.h"
#include "case/partition.h"
#include "coupling.hh"
#include "solid/wall.h"

namespace coupling {

class WallPart : public POA_Coupling::WallPart {
 public:
  // `after_step` runs after every step, in whichever thread took it, with the step's number.
  WallPart(const Case& data, std::vector<std::uint32_t> starts, Range mine, Wall& wall,
           std::function<void(std::uint32_t)> after_step);

  // The interface; called by the object request broker.
  Coupling::Layout* describe() override;
  void put_heat_flux(CORBA::ULong step, CORBA::ULong start, const Coupling::Values& flux) override;
  Coupling::Values* temperature(CORBA::ULong step, CORBA::ULong start, CORBA::ULong count,
                                CORBA::Double& solve_seconds) override;

  // Waits until every value of the last step has been fetched. Throws std::runtime_error when a step failed, or when
  // nothing happened for `patience` s.
  void wait_until_done(double patience);

  // What this object did; only after wait_until_done().
  void report(RankResult& result) const;
  const std::vector<std::uint64_t>& interface_hashes() const { return interface_hashes_; }

 private:
  void take_step();
  void fail(const std::string& reason);

  const Case& data_;
  std::vector<std::uint32_t> starts_;
  Range mine_;
  Wall& wall_;
  std::function<void(std::uint32_t)> after_step_;

  std::mutex mutex_;  // guards everything below, and the wall
  std::condition_variable step_taken_;
  std::condition_variable progress_;
  std::uint32_t step_ = 0;       // the last step taken
  std::uint32_t received_ = 0;   // heat fluxes of step_ + 1 that have come
  std::uint32_t fetched_ = 0;    // temperatures of the last step of the run that were handed out
  std::string failure_;
  std::vector<double> flux_;     // W/m^2
  std::vector<std::uint64_t> interface_hashes_;
  double first_fetch_ = 0, last_fetch_ = 0;  // clock, s
  double solve_ = 0, solve_total_ = 0, held_ = 0;
  std::uint64_t calls_ = 0, values_ = 0;
};

}  // namespace coupling
