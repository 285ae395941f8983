// Material tables: reading and linear interpolation.
#include "case/material.h"

#include <stdexcept>

#include "case/toml_table.h"

namespace coupling {

double Material::at(const std::vector<double>& values, double kelvin) const {
  if (!(kelvin >= first() && kelvin <= last())) {
    throw std::domain_error(name + ": " + std::to_string(kelvin) + " K is outside the table, which goes from " +
                            std::to_string(first()) + " to " + std::to_string(last()) + " K");
  }
  std::size_t upper = 1;
  while (upper + 1 < temperature.size() && kelvin > temperature[upper]) ++upper;
  const std::size_t lower = upper - 1;
  const double fraction = (kelvin - temperature[lower]) / (temperature[upper] - temperature[lower]);
  return values[lower] + fraction * (values[upper] - values[lower]);
}

Material read_material(const std::string& path) {
  const toml::table parsed = parse_toml(path);
  TomlTable table(parsed, path);
  Material material;
  material.name = table.text("name");
  material.source = table.text("source");
  material.temperature = table.numbers("temperature");
  material.conductivity = table.numbers("conductivity");
  material.specific_heat = table.numbers("specific_heat");
  material.density = table.numbers("density");
  table.done();

  const std::size_t count = material.temperature.size();
  if (count < 2) table.fail("temperature", "must hold at least two values");
  for (std::size_t i = 1; i < count; ++i) {
    if (!(material.temperature[i] > material.temperature[i - 1])) table.fail("temperature", "must ascend");
  }
  const auto check = [&](const char* key, const std::vector<double>& values) {
    if (values.size() != count) table.fail(key, "must have as many values as temperature");
    for (const double value : values) {
      if (!(value > 0)) table.fail(key, "must be greater than 0 everywhere");
    }
  };
  check("conductivity", material.conductivity);
  check("specific_heat", material.specific_heat);
  check("density", material.density);
  return material;
}

}  // namespace coupling
