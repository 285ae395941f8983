/* preload.c: the preload object of the omniORB adapter. It loads the adapter when a program initialises an ORB.
 *
 * What it is:   an ORB_init() that is found before omniORB's own. Its first call finds out which omniORB the process has, loads the engine
 *               and the adapter for that version, and then calls omniORB's function. It is linked to libc only and knows no other name of
 *               omniORB.
 * What it isn't: required for correctness. Where something is missing or refused, the sockets adapter serves the ORB's connections like
 *               those of any program. A program that never initialises an ORB loads nothing.
 *
 * Signal safety: ORB_init() must not be called in a handler. Fork safety: a child that is forked while another thread is in the first call
 * does not wait for it, because pthread_once() starts again there. errno: kept by the part before omniORB's own function. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "trusted_path.h"
#include "motet_adapter.h"

#define API __attribute__((visibility("default")))
#define KILL_FILE "/etc/motet/disable" /* the same file as for the sockets adapter */
#define ENGINE_FILE "libmotet.so.0"
#define ORB_LIBRARY "libomniORB4"
/* CORBA::ORB_init(int &, char **, const char *, const char *(*)[2]) of omniORB 4.2 and 4.3. */
#define ORB_INIT "_ZN5CORBA8ORB_initERiPPcPKcPA2_S4_"

/* Settings as the process was started with them: ../sockets/environment.c. */
const char *environment_get(const char *name);
const char *environment_all(size_t *size);

typedef void *orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2]);
typedef void initialised_function(const char *message, const char *huge);

static orb_init *next_orb_init;
static initialised_function *notify_initialised; /* in the adapter; NULL where none is loaded */

/* ---------------------------------------------------------------- which omniORB */

/* The minor version of an omniORB library by its file name: 3 for "libomniORB4.so.3", 0 if it is not omniORB. Distributors and Python wheels
 * lengthen the name, for example "libomniORB4-1a2b3c.so.3.0.1". */
static int minor_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *version = strstr(name, ".so.");
    return strncmp(name, ORB_LIBRARY, strlen(ORB_LIBRARY)) == 0 && version ? atoi(version + 4) : 0;
}

/* ---------------------------------------------------------------- loading */

/* Appends one line to the engine's log file, if MOTET_LOG names one. Nothing goes to the program's own output. */
static void log_event(const char *what, const char *which)
{
    const char *given = environment_get("MOTET_LOG"), *own = given ? strstr(given, "%p") : NULL;
    if (!given || !*given || !trusted_root_unchanged()) return;
    char path[PATH_MAX], line[PATH_MAX + 256];
    int length = own ? snprintf(path, sizeof path, "%.*s%ld%s", (int)(own - given), given, (long)getpid(), own + 2)
                     : snprintf(path, sizeof path, "%s", given);
    if (length >= (int)sizeof path) return;
    struct timespec wall, mono;
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &mono);
    char date[32];
    struct tm parts;
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", gmtime_r(&wall.tv_sec, &parts));
    length = snprintf(line, sizeof line, "%s.%06ldZ mono=%lld.%06ld pid=%ld event=omniorb what=\"%s\" file=\"%s\"\n", date, wall.tv_nsec / 1000,
                      (long long)mono.tv_sec, mono.tv_nsec / 1000, (long)getpid(), what, which);
    int out = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (out < 0) return;
    struct stat is; /* only a regular file: a pipe could raise SIGPIPE */
    bool regular = fstat(out, &is) == 0 && S_ISREG(is.st_mode);
    ssize_t written = !regular ? 0 : write(out, line, (size_t)(length < (int)sizeof line ? length : (int)sizeof line - 1));
    (void)written;
    close(out);
}

/* True where the sockets adapter would be disabled, too. */
static bool disabled(void)
{
    const char *value = environment_get("MOTET_DISABLE");
    return (value && *value && strcmp(value, "0") != 0) || getauxval(AT_SECURE) != 0 || access(KILL_FILE, F_OK) == 0 ||
           prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 0;
}

/* The path of a file in the directory of this object. False: it does not fit. */
static bool path_beside(const char *name, char *path, size_t size)
{
    Dl_info here;
    if (!dladdr((void *)(uintptr_t)&path_beside, &here) || !here.dli_fname) return false;
    const char *slash = strrchr(here.dli_fname, '/');
    int folder = slash ? (int)(slash - here.dli_fname) + 1 : 0;
    return snprintf(path, size, "%.*s%s", folder, here.dli_fname, name) < (int)size;
}

/* Loads the engine. There is one engine for each process: if another adapter has loaded one, that one is used. This adapter is linked to the
 * engine, and the loader finds it by its soname. */
static bool open_engine(void)
{
    bool (*shared)(void) = (bool (*)(void))dlsym(RTLD_DEFAULT, "motet_sockets_open_engine");
    if (shared) return shared();
    char path[PATH_MAX];
    const char *given = environment_get("MOTET_LIBRARY");
    if (given && *given) snprintf(path, sizeof path, "%s", given);
    else if (!path_beside(ENGINE_FILE, path, sizeof path)) return false;
    void *engine = dlopen(ENGINE_FILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (!engine && trusted_may_load(path)) engine = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!engine) {
        log_event("engine not loaded; check the file and its permissions", path);
        return false;
    }
    __typeof__(&motet_environment) environment = (__typeof__(environment))dlsym(engine, "motet_environment");
    size_t size;
    const char *all = environment_all(&size);
    if (environment) environment(all, size);
    return true;
}

/* Loads the adapter that fits the ORB library `orb`.
 * The adapter is not linked to an ORB library: the loader would search for its soname, and where a wheel has renamed the file it would find
 * none or load a second ORB. The adapter's symbols must resolve to the ORB that the program calls, so that ORB must be in the global scope.
 * It is there already, except for an ORB that a plug-in (a Python module) was linked to; that one is promoted to the global scope here. Only
 * objects that are linked later and that use omniORB's symbols too can notice: a second omniORB in the same process. */
static void load(const char *orb, bool is_plug_in)
{
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "libmotet_omniorb4%d.so", minor_of(orb));
    if (!path_beside(name, path, sizeof path)) return;
    if (access(path, R_OK) != 0) {
        log_event("no adapter for this omniORB version; the sockets adapter serves its connections", name);
        return;
    }
    if (!open_engine()) return;
    if (is_plug_in && !dlopen(orb, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL)) return;
    void *adapter = trusted_may_load(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    if (adapter) notify_initialised = (initialised_function *)dlsym(adapter, "motet_omniorb_initialised");
    log_event(adapter ? "adapter loaded" : "adapter not loaded; check the file and its permissions", path);
}

static _Thread_local const void *orb_init_caller; /* a code address in the caller */

/* omniORB's function for a plug-in, which is linked to its ORB or contains it: the scopes that dlsym() searches here do not include it. */
static orb_init *next_of_plug_in(void)
{
    Dl_info plug_in;
    if (!dladdr(orb_init_caller, &plug_in) || !plug_in.dli_fname) return NULL;
    void *object = dlopen(plug_in.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return object ? (orb_init *)dlsym(object, ORB_INIT) : NULL;
}

static void first_call(void)
{
    int kept = errno;
    Dl_info orb;
    next_orb_init = (orb_init *)dlsym(RTLD_NEXT, ORB_INIT);
    bool is_plug_in = !next_orb_init;
    if (is_plug_in) next_orb_init = next_of_plug_in();
    if (next_orb_init && dladdr((void *)(uintptr_t)next_orb_init, &orb) && minor_of(orb.dli_fname) && !disabled()) load(orb.dli_fname, is_plug_in);
    dlerror(); /* clears the error, which belongs to the program */
    errno = kept;
}

/* ---------------------------------------------------------------- the call */

API void *motet_orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2]) __asm__(ORB_INIT);

void *motet_orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    orb_init_caller = __builtin_return_address(0);
    pthread_once(&once, first_call);
    if (!next_orb_init) abort(); /* ORB_init() was called and does not exist */
    void *orb = next_orb_init(argc, argv, identifier, options);
    if (notify_initialised) notify_initialised(environment_get("MOTET_OMNIORB_MESSAGE"), environment_get("MOTET_OMNIORB_HUGE"));
    return orb;
}
