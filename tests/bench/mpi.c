/* mpi.c: a ping-pong between two ranks. mpirun … mpi CPU CPU SIZE MS: the ranks on these CPUs; rank 0 prints "MEDIAN MEAN COUNT" as
 * peer.h says: ns for one way. */
#define _GNU_SOURCE
#include "peer.h"

#include <mpi.h>
#include <sched.h>

struct call {
    int size;
    char *data;
};

static void round_trips(void *context, long count)
{
    struct call *call = context;
    while (count-- > 0) {
        MPI_Send(call->data, call->size, MPI_CHAR, 1, 0, MPI_COMM_WORLD);
        MPI_Recv(call->data, call->size, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 5) MPI_Abort(MPI_COMM_WORLD, 2);
    const char *cpu = argv[1 + rank % 2];
    if (strcmp(cpu, "-") != 0) { /* otherwise as the scheduler places it */
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(atoi(cpu), &set);
        if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
    }
    struct call call = {atoi(argv[3]), calloc(1, atoi(argv[3]))};
    if (rank == 0) {
        measure(round_trips, &call, 0, atof(argv[4]), 2);
        MPI_Send(NULL, 0, MPI_CHAR, 1, 1, MPI_COMM_WORLD);
    } else {
        for (MPI_Status status;;) {
            MPI_Recv(call.data, call.size, MPI_CHAR, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            if (status.MPI_TAG == 1) break;
            MPI_Send(call.data, call.size, MPI_CHAR, 0, 0, MPI_COMM_WORLD);
        }
    }
    free(call.data);
    MPI_Finalize();
    return 0;
}
