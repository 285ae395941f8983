/* shift.c: every rank sends to its right neighbour, in calls that return only when the neighbour has begun to receive: synchronous sends of 8 bytes,
 * and sends of 1 MiB. The contents are checked.
 *
 *   mpirun -n N shift [ROUNDS]    (default: 500; 20 of them with 1 MiB)
 *
 * Rank 0 prints "ok RANKS". Libraries may wait in these calls without yielding, so on shared CPUs the provider must yield. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 1 << 20, FEW = 20 };

static int rank, ranks;

static void shift(int round, char *out, char *in, int length, int (*send)(const void *, int, MPI_Datatype, int, int, MPI_Comm))
{
    int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
    MPI_Request request;
    memset(out, round + rank, length);
    memset(in, round + left + 1, length);
    MPI_Irecv(in, length, MPI_BYTE, left, length == LARGE, MPI_COMM_WORLD, &request);
    send(out, length, MPI_BYTE, right, length == LARGE, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    for (int i = 0; i < length; i++)
        if (in[i] != (char)(round + left)) {
            fprintf(stderr, "shift: rank %d, round %d: byte %d of %d is wrong\n", rank, round, i, length);
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
}

int main(int count, char **words)
{
    int rounds = count > 1 ? atoi(words[1]) : 500;
    char *out = malloc(LARGE), *in = malloc(LARGE);
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int round = 0; round < rounds; round++) {
        shift(round, out, in, 8, MPI_Ssend);
        if (round < FEW) shift(round, out, in, LARGE, MPI_Send);
    }
    free(out);
    free(in);
    if (rank == 0) printf("ok %d\n", ranks);
    MPI_Finalize();
    return 0;
}
