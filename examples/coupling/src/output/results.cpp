// Gathering and writing results.
#include "output/results.h"

#include <mpi.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <stdexcept>

#include "output/sums.h"

namespace coupling {
namespace {

struct Column {
  const char* name;
  double RankResult::*value;
  bool summed;  // over ranks in the total; otherwise the largest counts
};

constexpr std::array<Column, 10> table{{
    {"wall_seconds", &RankResult::wall_seconds, false},
    {"cpu_seconds", &RankResult::cpu_seconds, true},
    {"coupling_seconds", &RankResult::coupling_seconds, false},
    {"solve_seconds", &RankResult::solve_seconds, false},
    {"calls", &RankResult::calls, true},
    {"bytes", &RankResult::bytes, true},
    {"energy_change", &RankResult::energy_change, true},
    {"energy_in", &RankResult::energy_in, true},
    {"energy_interface", &RankResult::energy_interface, true},
    {"energy_turnover", &RankResult::energy_turnover, true},
}};
using Row = std::array<double, table.size()>;

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

std::string hex(std::uint64_t value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "\"%016llx\"", static_cast<unsigned long long>(value));
  return text.data();
}

std::string json(const Row& row) {
  std::string text;
  for (std::size_t i = 0; i < table.size(); ++i) {
    text += std::string(", \"") + table[i].name + "\": " + number(row[i]);
  }
  return text;
}

// The hash of all ranks' column hashes in rank order, on rank 0.
std::uint64_t combine(const std::vector<std::uint64_t>& mine, int rank, int size) {
  const int count = static_cast<int>(mine.size());
  std::vector<int> counts(static_cast<std::size_t>(size));
  MPI_Gather(&count, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
  std::vector<int> starts;
  int total = 0;
  for (const int c : counts) {
    starts.push_back(total);
    total += c;
  }
  std::vector<std::uint64_t> all(rank == 0 ? static_cast<std::size_t>(total) : 0);
  MPI_Gatherv(mine.data(), count, MPI_UINT64_T, all.data(), counts.data(), starts.data(), MPI_UINT64_T, 0,
              MPI_COMM_WORLD);
  std::uint64_t state = hash_start;
  for (const std::uint64_t column : all) state = hash(state, column);
  return state;
}

}  // namespace

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void write_results(const std::string& path, const std::string& code, const std::string& case_name,
                   const RankResult& mine, const ColumnHashes& hashes) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  Row row{};
  for (std::size_t i = 0; i < table.size(); ++i) row[i] = mine.*table[i].value;
  std::vector<Row> rows(rank == 0 ? static_cast<std::size_t>(size) : 0);
  MPI_Gather(row.data(), static_cast<int>(row.size()), MPI_DOUBLE, rows.data(), static_cast<int>(row.size()),
             MPI_DOUBLE, 0, MPI_COMM_WORLD);
  const std::uint64_t field = combine(hashes.field, rank, size);
  const std::uint64_t interface = combine(hashes.interface, rank, size);
  if (rank != 0) return;

  std::ofstream file(path);
  const std::string head = R"({"code": ")" + code + R"(", "case": ")" + case_name + "\"";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    file << head << R"(, "kind": "rank", "rank": )" << r << json(rows[r]) << "}\n";
  }
  Row total{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    Sum sum;
    double largest = 0;
    for (const Row& r : rows) {
      sum.add(r[i]);
      largest = std::max(largest, r[i]);
    }
    total[i] = table[i].summed ? sum.value() : largest;
  }
  file << head << R"(, "kind": "total", "ranks": )" << size << json(total) << R"(, "field_checksum": )" << hex(field)
       << R"(, "interface_checksum": )" << hex(interface) << "}\n";
  file.close();
  if (!file) throw std::runtime_error("cannot write " + path);
}

}  // namespace coupling
