/* absent_rank.c: a rank that waits outside of MPI does not block another rank: nonblocking calls to it return, although the two have not connected yet.
 *
 * Rank 0 waits for a file, which rank 1 makes when it has begun to receive from and to send to rank 0. The argument is the file's path.
 * Prints "ok" on rank 0. */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>

enum { WAIT_MS = 30000 }; /* ms */

int main(int count, char **words)
{
    int rank, mine, theirs = -1, waited = 0;
    MPI_Request requests[2];
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mine = rank + 100;
    if (count < 2) MPI_Abort(MPI_COMM_WORLD, 2);
    while (rank == 0 && access(words[1], F_OK) != 0) {
        if (++waited > WAIT_MS) {
            fprintf(stderr, "rank 1 has not come back\n");
            MPI_Abort(MPI_COMM_WORLD, 3);
        }
        usleep(1000);
    }
    MPI_Irecv(&theirs, 1, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&mine, 1, MPI_INT, 1 - rank, 0, MPI_COMM_WORLD, &requests[1]);
    if (rank == 1) close(open(words[1], O_CREAT | O_WRONLY, 0600));
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    if (theirs != 101 - rank) MPI_Abort(MPI_COMM_WORLD, 4);
    if (rank == 0) printf("ok\n");
    MPI_Finalize();
    return 0;
}
