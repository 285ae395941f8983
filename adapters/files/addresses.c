/* addresses.c: sockets of the Unix domain whose address is a path.
 *
 * What it is:   bind, connect and sendto with such an address. A path that is longer than an address after the mapping is ENAMETOOLONG.
 * What it isn't: a change of addresses that the kernel reports (getsockname, accept): those have the real path.
 *
 * Signal, fork and vfork safety: stack only. errno: libc's. */
#include "files.h"

#include <sys/socket.h>
#include <sys/un.h>

/* Whether an address needs to be mapped. Its text in `path`. */
static bool has_path(const struct sockaddr *address, socklen_t length, char path[sizeof(struct sockaddr_un)])
{
    const size_t start = offsetof(struct sockaddr_un, sun_path);
    if (!mapping_count || !address || length <= start || length > sizeof(struct sockaddr_un)) return false;
    if (!readable(address) || !readable((const char *)address + length - 1) || address->sa_family != AF_UNIX) return false;
    memcpy(path, (const char *)address + start, length - start);
    path[length - start] = 0;
    return path[0] != 0;
}

/* The address for the kernel. 0: as it is. -1: refused. */
static NOINLINE int map_address(const char *path, unsigned use, struct sockaddr_un *into)
{
    char buffer[PATH_MAX];
    bool plain = path_is_plain(AT_FDCWD, path, use);
    if (plain && !path_meets_link(AT_FDCWD, path, use)) return 0;
    const char *real = path_through_links(AT_FDCWD, path, use, buffer);
    if (!real) real = path_map(AT_FDCWD, path, use, buffer);
    if (!real) return -1;
    if (real == path) return 0;
    if (strlen(real) >= sizeof into->sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    into->sun_family = AF_UNIX;
    strcpy(into->sun_path, real);
    return (int)(offsetof(struct sockaddr_un, sun_path) + strlen(real) + 1);
}

#define ADDRESS_CALL(type, name, parameters, arguments, use)                                                            \
    static NOINLINE type name##_path parameters                                                                         \
    {                                                                                                                   \
        char path[sizeof(struct sockaddr_un)];                                                                          \
        struct sockaddr_un real;                                                                                        \
        int bytes_ = has_path(address, length, path) ? map_address(path, use, &real) : 0;                                 \
        if (bytes_ < 0) return -1;                                                                                        \
        if (bytes_ > 0) address = (const struct sockaddr *)&real, length = (socklen_t)bytes_;                               \
        return REAL(name) arguments;                                                                                    \
    }                                                                                                                   \
    FILES_API type name parameters                                                                                      \
    {                                                                                                                   \
        if (LIKELY(!address || !readable(address) || address->sa_family != AF_UNIX)) return REAL(name) arguments;       \
        return name##_path arguments;                                                                                   \
    }

ADDRESS_CALL(int, bind, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length), USE_CREATE | USE_NEW | USE_NOFOLLOW)
ADDRESS_CALL(int, connect, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length), USE_LOOK)
ADDRESS_CALL(ssize_t, sendto, (int fd, const void *bytes, size_t size, int flags, const struct sockaddr *address, socklen_t length),
             (fd, bytes, size, flags, address, length), USE_LOOK)
