/* oversubscribed.c: more ranks than CPUs: a token ring, exchanges and synchronous sends between neighbours, Allreduce, Alltoall, Barrier; every value is
 * checked.
 *
 *   mpirun -n N oversubscribed [ROUNDS]    (default: 3)
 *
 * Rank 0 prints "ok RANKS, carried by CARRIED" (see carried.c), then "MICROSECONDS NAME" for each operation: the median over the rounds. */
#include "node.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { RING, EXCHANGE, SSEND, SUM, ALLTOALL, BARRIER, KINDS, LENGTH = 512, MAX_RANKS = 1024 };
static const char *const names[KINDS] = {"ring", "exchange", "ssend", "allreduce", "alltoall", "barrier"};

static int rank, ranks;
static const MPI_Comm world = MPI_COMM_WORLD;

static void expect(int good, const char *what, int round)
{
    if (good) return;
    fprintf(stderr, "oversubscribed: %s of round %d is wrong at rank %d\n", what, round, rank);
    MPI_Abort(world, 3);
}

/* Every rank adds one. */
static void ring(int round)
{
    int token = round, left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    if (rank > 0) MPI_Recv(&token, 1, MPI_INT, left, RING, world, MPI_STATUS_IGNORE);
    expect(token == round + rank, names[RING], round);
    token++;
    MPI_Send(&token, 1, MPI_INT, right, RING, world);
    if (rank > 0) return;
    MPI_Recv(&token, 1, MPI_INT, left, RING, world, MPI_STATUS_IGNORE);
    expect(token == round + ranks, names[RING], round);
}

static void exchange(int round)
{
    int out[LENGTH], in[LENGTH], left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    for (int i = 0; i < LENGTH; i++) out[i] = round * 1000003 + rank * 1009 + i;
    MPI_Sendrecv(out, LENGTH, MPI_INT, right, EXCHANGE, in, LENGTH, MPI_INT, left, EXCHANGE, world, MPI_STATUS_IGNORE);
    for (int i = 0; i < LENGTH; i++) expect(in[i] == round * 1000003 + left * 1009 + i, names[EXCHANGE], round);
}

static void ssend(int round)
{
    int out = round + rank, in = -1, left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Request request;
    MPI_Irecv(&in, 1, MPI_INT, left, SSEND, world, &request);
    MPI_Ssend(&out, 1, MPI_INT, right, SSEND, world);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    expect(in == round + left, names[SSEND], round);
}

static void alltoall(int round)
{
    static int out[MAX_RANKS], in[MAX_RANKS];
    for (int i = 0; i < ranks; i++) out[i] = round + rank * MAX_RANKS + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, world);
    for (int i = 0; i < ranks; i++) expect(in[i] == round + i * MAX_RANKS + rank, names[ALLTOALL], round);
}

static void sum(int round)
{
    long out[4], in[4];
    for (int i = 0; i < 4; i++) out[i] = (long)rank * (i + 1) + round;
    MPI_Allreduce(out, in, 4, MPI_LONG, MPI_SUM, world);
    for (int i = 0; i < 4; i++) expect(in[i] == (long)ranks * (ranks - 1) / 2 * (i + 1) + (long)ranks * round, names[SUM], round);
}

static void barrier(int round)
{
    (void)round;
    MPI_Barrier(world);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    static void (*const steps[KINDS])(int) = {ring, exchange, ssend, sum, alltoall, barrier};
    int carried, node, rounds = count > 1 ? atoi(words[1]) : 3;
    MPI_Init(&count, &words);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    if (rounds < 1 || ranks < 2 || ranks > MAX_RANKS) MPI_Abort(world, 2);
    double *took = malloc(sizeof *took * KINDS * rounds);
    for (int round = -1; round < rounds; round++) { /* the first makes the connections */
        for (int kind = 0; kind < KINDS; kind++) {
            MPI_Barrier(world);
            double begun = MPI_Wtime();
            steps[kind](round + 1);
            if (round >= 0) took[kind * rounds + round] = MPI_Wtime() - begun;
        }
    }
    node = has_node();
    MPI_Reduce(&node, &carried, 1, MPI_INT, MPI_SUM, 0, world);
    if (rank == 0) {
        printf("ok %d, carried by %d\n", ranks, carried);
        for (int kind = 0; kind < KINDS; kind++) {
            qsort(took + kind * rounds, rounds, sizeof *took, by_value);
            printf("%.1f %s\n", took[kind * rounds + rounds / 2] * 1e6, names[kind]);
        }
        fflush(stdout);
    }
    free(took);
    MPI_Finalize();
    return 0;
}
