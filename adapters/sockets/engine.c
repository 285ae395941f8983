/* engine.c: loads Motet's engine.
 *
 * What it is:   libmotet.so.0 is loaded at the first socket that may use it, from the directory of this object or from MOTET_LIBRARY, with
 *               local symbol scope. If another adapter has already loaded an engine into the process, that one is used. A process without
 *               such a socket never loads it.
 * What it isn't: a possible failure of the program. Whatever goes wrong (file missing, other version, no memory), the process stays on TCP
 *               and the program sees no error.
 *
 * Signal safety: nothing is loaded in a signal handler, which may have interrupted the loader. A second thread that arrives during the load
 * does not wait for it: its socket stays on TCP for that call.
 * Fork safety: a child that is forked while another thread loads the engine keeps the state OPENING and stays on TCP. errno: functions may
 * change it unless their macro or comment says otherwise. */
#include "trusted_path.h"
#include "sockets.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define ENGINE_FILE "libmotet.so.0"

enum state { UNTRIED, OPENING, OPEN, FAILED };

struct engine engine;
static _Atomic int state = UNTRIED;
static _Atomic int disabled = -1;
static _Atomic bool confined;
static const char *report_path;

/* The number in a line of /proc/self/status, -1 without the line. */
static long status_number(const char *status, const char *field)
{
    const char *line = strstr(status, field);
    return line ? strtol(line + strlen(field), NULL, 10) : -1;
}

#define STATUS_SIZE 3072

/* /proc/self/status; empty where there is no /proc. */
static void read_status(char status[STATUS_SIZE])
{
    long length = -1, file = syscall(SYS_openat, AT_FDCWD, "/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        length = syscall(SYS_read, (int)file, status, STATUS_SIZE - 1);
        syscall(SYS_close, (int)file);
    }
    status[length > 0 ? length : 0] = 0;
}

/* True when the process has several threads, or the kernel does not say. Keeps errno. */
bool engine_process_has_threads(void)
{
    int kept = errno;
    char status[STATUS_SIZE];
    read_status(status);
    errno = kept;
    return status_number(status, "\nThreads:\t") != 1;
}

/* True when this process, or an earlier image of it, has installed a seccomp filter. Filters that were there when `motet run` started the
 * first program confine no one: it has found out that Motet works under them, and says how many there were. The loader has just used the
 * system calls that this check makes, except prctl, which is used where there is no /proc. */
static bool has_seccomp_filter(void)
{
    char status[STATUS_SIZE];
    read_status(status);
    long mode = status_number(status, "\nSeccomp:\t"), filters = status_number(status, "\nSeccomp_filters:\t");
    if (mode < 0) mode = syscall(SYS_prctl, PR_GET_SECCOMP, 0, 0, 0, 0);
    const char *before = environment_get("MOTET_SECCOMP_FILTERS");
    bool filtered = mode != 0 && !(mode == SECCOMP_MODE_FILTER && before && filters > 0 && filters <= strtol(before, NULL, 10));
    if (filtered) engine_confine();
    return filtered;
}

/* True with MOTET_DISABLE set to anything but 0 or the empty string, with the site's kill file, with raised privileges, or under a seccomp
 * filter: a system call that the program never makes may end the process there. */
bool engine_disabled(void)
{
    int known = atomic_load_explicit(&disabled, memory_order_relaxed);
    if (known < 0) {
        const char *value = environment_get("MOTET_DISABLE");
        known = (value && *value && strcmp(value, "0") != 0) || getauxval(AT_SECURE) != 0 || has_seccomp_filter() ||
                syscall(SYS_faccessat, AT_FDCWD, SHIM_KILL_FILE, F_OK) == 0;
        atomic_store_explicit(&disabled, known, memory_order_relaxed);
    }
    return known;
}

bool engine_known_disabled(void) { return atomic_load_explicit(&disabled, memory_order_relaxed) > 0; }

void engine_disable(void) { atomic_store(&disabled, 1); }

void engine_confine(void)
{
    engine_disable();
    atomic_store(&confined, true);
}

bool engine_confined(void) { return atomic_load_explicit(&confined, memory_order_relaxed); }

bool engine_failed(void) { return atomic_load_explicit(&state, memory_order_acquire) == FAILED; }

bool engine_is_open(void) { return atomic_load_explicit(&state, memory_order_acquire) == OPEN; }

static bool library_path(char *path, size_t size)
{
    const char *given = environment_get("MOTET_LIBRARY");
    if (given && *given) {
        if (strlen(given) >= size) return false;
        strcpy(path, given);
        return true;
    }
    Dl_info here;
    if (!dladdr((void *)(uintptr_t)&engine_open, &here) || !here.dli_fname) return false;
    const char *slash = strrchr(here.dli_fname, '/');
    size_t folder = slash ? (size_t)(slash - here.dli_fname) + 1 : 0;
    if (folder + sizeof ENGINE_FILE > size) return false;
    memcpy(path, here.dli_fname, folder);
    strcpy(path + folder, ENGINE_FILE);
    return true;
}

static bool load(void)
{
    static char path[PATH_MAX]; /* static: load() runs once */
    if (!library_path(path, sizeof path)) return false;
    /* One engine for each process: an engine that another library has loaded is used, whatever directory it came from. */
    void *library = dlopen(ENGINE_FILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (!library && !trusted_may_load(path)) {
        dlerror();
        return false;
    }
    if (!library) library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        dlerror();
        return false;
    }
    bool complete = true;
#define X(name) complete &= (engine.name = (__typeof__(engine.name))dlsym(library, "motet_" #name)) != NULL;
    ENGINE_LIST(X)
#undef X
    if (!complete) {
        dlerror();
        return false;
    }
    /* While the major version is 0, a new minor version may change the interface. */
    if (engine.version() != (((uint32_t)MOTET_VERSION_MAJOR << 16) | MOTET_VERSION_MINOR)) return false;
    /* Optional symbol: without it the engine reads the environment as it is at that moment. */
    __typeof__(&motet_environment) environment = (__typeof__(environment))dlsym(library, "motet_environment");
    size_t size;
    const char *all = environment_all(&size);
    if (environment) environment(all, size);
    else dlerror();
    signals_attach_engine(library);
    return true;
}

static void load_on_scratch_stack(void *loaded) { *(bool *)loaded = load(); }

bool engine_open(void)
{
    int seen = atomic_load_explicit(&state, memory_order_acquire);
    if (LIKELY(seen != UNTRIED)) return seen == OPEN;
    if (reentrancy_depth > 0 || signals_in_handler() || !atomic_compare_exchange_strong(&state, &seen, OPENING)) return false;
    report_path = environment_get("MOTET_SHIM_REPORT");
    bool opened = false;
    ENGINE_DO(scratch_call(load_on_scratch_stack, &opened));
    atomic_store_explicit(&state, opened ? OPEN : FAILED, memory_order_release);
    return opened;
}

/* For another adapter that needs the engine in this process: loading it here lets this object hide its descriptors and end its streams well.
 * Not for signal handlers. */
SHIM_API bool motet_sockets_open_engine(void) { return !engine_disabled() && engine_open(); }

static void count_on_scratch_stack(void *reason) { engine.count_tcp_only(*(enum tcp_reason *)reason); }

void engine_count_tcp_only(enum tcp_reason reason)
{
    if (engine_is_open() && reentrancy_depth == 0) ENGINE_DO(scratch_call(count_on_scratch_stack, &reason));
}

/* True for a descriptor of this object or of the engine. Async-signal-safe where motet_owns_fd() is. */
bool engine_owns(int fd)
{
    if (word_kind(table_word(fd)) == KIND_PRIVATE) return true;
    return engine_is_open() && reentrancy_depth == 0 && ENGINE(engine.owns_fd(fd)) != 0;
}

/* Appends one line to the file MOTET_SHIM_REPORT, for tests. Without that setting it does nothing. Uses system calls and snprintf() only. */
void engine_report(motet_stream s, int fd)
{
    if (LIKELY(report_path == NULL || *report_path == 0)) return;
    struct motet_stream_info info = {.size = sizeof info};
    if (ENGINE(engine.info(s, &info)) != 0) return;
    char line[256];
    int length = snprintf(line, sizeof line,
                          "pid=%ld fd=%d path=%u reason=%u sent_fast=%llu sent_tcp=%llu received_fast=%llu received_tcp=%llu\n",
                          (long)syscall(SYS_getpid), fd, info.path, info.reason, (unsigned long long)info.sent_fast,
                          (unsigned long long)info.sent_tcp, (unsigned long long)info.received_fast,
                          (unsigned long long)info.received_tcp);
    long out = syscall(SYS_openat, AT_FDCWD, report_path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (out < 0) return;
    struct stat is;      /* only a regular file: a pipe could raise SIGPIPE */
    struct rlimit limit; /* within RLIMIT_FSIZE: a write beyond it raises SIGXFSZ */
    bool fits = syscall(SYS_fstat, (int)out, &is) == 0 && S_ISREG(is.st_mode) &&
                (getrlimit(RLIMIT_FSIZE, &limit) != 0 || (rlim_t)is.st_size + (rlim_t)length <= limit.rlim_cur);
    if (fits) syscall(SYS_write, (int)out, line, (size_t)length);
    syscall(SYS_close, (int)out);
}
