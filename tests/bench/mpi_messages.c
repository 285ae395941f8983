/* mpi_messages.c: messages between ranks. See messages.h.
 *
 *   mpirun -n N mpi_messages latency|any|rate|bandwidth|stream|cold SIZES MS CPU CPU [WINDOW]   rank 0 prints a line for each size
 *   mpirun -n N mpi_messages server SIZE MS CPU CPU                                             rank 0 serves the others
 *
 * Rank 0 runs on the first CPU, rank 1 on the second, with all others of a server; "-" leaves them to the scheduler. The library yields
 * if an option of its launcher says so. In all patterns but `server` only ranks 0 and 1 take part: the others exchange a message
 * with every rank, as programs do that talk to all, and then sleep until the end, so that they take no CPU. */
#define _GNU_SOURCE
#include "messages.h"

#include <mpi.h>

static MPI_Request requests[SLOTS];

static void deliver(int to, int tag, const void *data, size_t size)
{
    MPI_Send(data, (int)size, MPI_BYTE, to, tag, MPI_COMM_WORLD);
}

static void take(int from, int tag, void *into, size_t size)
{
    MPI_Recv(into, (int)size, MPI_BYTE, from == ANY ? MPI_ANY_SOURCE : from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
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

/* Exchanges a message between all pairs of ranks. */
static void greet_all(int rank, int ranks)
{
    char to = 0, from;
    for (int step = 1; step < ranks; step++)
        MPI_Sendrecv(&to, 1, MPI_BYTE, (rank + step) % ranks, DATA, &from, 1, MPI_BYTE, (rank + ranks - step) % ranks, DATA, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
}

/* A rank without a part: it tests for the end every 2 ms. */
static void sleep_until_end(void)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    MPI_Request over;
    int is_over;
    char end;
    MPI_Irecv(&end, 1, MPI_BYTE, 0, END, MPI_COMM_WORLD, &over);
    for (MPI_Test(&over, &is_over, MPI_STATUS_IGNORE); !is_over; MPI_Test(&over, &is_over, MPI_STATUS_IGNORE)) nanosleep(&pause, NULL);
}

int main(int argc, char **argv)
{
    int rank, ranks;
    begin_process();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    const char *what = argc > 1 ? argv[1] : "";
    int is_server = !strcmp(what, "server"), window = argc == 7 ? atoi(argv[6]) : WINDOW;
    if (argc < 6 || argc > 7 || ranks < 2 || (is_server && ranks > MOST_ENDS) || window < 1 || window > SLOTS || !are_sizes(argv[2])) {
        fprintf(stderr, "mpi_messages: usage: WHAT SIZES MS CPU CPU [WINDOW], 2 ranks or more, of a server at most %d, windows of at most %d\n",
                MOST_ENDS, SLOTS);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (int i = 0; i < SLOTS; i++) requests[i] = MPI_REQUEST_NULL;
    if (rank < 2 || is_server) pin(argv[4 + (rank > 0)]);
    double ms = atof(argv[3]);
    greet_all(rank, ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_server) {
        size_t size = strtoull(argv[2], NULL, 10);
        if (rank == 0)
            serve_clients(ranks - 1, size, ms);
        else
            be_client(size);
    } else if (rank == 0) {
        call_with(what, argv[2], ms, 1, window);
        for (int other = 2; other < ranks; other++) deliver(other, END, "", 1);
    } else if (rank == 1) {
        answer_plans(0);
    } else {
        sleep_until_end();
    }
    MPI_Finalize();
    return 0;
}
