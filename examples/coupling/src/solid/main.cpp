// The wall code: solves conduction and serves its surface to a code that sends heat fluxes.
// It knows the coupling interface, not the gas.
#include <cstdio>
#include <exception>
#include <string>

#include "case/case_file.h"
#include "case/material.h"
#include "case/options.h"
#include "coupling/orb.h"
#include "output/results.h"
#include "output/vtk.h"
#include "parallel/mpi_scope.h"
#include "solid/wall.h"
#include "solid/wall_part.h"

namespace {

using namespace coupling;

void run(const MpiScope& mpi, const Options& options) {
  const Case data = read_case(options.case_path);
  const Material material = read_material(data.solid.material);
  const auto rank = static_cast<std::size_t>(mpi.rank());
  const auto starts = block_starts(data.grid.columns, static_cast<std::uint32_t>(mpi.size()));
  const Range mine{starts[rank], starts[rank + 1]};
  if (mine.size() < 1) throw std::runtime_error("more ranks than columns");
  Wall wall(data, material, mine, mpi.rank(), mpi.size());

  const SolidCase& solid = data.solid;
  VtkWriter vtk(options.output, "solid",
                {data.grid.columns, solid.rows, data.grid.cell_width(), solid.thickness / solid.rows, -solid.thickness},
                starts, mpi.rank());
  const auto after_step = [&](std::uint32_t step) {
    const bool last = step == data.grid.steps;
    const bool snapshot = data.write_every > 0 && step % data.write_every == 0;
    if (data.write_fields && (last || snapshot)) vtk.write(wall.temperature(), step, step * data.grid.step);
  };

  RankResult result;
  ColumnHashes hashes;
  {
    Orb orb(options.naming, data.call_timeout);
    // Reference counted, as omniORB deletes servants in a thread of its own; kept by this variable until after report().
    PortableServer::Servant_var<WallPart> part = new WallPart(data, starts, mine, wall, after_step);
    Coupling::WallPart_var reference = part->_this();
    orb.serve();
    orb.register_part(data.name, static_cast<std::uint32_t>(mpi.rank()), reference);
    part->wait_until_done(data.call_timeout);
    part->report(result);
    hashes.interface = part->interface_hashes();
  }
  wall.report(result);
  hashes.field = wall.hashes();
  result.cpu_seconds = cpu_seconds();
  write_results(options.output + "/solid.jsonl", "solid", data.name, result, hashes);
}

}  // namespace

int main(int argc, char** argv) {
  int rank = 0;
  try {
    // Time steps are taken by the threads that serve calls, one at a time.
    const coupling::MpiScope mpi(&argc, &argv, MPI_THREAD_SERIALIZED);
    rank = mpi.rank();
    try {
      run(mpi, coupling::read_options(argc, argv));
      return 0;
    } catch (const CORBA::Exception& error) {
      std::fprintf(stderr, "solid %d: %s\n", rank, coupling::describe(error).c_str());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "solid %d: %s\n", rank, error.what());
    }
    MPI_Abort(MPI_COMM_WORLD, 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "solid: %s\n", error.what());
  }
  return 1;
}
