// Sums and checksums that results are judged by: compensated sums, and bit-exact hashes of doubles.
// Not cryptographic.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace coupling {

// Neumaier's compensated sum (A. Neumaier, ZAMM 54, 1974): error independent of the number of terms.
class Sum {
 public:
  void add(double term) {
    const double next = sum_ + term;
    lost_ += std::fabs(sum_) >= std::fabs(term) ? (sum_ - next) + term : (term - next) + sum_;
    sum_ = next;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0;
  double lost_ = 0;
};

// FNV-1a over 64-bit words instead of bytes: every bit of every double counts, in order.
constexpr std::uint64_t hash_start = 0xcbf29ce484222325ULL;

inline std::uint64_t hash(std::uint64_t state, std::uint64_t word) {
  state = (state ^ word) * 0x100000001b3ULL;
  return state ^ (state >> 32);  // brings the high bits down, which a bytewise FNV does by itself
}

inline std::uint64_t hash(std::uint64_t state, double value) {
  std::uint64_t word = 0;
  std::memcpy(&word, &value, sizeof word);
  return hash(state, word);
}

}  // namespace coupling
