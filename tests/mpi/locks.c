/* locks.c: every rank increments a number of every rank many times, each time under an exclusive lock: read, add, write. The sums are checked.
 *
 *   mpirun -n N locks [TIMES]    (default: 200)
 *
 * Rank 0 prints "ok RANKS". A rank that waits for a lock must serve accesses to its own numbers, over whichever transport the library uses. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words)
{
    int rank, ranks, times = count > 1 ? atoi(words[1]) : 200;
    long *mine;
    MPI_Win window;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Win_allocate(sizeof *mine, sizeof *mine, MPI_INFO_NULL, MPI_COMM_WORLD, &mine, &window);
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
    *mine = 0;
    MPI_Win_unlock(rank, window);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int time = 0; time < times; time++)
        for (int step = 0; step < ranks; step++) {
            int to = (rank + step) % ranks;
            long value = 0;
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, window);
            MPI_Get(&value, 1, MPI_LONG, to, 0, 1, MPI_LONG, window);
            MPI_Win_flush(to, window);
            value++;
            MPI_Put(&value, 1, MPI_LONG, to, 0, 1, MPI_LONG, window);
            MPI_Win_unlock(to, window);
        }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, window);
    long sum = *mine;
    MPI_Win_unlock(rank, window);
    if (sum != (long)times * ranks) {
        fprintf(stderr, "locks: %ld at rank %d, not %ld\n", sum, rank, (long)times * ranks);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    MPI_Win_free(&window);
    if (rank == 0) printf("ok %d\n", ranks);
    MPI_Finalize();
    return 0;
}
