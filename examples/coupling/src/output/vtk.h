// Temperature fields as VTK XML image data: a piece (.vti) per rank, a .pvti over them, a .pvd over all times.
// Not a general VTK writer: one double per cell, on a uniform grid.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "case/partition.h"
#include "parallel/columns.h"

namespace coupling {

// The uniform grid of one code.
struct Box {
  std::uint32_t columns = 0;
  std::uint32_t rows = 0;
  double cell_width = 0;   // m
  double cell_height = 0;  // m
  double bottom = 0;       // m, y of the lower edge
};

class VtkWriter {
 public:
  // `starts`: first columns of all ranks, as of block_starts(). Files are named <directory>/<code>_...
  VtkWriter(std::string directory, std::string code, Box box, std::vector<std::uint32_t> starts, int rank);

  // Writes this rank's piece; rank 0 also writes the index files. `time` in s, values in K.
  // Throws std::runtime_error when a file cannot be written.
  void write(const Columns& temperature, std::uint32_t step, double time);

 private:
  std::string piece_name(std::uint32_t step, std::size_t rank) const;

  std::string directory_;
  std::string code_;
  Box box_;
  std::vector<std::uint32_t> starts_;
  int rank_;
  std::string collection_;  // the .pvd entries so far
};

}  // namespace coupling
