/* motet_file.h: files of an export in C (libmotet.so.0). docs/files-api.md is the introduction.
 *
 * What it is:    the application-managed interface of remote files. A program reads and writes files of `motet export` into its own memory, one by one, in batches,
 *                or through a completion queue with many requests under way and no thread for each. No mount, no preload object, no page cache of this host.
 * What it isn't: the interface of the C library. Descriptors, mappings and programs that are not changed: `motet mount` and `motet run --files`.
 *
 * Conventions beyond those of motet.h
 *   - Handles are checked: an unknown one gives -EBADF. They are never used again. Every call may be made from any thread.
 *   - Errors are those of the system calls at the server (-ENOENT, -EACCES, -ENOSPC, -EROFS ...), and -EIO: the server was away for longer than the client's limit;
 *     -ESTALE: the file is not the one that was open any more, or changes of it were lost; -EPROTO: the server broke the protocol.
 *   - A call waits while the server is away, at most for the client's limit. Open files are opened again at a restarted server.
 *   - -EDEADLK: from within a message handler.
 *   - After fork() the child has none of the handles: every call on one gives -ECHILD. */
#ifndef MOTET_FILE_H
#define MOTET_FILE_H

#include "motet.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t motet_files;   /* a client of an export */
typedef uint64_t motet_file;    /* an open file of a client */
typedef uint64_t motet_file_cq; /* a completion queue of a client */

/* ---- clients and files */

enum motet_files_flags {
    MOTET_FILES_MESSAGES = 1 /* by messages to the server, also where the client could use the directory itself */
};

/* Connects to the export `name`: of this host, else of the hosts of the session; HOST:NAME chooses one. On the server's host the client uses the directory
 * itself, without the server, unless the server or `flags` (enum motet_files_flags) forbid that. `limit`: how long a call waits for a server that is away,
 * ns, then it fails with -EIO; INT64_MAX: until it is back. Errors: -ENOENT (no such export), -EINVAL. */
int motet_files_connect(const char *name, int64_t limit, uint32_t flags, motet_files *out);

/* Ends the client. -EBUSY: files or completion queues of it are open. */
int motet_files_close(motet_files files);

/* Whether the client uses the directory itself: 1 or 0. */
int motet_files_is_direct(motet_files files);

/* Opens a file by its path from the exported directory on. `flags`: O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_DIRECT;
 * O_DIRECT goes past the page cache of the server, too; memory, offsets and lengths need no alignment, but whole blocks are faster. O_CLOEXEC changes nothing; others
 * give -EINVAL. `mode`: the permissions of a new file. A symbolic link at the end of the path gives -ELOOP. */
int motet_file_open(motet_files files, const char *path, int flags, mode_t mode, motet_file *out);

/* Closes the handle. Requests of it that are under way go on, and keep the file open until they complete. Its locks go. */
int motet_file_close(motet_file file);

/* Reads or writes `length` bytes at `offset`; a write to a file that is open with O_APPEND goes to its end. Returns how many bytes: a read has fewer only at the
 * end of the file, a write only where the next one would fail. */
ssize_t motet_file_read(motet_file file, void *memory, size_t length, uint64_t offset);
ssize_t motet_file_write(motet_file file, const void *memory, size_t length, uint64_t offset);

/* Waits until what was written is on the server's disk; with `data_only` without times, as fdatasync(2). */
int motet_file_sync(motet_file file, int data_only);

struct motet_file_attributes {
    size_t size;
    uint64_t length;          /* bytes */
    uint64_t allocated;       /* bytes */
    uint64_t device, inode;   /* at the server */
    uint32_t mode;            /* type and permissions, as st_mode */
    uint32_t links;
    uint32_t user, group;
    int64_t accessed, modified, changed; /* ns since 1970 */
};
/* Writes the attributes of an open file as they are at the server now. */
int motet_file_stat(motet_file file, struct motet_file_attributes *out);

/* Its length in bytes, or a negative errno. */
int64_t motet_file_size(motet_file file);

/* Cuts or extends a file to `length` bytes. */
int motet_file_truncate(motet_file file, uint64_t length);

/* ---- batches and completion queues */

/* Longest read or write of a completion queue, bytes. */
#define MOTET_FILE_MAX_BYTES (1u << 20)
/* Most requests of all completion queues of a client that are submitted and whose completions are not taken. */
#define MOTET_FILE_MAX_OUTSTANDING 55

enum motet_file_operation { MOTET_FILE_READ = 1, MOTET_FILE_WRITE = 2, MOTET_FILE_SYNC = 3, MOTET_FILE_DATASYNC = 4 };

struct motet_file_request {
    size_t size;
    uint32_t operation; /* enum motet_file_operation */
    uint32_t reserved;
    uint64_t offset;    /* of reads and writes */
    void *memory;       /* of reads and writes; a write only reads it */
    size_t length;      /* bytes of it */
    void *user;         /* comes back with the completion */
    int64_t result;     /* written by motet_file_transfer(): bytes, or a negative errno */
};

/* Makes `count` reads and writes (no others) at once, in any order, and waits for all of them. `requests` is an array; the first element's `size` is the distance of
 * its elements. Returns how many have succeeded; each element's `result` says more. Errors: -EINVAL (nothing is done then). */
int motet_file_transfer(motet_file file, struct motet_file_request *requests, unsigned count);

/* Opens a completion queue for at most `outstanding` requests (1 to MOTET_FILE_MAX_OUTSTANDING) that are submitted and whose completions are not taken. */
int motet_file_cq_open(motet_files files, unsigned outstanding, motet_file_cq *out);

/* Submits up to `count` requests on a file of the queue's client, in order, and returns how many. Each element has the memory in use until its completion is taken;
 * the elements themselves are free. Requests may be executed in any order; a synchronisation covers the writes whose completions were taken before it.
 *   By messages the call returns when the requests are on their way; it waits only while the server is away. Where the client uses the directory itself, and
 * for striped files, it executes them.
 *   Errors, if there is one at the first element: -EAGAIN (as many as allowed are outstanding, or there is no room to send: take completions, try again), -E2BIG
 * (longer than MOTET_FILE_MAX_BYTES), -EXDEV (a file of another client), -EINVAL, -ESHUTDOWN. */
int motet_file_submit(motet_file_cq cq, motet_file file, const struct motet_file_request *requests, unsigned count);

struct motet_file_completion {
    size_t size;
    void *user;     /* that of the request */
    int64_t result; /* bytes (0 for a synchronisation), or a negative errno */
};

/* Takes up to `max` completions and returns how many. Waits for the first one; deadline 0: -EAGAIN if there is none. `completions` is an array; the first
 * element's `size` is the distance of its elements. Requests whose connection was lost are made again here, so the call may wait for the server. Errors:
 * -ETIMEDOUT; -ESHUTDOWN (the queue is being closed). */
int motet_file_cq_wait(motet_file_cq cq, struct motet_file_completion *completions, unsigned max, int64_t deadline);

/* Closes a completion queue. Requests that are under way are waited for, at most a second, then cancelled; their completions are lost, and whether a cancelled
 * write was executed is not known. When this returns, the memory of all requests is free. Threads in motet_file_cq_wait() return. */
int motet_file_cq_close(motet_file_cq cq);

#ifdef __cplusplus
}
#endif
#endif
