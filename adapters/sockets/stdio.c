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

static void unread_stream(FILE *file, int fd, motet_stream s)
{
    size_t held = 0, capacity = 0;
    unsigned char *bytes = NULL;
    bool drained = ENGINE(engine.hand_over(s, fd, REASON_STDIO)) == 1;
    while (!drained && !(drained = ENGINE(engine.set_tcp_only(s, REASON_STDIO)) != 0)) {
        if (held == capacity) {
            unsigned char *more = realloc(bytes, capacity = capacity ? capacity * 2 : 65536);
            if (!more) break;
            bytes = more;
        }
        ssize_t got = recv(fd, bytes + held, capacity - held, MSG_DONTWAIT);
        if (got <= 0) break;
        held += (size_t)got;
    }
    while (held > 0) ungetc(bytes[--held], file);
    free(bytes);
    /* The FILE reads the descriptor without this object: the engine releases the stream. */
    if (drained) table_set(fd, KIND_NONE);
}

/* Pushes the rest of a confined process's ring back into the FILE. */
static void unread_ring_rest(FILE *file, int fd)
{
    unsigned char *bytes = NULL;
    size_t held = 0, capacity = 0;
    for (ssize_t got = 1; got > 0 && word_kind(table_word(fd)) == KIND_RING_REST; held += got > 0 ? (size_t)got : 0) {
        if (held == capacity) {
            unsigned char *more = realloc(bytes, capacity = capacity ? capacity * 2 : 65536);
            if (!more) break;
            bytes = more;
        }
        got = read(fd, bytes + held, capacity - held);
    }
    while (held > 0) ungetc(bytes[--held], file);
    free(bytes);
}

SHIM_API FILE *fdopen(int fd, const char *mode)
{
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || reentrancy_depth > 0) return REAL(fdopen)(fd, mode);
    motet_stream s = word_kind(table_word(fd)) == KIND_STREAM ? table_handle(fd) : 0;
    FILE *file = REAL(fdopen)(fd, mode);
    if (!file) return NULL;
    int kept = errno;
    if (word_kind(table_word(fd)) == KIND_RING_REST && (*mode == 'r' || strchr(mode, '+')))
        unread_ring_rest(file, fd);
    else if (!s)
        table_force_tcp(fd, REASON_STDIO);
    else if (*mode == 'r' || strchr(mode, '+'))
        unread_stream(file, fd, s);
    else
        ENGINE_DO(engine.set_tcp_only(s, REASON_STDIO)); /* incoming bytes do not belong to the FILE: the program still receives them by recv() or read() */
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
