/* graphs.c: probes for MPI_ANY_SOURCE, in the program and inside the library. Ranks repeatedly make graphs in which each is a neighbour of itself
 * and of the next ranks: a library that probes and then receives must get the probed message. And a rank that sends before each probe must find
 * a message that has arrived. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { GRAPHS = 1500, PROBES = 100000, WANTED = 7, TICK = 8, LAST = 9 };

static void must(int right, const char *what)
{
    if (right) return;
    fprintf(stderr, "%s\n", what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void graph(int rank, int ranks)
{
    int degree = 3, to[3] = {(rank + ranks - 1) % ranks, rank, (rank + 1) % ranks}, weights[3] = {1, 2, 3};
    int in, out, weighted, from[8], back[8], in_weights[8], out_weights[8], sum = 0;
    MPI_Comm made;
    MPI_Dist_graph_create(MPI_COMM_WORLD, 1, &rank, &degree, to, weights, MPI_INFO_NULL, 0, &made);
    MPI_Dist_graph_neighbors_count(made, &in, &out, &weighted);
    must(in == 3 && out == 3 && weighted, "another number of neighbours");
    MPI_Dist_graph_neighbors(made, in, from, in_weights, out, back, out_weights);
    for (int i = 0; i < in; i++) sum += in_weights[i];
    must(sum == 6, "other weights");
    MPI_Comm_free(&made);
}

static void sends_and_probes(int rank)
{
    int probes = 0, there = 0, nothing = 0;
    MPI_Status status;
    if (rank == 1) MPI_Send(&nothing, 1, MPI_INT, 0, WANTED, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        for (; !there && probes < PROBES; probes++) {
            MPI_Send(&nothing, 1, MPI_INT, 1, TICK, MPI_COMM_WORLD);
            MPI_Iprobe(MPI_ANY_SOURCE, WANTED, MPI_COMM_WORLD, &there, &status);
        }
        must(there, "not found");
        MPI_Recv(&nothing, 1, MPI_INT, 1, WANTED, MPI_COMM_WORLD, &status);
        MPI_Send(&nothing, 1, MPI_INT, 1, LAST, MPI_COMM_WORLD);
    } else if (rank == 1) {
        do MPI_Recv(&nothing, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        while (status.MPI_TAG == TICK);
    }
}

int main(int count, char **arguments)
{
    int rank, ranks;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < GRAPHS; i++) graph(rank, ranks);
    for (int i = 0; i < 100; i++) sends_and_probes(rank);
    MPI_Finalize();
    if (rank == 0) printf("ok\n");
    return 0;
}
