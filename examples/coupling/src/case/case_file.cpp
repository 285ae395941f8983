// Reading and checking a case file. What the keys mean is written in case_file.h and in the README.
#include "case/case_file.h"

#include <filesystem>

#include "case/toml_table.h"

namespace coupling {
namespace {

std::string beside(const std::string& case_path, const std::string& file) {
  const std::filesystem::path path(file);
  if (path.is_absolute()) return file;
  return (std::filesystem::path(case_path).parent_path() / path).lexically_normal().string();
}

void positive(const TomlTable& table, const std::string& key, double value) {
  if (!(value > 0)) table.fail(key, "must be greater than 0");
}

void not_negative(const TomlTable& table, const std::string& key, double value) {
  if (!(value >= 0)) table.fail(key, "must not be negative");
}

FluidCase read_fluid(TomlTable table, const std::string& path) {
  FluidCase fluid;
  fluid.height = table.number("height");
  fluid.rows = table.count("rows");
  fluid.material = beside(path, table.text("material"));
  fluid.reference_temperature = table.number("reference_temperature");
  fluid.conductivity = table.number("conductivity", 0);
  fluid.mean_velocity = table.number("mean_velocity");
  fluid.initial_temperature = table.number("initial_temperature");
  fluid.inlet_temperature = table.number("inlet_temperature", fluid.initial_temperature);
  const std::string top = table.text("top", "adiabatic");
  if (top == "fixed") {
    fluid.top = FluidTop::fixed;
    fluid.top_temperature = table.number("top_temperature");
    positive(table, "top_temperature", fluid.top_temperature);
  } else if (top != "adiabatic") {
    table.fail("top", "must be \"adiabatic\" or \"fixed\"");
  }
  positive(table, "height", fluid.height);
  positive(table, "rows", fluid.rows);
  not_negative(table, "conductivity", fluid.conductivity);
  not_negative(table, "mean_velocity", fluid.mean_velocity);
  positive(table, "initial_temperature", fluid.initial_temperature);
  positive(table, "inlet_temperature", fluid.inlet_temperature);
  table.done();
  return fluid;
}

SolidCase read_solid(TomlTable table, const std::string& path) {
  SolidCase solid;
  solid.thickness = table.number("thickness");
  solid.rows = table.count("rows");
  solid.material = beside(path, table.text("material"));
  solid.conductivity = table.number("conductivity", 0);
  solid.initial_temperature = table.number("initial_temperature");
  solid.heat_capacity_temperature = table.number("heat_capacity_temperature", solid.initial_temperature);
  solid.heat_capacity_factor = table.number("heat_capacity_factor", 1);
  const std::string bottom = table.text("bottom", "adiabatic");
  if (bottom == "fixed" || bottom == "convection") {
    solid.bottom_temperature = table.number("bottom_temperature");
    positive(table, "bottom_temperature", solid.bottom_temperature);
  }
  if (bottom == "fixed") {
    solid.bottom = SolidBottom::fixed;
  } else if (bottom == "convection") {
    solid.bottom = SolidBottom::convection;
    solid.bottom_coefficient = table.number("bottom_coefficient");
    solid.strips = table.pairs("strips");
    solid.strip_coefficient = table.number("strip_coefficient", solid.bottom_coefficient);
    positive(table, "bottom_coefficient", solid.bottom_coefficient);
    positive(table, "strip_coefficient", solid.strip_coefficient);
  } else if (bottom != "adiabatic") {
    table.fail("bottom", "must be \"adiabatic\", \"fixed\" or \"convection\"");
  }
  positive(table, "thickness", solid.thickness);
  positive(table, "rows", solid.rows);
  not_negative(table, "conductivity", solid.conductivity);
  positive(table, "heat_capacity_factor", solid.heat_capacity_factor);
  positive(table, "initial_temperature", solid.initial_temperature);
  table.done();
  return solid;
}

}  // namespace

Case read_case(const std::string& path) {
  const toml::table parsed = parse_toml(path);
  TomlTable root(parsed, path);
  Case result;
  result.name = root.text("name");
  if (result.name.empty() || result.name.find_first_of("/.\\") != std::string::npos) {
    root.fail("name", "must be a plain word: it is a name in the naming service");
  }
  root.ignore("title");   // for people
  root.ignore("layout");  // for the program that starts the two codes: the number of ranks of each
  root.ignore("run");     // likewise: time limits of the whole run

  TomlTable grid = root.table("grid");
  result.grid.columns = grid.count("columns");
  result.grid.length = grid.number("length");
  positive(grid, "columns", result.grid.columns);
  positive(grid, "length", result.grid.length);
  grid.done();

  TomlTable time = root.table("time");
  result.grid.step = time.number("step");
  result.grid.steps = time.count("steps");
  positive(time, "step", result.grid.step);
  positive(time, "steps", result.grid.steps);
  time.done();

  TomlTable exchange = root.table("coupling");
  result.relaxation = exchange.number("relaxation", 1);
  result.call_timeout = exchange.number("call_timeout", 60);
  if (!(result.relaxation > 0 && result.relaxation <= 1)) exchange.fail("relaxation", "must be in (0, 1]");
  if (!(result.call_timeout > 0 && result.call_timeout < 1e6)) exchange.fail("call_timeout", "must be in (0, 1e6) s");
  exchange.done();

  TomlTable output = root.table("output");
  result.write_fields = output.flag("fields", true);
  result.write_every = output.count("every", 0);
  output.done();

  result.fluid = read_fluid(root.table("fluid"), path);
  result.solid = read_solid(root.table("solid"), path);
  root.done();
  return result;
}

}  // namespace coupling
