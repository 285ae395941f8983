/* Messages of many sizes between all pairs of ranks, and collective operations. Usage: mpi_exchange ROUNDS
 * Rank 0 prints a hash of everything that arrived, and the sums. */
#include "check.h"

#include <mpi.h>

enum { MOST = 300000 };
static char out[MOST], in[MOST];

/* Eager and rendezvous sizes. Both ends compute the same ones. */
static int length(uint64_t *state, int round)
{
    return (int)(next_random(state) % (round % 10 ? 2000 : MOST));
}

static uint64_t pairwise(int rank, int ranks, int rounds)
{
    uint64_t hash = 0;
    for (int round = 0; round < rounds; round++) {
        for (int distance = 1; distance < ranks; distance++) {
            int to = (rank + distance) % ranks, from = (rank + ranks - distance) % ranks;
            uint64_t mine = (uint64_t)(round * ranks + rank), theirs = (uint64_t)(round * ranks + from);
            int sent = length(&mine, round), received = length(&theirs, round), count;
            fill(out, (size_t)sent, &mine);
            MPI_Status status;
            MPI_Sendrecv(out, sent, MPI_CHAR, to, distance, in, MOST, MPI_CHAR, from, distance, MPI_COMM_WORLD, &status);
            MPI_Get_count(&status, MPI_CHAR, &count);
            CHECK(count == received);
            fill(out, (size_t)received, &theirs);
            CHECK(memcmp(in, out, (size_t)received) == 0);
            hash = hash_more(hash, in, (size_t)received);
        }
    }
    return hash;
}

/* Posted at once, completed in any order. */
static void flood(int rank, int ranks)
{
    enum { EACH = 64, SIZE = 1000 };
    static char sends[EACH][SIZE], receives[EACH][SIZE];
    MPI_Request requests[2 * EACH];
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int i = 0; i < EACH; i++) {
        memset(sends[i], rank + i, SIZE);
        MPI_Irecv(receives[i], SIZE, MPI_CHAR, from, i, MPI_COMM_WORLD, &requests[i]);
        MPI_Isend(sends[i], SIZE, MPI_CHAR, to, i, MPI_COMM_WORLD, &requests[EACH + i]);
    }
    MPI_Waitall(2 * EACH, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < EACH; i++) CHECK(receives[i][0] == (char)(from + i) && receives[i][SIZE - 1] == (char)(from + i));
}

int main(int argc, char **argv)
{
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    CHECK(argc == 2);
    uint64_t hash = pairwise(rank, ranks, atoi(argv[1])), all = 0;
    flood(rank, ranks);
    MPI_Reduce(&hash, &all, 1, MPI_UINT64_T, MPI_BXOR, 0, MPI_COMM_WORLD);
    long sum = 0;
    for (int i = 0; i < 200; i++) {
        long mine = rank + i, here;
        MPI_Allreduce(&mine, &here, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        sum += here;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, hash %016llx, sum %ld\n", ranks, (unsigned long long)all, sum);
    MPI_Finalize();
    return 0;
}
