/* aio.c: POSIX asynchronous input and output, which the C library makes by itself in threads of its own.
 *
 * What it is:   a connection that is used so is plain from then on. What its ring holds at that moment is the first read's, which is
 *               answered at once; all others are the C library's.
 * What it isn't: fast.
 *
 * Signal safety: as the C library's: aio_error() and the like only. Fork safety: as receive.c. */
#include "shim.h"

#include <aio.h>
#include <stdlib.h>
#include <string.h>

/* The C library keeps state and result of a request in the control block. */
static void finish(struct aiocb *request, int error, ssize_t result)
{
    request->__return_value = result;
    __atomic_store_n(&request->__error_code, error, __ATOMIC_RELEASE);
}

static void *notify_thread(void *event)
{
    struct sigevent now = *(struct sigevent *)event;
    free(event);
    now.sigev_notify_function(now.sigev_value);
    return NULL;
}

static void notify(const struct sigevent *event)
{
    if (event->sigev_notify == SIGEV_SIGNAL) sigqueue(getpid(), event->sigev_signo, event->sigev_value);
    if (event->sigev_notify != SIGEV_THREAD) return;
    struct sigevent *copy = malloc(sizeof *copy);
    pthread_t thread;
    pthread_attr_t own;
    pthread_attr_init(&own);
    pthread_attr_setdetachstate(&own, PTHREAD_CREATE_DETACHED);
    if (copy) *copy = *event;
    if (!copy || pthread_create(&thread, event->sigev_notify_attributes ? event->sigev_notify_attributes : &own, notify_thread, copy) != 0)
        free(copy);
    pthread_attr_destroy(&own);
}

/* Makes the connection plain; true when the request, a read, was answered from the ring. */
static bool taken(struct aiocb *request, bool reads)
{
    int fd = request ? request->aio_fildes : -1;
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || shim_depth > 0) return false;
    int kept = errno;
    ssize_t got = -1;
    table_make_plain(fd, REASON_KERNEL_TELLS);
    uint64_t word = table_word(fd);
    bool held = word_kind(word) == KIND_STREAM ? ENGINE(engine.rx_ready(table_handle(fd))) & MOTET_RX_DATA : confined_ready(fd);
    if (reads && held) got = recv(fd, (void *)request->aio_buf, request->aio_nbytes, MSG_DONTWAIT);
    if (got >= 0) finish(request, 0, got);
    errno = kept;
    return got >= 0;
}

SHIM_API int aio_read(struct aiocb *request)
{
    if (!taken(request, true)) return REAL(aio_read)(request);
    notify(&request->aio_sigevent);
    return 0;
}

SHIM_API int aio_write(struct aiocb *request)
{
    taken(request, false);
    return REAL(aio_write)(request);
}

SHIM_API int lio_listio(int mode, struct aiocb *const list[], int count, struct sigevent *event)
{
    bool any = false;
    for (int i = 0; i < count; i++)
        if (list[i] && list[i]->aio_lio_opcode != LIO_NOP && UNLIKELY(word_kind(table_word(list[i]->aio_fildes)) >= KIND_CANDIDATE)) any = true;
    if (LIKELY(!any)) return REAL(lio_listio)(mode, list, count, event);
    struct aiocb **left = malloc((size_t)count * sizeof *left);
    if (!left) {
        errno = EAGAIN;
        return -1;
    }
    for (int i = 0; i < count; i++) {
        left[i] = list[i];
        if (!list[i] || list[i]->aio_lio_opcode == LIO_NOP || !taken(list[i], list[i]->aio_lio_opcode == LIO_READ)) continue;
        notify(&list[i]->aio_sigevent);
        left[i] = NULL;
    }
    int result = REAL(lio_listio)(mode, left, count, event);
    int kept = errno;
    free(left);
    errno = kept;
    return result;
}

SHIM_API int aio_read64(struct aiocb64 *request) { return aio_read((struct aiocb *)request); }

SHIM_API int aio_write64(struct aiocb64 *request) { return aio_write((struct aiocb *)request); }

SHIM_API int lio_listio64(int mode, struct aiocb64 *const list[], int count, struct sigevent *event)
{
    return lio_listio(mode, (struct aiocb *const *)list, count, event);
}
