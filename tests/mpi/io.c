/* MPI-IO in a directory: collective and strided accesses, shared file pointers, atomic mode, sizes, errors.
 *
 * `io DIRECTORY` leaves files whose contents do not depend on the order in which ranks run, and prints one line for each case. A rank that finds something
 * else than what was written ends the job. `io DIRECTORY individual` uses no nonblocking collective operations, which Open MPI's romio321 does not have. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS 48
#define COLUMNS 64
#define RECORD 96
#define RECORDS 25

static int rank, size, individual;
static const char *folder;

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);                                    \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                             \
        }                                                                                                             \
    } while (0)

#define CALL(call)                                                                                                    \
    do {                                                                                                              \
        int returned = call;                                                                                            \
        if (returned != MPI_SUCCESS) {                                                                                  \
            char text[MPI_MAX_ERROR_STRING];                                                                          \
            int length;                                                                                               \
            MPI_Error_string(returned, text, &length);                                                                  \
            fprintf(stderr, "rank %d, line %d: %s: %s\n", rank, __LINE__, #call, text);                               \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                             \
        }                                                                                                             \
    } while (0)

static MPI_File open_file(const char *name, int mode, MPI_Info info)
{
    char path[4096];
    MPI_File file;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    CALL(MPI_File_open(MPI_COMM_WORLD, path, mode, info, &file));
    return file;
}

static void done(const char *what)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("%s\n", what);
}

static int value(int row, int column) { return row * 1000 + column; }

/* Each rank has every size-th column of a matrix: its blocks in the file are 4 bytes long, `size` numbers apart. */
static void strided(const char *name, int collective, MPI_Info info)
{
    int count = ROWS * COLUMNS / size, *numbers = malloc(count * sizeof(int));
    MPI_Datatype type;
    MPI_Status status;
    MPI_File file = open_file(name, MPI_MODE_CREATE | MPI_MODE_RDWR, info);
    CALL(MPI_Type_vector(ROWS * COLUMNS / size, 1, size, MPI_INT, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, rank * sizeof(int), MPI_INT, type, "native", info));
    for (int at = 0; at < count; at++)
        numbers[at] = value(at * size / COLUMNS, (at * size + rank) % COLUMNS);
    if (collective)
        CALL(MPI_File_write_all(file, numbers, count, MPI_INT, &status));
    else
        CALL(MPI_File_write(file, numbers, count, MPI_INT, &status));
    int written;
    MPI_Get_count(&status, MPI_INT, &written);
    CHECK(written == count);
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    memset(numbers, 0, count * sizeof(int));
    CALL(MPI_File_seek(file, 0, MPI_SEEK_SET));
    if (collective)
        CALL(MPI_File_read_all(file, numbers, count, MPI_INT, &status));
    else
        CALL(MPI_File_read(file, numbers, count, MPI_INT, &status));
    for (int at = 0; at < count; at++)
        CHECK(numbers[at] == value(at * size / COLUMNS, (at * size + rank) % COLUMNS));
    /* The whole file, as another rank has written it. */
    CALL(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", info));
    int row[COLUMNS];
    CALL(MPI_File_read_at(file, (MPI_Offset)((rank + 1) % size) * COLUMNS, row, COLUMNS, MPI_INT, &status));
    for (int column = 0; column < COLUMNS; column++)
        CHECK(row[column] == value((rank + 1) % size, column));
    CALL(MPI_File_close(&file));
    CALL(MPI_Type_free(&type));
    free(numbers);
}

/* Each rank has a block of rows and columns of a matrix. */
static void subarrays(void)
{
    int dims[2] = {0, 0}, whole[2] = {ROWS, COLUMNS};
    MPI_Dims_create(size, 2, dims);
    int part[2] = {ROWS / dims[0], COLUMNS / dims[1]};
    int start[2] = {rank / dims[1] * part[0], rank % dims[1] * part[1]};
    int *numbers = malloc(part[0] * part[1] * sizeof(int));
    MPI_Datatype type;
    MPI_Request request;
    MPI_File file = open_file("subarrays", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    CALL(MPI_Type_create_subarray(2, whole, part, start, MPI_ORDER_C, MPI_INT, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, 0, MPI_INT, type, "native", MPI_INFO_NULL));
    for (int at = 0; at < part[0] * part[1]; at++)
        numbers[at] = value(start[0] + at / part[1], start[1] + at % part[1]);
    if (individual)
        CALL(MPI_File_iwrite(file, numbers, part[0] * part[1], MPI_INT, &request));
    else
        CALL(MPI_File_iwrite_all(file, numbers, part[0] * part[1], MPI_INT, &request));
    CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    memset(numbers, 0, part[0] * part[1] * sizeof(int));
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    if (individual)
        CALL(MPI_File_iread_at(file, 0, numbers, part[0] * part[1], MPI_INT, &request));
    else
        CALL(MPI_File_iread_at_all(file, 0, numbers, part[0] * part[1], MPI_INT, &request));
    CALL(MPI_Wait(&request, MPI_STATUS_IGNORE));
    for (int at = 0; at < part[0] * part[1]; at++)
        CHECK(numbers[at] == value(start[0] + at / part[1], start[1] + at % part[1]));
    CALL(MPI_File_close(&file));
    CALL(MPI_Type_free(&type));
    free(numbers);
}

/* Records at the shared file pointer: in the order of ranks, and in any order. */
static void shared_pointer(void)
{
    char record[RECORD], seen[64] = {0};
    MPI_Offset at;
    MPI_File file = open_file("ordered", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    for (int turn = 0; turn < 3; turn++) {
        memset(record, 'a' + rank, sizeof record);
        CALL(MPI_File_write_ordered(file, record, RECORD - rank, MPI_CHAR, MPI_STATUS_IGNORE));
    }
    CALL(MPI_File_seek_shared(file, 0, MPI_SEEK_SET));
    for (int turn = 0; turn < 3; turn++) {
        CALL(MPI_File_read_ordered(file, record, RECORD - rank, MPI_CHAR, MPI_STATUS_IGNORE));
        for (int i = 0; i < RECORD - rank; i++)
            CHECK(record[i] == 'a' + rank);
    }
    CALL(MPI_File_get_position_shared(file, &at));
    CHECK(at == 3 * (RECORD * size - size * (size - 1) / 2));
    CALL(MPI_File_close(&file));

    file = open_file("any-order", MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL);
    for (int turn = 0; turn < RECORDS; turn++) {
        memset(record, 'a' + rank, sizeof record);
        CALL(MPI_File_write_shared(file, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE));
    }
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    MPI_Offset bytes;
    CALL(MPI_File_get_size(file, &bytes));
    CHECK(bytes == (MPI_Offset)RECORD * RECORDS * size); /* no two records have one place */
    for (int turn = 0; turn < RECORDS * size; turn++) {
        CALL(MPI_File_read_at(file, (MPI_Offset)turn * RECORD, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE));
        for (int i = 1; i < RECORD; i++)
            CHECK(record[i] == record[0]);
        CHECK(record[0] >= 'a' && record[0] < 'a' + size);
        seen[record[0] - 'a']++;
    }
    for (int other = 0; other < size; other++)
        CHECK(seen[other] == RECORDS);
    CALL(MPI_File_close(&file));
}

/* In atomic mode a range that several ranks write at the same time has what one of them has written. */
static void atomic_mode(void)
{
    static char block[60000];
    int is_atomic;
    MPI_File file = open_file("atomic", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    CALL(MPI_File_set_atomicity(file, 1));
    CALL(MPI_File_get_atomicity(file, &is_atomic));
    CHECK(is_atomic);
    for (int turn = 0; turn < 10; turn++) {
        memset(block, 'a' + rank, sizeof block);
        CALL(MPI_File_write_at(file, 100, block, sizeof block, MPI_CHAR, MPI_STATUS_IGNORE));
        MPI_Barrier(MPI_COMM_WORLD);
        CALL(MPI_File_read_at(file, 100, block, sizeof block, MPI_CHAR, MPI_STATUS_IGNORE));
        for (size_t i = 1; i < sizeof block; i++)
            CHECK(block[i] == block[0]);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    memset(block, 'z', sizeof block);
    if (rank == 0)
        CALL(MPI_File_write_at(file, 100, block, sizeof block, MPI_CHAR, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
}

static void sizes(void)
{
    MPI_Offset bytes;
    char byte = 'x';
    MPI_File file = open_file("sizes", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    CALL(MPI_File_set_size(file, 100000));
    CALL(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 100000);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_write_at(file, 1000 * rank, &byte, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    CALL(MPI_File_set_size(file, 200000));
    CALL(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 200000);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_set_size(file, 50001));
    CALL(MPI_File_get_size(file, &bytes));
    CHECK(bytes == 50001);
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    char found;
    CALL(MPI_File_read_at_all(file, 1000 * ((rank + 1) % size), &found, 1, MPI_CHAR, MPI_STATUS_IGNORE));
    CHECK(found == 'x');
    MPI_Status status;
    int count;
    char rest[20];
    CALL(MPI_File_read_at(file, 49991, rest, sizeof rest, MPI_CHAR, &status));
    MPI_Get_count(&status, MPI_CHAR, &count);
    CHECK(count == 10); /* the end of the file */
    CALL(MPI_File_close(&file));
}

/* A file that is longer than the buffers of collective accesses. Every rank has interleaved blocks of 64 KiB. */
static void long_file(void)
{
    enum { BLOCK = 64 << 10, BLOCKS = 40 };
    char *data = malloc(BLOCK * BLOCKS);
    MPI_Datatype type;
    MPI_File file = open_file("long", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    CALL(MPI_Type_vector(BLOCKS, BLOCK, BLOCK * size, MPI_CHAR, &type));
    CALL(MPI_Type_commit(&type));
    CALL(MPI_File_set_view(file, (MPI_Offset)rank * BLOCK, MPI_CHAR, type, "native", MPI_INFO_NULL));
    for (int at = 0; at < BLOCK * BLOCKS; at++)
        data[at] = (char)(at / 7 + rank * 31);
    CALL(MPI_File_write_at_all(file, 0, data, BLOCK * BLOCKS, MPI_CHAR, MPI_STATUS_IGNORE));
    CALL(MPI_File_sync(file));
    MPI_Barrier(MPI_COMM_WORLD);
    CALL(MPI_File_sync(file));
    memset(data, 0, BLOCK * BLOCKS);
    /* As split collective, and by what the next rank has written. */
    int next = (rank + 1) % size;
    CALL(MPI_File_set_view(file, (MPI_Offset)next * BLOCK, MPI_CHAR, type, "native", MPI_INFO_NULL));
    CALL(MPI_File_read_at_all_begin(file, 0, data, BLOCK * BLOCKS, MPI_CHAR));
    CALL(MPI_File_read_at_all_end(file, data, MPI_STATUS_IGNORE));
    for (int at = 0; at < BLOCK * BLOCKS; at++)
        CHECK(data[at] == (char)(at / 7 + next * 31));
    CALL(MPI_File_close(&file));
    CALL(MPI_Type_free(&type));
    free(data);
}

static void appended_and_removed(void)
{
    char path[4096];
    int class;
    MPI_File file = open_file("appended", MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_INFO_NULL);
    CALL(MPI_File_write_at(file, 8 * rank, "01234567", 8, MPI_CHAR, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
    file = open_file("appended", MPI_MODE_APPEND | MPI_MODE_WRONLY, MPI_INFO_NULL);
    MPI_Offset at;
    CALL(MPI_File_get_position(file, &at));
    CHECK(at == 8 * size);
    CALL(MPI_File_write_at(file, at + 4 * rank, "abcd", 4, MPI_CHAR, MPI_STATUS_IGNORE));
    CALL(MPI_File_close(&file));
    snprintf(path, sizeof path, "%s/appended", folder);
    int status = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    CHECK(status != MPI_SUCCESS);
    MPI_Error_class(status, &class);
    CHECK(class == MPI_ERR_FILE_EXISTS);
    snprintf(path, sizeof path, "%s/missing", folder);
    status = MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &file);
    CHECK(status != MPI_SUCCESS);
    MPI_Error_class(status, &class);
    CHECK(class == MPI_ERR_NO_SUCH_FILE);
    file = open_file("removed", MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL);
    CALL(MPI_File_close(&file));
    snprintf(path, sizeof path, "%s/removed", folder);
    if (rank == 0)
        CALL(MPI_File_delete(path, MPI_INFO_NULL));
}

int main(int count, char **arguments)
{
    MPI_Info collective, sieved;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count < 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    folder = arguments[1];
    individual = count > 2 && strcmp(arguments[2], "individual") == 0;
    /* Hints of ROMIO: two-phase accesses always, or data sieving, which locks ranges of the file. */
    MPI_Info_create(&collective);
    MPI_Info_set(collective, "romio_cb_write", "enable");
    MPI_Info_set(collective, "romio_cb_read", "enable");
    MPI_Info_create(&sieved);
    MPI_Info_set(sieved, "romio_cb_write", "disable");
    MPI_Info_set(sieved, "romio_ds_write", "enable");
    MPI_Info_set(sieved, "romio_ds_read", "enable");
    strided("strided", 1, MPI_INFO_NULL), done("strided, collective");
    strided("two-phase", 1, collective), done("strided, in two phases");
    strided("sieved", 1, sieved), done("strided, sieved");
    strided("independent", 0, sieved), done("strided, each rank for itself");
    subarrays(), done("subarrays, nonblocking");
    shared_pointer(), done("shared file pointer");
    atomic_mode(), done("atomic mode");
    sizes(), done("sizes");
    long_file(), done("long file");
    appended_and_removed(), done("appended, removed, errors");
    MPI_Info_free(&collective);
    MPI_Info_free(&sieved);
    MPI_Finalize();
    return 0;
}
