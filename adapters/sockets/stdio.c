/* stdio.c: stdio on descriptors: fdopen, fclose, dprintf.
 *
 * What it is:   stdio makes its system calls inside libc, so this object does not see them. A stream whose descriptor is given to stdio
 *               stays on TCP from then on, and its ring bytes are pushed back into the FILE. dprintf() formats here and sends through
 *               write().
 * What it isn't: an implementation of stdio. A FILE that was made without fdopen() is not known here.
 *
 * Signal safety: none, as in libc. Fork safety: the engine's. errno: kept on success. */
#include "sockets.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a ring that a FILE reads before those of its descriptor. */
struct held {
    int fd;
    unsigned char *bytes;
    size_t count, at;
};

/* Reads all that the ring holds until it is empty; false: more may come. */
static bool hold(struct held *held, bool (*is_drained)(const struct held *), ssize_t (*take)(int fd, void *into, size_t room))
{
    size_t capacity = 0;
    while (!is_drained(held)) {
        if (held->count == capacity) {
            unsigned char *more = realloc(held->bytes, capacity = capacity ? capacity * 2 : 65536);
            if (!more) return false;
            held->bytes = more;
        }
        ssize_t got = take(held->fd, held->bytes + held->count, capacity - held->count);
        if (got <= 0) return is_drained(held);
        held->count += (size_t)got;
    }
    return true;
}

static bool stream_is_drained(const struct held *held) { return ENGINE(engine.set_tcp_only(table_handle(held->fd), REASON_STDIO)) != 0; }
static ssize_t take_now(int fd, void *into, size_t room) { return recv(fd, into, room, MSG_DONTWAIT); }

/* The rest of a confined process's ring. */
static bool rest_is_drained(const struct held *held) { return word_kind(table_word(held->fd)) != KIND_RING_REST; }
static ssize_t take_rest(int fd, void *into, size_t room) { return read(fd, into, room); }

static ssize_t held_read(void *cookie, char *into, size_t room)
{
    struct held *held = cookie;
    size_t left = held->count - held->at;
    if (left == 0) return read(held->fd, into, room);
    if (room < left) left = room;
    memcpy(into, held->bytes + held->at, left);
    held->at += left;
    return (ssize_t)left;
}

static ssize_t held_write(void *cookie, const char *from, size_t length) { return write(((struct held *)cookie)->fd, from, length); }

static int held_close(void *cookie)
{
    struct held *held = cookie;
    int fd = held->fd;
    free(held->bytes);
    free(held);
    return close(fd);
}

/* A FILE for reading and writing whose first input is in memory. ungetc() cannot hold it: a program that writes first, as it has read nothing, would write into
 * libc's memory for what was pushed back. */
static FILE *open_held(const struct held *first, const char *mode)
{
    struct held *held = malloc(sizeof *held);
    FILE *file = held ? fopencookie(held, mode, (cookie_io_functions_t){held_read, held_write, NULL, held_close}) : NULL;
    if (!file) {
        free(held);
        return NULL;
    }
    *held = *first;
    file->_fileno = held->fd; /* what fileno() returns */
    return file;
}

/* Gives stdio a descriptor that is read, with what its ring holds. */
static FILE *open_readable(int fd, const char *mode, bool is_stream)
{
    struct held held = {.fd = fd};
    bool drained = is_stream ? ENGINE(engine.hand_over(table_handle(fd), fd, REASON_STDIO)) == 1 || hold(&held, stream_is_drained, take_now)
                             : hold(&held, rest_is_drained, take_rest);
    FILE *file = held.count > 0 && strchr(mode, '+') ? open_held(&held, mode) : REAL(fdopen)(fd, mode);
    if (!file || !strchr(mode, '+')) {
        while (file && held.count > 0) ungetc(held.bytes[--held.count], file);
        free(held.bytes);
    }
    /* The FILE reads the descriptor without this object: the engine releases the stream. */
    if (file && is_stream && drained) table_set(fd, KIND_NONE);
    return file;
}

SHIM_API FILE *fdopen(int fd, const char *mode)
{
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || reentrancy_depth > 0) return REAL(fdopen)(fd, mode);
    int kept = errno;
    enum kind kind = word_kind(table_word(fd));
    bool reads = *mode == 'r' || (strchr("wa", *mode) && strchr(mode, '+'));
    FILE *file = reads && (kind == KIND_STREAM || kind == KIND_RING_REST) ? open_readable(fd, mode, kind == KIND_STREAM) : REAL(fdopen)(fd, mode);
    if (!file) return NULL;
    if (kind == KIND_STREAM && !reads)
        ENGINE_DO(engine.set_tcp_only(table_handle(fd), REASON_STDIO)); /* incoming bytes do not belong to the FILE: the program still receives them by recv() or read() */
    else if (kind != KIND_STREAM && kind != KIND_RING_REST)
        table_force_tcp(fd, REASON_STDIO);
    errno = kept;
    return file;
}

/* The descriptor closes inside libc, after the FILE's buffer has been written. */
SHIM_API int fclose(FILE *file)
{
    int kept = errno, fd = file ? fileno(file) : -1;
    errno = kept;
    if (LIKELY(word_kind(table_word(fd)) == KIND_NONE) || reentrancy_depth > 0 || !table_in_own_process()) return REAL(fclose)(file);
    fflush(file);
    table_set(fd, KIND_NONE);
    errno = kept;
    return REAL(fclose)(file);
}

/* ---------------------------------------------------------------- dprintf */

static int write_all(int fd, const char *text, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(fd, text + done, length - done);
        if (n < 0) return -1;
        done += (size_t)n;
    }
    return (int)length;
}

SHIM_API int vdprintf(int fd, const char *format, va_list list)
{
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || reentrancy_depth > 0) return REAL(vdprintf)(fd, format, list);
    char some[1024], *all = some;
    va_list again;
    va_copy(again, list);
    int length = vsnprintf(some, sizeof some, format, list);
    if (length >= (int)sizeof some) {
        all = malloc((size_t)length + 1);
        if (all) vsnprintf(all, (size_t)length + 1, format, again);
    }
    va_end(again);
    int result = length < 0 || !all ? -1 : write_all(fd, all, (size_t)length);
    if (all != some) free(all);
    return result;
}

SHIM_API int dprintf(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int result = vdprintf(fd, format, list);
    va_end(list);
    return result;
}

/* The fortified forms reject %n in writable memory. This object does not depend on that check. */
SHIM_API int __vdprintf_chk(int fd, int flag, const char *format, va_list list)
{
    (void)flag;
    return vdprintf(fd, format, list);
}

SHIM_API int __dprintf_chk(int fd, int flag, const char *format, ...)
{
    (void)flag;
    va_list list;
    va_start(list, format);
    int result = vdprintf(fd, format, list);
    va_end(list);
    return result;
}
