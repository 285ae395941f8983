/* carried.c: all ranks exchange messages of several lengths with each other, then rank 0 prints for how many of them Motet carried the messages.
 *
 * Motet carried a rank's messages if the stats page of a node (a memfd of this process) has a link that counted cells or frames. Prints
 * "ok RANKS, carried by CARRIED" on rank 0. The optional argument is the number of seconds to wait before the end. */
#include "node.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words)
{
    static const int lengths[] = {0, 1, 4096, 300000};
    int rank, ranks, carried, node;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        int length = lengths[i];
        unsigned char *out = malloc((size_t)length + 1), *in = malloc((size_t)length + 1);
        for (int step = 1; step < ranks; step++) {
            int to = (rank + step) % ranks, from = (rank + ranks - step) % ranks;
            memset(out, rank * 16 + step, (size_t)length);
            memset(in, 0, (size_t)length + 1);
            MPI_Sendrecv(out, length, MPI_BYTE, to, step, in, length + 1, MPI_BYTE, from, step, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int at = 0; at < length; at++)
                if (in[at] != (unsigned char)(from * 16 + step)) MPI_Abort(MPI_COMM_WORLD, 3);
        }
        free(out);
        free(in);
    }
    node = has_node();
    MPI_Reduce(&node, &carried, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("ok %d, carried by %d\n", ranks, carried);
        fflush(stdout);
    }
    if (count > 1) sleep((unsigned)atoi(words[1]));
    MPI_Finalize();
    return 0;
}
