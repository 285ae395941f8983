// The gas code: solves the channel and exchanges heat flux for temperature with the wall in every time step.
// It knows the coupling interface, not the wall's equations.
#include <cstdio>
#include <exception>
#include <string>

#include "case/case_file.h"
#include "case/material.h"
#include "case/options.h"
#include "coupling/orb.h"
#include "fluid/boundary.h"
#include "fluid/gas.h"
#include "output/results.h"
#include "output/vtk.h"
#include "parallel/mpi_scope.h"

namespace {

using namespace coupling;

void run(const MpiScope& mpi, const Options& options) {
  const Case data = read_case(options.case_path);
  const Material material = read_material(data.fluid.material);
  const auto rank = static_cast<std::size_t>(mpi.rank());
  const auto starts = block_starts(data.grid.columns, static_cast<std::uint32_t>(mpi.size()));
  const Range mine{starts[rank], starts[rank + 1]};
  if (mine.size() < 2) throw std::runtime_error("fewer than two columns for a rank of the gas: use fewer ranks");
  Gas gas(data, material, mine, mpi.rank(), mpi.size());

  const FluidCase& fluid = data.fluid;
  VtkWriter vtk(options.output, "fluid",
                {data.grid.columns, fluid.rows, data.grid.cell_width(), fluid.height / fluid.rows, 0.0}, starts,
                mpi.rank());

  Orb orb(options.naming, data.call_timeout);
  Boundary boundary(orb, data, mine);
  MPI_Barrier(MPI_COMM_WORLD);

  RankResult result;
  ColumnHashes hashes;
  hashes.interface.assign(mine.size(), hash_start);
  const double begin = now();
  std::vector<double> received(mine.size());
  boundary.fetch(0, received);
  std::vector<double> wall = received;  // what the gas takes for the surface temperature, K
  for (std::uint32_t step = 1; step <= data.grid.steps; ++step) {
    gas.step(wall);
    boundary.exchange(step, gas.wall_flux(), received);
    for (std::size_t i = 0; i < wall.size(); ++i) {
      wall[i] += data.relaxation * (received[i] - wall[i]);
      hashes.interface[i] = hash(hash(hashes.interface[i], gas.wall_flux()[i]), received[i]);
    }
    const bool last = step == data.grid.steps;
    const bool snapshot = data.write_every > 0 && step % data.write_every == 0;
    if (data.write_fields && (last || snapshot)) vtk.write(gas.temperature(), step, step * data.grid.step);
  }
  result.wall_seconds = now() - begin;

  boundary.report(result);
  gas.report(result);
  hashes.field = gas.hashes();
  result.cpu_seconds = cpu_seconds();
  write_results(options.output + "/fluid.jsonl", "fluid", data.name, result, hashes);
}

}  // namespace

int main(int argc, char** argv) {
  int rank = 0;
  try {
    const coupling::MpiScope mpi(&argc, &argv, MPI_THREAD_SERIALIZED);
    rank = mpi.rank();
    try {
      run(mpi, coupling::read_options(argc, argv));
      return 0;
    } catch (const Coupling::Refused& error) {
      std::fprintf(stderr, "fluid %d: the wall refuses: %s\n", rank, static_cast<const char*>(error.reason));
    } catch (const CORBA::Exception& error) {
      std::fprintf(stderr, "fluid %d: %s\n", rank, coupling::describe(error).c_str());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "fluid %d: %s\n", rank, error.what());
    }
    MPI_Abort(MPI_COMM_WORLD, 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fluid: %s\n", error.what());
  }
  return 1;
}
