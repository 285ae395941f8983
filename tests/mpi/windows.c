/* windows.c: MPI's guarantees for windows: puts, gets, accumulates and compares under fences, locks and flushes. Ends with one line "ok RANKS" of
 * rank 0; a broken guarantee aborts the job. With an argument it leaves out MPI_Compare_and_swap, with which Open MPI 4.1.4 itself fails over its
 * osc/rdma. */
#include <mpi.h>
#include <stdint.h>
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

enum { WORDS = 1 << 18 };

static int rank, ranks, compares = 1;
static const MPI_Comm world = MPI_COMM_WORLD;

/* Every rank puts blocks of every length into the next rank's window and gets them back. */
static void stretches(MPI_Win window, int64_t *memory)
{
    int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
    int64_t *mine = malloc(WORDS * sizeof *mine), *back = malloc(WORDS * sizeof *back);
    for (int length = 1; length <= WORDS; length *= 8) {
        for (int i = 0; i < length; i++)
            mine[i] = (int64_t)rank * 1000000 + length + i;
        memset(back, 0, (size_t)length * sizeof *back);
        MPI_Win_fence(0, window);
        MPI_Put(mine, length, MPI_INT64_T, next, WORDS - length, length, MPI_INT64_T, window);
        MPI_Win_fence(0, window);
        for (int i = 0; i < length; i++)
            CHECK(memory[WORDS - length + i] == (int64_t)before * 1000000 + length + i);
        MPI_Get(back, length, MPI_INT64_T, next, WORDS - length, length, MPI_INT64_T, window);
        MPI_Win_fence(0, window);
        CHECK(memcmp(mine, back, (size_t)length * sizeof *back) == 0);
    }
    /* Every second word: a datatype with holes on both sides. */
    MPI_Datatype holes;
    MPI_Type_vector(100, 1, 2, MPI_INT64_T, &holes);
    MPI_Type_commit(&holes);
    memset(memory, 0, 1000 * sizeof *memory);
    for (int i = 0; i < 200; i++)
        mine[i] = rank * 1000 + i;
    MPI_Win_fence(0, window);
    MPI_Put(mine, 1, holes, next, 0, 1, holes, window);
    MPI_Win_fence(0, window);
    for (int i = 0; i < 200; i++)
        CHECK(memory[i] == (i % 2 ? 0 : before * 1000 + i));
    MPI_Type_free(&holes);
    free(mine);
    free(back);
    MPI_Win_fence(0, window);
}

/* Every rank compares and swaps a word of the next rank, once with the right value and once with a wrong one. */
static void compare(MPI_Win window)
{
    int64_t expected = rank, fresh = rank + ranks, was;
    MPI_Put(&expected, 1, MPI_INT64_T, rank, 20, 1, MPI_INT64_T, window);
    MPI_Win_flush(rank, window);
    MPI_Barrier(world);
    int to = (rank + 1) % ranks;
    expected = to;
    MPI_Compare_and_swap(&fresh, &expected, &was, MPI_INT64_T, to, 20, window);
    MPI_Win_flush(to, window);
    CHECK(was == to);
    MPI_Compare_and_swap(&expected, &expected, &was, MPI_INT64_T, to, 20, window);
    MPI_Win_flush(to, window);
    CHECK(was == fresh);
    MPI_Barrier(world);
}

/* Every rank adds to words of every rank and draws numbers from one: no addition is lost, no number is drawn twice. */
static void sums(MPI_Win window, int64_t *memory)
{
    enum { EACH = 300 };
    memset(memory, 0, 64 * sizeof *memory);
    MPI_Win_fence(0, window);
    MPI_Win_lock_all(0, window);
    int64_t one = 1, last = -1, number;
    double half = 0.5;
    for (int i = 0; i < EACH; i++) {
        MPI_Accumulate(&one, 1, MPI_INT64_T, i % ranks, 1 + i % 4, 1, MPI_INT64_T, MPI_SUM, window);
        MPI_Fetch_and_op(&one, &number, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_flush(0, window);
        CHECK(number > last && number < (int64_t)EACH * ranks);
        last = number;
        MPI_Accumulate(&half, 1, MPI_DOUBLE, (rank + 1) % ranks, 8, 1, MPI_DOUBLE, MPI_SUM, window);
    }
    MPI_Win_flush_all(window);
    if (compares) compare(window);
    MPI_Win_unlock_all(window);
    MPI_Barrier(world);
    MPI_Win_fence(0, window);
    int64_t all = 0, mine = memory[1] + memory[2] + memory[3] + memory[4];
    double sum;
    MPI_Allreduce(&mine, &all, 1, MPI_INT64_T, MPI_SUM, world);
    memcpy(&sum, &memory[8], sizeof sum);
    CHECK(all == (int64_t)EACH * ranks && sum == EACH * 0.5);
    CHECK(rank != 0 || memory[0] == (int64_t)EACH * ranks);
    CHECK(!compares || memory[20] == (rank + ranks - 1) % ranks + ranks);
    MPI_Win_fence(0, window);
}

/* Under an exclusive lock a value does not change between read and write. */
static void exclusive(MPI_Win window, int64_t *memory)
{
    enum { EACH = 100 };
    memory[30] = 0;
    MPI_Win_fence(0, window);
    for (int i = 0; i < EACH; i++) {
        int64_t value;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
        MPI_Get(&value, 1, MPI_INT64_T, 0, 30, 1, MPI_INT64_T, window);
        MPI_Win_flush(0, window);
        value++;
        MPI_Put(&value, 1, MPI_INT64_T, 0, 30, 1, MPI_INT64_T, window);
        MPI_Win_unlock(0, window);
    }
    MPI_Barrier(world);
    MPI_Win_fence(0, window);
    CHECK(rank != 0 || memory[30] == (int64_t)EACH * ranks);
}

/* Only rank 0 exposes memory; the other ranks use it. */
static void of_one(void)
{
    int64_t word = 0, one = 1;
    MPI_Win window;
    MPI_Win_create(rank == 0 ? &word : NULL, rank == 0 ? sizeof word : 0, sizeof word, MPI_INFO_NULL, world, &window);
    MPI_Win_fence(0, window);
    MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 0, 1, MPI_INT64_T, MPI_SUM, window);
    MPI_Win_fence(0, window);
    CHECK(rank != 0 || word == ranks);
    MPI_Win_free(&window);
}

int main(int argc, char **argv)
{
    int64_t *memory;
    MPI_Win window;
    MPI_Init(&argc, &argv);
    compares = argc == 1;
    MPI_Comm_rank(world, &rank);
    MPI_Comm_size(world, &ranks);
    MPI_Win_allocate(WORDS * sizeof *memory, sizeof *memory, MPI_INFO_NULL, world, &memory, &window);
    stretches(window, memory);
    sums(window, memory);
    exclusive(window, memory);
    MPI_Win_free(&window);
    memory = aligned_alloc(64, WORDS * sizeof *memory);
    MPI_Win_create(memory, WORDS * sizeof *memory, sizeof *memory, MPI_INFO_NULL, world, &window);
    stretches(window, memory);
    sums(window, memory);
    MPI_Win_free(&window);
    free(memory);
    of_one();
    if (rank == 0) printf("ok %d\n", ranks);
    MPI_Finalize();
    return 0;
}
