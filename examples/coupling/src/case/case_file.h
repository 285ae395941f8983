// The case file: everything the two codes are told, in one TOML file that both read.
// Not here: physics (fluid/, solid/), nor the division of work (partition.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace coupling {

// The common boundary and the time axis.
struct Grid {
  std::uint32_t columns = 0;  // cells along the flow; the boundary has this many values
  double length = 0;          // m
  double step = 0;            // s
  std::uint32_t steps = 0;
  double cell_width() const { return length / columns; }  // m
};

enum class FluidTop { adiabatic, fixed };

struct FluidCase {
  double height = 0;  // m
  std::uint32_t rows = 0;
  std::string material;              // path of the material table
  double reference_temperature = 0;  // K, at which the gas properties are taken
  double conductivity = 0;           // W/(m K); 0: from the table
  double mean_velocity = 0;          // m/s
  double inlet_temperature = 0;      // K
  double initial_temperature = 0;    // K
  FluidTop top = FluidTop::adiabatic;
  double top_temperature = 0;  // K, used when top is fixed
};

enum class SolidBottom { adiabatic, fixed, convection };

struct SolidCase {
  double thickness = 0;  // m
  std::uint32_t rows = 0;
  std::string material;
  double conductivity = 0;               // W/(m K), constant; 0: from the table, by temperature
  double heat_capacity_temperature = 0;  // K, at which density and specific heat are taken
  double heat_capacity_factor = 1;       // < 1 shortens the way to the steady state, which it does not change
  double initial_temperature = 0;        // K
  SolidBottom bottom = SolidBottom::adiabatic;
  double bottom_temperature = 0;              // K: the wall's underside (fixed) or its surroundings (convection)
  double bottom_coefficient = 0;              // W/(m^2 K), convection
  std::vector<std::array<double, 2>> strips;  // m: intervals [from, to) cooled with strip_coefficient instead
  double strip_coefficient = 0;               // W/(m^2 K)
};

struct Case {
  std::string name;
  Grid grid;
  FluidCase fluid;
  SolidCase solid;
  double relaxation = 1;     // of the wall temperature that the gas takes over, in (0, 1]
  double call_timeout = 60;  // s, for one remote call, for the start of the other code, and for one step
  bool write_fields = true;
  std::uint32_t write_every = 0;  // steps between VTK snapshots; 0: only the last step
};

// Reads and checks a case file. Paths of material tables are relative to the case file.
// Throws std::runtime_error with one line that names file, key and remedy.
Case read_case(const std::string& path);

}  // namespace coupling
