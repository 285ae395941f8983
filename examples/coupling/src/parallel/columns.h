// A temperature field on a block of columns, with halo columns on both sides, and the exchange of these halos.
// Not here: equations, or what stands beyond the first and the last column of the whole domain.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace coupling {

// Values of one double per cell. A column is contiguous: all line solves run along it.
class Columns {
 public:
  Columns(int count, int rows, int halo, double value)
      : count_(count), rows_(rows), halo_(halo),
        values_(static_cast<std::size_t>(count + 2 * halo) * static_cast<std::size_t>(rows), value) {}

  int count() const { return count_; }  // own columns
  int rows() const { return rows_; }
  int halo() const { return halo_; }

  // Column `i` in -halo .. count+halo-1; row 0 is the lowest.
  double* column(int i) { return values_.data() + offset(i); }
  const double* column(int i) const { return values_.data() + offset(i); }

  void swap(Columns& other) { values_.swap(other.values_); }

 private:
  std::size_t offset(int i) const {
    return static_cast<std::size_t>(i + halo_) * static_cast<std::size_t>(rows_);
  }

  int count_;
  int rows_;
  int halo_;
  std::vector<double> values_;
};

// Fills the halo columns from the neighbouring ranks. `start` sends and returns; `finish` waits and fills.
// The buffers are its own, so the field may be worked on in between. Every rank must own at least `halo` columns.
class HaloExchange {
 public:
  HaloExchange(int rank, int ranks, int halo, int rows)
      : left_(rank > 0 ? rank - 1 : MPI_PROC_NULL), right_(rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL) {
    for (auto& buffer : buffers_) buffer.resize(static_cast<std::size_t>(halo) * static_cast<std::size_t>(rows));
  }
  HaloExchange(const HaloExchange&) = delete;
  HaloExchange& operator=(const HaloExchange&) = delete;
  ~HaloExchange() { wait(); }

  void start(const Columns& field) {
    const int size = static_cast<int>(buffers_[0].size());
    copy(field.column(0), send_left());
    copy(field.column(field.count() - field.halo()), send_right());
    MPI_Irecv(receive_left().data(), size, MPI_DOUBLE, left_, 1, MPI_COMM_WORLD, &requests_[0]);
    MPI_Irecv(receive_right().data(), size, MPI_DOUBLE, right_, 2, MPI_COMM_WORLD, &requests_[1]);
    MPI_Isend(send_right().data(), size, MPI_DOUBLE, right_, 1, MPI_COMM_WORLD, &requests_[2]);
    MPI_Isend(send_left().data(), size, MPI_DOUBLE, left_, 2, MPI_COMM_WORLD, &requests_[3]);
    pending_ = true;
  }

  // Halos beyond the ends of the domain are left alone.
  void finish(Columns& field) {
    wait();
    if (left_ != MPI_PROC_NULL) std::copy(receive_left().begin(), receive_left().end(), field.column(-field.halo()));
    if (right_ != MPI_PROC_NULL) std::copy(receive_right().begin(), receive_right().end(), field.column(field.count()));
  }

 private:
  using Buffer = std::vector<double>;
  static void copy(const double* from, Buffer& to) { std::copy(from, from + to.size(), to.begin()); }
  Buffer& send_left() { return buffers_[0]; }
  Buffer& send_right() { return buffers_[1]; }
  Buffer& receive_left() { return buffers_[2]; }
  Buffer& receive_right() { return buffers_[3]; }
  void wait() {
    if (pending_) MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    pending_ = false;
  }

  int left_;
  int right_;
  std::array<Buffer, 4> buffers_;
  std::array<MPI_Request, 4> requests_{};
  bool pending_ = false;
};

}  // namespace coupling
