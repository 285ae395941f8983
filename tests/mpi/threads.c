/* threads.c: several threads of each rank send and receive at the same time (MPI_THREAD_MULTIPLE), each with its own tag, all sizes, checked. Ends with
 * one line "ok RANKS" of rank 0, or "no threads" if the MPI library does not support them; a broken guarantee aborts the job. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, ROUNDS = 400, LONGEST = 100000 };

static int rank, ranks;

static void *talk(void *tag_of)
{
    int tag = *(int *)tag_of, next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    unsigned char *out = malloc(LONGEST), *in = malloc(LONGEST);
    for (int round = 0; round < ROUNDS; round++) {
        int length = round % 20 == 0 ? LONGEST - round : 8 + round * 7 % 5000;
        MPI_Request request;
        MPI_Status status;
        memset(out, rank * 31 + tag + round, (size_t)length);
        memset(in, 0, LONGEST);
        MPI_Irecv(in, LONGEST, MPI_BYTE, round % 3 ? before : MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, &request);
        MPI_Send(out, length, MPI_BYTE, next, tag, MPI_COMM_WORLD);
        MPI_Wait(&request, &status);
        int got;
        MPI_Get_count(&status, MPI_BYTE, &got);
        for (int i = 0; i < length; i++)
            if (got != length || in[i] != (unsigned char)(before * 31 + tag + round)) {
                fprintf(stderr, "rank %d, tag %d, round %d: %d bytes, byte %d is %d\n", rank, tag, round, got, i, in[i]);
                MPI_Abort(MPI_COMM_WORLD, 1);
            }
    }
    free(out);
    free(in);
    return NULL;
}

int main(int argc, char **argv)
{
    int provided, tags[THREADS];
    pthread_t threads[THREADS];
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 0; i < THREADS && provided == MPI_THREAD_MULTIPLE; i++) {
        tags[i] = 100 + i;
        pthread_create(&threads[i], NULL, talk, &tags[i]);
    }
    for (int i = 0; i < THREADS && provided == MPI_THREAD_MULTIPLE; i++)
        pthread_join(threads[i], NULL);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0 && provided == MPI_THREAD_MULTIPLE) printf("ok %d\n", ranks);
    else if (rank == 0) puts("no threads");
    MPI_Finalize();
    return 0;
}
