/* mpi_collectives.c: a barrier and an all-reduce of 8 bytes among all ranks. mpirun … mpi_collectives MS: rank 0 prints the ns of each, the median of
 * blocks over MS milliseconds. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BLOCK = 100, MAX_BLOCKS = 100000 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }

static void all_reduce(void)
{
    uint64_t one = 1, sum;
    MPI_Allreduce(&one, &sum, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

/* Blocks until rank 0 says that the time is over. */
static double measured(void (*call)(void), double ms)
{
    static double times[MAX_BLOCKS];
    int count = 0, rank, go = 1;
    double began = now();
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    while (go) {
        double start = now();
        for (int i = 0; i < BLOCK; i++) call();
        times[count++] = (now() - start) / BLOCK;
        go = (now() - began < ms * 1e6 || count < 5) && count < MAX_BLOCKS;
        MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    qsort(times, count, sizeof times[0], ascending);
    return times[count / 2];
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double ms = argc > 1 ? atof(argv[1]) : 100;
    measured(barrier, ms / 4);
    double first = measured(barrier, ms), second = measured(all_reduce, ms);
    if (rank == 0) printf("%.1f %.1f\n", first, second);
    MPI_Finalize();
    return 0;
}
