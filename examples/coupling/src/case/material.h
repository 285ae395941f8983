// A material table: thermal properties by temperature, read from a file that names its source.
// Not a model: values between the table's temperatures are interpolated linearly, values outside are refused.
#pragma once

#include <string>
#include <vector>

namespace coupling {

struct Material {
  std::string name;
  std::string source;
  std::vector<double> temperature;    // K, ascending
  std::vector<double> conductivity;   // W/(m K)
  std::vector<double> specific_heat;  // J/(kg K)
  std::vector<double> density;        // kg/m^3

  double first() const { return temperature.front(); }  // K
  double last() const { return temperature.back(); }    // K

  // Property at a temperature (K). Throws std::domain_error outside the table.
  double conductivity_at(double kelvin) const { return at(conductivity, kelvin); }
  double specific_heat_at(double kelvin) const { return at(specific_heat, kelvin); }
  double density_at(double kelvin) const { return at(density, kelvin); }

 private:
  double at(const std::vector<double>& values, double kelvin) const;
};

// Reads a table. Throws std::runtime_error with one line naming file, key and fault.
Material read_material(const std::string& path);

}  // namespace coupling
