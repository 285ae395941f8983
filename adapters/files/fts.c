/* fts.c: fts_open() and its companions.
 *
 * What it is:   the roots of a walk are mapped. Before an entry is returned, its path is replaced by the program's; at the next call libc's own is
 *               put back, as libc goes on from there.
 * What it isn't: a change of fts_accpath where it is relative: the current directory is a real one.
 *
 * Signal safety: none, as in libc. errno: theirs. */
#include "files.h"

#include <fts.h>
#include <stdlib.h>

struct shown_walk {
    struct shown_walk *next;
    void *walk;
    FTSENT *entry; /* changed, until the next call */
    char *path, *access_path;
    unsigned short path_length;
    char shown[PATH_MAX];
};

static struct shown_walk *walks;
static bool busy;

static void lock(void)
{
    while (__atomic_test_and_set(&busy, __ATOMIC_ACQUIRE)) {}
}

static void unlock(void) { __atomic_clear(&busy, __ATOMIC_RELEASE); }

static struct shown_walk *find(void *walk, bool take)
{
    lock();
    struct shown_walk **at = &walks;
    while (*at && (*at)->walk != walk) at = &(*at)->next;
    struct shown_walk *found = *at;
    if (found && take) *at = found->next;
    unlock();
    return found;
}

static void put_back(struct shown_walk *shown)
{
    if (!shown || !shown->entry) return;
    shown->entry->fts_path = shown->path;
    shown->entry->fts_accpath = shown->access_path;
    shown->entry->fts_pathlen = shown->path_length;
    shown->entry = NULL;
}

static FTSENT *show(struct shown_walk *shown, FTSENT *entry)
{
    if (!shown || !entry) return entry;
    size_t length = path_shown(entry->fts_path, strlen(entry->fts_path), shown->shown);
    if (length >= PATH_MAX) return entry;
    shown->entry = entry;
    shown->path = entry->fts_path;
    shown->access_path = entry->fts_accpath;
    shown->path_length = entry->fts_pathlen;
    if (entry->fts_accpath == entry->fts_path) entry->fts_accpath = shown->shown;
    entry->fts_path = shown->shown;
    entry->fts_pathlen = (unsigned short)length;
    return entry;
}

static bool any_mapped(char *const *roots)
{
    for (; *roots; roots++)
        if (!path_is_plain(AT_FDCWD, *roots, USE_LOOK)) return true;
    return false;
}

FILES_API FTS *fts_open(char *const *roots, int options, int (*order)(const FTSENT **, const FTSENT **))
{
    if (LIKELY(!any_mapped(roots))) return REAL(fts_open)(roots, options, order);
    size_t count = 0;
    while (roots[count]) count++;
    char **real = calloc(count + 1, sizeof *real);
    struct shown_walk *shown = calloc(1, sizeof *shown);
    FTS *walk = NULL;
    bool failed = !real || !shown;
    for (size_t i = 0; i < count && !failed; i++) {
        char buffer[PATH_MAX];
        const char *path = path_map(AT_FDCWD, roots[i], USE_LOOK, buffer);
        failed = !path || !(real[i] = strdup(path));
    }
    if (!failed) walk = REAL(fts_open)(real, options, order);
    int error = errno;
    for (size_t i = 0; real && i < count; i++) free(real[i]);
    free(real);
    if (walk) {
        shown->walk = walk;
        lock();
        shown->next = walks;
        walks = shown;
        unlock();
    } else
        free(shown);
    errno = error;
    return walk;
}

FILES_API FTSENT *fts_read(FTS *walk)
{
    struct shown_walk *shown = find(walk, false);
    put_back(shown);
    return show(shown, REAL(fts_read)(walk));
}

FILES_API FTSENT *fts_children(FTS *walk, int instructions)
{
    put_back(find(walk, false));
    return REAL(fts_children)(walk, instructions);
}

FILES_API int fts_close(FTS *walk)
{
    struct shown_walk *shown = find(walk, true);
    put_back(shown);
    free(shown);
    return REAL(fts_close)(walk);
}

/* On 64-bit machines the forms for large files are the same. */
_Static_assert(sizeof(ino_t) == sizeof(ino64_t), "FTSENT is that of 64-bit file sizes");
FILES_API FTS64 *fts64_open(char *const *, int, int (*)(const FTSENT64 **, const FTSENT64 **)) __attribute__((alias("fts_open")));
FILES_API FTSENT64 *fts64_read(FTS64 *) __attribute__((alias("fts_read")));
FILES_API FTSENT64 *fts64_children(FTS64 *, int) __attribute__((alias("fts_children")));
FILES_API int fts64_close(FTS64 *) __attribute__((alias("fts_close")));
