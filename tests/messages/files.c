/* files.c: regions over files through motet.h, over shared memory and over TCP: a put changes the file there and nowhere else, invalid files are refused
 * with the right error, and a file that is cut short during accesses kills no process. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { SERVICE = 9, WHOLE = 3 << 20, ODD_AT = 4099, ODD_LENGTH = 2 << 20, EVEN_AT = 8, EVEN_LENGTH = 4096 + 4 };
/* Regions: at an odd offset, for atomics, read-only, over a memfd that cannot shrink. */
enum { ODD, EVEN, TO_READ, SEALED, REGIONS };
/* Requests to the owner. */
enum { SYNC, SYNC_OUTSIDE, REVOKE, BYE };

struct question {
    int32_t what, region;
    uint64_t at, length;
};

static char path[256];
static int file, memory;
static unsigned char bytes[WHOLE], buffer[WHOLE];
static motet_node node;
static motet_link link_;
static motet_channel channel;
static motet_key keys[REGIONS];

/* ---- the owner */

static void own(int asked)
{
    int read_only = open(path, O_RDONLY);
    struct motet_receive_mode mode = queue();
    struct question q;
    CHECK(motet_region_register_file(node, file, ODD_AT, ODD_LENGTH, MOTET_REGION_GET | MOTET_REGION_PUT, &keys[ODD]), 0);
    CHECK(motet_region_register_file(node, file, EVEN_AT, EVEN_LENGTH, MOTET_REGION_ALL, &keys[EVEN]), 0);
    CHECK(motet_region_register_file(node, read_only, ODD_AT, ODD_LENGTH, MOTET_REGION_GET, &keys[TO_READ]), 0);
    CHECK(motet_region_register_file(node, memory, 0, EVEN_LENGTH, MOTET_REGION_ALL, &keys[SEALED]), 0);
    CHECK(close(read_only) + close(file), 0); /* the regions keep their own descriptors */
    CHECK(motet_service_open(node, SERVICE, &mode), 0);
    CHECK(write(asked, "!", 1), 1);
    CHECK(motet_channel_accept(node, SERVICE, SOON, &channel), 0);
    CHECK(motet_message_send(node, channel, 0, keys, sizeof keys, SOON), 0);
    while (motet_message_receive(node, channel, &q, sizeof q, NEVER, NULL) == 0 && q.what != BYE) {
        int32_t said = q.what == REVOKE ? motet_region_revoke(node, keys[q.region], SOON)
                                        : motet_region_sync(node, keys[q.region], q.at, q.length);
        CHECK(motet_message_send(node, channel, 0, &said, sizeof said, SOON), 0);
    }
}

/* ---- the peer */

static int ask(int what, int region, uint64_t at, uint64_t length)
{
    struct question q = { what, region, at, length };
    int32_t said = -1;
    CHECK(motet_message_send(node, channel, 0, &q, sizeof q, SOON), 0);
    CHECK(motet_message_receive(node, channel, &said, sizeof said, SOON, NULL), 0);
    return said;
}

static struct motet_remote_address place(int region, uint64_t offset)
{
    struct motet_remote_address at = MOTET_INIT(struct motet_remote_address);
    at.link = link_;
    at.key = keys[region];
    at.offset = offset;
    return at;
}

/* Compares the file, as read(2) sees it, with the expected bytes. */
static int is_as_expected(void)
{
    CHECK(pread(file, buffer, WHOLE, 0), WHOLE);
    return memcmp(buffer, bytes, WHOLE) == 0;
}

static void puts_and_gets(void)
{
    static const size_t lengths[] = { 0, 1, 8, 100, 256, 257, 4000, 20000, 700000, ODD_LENGTH - 3 };
    fill(bytes, WHOLE, 1);
    CHECK(pwrite(file, bytes, WHOLE, 0), WHOLE);
    for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct motet_remote_address to = place(ODD, 3), seen = place(TO_READ, 3), over = place(ODD, ODD_LENGTH + 1 - lengths[i]);
        unsigned char *here = bytes + ODD_AT + 3;
        fill(here, lengths[i], i + 10);
        CHECK(motet_region_put(node, &to, here, lengths[i], SOON), 0);
        CHECK(is_as_expected(), 1);
        memset(buffer, 0, lengths[i]);
        CHECK(motet_region_get(node, &to, buffer, lengths[i], SOON), 0);
        CHECK(memcmp(buffer, here, lengths[i]), 0);
        memset(buffer, 0, lengths[i]);
        CHECK(motet_region_get(node, &seen, buffer, lengths[i], SOON), 0);
        CHECK(memcmp(buffer, here, lengths[i]), 0);
        CHECK(motet_region_put(node, &over, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_get(node, &over, buffer, lengths[i], SOON), -ERANGE);
        CHECK(motet_region_put(node, &seen, buffer, lengths[i], SOON), -EACCES);
    }
    CHECK(is_as_expected(), 1);
    CHECK(ask(SYNC, ODD, 0, ODD_LENGTH), 0);
    CHECK(ask(SYNC, ODD, 1, ODD_LENGTH), -ERANGE);
    CHECK(ask(SYNC, ODD, UINT64_MAX, 2), -ERANGE);
    CHECK(ask(SYNC, TO_READ, 5, 1), 0);
    CHECK(ask(SYNC, SEALED, 0, 8), 0);
}

/* A row in a file and in memory; writes of other users of the file are seen. */
static void atomics(int region, int fd, off_t at)
{
    uint64_t row[3] = { 40, 50, 60 }, ones[3] = { 1, 2, 3 }, before[3] = { 0 }, after[3];
    struct motet_remote_address to = place(region, 16), crooked = place(region, 17), end = place(region, EVEN_LENGTH - 4);
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    add.operation = MOTET_ATOMIC_SUM;
    add.type = MOTET_ATOMIC_U64;
    add.count = 3;
    add.operand = ones;
    add.result = before;
    CHECK(pwrite(fd, row, sizeof row, at + 16), sizeof row);
    CHECK(motet_region_atomic(node, &to, &add, SOON), 0);
    CHECK(memcmp(before, row, sizeof row), 0);
    CHECK(pread(fd, after, sizeof after, at + 16), sizeof after);
    CHECK(after[0] == 41 && after[1] == 52 && after[2] == 63, 1);
    CHECK(motet_region_atomic(node, &crooked, &add, SOON), -EINVAL);
    CHECK(motet_region_atomic(node, &end, &add, SOON), -ERANGE);
    struct motet_region_mapping mapped = MOTET_INIT(struct motet_region_mapping);
    motet_mapping mapping;
    CHECK(motet_region_open(node, link_, keys[region], SOON, &mapped, &mapping), -EOPNOTSUPP);
}

/* Truncates the file by name at any moment of an operation. The owner, which a SIGBUS would kill, still answers. */
static void cut_short(void)
{
    struct motet_atomic add = MOTET_INIT(struct motet_atomic);
    uint64_t one = 1, before;
    motet_cq cq;
    int gone = 0, done = 0;
    add.type = MOTET_ATOMIC_U64;
    add.count = 1;
    add.operand = &one;
    add.result = &before;
    CHECK(motet_cq_new(node, &cq), 0);
    for (int round = 0; round < 60; round++) {
        static const struct { size_t at, length; } parts[] = { { 1, 1 << 20 }, { 1 << 20, 1 << 20 }, { 77, 5000 }, { ODD_LENGTH - 8, 8 } };
        struct motet_completion end = MOTET_INIT(struct motet_completion);
        motet_operation operation;
        int begun = 0;
        for (int i = 0; i < 4; i++) {
            struct motet_remote_address at = place(ODD, parts[i].at);
            struct motet_completion_options options = options_of(cq, 0, 0);
            begun += motet_region_put_start(node, &at, bytes, parts[i].length, &options, &operation) == 0;
            begun += motet_region_get_start(node, &at, buffer, parts[i].length, &options, &operation) == 0;
        }
        CHECK(begun, 8);
        CHECK(truncate(path, (off_t)round * 60000 % WHOLE), 0);
        for (int i = 0; i < begun; i++) {
            CHECK(motet_cq_wait(node, cq, &end, 1, SOON), 1);
            CHECK(end.status == 0 || end.status == -ERANGE, 1);
            *(end.status == 0 ? &done : &gone) += 1;
        }
        CHECK(truncate(path, WHOLE), 0);
    }
    CHECK(motet_cq_free(node, cq), 0);
    CHECK(truncate(path, EVEN_AT + 20), 0);
    struct motet_remote_address far = place(ODD, 5), in_it = place(EVEN, 0), beyond = place(EVEN, 16);
    CHECK(motet_region_put(node, &far, bytes, 1 << 20, SOON), -ERANGE);
    CHECK(motet_region_put(node, &far, bytes, 1, SOON), -ERANGE);
    CHECK(motet_region_get(node, &far, buffer, 1 << 20, SOON), -ERANGE);
    CHECK(motet_region_get(node, &far, buffer, 1, SOON), -ERANGE);
    CHECK(motet_region_atomic(node, &beyond, &add, SOON), -ERANGE);
    CHECK(motet_region_atomic(node, &in_it, &add, SOON), 0);
    CHECK(ask(SYNC, ODD, 0, 1), -ERANGE);
    struct stat now;
    CHECK(fstat(file, &now), 0);
    CHECK(now.st_size, EVEN_AT + 20); /* it has not grown */
    fprintf(stderr, "%d operations done, %d met what was gone\n", done, gone);
    CHECK(gone > 0, 1);
    CHECK(truncate(path, WHOLE), 0);
    CHECK(motet_region_put(node, &far, bytes, 100, SOON), 0); /* the bytes exist again */
}

#include "meet.h"

static void between(const char *way)
{
    int status;
    struct question bye = { .what = BYE };
    struct motet_remote_address at;
    pid_t owner = meet(way, "files");
    puts_and_gets();
    atomics(EVEN, file, EVEN_AT);
    atomics(SEALED, memory, 0);
    cut_short();
    CHECK(ask(REVOKE, ODD, 0, 0), 0);
    CHECK(ask(SYNC, ODD, 0, 1), -EBADF);
    at = place(ODD, 0);
    CHECK(motet_region_put(node, &at, bytes, 8, SOON), -EACCES);
    CHECK(motet_message_send(node, channel, 0, &bye, sizeof bye, SOON), 0);
    CHECK(waitpid(owner, &status, 0), owner);
    CHECK(status, 0);
    CHECK(motet_node_close(node), 0);
}

/* ---- invalid files */

static int made(int fd, uint64_t at, uint64_t length, uint32_t rights)
{
    motet_key key = 1;
    int made = motet_region_register_file(node, fd, at, length, rights, &key);
    CHECK((made == 0) == (key != 0), 1);
    if (made == 0)
        CHECK(motet_region_revoke(node, key, 0), 0);
    return made;
}

static void refusals(void)
{
    enum { ALL = MOTET_REGION_ALL, GET = MOTET_REGION_GET, PUT = MOTET_REGION_PUT, ATOMIC = MOTET_REGION_ATOMIC };
    int ends[2], pair[2];
    int read_only = open(path, O_RDONLY), write_only = open(path, O_WRONLY), append = open(path, O_RDWR | O_APPEND);
    int directory = open("/", O_RDONLY | O_DIRECTORY), null = open("/dev/null", O_RDWR), as_path = open(path, O_PATH);
    motet_key key;
    CHECK(pipe(ends) + socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    CHECK(motet_node_open(NULL, &node), 0);
    CHECK(made(file, 0, WHOLE, ALL), 0);
    CHECK(made(-1, 0, 1, GET), -EBADF);
    CHECK(made(12345, 0, 1, GET), -EBADF);
    CHECK(made(as_path, 0, 1, GET), -EBADF);
    CHECK(made(directory, 0, 1, GET), -EISDIR);
    CHECK(made(ends[0], 0, 1, GET), -ESPIPE);
    CHECK(made(pair[0], 0, 1, GET), -ESPIPE);
    CHECK(made(null, 0, 1, GET), -ESPIPE);
    CHECK(made(read_only, 0, 1, GET), 0);
    CHECK(made(read_only, 0, 8, GET | PUT), -EACCES);
    CHECK(made(read_only, 0, 8, ATOMIC), -EACCES);
    CHECK(made(write_only, 0, 8, PUT), 0);
    CHECK(made(write_only, 0, 8, GET), -EACCES);
    CHECK(made(append, 0, 8, GET), 0);
    CHECK(made(append, 0, 8, PUT), -EINVAL);
    CHECK(made(file, WHOLE - 1, 1, GET), 0);
    CHECK(made(file, WHOLE, 1, GET), -ERANGE);
    CHECK(made(file, 0, WHOLE + 1, GET), -ERANGE);
    CHECK(made(file, UINT64_MAX, 2, GET), -ERANGE);
    CHECK(made(file, 2, UINT64_MAX, GET), -ERANGE);
    CHECK(made(file, INT64_MAX, 1, GET), -ERANGE);
    CHECK(made(file, 0, 0, GET), -EINVAL);
    CHECK(made(file, 4, 8, ATOMIC), -EINVAL);
    CHECK(made(file, 0, 8, 0), -EINVAL);
    CHECK(made(file, 0, 8, 8), -EINVAL);
    CHECK(motet_region_register_file(node, file, 0, 8, GET, NULL), -EINVAL);
    CHECK(motet_region_register_file(12345, file, 0, 8, GET, &key), -EBADF);
    struct rlimit before, less;
    CHECK(getrlimit(RLIMIT_FSIZE, &before), 0);
    less = before;
    less.rlim_cur = WHOLE / 2;
    CHECK(setrlimit(RLIMIT_FSIZE, &less), 0);
    CHECK(made(file, 0, WHOLE, PUT), -EFBIG);
    CHECK(made(file, 0, WHOLE / 2, PUT), 0);
    CHECK(made(file, 0, WHOLE, GET), 0);
    CHECK(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK(motet_region_register(node, bytes, sizeof bytes, GET, &key), 0);
    CHECK(motet_region_sync(node, key, 0, 8), -EINVAL); /* not a file's region */
    CHECK(motet_region_sync(node, key ^ 1, 0, 8), -EBADF);
    CHECK(motet_region_sync(12345, key, 0, 8), -EBADF);
    CHECK(motet_node_close(node), 0);
}

int main(void)
{
    const char *directory = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/motet-files-XXXXXX", directory ? directory : "/tmp");
    file = mkstemp(path);
    CHECK(file >= 0, 1);
    CHECK(ftruncate(file, WHOLE), 0);
    memory = memfd_create("motet-files", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(ftruncate(memory, EVEN_LENGTH), 0);
    CHECK(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    between("shm");
    CHECK(truncate(path, WHOLE), 0);
    between("tcp");
    refusals();
    CHECK(unlink(path), 0);
    puts("files are regions");
    return 0;
}
