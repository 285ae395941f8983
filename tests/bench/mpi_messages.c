/* mpi_messages.c: messages between ranks. See messages.h.
 *
 *   mpirun -n 2 mpi_messages latency|rate|bandwidth|stream|cold SIZES MS CPU CPU   rank 0 prints a line for each size
 *   mpirun -n N mpi_messages server SIZE MS CPU CPU                         rank 0 serves the others
 *
 * Rank 0 runs on the first CPU and all others on the second; "-" leaves them to the scheduler. Yielding is the library's matter: whoever
 * starts the ranks asks it to. */
#define _GNU_SOURCE
#include "messages.h"

#include <mpi.h>

static MPI_Request requests[WINDOW];

static void deliver(int to, int tag, const void *data, size_t size)
{
    MPI_Send(data, (int)size, MPI_BYTE, to, tag, MPI_COMM_WORLD);
}

static void take(int from, int tag, void *into, size_t size)
{
    MPI_Recv(into, (int)size, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void begin_deliver(int slot, int to, int tag, const void *data, size_t size)
{
    MPI_Isend(data, (int)size, MPI_BYTE, to, tag, MPI_COMM_WORLD, &requests[slot]);
}

static void begin_take(int slot, int from, int tag, void *into, size_t size)
{
    MPI_Irecv(into, (int)size, MPI_BYTE, from == ANY ? MPI_ANY_SOURCE : from, tag, MPI_COMM_WORLD, &requests[slot]);
}

static void finish(int count) { MPI_Waitall(count, requests, MPI_STATUSES_IGNORE); }

static int finish_any(int count, int *from)
{
    int slot;
    MPI_Status status;
    MPI_Waitany(count, requests, &slot, &status);
    *from = status.MPI_SOURCE;
    return slot;
}

static void pin(const char *cpu)
{
    cpu_set_t set;
    if (!strcmp(cpu, "-")) return;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set)) fail("sched_setaffinity");
}

int main(int argc, char **argv)
{
    int rank, ranks;
    begin_process();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 6 || ranks < 2 || ranks > MOST_ENDS || !are_sizes(argv[2])) {
        fprintf(stderr, "mpi_messages: usage: WHAT SIZES MS CPU CPU, with 2 to %d ranks\n", MOST_ENDS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int i = 0; i < WINDOW; i++) requests[i] = MPI_REQUEST_NULL;
    pin(argv[4 + (rank > 0)]);
    MPI_Barrier(MPI_COMM_WORLD);
    const char *what = argv[1];
    double ms = atof(argv[3]);
    if (!strcmp(what, "server")) {
        size_t size = strtoull(argv[2], NULL, 10);
        if (rank == 0)
            serve_clients(ranks - 1, size, ms);
        else
            be_client(size);
    } else if (rank == 0) {
        call_with(what, argv[2], ms, 1);
    } else if (rank == 1) {
        answer_plans(0);
    }
    MPI_Finalize();
    return 0;
}
