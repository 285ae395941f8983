/* Every call of motet_file.h, on an export that exists: calls EXPORT messages|direct [OTHER]. Prints "all calls did what they should". */
#define _GNU_SOURCE 1 /* O_DIRECT */
#include <errno.h>
#include <fcntl.h>
#include <motet_file.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                              \
    do {                                                                                                              \
        if (!(condition)) {                                                                                           \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                   \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

enum { PARTS = 40, PART = 50000, EACH = 300 };

static const char *export;
static uint32_t flags;
static motet_files files;

static int64_t in_seconds(int seconds)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec + seconds) * 1000000000ll + now.tv_nsec;
}

static struct motet_file_request request(uint32_t operation, uint64_t offset, void *memory, size_t length, void *user)
{
    struct motet_file_request made = MOTET_INIT(struct motet_file_request);
    made.operation = operation, made.offset = offset, made.memory = memory, made.length = length, made.user = user;
    return made;
}

static void fill(unsigned char *memory, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++)
        memory[at] = (unsigned char)(at * 7 + at / 255 + seed);
}

static motet_file open_file(const char *path, int how)
{
    motet_file file;
    CHECK(motet_file_open(files, path, how, 0640, &file) == 0 && file != 0);
    return file;
}

static void clients(void)
{
    motet_files none = 7;
    CHECK(motet_files_connect("no-such-export", 1000000000, flags, &none) == -ENOENT && none == 0);
    CHECK(motet_files_connect(NULL, INT64_MAX, 0, &none) == -EINVAL);
    CHECK(motet_files_connect("", INT64_MAX, 0, &none) == -EINVAL);
    CHECK(motet_files_connect(export, -1, 0, &none) == -EINVAL);
    CHECK(motet_files_connect(export, INT64_MAX, 2, &none) == -EINVAL);
    CHECK(motet_files_connect(export, INT64_MAX, flags, NULL) == -EINVAL);
    CHECK(motet_files_close(12345) == -EBADF && motet_files_is_direct(12345) == -EBADF);
    CHECK(motet_files_connect(export, 60000000000, flags, &files) == 0);
    CHECK(motet_files_is_direct(files) == (flags == 0));
}

static void one_file(void)
{
    static unsigned char data[3000000], found[3000010];
    struct motet_file_attributes attributes = MOTET_INIT(struct motet_file_attributes);
    motet_file file = 7, other;
    CHECK(motet_file_open(files, "missing", O_RDONLY, 0, &file) == -ENOENT && file == 0);
    CHECK(motet_file_open(files, "../outside", O_RDONLY, 0, &file) < 0);
    CHECK(motet_file_open(files, "one", O_RDWR | O_DIRECTORY, 0, &file) == -EINVAL);
    CHECK(motet_file_open(files, NULL, O_RDONLY, 0, &file) == -EINVAL);
    CHECK(motet_file_open(99, "one", O_RDONLY, 0, &file) == -EBADF);
    file = open_file("/one", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC);
    CHECK(motet_file_open(files, "one", O_RDWR | O_CREAT | O_EXCL, 0600, &other) == -EEXIST);
    fill(data, sizeof data, 1);
    CHECK(motet_file_write(file, data, sizeof data, 10) == sizeof data);
    CHECK(motet_file_size(file) == sizeof data + 10);
    CHECK(motet_file_read(file, found, sizeof found, 0) == sizeof found);
    CHECK(memcmp(found + 10, data, sizeof data) == 0 && found[0] == 0);
    CHECK(motet_file_read(file, found, 100, sizeof data) == 10);
    CHECK(motet_file_read(file, found, 100, sizeof data + 1000) == 0);
    CHECK(motet_file_read(file, NULL, 0, 0) == 0 && motet_file_read(file, NULL, 5, 0) == -EINVAL);
    CHECK(motet_file_write(file, NULL, 0, 0) == 0 && motet_file_write(file, NULL, 5, 0) == -EINVAL);
    CHECK(motet_file_sync(file, 0) == 0 && motet_file_sync(file, 1) == 0);
    CHECK(motet_file_truncate(file, 5000) == 0 && motet_file_size(file) == 5000);
    CHECK(motet_file_stat(file, &attributes) == 0);
    CHECK(attributes.length == 5000 && (attributes.mode & S_IFMT) == S_IFREG && (attributes.mode & 0777) == 0640);
    CHECK(attributes.links == 1 && attributes.user == getuid() && attributes.inode != 0);
    CHECK(attributes.modified / 1000000000 > 1600000000);
    attributes.size = 16;
    CHECK(motet_file_stat(file, &attributes) == -EINVAL && motet_file_stat(file, NULL) == -EINVAL);
    other = open_file("one", O_RDONLY);
    CHECK(other != file && motet_file_write(other, data, 1, 0) == -EBADF);
    CHECK(motet_file_truncate(other, 0) < 0);
    CHECK(motet_file_close(other) == 0 && motet_file_close(other) == -EBADF);
    CHECK(motet_file_read(other, found, 1, 0) == -EBADF && motet_file_size(other) == -EBADF);
    other = open_file("one", O_WRONLY | O_APPEND);
    CHECK(motet_file_write(other, "end", 3, 0) == 3 && motet_file_size(other) == 5003);
    CHECK(motet_file_close(other) == 0);
    other = open_file("one", O_RDWR | O_DIRECT); /* memory and offsets without alignment, then whole blocks */
    CHECK(motet_file_write(other, data + 1, 1000, 4003) == 1000 && motet_file_size(other) == 5003);
    CHECK(motet_file_read(other, found + 3, 1100, 3950) == 1053 && memcmp(found + 56, data + 1, 1000) == 0);
    CHECK(motet_file_write(other, data + 5, 8192, 8192) == 8192 && motet_file_size(other) == 16384);
    CHECK(motet_file_read(other, found + 1, 8192, 8192) == 8192 && memcmp(found + 1, data + 5, 8192) == 0);
    CHECK(motet_file_read(file, found, 8192, 8192) == 8192 && memcmp(found, data + 5, 8192) == 0);
    CHECK(motet_file_close(other) == 0);
    CHECK(motet_files_close(files) == -EBUSY); /* a file is open */
    CHECK(motet_file_close(file) == 0);
}

static void batches(void)
{
    static unsigned char data[PARTS][PART], found[PARTS][PART];
    struct { struct motet_file_request request; uint64_t more; } requests[PARTS]; /* as a later version has it */
    motet_file file = open_file("batch", O_RDWR | O_CREAT);
    for (int at = 0; at < PARTS; at++) {
        fill(data[at], PART, at);
        requests[at].request = request(MOTET_FILE_WRITE, (uint64_t)at * PART, data[at], PART, NULL);
        requests[at].request.size = sizeof requests[0];
    }
    CHECK(motet_file_transfer(file, &requests[0].request, PARTS) == PARTS);
    for (int at = 0; at < PARTS; at++) {
        CHECK(requests[at].request.result == PART);
        requests[at].request.operation = MOTET_FILE_READ, requests[at].request.memory = found[at];
        requests[at].request.offset = (uint64_t)at * PART + 100; /* the last one meets the end */
    }
    CHECK(motet_file_transfer(file, &requests[0].request, PARTS) == PARTS);
    for (int at = 0; at < PARTS; at++) {
        CHECK(requests[at].request.result == (at == PARTS - 1 ? PART - 100 : PART));
        CHECK(memcmp(found[at], data[at] + 100, PART - 100) == 0);
    }
    CHECK(motet_file_transfer(file, &requests[0].request, 0) == 0);
    CHECK(motet_file_transfer(file, NULL, 1) == -EINVAL);
    requests[1].request.operation = MOTET_FILE_SYNC;
    CHECK(motet_file_transfer(file, &requests[0].request, 2) == -EINVAL);
    requests[0].request.size = 24;
    CHECK(motet_file_transfer(file, &requests[0].request, 1) == -EINVAL);
    CHECK(motet_file_close(file) == 0);
}

/* Submits one request, as soon as there is room. */
static void submit(motet_file_cq cq, motet_file file, struct motet_file_request one)
{
    int submitted;
    while ((submitted = motet_file_submit(cq, file, &one, 1)) == -EAGAIN)
        sched_yield();
    CHECK(submitted == 1);
}

static void queues(void)
{
    static unsigned char data[PARTS][PART], found[PARTS][PART], long_one[MOTET_FILE_MAX_BYTES + 1];
    struct motet_file_request requests[PARTS], one;
    struct motet_file_completion done[PARTS];
    int seen[PARTS] = {0}, taken = 0;
    motet_file_cq cq, small = 7;
    motet_file file = open_file("queue", O_RDWR | O_CREAT), reads = open_file("queue", O_RDONLY);
    CHECK(motet_file_cq_open(files, 0, &small) == -EINVAL && small == 0);
    CHECK(motet_file_cq_open(files, MOTET_FILE_MAX_OUTSTANDING + 1, &small) == -EINVAL);
    CHECK(motet_file_cq_open(99, 1, &small) == -EBADF);
    CHECK(motet_file_cq_open(files, PARTS, &cq) == 0);
    done[0].size = sizeof done[0];
    CHECK(motet_file_cq_wait(cq, done, PARTS, 0) == -EAGAIN);
    CHECK(motet_file_cq_wait(cq, done, PARTS, in_seconds(0) + 1000000) == -ETIMEDOUT);
    CHECK(motet_file_cq_wait(cq, done, 0, 0) == -EINVAL && motet_file_cq_wait(cq, NULL, 1, 0) == -EINVAL);
    CHECK(motet_file_cq_wait(99, done, 1, 0) == -EBADF);
    for (int at = 0; at < PARTS; at++) {
        fill(data[at], PART, at * 3);
        requests[at] = request(MOTET_FILE_WRITE, (uint64_t)at * PART, data[at], PART, &seen[at]);
    }
    for (int at = 0; at < PARTS;) { /* as many at once as there is room for */
        int submitted = motet_file_submit(cq, file, requests + at, PARTS - at);
        CHECK(submitted > 0 || submitted == -EAGAIN);
        at += submitted > 0 ? submitted : 0;
    }
    CHECK(motet_file_submit(cq, file, requests, 1) == -EAGAIN); /* full */
    while (taken < PARTS) {
        int count = motet_file_cq_wait(cq, done, PARTS, in_seconds(30));
        CHECK(count > 0);
        for (int at = 0; at < count; at++, taken++) {
            CHECK(done[at].result == PART);
            ++*(int *)done[at].user;
        }
    }
    for (int at = 0; at < PARTS; at++) {
        CHECK(seen[at] == 1);
        requests[at] = request(MOTET_FILE_READ, (uint64_t)at * PART, found[at], PART, &seen[at]);
        submit(cq, reads, requests[at]);
    }
    CHECK(motet_file_close(reads) == 0); /* the requests go on */
    for (taken = 0; taken < PARTS; taken++) {
        CHECK(motet_file_cq_wait(cq, done, 1, INT64_MAX) == 1 && done[0].result == PART);
        int at = (int)((int *)done[0].user - seen);
        CHECK(memcmp(found[at], data[at], PART) == 0);
    }
    submit(cq, file, request(MOTET_FILE_SYNC, 0, NULL, 0, done));
    submit(cq, file, request(MOTET_FILE_DATASYNC, 0, NULL, 0, done));
    for (taken = 0; taken < 2; taken++)
        CHECK(motet_file_cq_wait(cq, done, 1, INT64_MAX) == 1 && done[0].result == 0 && done[0].user == done);

    one = request(MOTET_FILE_READ, 0, long_one, sizeof long_one, NULL);
    CHECK(motet_file_submit(cq, file, &one, 1) == -E2BIG);
    one = request(9, 0, long_one, 1, NULL);
    CHECK(motet_file_submit(cq, file, &one, 1) == -EINVAL);
    one = request(MOTET_FILE_READ, 0, NULL, 1, NULL);
    CHECK(motet_file_submit(cq, file, &one, 1) == -EINVAL);
    CHECK(motet_file_submit(cq, 99, &one, 1) == -EBADF && motet_file_submit(99, file, &one, 1) == -EBADF);
    CHECK(motet_file_submit(cq, file, NULL, 1) == -EINVAL && motet_file_submit(cq, file, &one, 0) == 0);
    motet_files others;
    motet_file of_others;
    CHECK(motet_files_connect(export, INT64_MAX, flags, &others) == 0);
    CHECK(motet_file_open(others, "queue", O_RDONLY, 0, &of_others) == 0);
    one = request(MOTET_FILE_READ, 0, long_one, 10, NULL);
    CHECK(motet_file_submit(cq, of_others, &one, 1) == -EXDEV);
    CHECK(motet_file_close(of_others) == 0 && motet_files_close(others) == 0 && motet_files_close(others) == -EBADF);

    /* An error is the result of a request, not of its submission. */
    reads = open_file("queue", O_RDONLY);
    submit(cq, reads, request(MOTET_FILE_WRITE, 0, data, 100, NULL));
    CHECK(motet_file_cq_wait(cq, done, 1, INT64_MAX) == 1 && done[0].result == -EBADF);
    CHECK(motet_file_close(reads) == 0);

    /* A queue that is closed frees the memory of its requests. */
    unsigned char *memory = malloc(PARTS * PART);
    for (int at = 0; at < PARTS; at++)
        submit(cq, file, request(MOTET_FILE_READ, (uint64_t)at * PART, memory + at * PART, PART, NULL));
    CHECK(motet_files_close(files) == -EBUSY);
    CHECK(motet_file_cq_close(cq) == 0 && motet_file_cq_close(cq) == -EBADF);
    free(memory);
    CHECK(motet_file_submit(cq, file, &one, 1) == -EBADF && motet_file_cq_wait(cq, done, 1, 0) == -EBADF);
    CHECK(motet_file_close(file) == 0);
}

/* Each thread has a queue of its own, on one client and one file. */
static void *reader(void *file)
{
    unsigned numbers[8];
    struct motet_file_completion done = MOTET_INIT(struct motet_file_completion);
    motet_file_cq cq;
    CHECK(motet_file_cq_open(files, 8, &cq) == 0);
    for (unsigned at = 0; at < EACH + 8; at++) {
        if (at >= 8) {
            CHECK(motet_file_cq_wait(cq, &done, 1, INT64_MAX) == 1 && done.result == sizeof(unsigned));
            CHECK(numbers[(uintptr_t)done.user % 8] == (uintptr_t)done.user * 3);
        }
        if (at < EACH) {
            unsigned slot = at < 8 ? at : (unsigned)((uintptr_t)done.user % 8);
            unsigned number = at / 8 * 8 + slot; /* any number that uses this slot */
            struct motet_file_request one =
                request(MOTET_FILE_READ, number * sizeof number, &numbers[slot], sizeof number, (void *)(uintptr_t)number);
            submit(cq, *(motet_file *)file, one);
        }
    }
    CHECK(motet_file_cq_close(cq) == 0);
    return NULL;
}

static void threads(void)
{
    static unsigned numbers[EACH + 16];
    pthread_t running[4];
    motet_file file = open_file("numbers", O_RDWR | O_CREAT);
    for (unsigned at = 0; at < EACH + 16; at++)
        numbers[at] = at * 3;
    CHECK(motet_file_write(file, numbers, sizeof numbers, 0) == sizeof numbers);
    for (int at = 0; at < 4; at++)
        CHECK(pthread_create(&running[at], NULL, reader, &file) == 0);
    for (int at = 0; at < 4; at++)
        pthread_join(running[at], NULL);
    CHECK(motet_file_close(file) == 0);
}

static void forked(void)
{
    motet_file file = open_file("numbers", O_RDONLY), other;
    motet_file_cq cq;
    int status;
    CHECK(motet_file_cq_open(files, 1, &cq) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct motet_file_completion done = MOTET_INIT(struct motet_file_completion);
        char byte;
        int all = motet_file_read(file, &byte, 1, 0) == -ECHILD && motet_file_close(file) == -ECHILD &&
                  motet_files_close(files) == -ECHILD && motet_file_cq_wait(cq, &done, 1, 0) == -ECHILD &&
                  motet_file_open(files, "numbers", O_RDONLY, 0, &other) == -ECHILD;
        /* It may connect itself. */
        motet_files own = 0;
        all = all && motet_files_connect(export, INT64_MAX, flags, &own) == 0 &&
              motet_file_open(own, "numbers", O_RDONLY, 0, &other) == 0 && motet_file_read(other, &byte, 1, 4) == 1 && byte == 3;
        _exit(all ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(motet_file_cq_close(cq) == 0 && motet_file_close(file) == 0);
}

int main(int count, char **arguments)
{
    CHECK(count == 3);
    export = arguments[1];
    flags = strcmp(arguments[2], "messages") == 0 ? MOTET_FILES_MESSAGES : 0;
    clients();
    one_file();
    batches();
    queues();
    threads();
    forked();
    CHECK(motet_files_close(files) == 0 && motet_files_close(files) == -EBADF);
    puts("all calls did what they should");
    return 0;
}
