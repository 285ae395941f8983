/* messages.c: MPI's guarantees for messages: contents of all sizes in both directions, any source, any tag, order, probes, synchronous
 * sends, cancelled receives, truncation, many unexpected messages, collectives, and messages to the own rank. Ends with one line
 * "ok RANKS" of rank 0; a broken guarantee aborts the job. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                         \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            fprintf(stderr, "rank %d, %s:%d: failed: %s\n", rank, __FILE__, __LINE__, #condition); \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                        \
        }                                                                                        \
    } while (0)

static int rank, ranks;
static const MPI_Comm world = MPI_COMM_WORLD;

static unsigned char byte_at(size_t place, unsigned seed) { return (unsigned char)((place * 2654435761u + seed * 40503u) >> 7 ^ place); }

static void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        bytes[i] = byte_at(i, seed);
}

static int is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t i = 0; i < length; i++)
        if (bytes[i] != byte_at(i, seed)) return 0;
    return 1;
}

/* Between ranks 0 and 1: every size around every threshold, back and forth, and both ways at once. */
static void sizes(void)
{
    static const int bases[] = { 0, 1, 8, 40, 56, 64, 256, 1024, 2048, 3840, 4096, 16384, 65536, 262144, 1 << 20, (4 << 20) + 1 };
    if (rank > 1) return;
    int other = 1 - rank;
    unsigned char *out = malloc((4 << 20) + 64), *in = malloc((4 << 20) + 64);
    for (unsigned i = 0; i < sizeof bases / sizeof *bases; i++) {
        for (int more = bases[i] ? -3 : 0; more <= 3; more++) {
            int length = bases[i] + more, got;
            unsigned seed = i * 16 + (unsigned)(more + 3);
            MPI_Status status;
            if (length < 0) continue;
            fill(out, (size_t)length, seed + (unsigned)rank);
            memset(in, 0xee, (size_t)length + 16);
            if (rank == 0) MPI_Send(out, length, MPI_BYTE, other, (int)seed, world);
            MPI_Recv(in, length + 16, MPI_BYTE, other, (int)seed, world, &status);
            if (rank == 1) MPI_Send(out, length, MPI_BYTE, other, (int)seed, world);
            MPI_Get_count(&status, MPI_BYTE, &got);
            CHECK(got == length && status.MPI_SOURCE == other && status.MPI_TAG == (int)seed);
            CHECK(is_filled(in, (size_t)length, seed + (unsigned)other) && in[length] == 0xee);
            memset(in, 0, (size_t)length + 16);
            MPI_Sendrecv(out, length, MPI_BYTE, other, 9, in, length + 16, MPI_BYTE, other, 9, world, &status);
            CHECK(is_filled(in, (size_t)length, seed + (unsigned)other));
        }
    }
    free(out);
    free(in);
}

/* All ranks send to rank 0, which receives from any source with any tag: each sender's messages arrive in order. */
static void any(void)
{
    enum { EACH = 500 };
    if (rank == 0) {
        int *next = calloc((size_t)ranks, sizeof *next);
        for (int i = 0; i < EACH * (ranks - 1); i++) {
            int value[2];
            MPI_Status status;
            MPI_Recv(value, 2, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, world, &status);
            CHECK(value[0] == status.MPI_SOURCE && value[1] == next[status.MPI_SOURCE] && status.MPI_TAG == value[1] % 7);
            next[status.MPI_SOURCE]++;
        }
        free(next);
    } else {
        for (int i = 0; i < EACH; i++) {
            int value[2] = { rank, i };
            MPI_Send(value, 2, MPI_INT, 0, i % 7, world);
        }
    }
    MPI_Barrier(world);
}

/* A receive from one rank, posted before one from any source, gets its message, connected or not. */
static void posted_order(void)
{
    int from_one = -1, from_any = -1, value = rank;
    MPI_Request requests[2];
    int last = ranks - 1;
    if (rank == 0) {
        MPI_Irecv(&from_one, 1, MPI_INT, last, 77, world, &requests[0]);
        MPI_Irecv(&from_any, 1, MPI_INT, MPI_ANY_SOURCE, 77, world, &requests[1]);
    }
    MPI_Barrier(world);
    if (rank == last)
        for (int i = 0; i < 2; i++) {
            value = 1000 + i;
            MPI_Send(&value, 1, MPI_INT, 0, 77, world);
        }
    if (rank == 0) {
        MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
        CHECK(from_one == 1000 && from_any == 1001);
    }
    MPI_Barrier(world);
}

static void probes(void)
{
    if (rank == 1) {
        unsigned char *bodies = malloc(20 * 100000);
        MPI_Request requests[20];
        for (int i = 0; i < 20; i++) {
            int length = i % 2 ? 100000 - i : 10 + i;
            fill(bodies + i * 100000, (size_t)length, (unsigned)i);
            MPI_Isend(bodies + i * 100000, length, MPI_BYTE, 0, 200 + i, world, &requests[i]);
        }
        MPI_Waitall(20, requests, MPI_STATUSES_IGNORE);
        free(bodies);
    }
    if (rank == 0) {
        int flag = 1;
        MPI_Status status;
        MPI_Iprobe(MPI_ANY_SOURCE, 12345, world, &flag, &status);
        CHECK(!flag);
        for (int i = 0; i < 20; i++) { /* the last first */
            int length, tag = 219 - i;
            if (i % 4 < 2) MPI_Probe(i % 4 ? MPI_ANY_SOURCE : 1, tag, world, &status);
            MPI_Message message = MPI_MESSAGE_NULL;
            if (i % 4 >= 2) MPI_Mprobe(i % 4 == 2 ? MPI_ANY_SOURCE : 1, tag, world, &message, &status);
            MPI_Get_count(&status, MPI_BYTE, &length);
            CHECK(status.MPI_SOURCE == 1 && status.MPI_TAG == tag);
            CHECK(length == ((tag - 200) % 2 ? 100000 - (tag - 200) : 10 + tag - 200));
            unsigned char *body = malloc((size_t)length);
            if (i % 4 < 2) MPI_Recv(body, length, MPI_BYTE, 1, tag, world, &status);
            else MPI_Mrecv(body, length, MPI_BYTE, &message, &status);
            CHECK(is_filled(body, (size_t)length, (unsigned)(tag - 200)));
            free(body);
        }
    }
    MPI_Barrier(world);
}

/* A synchronous send does not complete before its receive has begun. */
static void synchronous(void)
{
    static const int lengths[] = { 4, 5000, 300000 };
    char *body = calloc(1, 300000);
    for (int i = 0; i < 3; i++) {
        if (rank == 0) {
            MPI_Request request;
            int done = 1;
            MPI_Issend(body, lengths[i], MPI_BYTE, 1, 300, world, &request);
            for (int tests = 0; tests < 1000; tests++) {
                MPI_Test(&request, &done, MPI_STATUS_IGNORE);
                CHECK(!done);
            }
            MPI_Send(&done, 1, MPI_INT, 1, 301, world); /* it may be received from now on */
            MPI_Wait(&request, MPI_STATUS_IGNORE);
        }
        if (rank == 1) {
            int go;
            MPI_Recv(&go, 1, MPI_INT, 0, 301, world, MPI_STATUS_IGNORE);
            MPI_Recv(body, lengths[i], MPI_BYTE, 0, 300, world, MPI_STATUS_IGNORE);
        }
    }
    free(body);
    MPI_Barrier(world);
}

static void cancelled(void)
{
    if (rank == 0) {
        int values[2] = { -1, -1 }, flag;
        MPI_Request requests[2];
        MPI_Status status;
        MPI_Irecv(&values[0], 1, MPI_INT, 1, 400, world, &requests[0]);
        MPI_Irecv(&values[1], 1, MPI_INT, MPI_ANY_SOURCE, 401, world, &requests[1]);
        for (int i = 0; i < 2; i++) {
            MPI_Cancel(&requests[i]);
            MPI_Wait(&requests[i], &status);
            MPI_Test_cancelled(&status, &flag);
            CHECK(flag);
        }
        MPI_Barrier(world);
        MPI_Recv(&values[0], 1, MPI_INT, 1, 400, world, &status);
        CHECK(values[0] == 4 && values[1] == -1);
    } else {
        int value = 4;
        MPI_Barrier(world);
        if (rank == 1) MPI_Send(&value, 1, MPI_INT, 0, 400, world);
    }
    MPI_Barrier(world);
}

static void truncated(void)
{
    static const int lengths[] = { 100, 200000 };
    for (int i = 0; i < 2; i++) {
        char *body = calloc(1, (size_t)lengths[i]);
        if (rank == 1) MPI_Send(body, lengths[i], MPI_BYTE, 0, 500, world);
        if (rank == 0) {
            int class;
            MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
            body[50] = 7;
            int result = MPI_Recv(body, 50, MPI_BYTE, 1, 500, world, MPI_STATUS_IGNORE);
            MPI_Error_class(result, &class);
            CHECK(class == MPI_ERR_TRUNCATE && body[50] == 7);
            MPI_Comm_set_errhandler(world, MPI_ERRORS_ARE_FATAL);
        }
        free(body);
    }
    MPI_Barrier(world);
}

/* Every rank starts thousands of sends to every rank before any receive; then it receives, the newest tags first. */
static void storm(void)
{
    enum { EACH = 3000, SPREAD = 5 };
    int sends = EACH * (ranks - 1), at = 0;
    MPI_Request *requests = malloc((size_t)sends * sizeof *requests);
    int *values = malloc((size_t)EACH * 300 * sizeof *values);
    for (int i = 0; i < EACH * 300; i++)
        values[i] = i / 300 * 1000 + rank;
    for (int i = 0; i < EACH; i++)
        for (int to = 0; to < ranks; to++)
            if (to != rank) MPI_Isend(values + (size_t)i * 300, i % 10 == 0 ? 300 : 2, MPI_INT, to, i % SPREAD, world, &requests[at++]);
    for (int tag = SPREAD - 1; tag >= 0; tag--)
        for (int from = 0; from < ranks; from++)
            for (int i = tag; i < EACH && from != rank; i += SPREAD) {
                int got[300];
                MPI_Recv(got, 300, MPI_INT, from, tag, world, MPI_STATUS_IGNORE);
                CHECK(got[0] == i * 1000 + from && got[1] == got[0] && (i % 10 != 0 || got[299] == got[0]));
            }
    MPI_Waitall(sends, requests, MPI_STATUSES_IGNORE);
    free(requests);
    free(values);
    MPI_Barrier(world);
}

/* Long messages, many at a time, received in another order than sent. */
static void many_long(void)
{
    enum { MANY = 24, LENGTH = 700001 };
    MPI_Request requests[2 * MANY];
    unsigned char *bodies = malloc((size_t)2 * MANY * LENGTH);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    for (int i = 0; i < MANY; i++) {
        fill(bodies + (size_t)i * LENGTH, LENGTH, (unsigned)(rank * 100 + i));
        MPI_Isend(bodies + (size_t)i * LENGTH, LENGTH, MPI_BYTE, to, i, world, &requests[i]);
    }
    for (int i = MANY - 1; i >= 0; i--)
        MPI_Irecv(bodies + (size_t)(MANY + i) * LENGTH, LENGTH, MPI_BYTE, from, i, world, &requests[MANY + i]);
    MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < MANY; i++)
        CHECK(is_filled(bodies + (size_t)(MANY + i) * LENGTH, LENGTH, (unsigned)(from * 100 + i)));
    free(bodies);
}

static void oneself(void)
{
    int out[3] = { rank, 5, 6 }, in[3] = { 0 };
    MPI_Request request;
    MPI_Isend(out, 3, MPI_INT, rank, 600, world, &request);
    MPI_Recv(in, 3, MPI_INT, rank, 600, world, MPI_STATUS_IGNORE);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(memcmp(in, out, sizeof in) == 0);
    size_t length = 1 << 20;
    unsigned char *bodies = malloc(2 * length);
    fill(bodies, length, 3);
    MPI_Irecv(bodies + length, (int)length, MPI_BYTE, MPI_ANY_SOURCE, 601, world, &request);
    MPI_Send(bodies, (int)length, MPI_BYTE, rank, 601, world);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(is_filled(bodies + length, length, 3));
    free(bodies);
}

static void collectives(void)
{
    for (int count = 1; count <= 200000; count *= 17) {
        double *mine = malloc((size_t)count * sizeof *mine), *all = malloc((size_t)count * (size_t)ranks * sizeof *all);
        for (int i = 0; i < count; i++)
            mine[i] = rank + i;
        MPI_Allreduce(mine, all, count, MPI_DOUBLE, MPI_SUM, world);
        for (int i = 0; i < count; i++)
            CHECK(all[i] == (double)ranks * i + ranks * (ranks - 1) / 2.0);
        MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, world);
        for (int of = 0; of < ranks; of++)
            CHECK(all[(size_t)of * (size_t)count] == of && all[(size_t)of * (size_t)count + (size_t)count - 1] == of + count - 1);
        for (int root = 0; root < ranks; root++) {
            for (int i = 0; i < count; i++)
                all[i] = rank == root ? root * 3 + i : -1;
            MPI_Bcast(all, count, MPI_DOUBLE, root, world);
            CHECK(all[0] == root * 3 && all[count - 1] == root * 3 + count - 1);
        }
        free(mine);
        free(all);
    }
    int *out = malloc((size_t)ranks * sizeof *out), *in = malloc((size_t)ranks * sizeof *in);
    for (int i = 0; i < ranks; i++)
        out[i] = rank * 100 + i;
    MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, world);
    for (int i = 0; i < ranks; i++)
        CHECK(in[i] == i * 100 + rank);
    free(out);
    free(in);
    MPI_Comm half;
    MPI_Comm_split(world, rank % 2, rank, &half);
    int sum, one = 1, size;
    MPI_Comm_size(half, &size);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, half);
    CHECK(sum == size);
    MPI_Comm_free(&half);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } parts[] = {
        { "posted_order", posted_order }, { "sizes", sizes }, { "any", any }, { "probes", probes }, { "synchronous", synchronous },
        { "cancelled", cancelled }, { "truncated", truncated }, { "storm", storm }, { "many_long", many_long }, { "oneself", oneself },
        { "collectives", collectives },
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].name) != 0) continue;
        parts[i].run();
        if (rank == 0 && getenv("VERBOSE")) fprintf(stderr, "%s\n", parts[i].name);
    }
    MPI_Barrier(world);
    if (rank == 0) printf("ok %d\n", ranks);
    MPI_Finalize();
    return 0;
}
