/* mrecv.c: messages that are received after a matched probe, into memory with gaps; one of them is sent synchronously. The contents are checked.
 *
 *   mpirun -n 2 mrecv
 *
 * Rank 0 prints "ok". */
#include <mpi.h>
#include <stdio.h>

enum { PARTS = 4 };

int main(int count, char **words)
{
    int rank, parts[PARTS] = {1, 2, 3, 4}, spread[2 * PARTS] = {0};
    MPI_Datatype gaps;
    MPI_Message message;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Type_vector(PARTS, 1, 2, MPI_INT, &gaps);
    MPI_Type_commit(&gaps);
    if (rank == 0) {
        MPI_Send(parts, PARTS, MPI_INT, 1, 5, MPI_COMM_WORLD);
        MPI_Ssend(parts, 1, MPI_INT, 1, 6, MPI_COMM_WORLD);
        puts("ok");
    } else if (rank == 1) {
        MPI_Mprobe(0, 5, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(spread, 1, gaps, &message, MPI_STATUS_IGNORE);
        for (int i = 0; i < PARTS; i++)
            if (spread[2 * i] != i + 1 || spread[2 * i + 1] != 0) {
                fprintf(stderr, "mrecv: part %d is wrong: %d\n", i, spread[2 * i]);
                MPI_Abort(MPI_COMM_WORLD, 3);
            }
        MPI_Mprobe(0, 6, MPI_COMM_WORLD, &message, MPI_STATUS_IGNORE);
        MPI_Mrecv(spread, 1, MPI_INT, &message, MPI_STATUS_IGNORE);
    }
    MPI_Type_free(&gaps);
    MPI_Finalize();
    return 0;
}
