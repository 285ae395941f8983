// MPI's beginning and end as a C++ scope, and the few facts about it that the codes ask for.
// Not a wrapper of MPI: communication calls MPI directly.
#pragma once

#include <mpi.h>

#include <stdexcept>

namespace coupling {

class MpiScope {
 public:
  // `thread_level`: MPI_THREAD_SINGLE ... MPI_THREAD_MULTIPLE. Throws when the library offers less.
  MpiScope(int* argc, char*** argv, int thread_level) {
    int provided = 0;
    MPI_Init_thread(argc, argv, thread_level, &provided);
    if (provided < thread_level) {
      MPI_Finalize();
      throw std::runtime_error("this MPI library does not offer the thread level that is needed");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  MpiScope(const MpiScope&) = delete;
  MpiScope& operator=(const MpiScope&) = delete;
  ~MpiScope() { MPI_Finalize(); }

  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace coupling
