/* heritage.c: streams that an exec leaves to the next program image.
 *
 * What it is:   before exec, the streams whose descriptors stay open are handed to the engine, which writes a list of them; the new
 *               image finds the list in its environment, and its descriptors become candidates that are due at once.
 * What it isn't: needed for correctness. A stream that is left behind is plain TCP until it is taken up, if it ever is.
 *
 * Signal safety: exec may be called in a handler; one that interrupted the engine (shim_depth > 0) leaves nothing. Fork
 * safety: in a vfork child nothing is done; the parent's streams are the parent's. */
#include "shim.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define STREAMS "MOTET_INHERITED="
#define YOUNG "MOTET_YOUNG="
#define MOST 256

/* The list, in words: crates/motet-engine/src/heritage.rs. */
#define MAGIC 0x6578655445544f4dull /* "MOTETexe" */
enum { WORD_MAGIC, WORD_LAYOUT, WORD_PID, WORD_NODE, WORD_STREAMS, WORD_NUMBER, WORD_COUNT, HEAD_WORDS };
enum { ENTRY_FD, ENTRY_HANDLE, ENTRY_DRIVER, ENTRY_FILE, ENTRY_WORDS = 9 };

static int list = -1; /* of this image, until the engine has it */

static bool stays_open(int fd)
{
    int flags = REAL(fcntl)(fd, F_GETFD);
    return flags >= 0 && !(flags & FD_CLOEXEC);
}

/* Streams that a child of ours inherits, which is another process: TCP for good. */
void heritage_before_spawn(void)
{
    if (!engine_is_open() || shim_depth > 0 || !table_in_own_process()) return;
    int kept = errno;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++)
        if (word_kind(table_word(fd)) == KIND_STREAM && stays_open(fd)) table_make_plain(fd, REASON_EXEC);
    errno = kept;
}

/* Streams that an image inherits which knows nothing of us. Bytes that the peer does not take back are lost to it: better an end. */
static void before_foreign_exec(void)
{
    int kept = errno;
    for (int fd = 0; engine_is_open() && fd <= atomic_load(&shim_top); fd++)
        if (word_kind(table_word(fd)) == KIND_STREAM && stays_open(fd) && !table_drain(fd, REASON_EXEC))
            ENGINE(engine.shutdown(table_handle(fd), SHUT_RDWR));
    errno = kept;
}

static int leave_streams(void)
{
    int fds[MOST];
    motet_stream streams[MOST];
    unsigned count = 0;
    for (int fd = 0; fd <= atomic_load(&shim_top); fd++) {
        if (word_kind(table_word(fd)) != KIND_STREAM || !stays_open(fd)) continue;
        if (count == MOST) {
            table_make_plain(fd, REASON_EXEC);
            continue;
        }
        fds[count] = fd;
        streams[count++] = table_handle(fd);
    }
    return count > 0 ? ENGINE(engine.before_exec(fds, streams, count)) : -1;
}

/* What the next image of this process inherits. */
void heritage_before_exec(struct heritage *left, bool next_is_ours)
{
    left->list = -1;
    left->streams[0] = left->young[0] = 0;
    if (shim_depth > 0 || !table_in_own_process()) return;
    int kept = errno;
    family_before_exec();
    if (!next_is_ours) before_foreign_exec();
    if (next_is_ours) family_leave(left->young, sizeof left->young);
    if (next_is_ours && engine_is_open()) left->list = leave_streams();
    if (left->list >= 0) snprintf(left->streams, sizeof left->streams, STREAMS "%d", left->list);
    errno = kept;
}

void heritage_exec_failed(const struct heritage *left)
{
    if (shim_depth > 0 || !table_in_own_process()) return;
    int kept = errno;
    family_exec_failed();
    if (left->young[0]) family_stay();
    if (left->list >= 0) ENGINE_DO(engine.exec_failed(left->list));
    errno = kept;
}

bool heritage_is_variable(const char *entry)
{
    return strncmp(entry, STREAMS, strlen(STREAMS)) == 0 || strncmp(entry, YOUNG, strlen(YOUNG)) == 0;
}

/* ---------------------------------------------------------------- the new image */

static void own_descriptor(int fd)
{
    REAL(fcntl)(fd, F_SETFD, FD_CLOEXEC);
    table_replace(fd, KIND_PRIVATE);
}

/* After the environment (101) and the process (102) are known. */
__attribute__((constructor(103))) static void begin(void)
{
    const char *given = environment_get("MOTET_INHERITED");
    if (LIKELY(given == NULL) || engine_disabled()) return;
    int kept = errno, fd = atoi(given);
    static uint64_t words[HEAD_WORDS + MOST * ENTRY_WORDS];
    long length = syscall(SYS_pread64, fd, words, sizeof words, 0L);
    errno = kept;
    if (length < (long)(HEAD_WORDS * sizeof *words) || words[WORD_MAGIC] != MAGIC) return;
    if (words[WORD_PID] != (uint64_t)syscall(SYS_getpid) || words[WORD_COUNT] > MOST) return;
    if ((uint64_t)length != (HEAD_WORDS + words[WORD_COUNT] * ENTRY_WORDS) * sizeof *words) return;
    own_descriptor(list = fd);
    own_descriptor((int)words[WORD_NODE]);
    for (uint64_t i = 0; i < words[WORD_COUNT]; i++) {
        const uint64_t *entry = words + HEAD_WORDS + i * ENTRY_WORDS;
        own_descriptor((int)entry[ENTRY_FILE]);
        const uint64_t *first = words + HEAD_WORDS;
        while (first[ENTRY_HANDLE] != entry[ENTRY_HANDLE]) first += ENTRY_WORDS;
        uint64_t group = first == entry ? table_new_group() : (uint64_t)word_extra(table_word((int)first[ENTRY_FD])) << WORD_EXTRA_SHIFT;
        table_replace((int)entry[ENTRY_FD], KIND_CANDIDATE | WORD_INHERITED | WORD_SHARED | WORD_COPIED | group);
    }
}

/* Once, before the engine's first stream. */
void heritage_hand_over(void)
{
    if (list < 0) return;
    table_replace(list, 0);
    ENGINE_DO(engine.inherit(list));
    list = -1;
}
