/* killed.c: rank 1 is killed in the middle of an exchange with each other rank. Their calls must end with an MPI error: each then prints
 * "rank N: got an error at T" and exits without MPI_Finalize, as one rank is missing. Rank 1 prints "killed at T" just before. T is the host's clock
 * in microseconds. The first argument is the number of bytes of a message. The launcher must not end the job with its first process. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 50 };

static long long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return time.tv_sec * 1000000LL + time.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
    int rank, ranks, length = argc > 1 ? atoi(argv[1]) : 8;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    char *out = calloc(1, (size_t)length), *in = calloc(1, (size_t)length);
    for (int round = 0; rank == 1 && round < ROUNDS; round++)
        for (int other = 0; other < ranks; other++)
            if (other != 1) MPI_Sendrecv(out, length, MPI_CHAR, other, 0, in, length, MPI_CHAR, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == 1) {
        printf("killed at %lld\n", now());
        fflush(stdout);
        raise(SIGKILL);
    }
    int round = 0, status = MPI_SUCCESS;
    while (status == MPI_SUCCESS) {
        status = MPI_Sendrecv(out, length, MPI_CHAR, 1, 0, in, length, MPI_CHAR, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        round += status == MPI_SUCCESS;
    }
    long long at = now();
    if (round != ROUNDS) fprintf(stderr, "rank %d: got an error in round %d\n", rank, round);
    printf("rank %d: got an error at %lld\n", rank, at);
    fflush(stdout);
    _exit(0);
}
