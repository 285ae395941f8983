/* speed.c: half a round trip between ranks 0 and 1 (median of batches, microseconds), and the rate of a stream of 32 sends at a time (MB/s). One line for each
 * size: BYTES HALF_ROUND_TRIP MEGABYTES_PER_SECOND. Overhead of the MPI library is included. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 15, WINDOW = 32, LONGEST = 4 << 20 };

static int rank;
static const MPI_Comm world = MPI_COMM_WORLD;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double half_round_trip(char *out, char *in, int length)
{
    double times[BATCHES];
    int rounds = length <= 4096 ? 2000 : length <= 65536 ? 500 : 50;
    for (int batch = -1; batch < BATCHES; batch++) {
        double begin = MPI_Wtime();
        for (int i = 0; i < rounds; i++) {
            if (rank == 0) MPI_Send(out, length, MPI_BYTE, 1, 1, world);
            MPI_Recv(in, length, MPI_BYTE, 1 - rank, 1, world, MPI_STATUS_IGNORE);
            if (rank == 1) MPI_Send(out, length, MPI_BYTE, 0, 1, world);
        }
        if (batch >= 0) times[batch] = (MPI_Wtime() - begin) / rounds / 2 * 1e6;
    }
    qsort(times, BATCHES, sizeof *times, by_value);
    return times[BATCHES / 2];
}

static double rate(char *out, char *in, int length)
{
    double rates[BATCHES];
    MPI_Request requests[WINDOW];
    int windows = length <= 4096 ? 100 : length <= 65536 ? 20 : 2;
    for (int batch = -1; batch < BATCHES; batch++) {
        double begin = MPI_Wtime();
        for (int w = 0; w < windows; w++) {
            for (int i = 0; i < WINDOW; i++)
                if (rank == 0) MPI_Isend(out, length, MPI_BYTE, 1, 2, world, &requests[i]);
                else MPI_Irecv(in, length, MPI_BYTE, 0, 2, world, &requests[i]);
            MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
            if (rank == 0) MPI_Recv(in, 0, MPI_BYTE, 1, 3, world, MPI_STATUS_IGNORE);
            else MPI_Send(out, 0, MPI_BYTE, 0, 3, world);
        }
        if (batch >= 0) rates[batch] = (double)length * WINDOW * windows / (MPI_Wtime() - begin) / 1e6;
    }
    qsort(rates, BATCHES, sizeof *rates, by_value);
    return rates[BATCHES / 2];
}

int main(int argc, char **argv)
{
    static const int sizes[] = { 0, 8, 64, 256, 1024, 4096, 16384, 65536, 262144, 1 << 20, 4 << 20 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    char *out = malloc(LONGEST), *in = malloc(LONGEST);
    memset(out, 1, LONGEST);
    memset(in, 2, LONGEST);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes && rank < 2; i++) {
        if (argc > 1 && atoi(argv[1]) != sizes[i]) continue;
        double half = half_round_trip(out, in, sizes[i]), rated = rate(out, in, sizes[i]);
        if (rank == 0) printf("%8d %10.2f %10.1f\n", sizes[i], half, rated);
    }
    MPI_Finalize();
    return 0;
}
