// mpi.cc: messages between the two ranks, with tags of each library's own.
#include "together.h"

#include <mpi.h>

namespace together {
namespace {

class Mpi : public Library {
public:
    explicit Mpi(int number) : tag_(number) {}

    void serve(size_t longest) override
    {
        std::vector<unsigned char> bytes(longest);
        for (;;) {
            MPI_Status status;
            int length;
            MPI_Recv(bytes.data(), static_cast<int>(longest), MPI_BYTE, 0, tag_, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            if (length == 0) return; // the caller has had enough
            MPI_Send(bytes.data(), length, MPI_BYTE, 0, tag_, MPI_COMM_WORLD);
        }
    }

    void exchange(std::vector<unsigned char> &bytes) override
    {
        const int length = static_cast<int>(bytes.size());
        MPI_Send(bytes.data(), length, MPI_BYTE, 1, tag_, MPI_COMM_WORLD);
        MPI_Recv(bytes.data(), length, MPI_BYTE, 1, tag_, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }

    void end() override { MPI_Send(nullptr, 0, MPI_BYTE, 1, tag_, MPI_COMM_WORLD); }

private:
    int tag_;
};

} // namespace

std::unique_ptr<Library> mpi(int number) { return std::make_unique<Mpi>(number); }

} // namespace together
