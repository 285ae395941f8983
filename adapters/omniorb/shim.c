/* shim.c: the preload object of the omniORB voice: loads the adapter into programs that are CORBA programs, at the last moment.
 *
 * What it is:   an ORB_init() in front of omniORB's own. At its first call it looks which omniORB the process has, opens the engine
 *               and the adapter built for that one, and calls on. Linked to libc only; knows nothing of omniORB but that name.
 * What it isn't: needed for correctness. Where anything is missing or refused, the ORB's connections are those of any program, and
 *               the sockets voice serves them. A program that never initialises an ORB loads nothing.
 *
 * Signal safety: ORB_init() is not to be called in a handler. Fork safety: a child forked while another thread is in the first
 * call waits for nobody: pthread_once() begins anew there. */
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

#include "beginning.h"
#include "motet.h"

#define API __attribute__((visibility("default")))
#define KILL_FILE "/etc/motet/disable" /* as the sockets voice has it */
#define ENGINE_FILE "libmotet.so.0"
#define ORB_LIBRARY "libomniORB4"
/* CORBA::ORB_init(int &, char **, const char *, const char *(*)[2]) of omniORB 4.2 and 4.3. */
#define ORB_INIT "_ZN5CORBA8ORB_initERiPPcPKcPA2_S4_"

/* The settings as the process was started with them: ../sockets/environment.c. */
const char *environment_get(const char *name);
const char *environment_all(size_t *size);

typedef void *orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2]);
typedef void initialised(const char *message, const char *huge);

static orb_init *next;
static initialised *tell; /* the adapter, where there is one */

/* ---------------------------------------------------------------- which omniORB */

/* 3 for omniORB 4.3, by its file's name: "libomniORB4.so.3". 0: not known. Distributors and Python's wheels lengthen the name:
 * "libomniORB4-1a2b3c.so.3.0.1". */
static int minor_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *version = strstr(name, ".so.");
    return strncmp(name, ORB_LIBRARY, strlen(ORB_LIBRARY)) == 0 && version ? atoi(version + 4) : 0;
}

/* ---------------------------------------------------------------- loading */

/* What became of it: one line in the engine's log, where there is one. Never on the program's own output. */
static void note(const char *what, const char *which)
{
    const char *given = environment_get("MOTET_LOG"), *own = given ? strstr(given, "%p") : NULL;
    if (!given || !*given || !beginning_has_root()) return;
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
    struct stat is; /* a pipe could raise a signal */
    bool regular = fstat(out, &is) == 0 && S_ISREG(is.st_mode);
    ssize_t written = !regular ? 0 : write(out, line, (size_t)(length < (int)sizeof line ? length : (int)sizeof line - 1));
    (void)written;
    close(out);
}

/* As the sockets voice decides it: what is off there is off here. */
static bool disabled(void)
{
    const char *value = environment_get("MOTET_DISABLE");
    return (value && *value && strcmp(value, "0") != 0) || getauxval(AT_SECURE) != 0 || access(KILL_FILE, F_OK) == 0 ||
           prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != 0;
}

/* A file in the folder that this object lies in. */
static bool beside(const char *name, char *path, size_t size)
{
    Dl_info here;
    if (!dladdr((void *)(uintptr_t)&beside, &here) || !here.dli_fname) return false;
    const char *slash = strrchr(here.dli_fname, '/');
    int folder = slash ? (int)(slash - here.dli_fname) + 1 : 0;
    return snprintf(path, size, "%.*s%s", folder, here.dli_fname, name) < (int)size;
}

/* One engine for each process: one that another voice has brought is the one. The adapter, which is linked to it, finds it by its
 * soname. */
static bool open_engine(void)
{
    bool (*shared)(void) = (bool (*)(void))dlsym(RTLD_DEFAULT, "motet_sockets_open_engine");
    if (shared) return shared();
    char path[PATH_MAX];
    const char *given = environment_get("MOTET_LIBRARY");
    if (given && *given) snprintf(path, sizeof path, "%s", given);
    else if (!beside(ENGINE_FILE, path, sizeof path)) return false;
    void *engine = dlopen(ENGINE_FILE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | RTLD_NOLOAD);
    if (!engine && beginning_may_load(path)) engine = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!engine) {
        note("the engine cannot be opened", path);
        return false;
    }
    __typeof__(&motet_environment) environment = (__typeof__(environment))dlsym(engine, "motet_environment");
    size_t size;
    const char *all = environment_all(&size);
    if (environment) environment(all, size);
    return true;
}

/* The adapter names no ORB library that it needs: the loader would look for it by a soname, and where a wheel has renamed it, find
 * none or bring in a second ORB. Its symbols are to come from the ORB that the program calls, so that one has to be in the scope of
 * all. It is, but for a plug-in's (Python's module), which is put there now, with what it was linked to. Only what is linked from
 * here on and has omniORB's symbols as well can tell: a second omniORB in the same process. */
static void load(const char *orb, bool is_plug_in)
{
    char name[64], path[PATH_MAX];
    snprintf(name, sizeof name, "libmotet_omniorb4%d.so", minor_of(orb));
    if (!beside(name, path, sizeof path)) return;
    if (access(path, R_OK) != 0) {
        note("no adapter for this omniORB, sockets serve it", name);
        return;
    }
    if (!open_engine()) return;
    if (is_plug_in && !dlopen(orb, RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL)) return;
    void *adapter = beginning_may_load(path) ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) : NULL;
    if (adapter) tell = (initialised *)dlsym(adapter, "motet_omniorb_initialised");
    note(adapter ? "adapter loaded" : "the adapter cannot be opened", path);
}

static _Thread_local const void *caller; /* an address in who calls */

/* A plug-in is linked to its ORB, or has it within: it is in no scope that is searched from here. */
static orb_init *next_of_plug_in(void)
{
    Dl_info plug_in;
    if (!dladdr(caller, &plug_in) || !plug_in.dli_fname) return NULL;
    void *object = dlopen(plug_in.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    return object ? (orb_init *)dlsym(object, ORB_INIT) : NULL;
}

static void first_call(void)
{
    int kept = errno;
    Dl_info orb;
    next = (orb_init *)dlsym(RTLD_NEXT, ORB_INIT);
    bool is_plug_in = !next;
    if (is_plug_in) next = next_of_plug_in();
    if (next && dladdr((void *)(uintptr_t)next, &orb) && minor_of(orb.dli_fname) && !disabled()) load(orb.dli_fname, is_plug_in);
    dlerror(); /* the program asks for its own */
    errno = kept;
}

/* ---------------------------------------------------------------- the call */

API void *motet_orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2]) __asm__(ORB_INIT);

void *motet_orb_init(int *argc, char **argv, const char *identifier, const char *(*options)[2])
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    caller = __builtin_return_address(0);
    pthread_once(&once, first_call);
    if (!next) abort(); /* somebody has called what nobody has */
    void *orb = next(argc, argv, identifier, options);
    if (tell) tell(environment_get("MOTET_OMNIORB_MESSAGE"), environment_get("MOTET_OMNIORB_HUGE"));
    return orb;
}
