// The division of the boundary's columns among ranks: contiguous blocks, and which blocks of two divisions overlap.
// Both codes use it, each with its own number of ranks; that is all the M x N redistribution there is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace coupling {

// Columns begin, begin+1, ..., end-1.
struct Range {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
  std::uint32_t size() const { return end - begin; }
};

// First columns of each of `parts` blocks of nearly equal size, and `columns` as the last entry.
inline std::vector<std::uint32_t> block_starts(std::uint32_t columns, std::uint32_t parts) {
  std::vector<std::uint32_t> starts;
  for (std::uint32_t part = 0; part <= parts; ++part) {
    starts.push_back(static_cast<std::uint32_t>(static_cast<std::uint64_t>(columns) * part / parts));
  }
  return starts;
}

struct Overlap {
  std::uint32_t part = 0;  // of the other division
  Range range;
};

// The parts of another division that share columns with `mine`, ascending.
inline std::vector<Overlap> overlaps(Range mine, const std::vector<std::uint32_t>& starts) {
  std::vector<Overlap> result;
  for (std::uint32_t part = 0; part + 1 < starts.size(); ++part) {
    const Range range{std::max(mine.begin, starts[part]), std::min(mine.end, starts[part + 1])};
    if (range.begin < range.end) result.push_back({part, range});
  }
  return result;
}

}  // namespace coupling
