/* aio.c: POSIX asynchronous I/O, which libc implements in threads of its own.
 *
 * What it is:   a connection that is used this way stays on TCP from then on. The first read returns at once what the ring holds at that
 *               moment; all other requests are libc's.
 * What it isn't: a fast path.
 *
 * Signal safety: aio_error() and aio_return() only, as in libc. Fork safety: as receive.c. errno: kept on success. */
#include "sockets.h"

#include <aio.h>
#include <stdlib.h>
#include <string.h>

/* libc stores state and result of a request in the control block. */
static void complete_request(struct aiocb *request, int error, ssize_t result)
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

/* Moves the connection to TCP. True when the request, a read, was answered from the ring. */
static bool force_tcp_and_answer(struct aiocb *request, bool reads)
{
    int fd = request ? request->aio_fildes : -1;
    if (LIKELY(word_kind(table_word(fd)) < KIND_CANDIDATE) || reentrancy_depth > 0) return false;
    int kept = errno;
    ssize_t got = -1;
    table_force_tcp(fd, REASON_KERNEL_METADATA);
    uint64_t word = table_word(fd);
    bool ring_has_data = word_kind(word) == KIND_STREAM ? ENGINE(engine.rx_ready(table_handle(fd))) & MOTET_RX_DATA : confined_ready(fd);
    if (reads && ring_has_data) got = recv(fd, (void *)request->aio_buf, request->aio_nbytes, MSG_DONTWAIT);
    if (got >= 0) complete_request(request, 0, got);
    errno = kept;
    return got >= 0;
}

SHIM_API int aio_read(struct aiocb *request)
{
    if (!force_tcp_and_answer(request, true)) return REAL(aio_read)(request);
    notify(&request->aio_sigevent);
    return 0;
}

SHIM_API int aio_write(struct aiocb *request)
{
    force_tcp_and_answer(request, false);
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
        if (!list[i] || list[i]->aio_lio_opcode == LIO_NOP || !force_tcp_and_answer(list[i], list[i]->aio_lio_opcode == LIO_READ)) continue;
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
