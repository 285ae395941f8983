/* environment.c: the environment of programs that a program starts.
 *
 * What it is:   a program that passes another environment, or an empty one, still starts its children with this object and its mappings. One
 *               that sets MOTET_FILES, if only to nothing, decides itself.
 *               A program that cannot load this object starts without it.
 * What it isn't: responsible for other adapters. The sockets adapter, which is called behind this one, does the same for all of them.
 *
 * Signal, fork and vfork safety: stack only. errno: unchanged. */
#include "environment.h"

#define PRELOAD "LD_PRELOAD="
#define LIBRARIES "LD_LIBRARY_PATH="

static const char *value_of(const char *entry, const char *name)
{
    size_t length = strlen(name);
    return readable(entry) && readable(entry + length) && strncmp(entry, name, length) == 0 ? entry + length : NULL;
}

static bool names_object(const char *list)
{
    for (const char *at = list; (at = strstr(at, own_object)); at++) {
        char after = at[strlen(own_object)];
        if ((at == list || at[-1] == ':' || at[-1] == ' ') && (after == 0 || after == ':' || after == ' ')) return true;
    }
    return false;
}

/* The next element of a list of folders that a prefix stands for, as the kernel's path. NULL: no more. */
static const char *next_mapped(const char **list, char buffer[PATH_MAX])
{
    while (**list) {
        char folder[PATH_MAX];
        size_t length = strcspn(*list, ":;");
        const char *at = *list;
        *list += length + (at[length] != 0);
        if (length == 0 || length >= sizeof folder) continue;
        memcpy(folder, at, length);
        folder[length] = 0;
        if (path_is_plain(AT_FDCWD, folder, USE_LOOK)) continue;
        const char *real = path_map(AT_FDCWD, folder, USE_LOOK, buffer);
        if (real && real != folder) return real;
    }
    return NULL;
}

/* The loader reads LD_LIBRARY_PATH without libc's functions: the real folders are added to the program's. */
static size_t mapped_bytes(const char *folders)
{
    char buffer[PATH_MAX];
    size_t bytes = 0;
    for (const char *real; (real = next_mapped(&folders, buffer));)
        if (!strstr(folders, real)) bytes += strlen(real) + 1;
    return bytes;
}

struct changed_environment environment_changes(char *const *environment, bool foreign)
{
    struct changed_environment change = {.slots = 1, .bytes = 1};
    size_t count = 0;
    const char *setting = NULL;
    if (!mapping_count) return change;
    for (; environment && readable(environment + count) && environment[count]; count++) {
        const char *entry = environment[count], *value;
        if ((value = value_of(entry, FILES_VARIABLE "="))) setting = value;
        if (value_of(entry, PRELOAD)) change.preload = entry;
        if ((value = value_of(entry, LIBRARIES)) && (change.folder_bytes = mapped_bytes(value))) change.folders = entry;
    }
    if (setting && !*setting) return change;
    bool has_object = change.preload && own_object[0] && names_object(change.preload + strlen(PRELOAD));
    change.adds_setting = !setting;
    change.adds_object = own_object[0] && !has_object && !foreign;
    change.removes_object = has_object && foreign;
    if (!change.adds_setting && !change.adds_object && !change.removes_object && !change.folders) return change;
    if (environment && (!readable(environment + count) || environment[count])) return (struct changed_environment){.slots = 1, .bytes = 1};
    change.slots = count + 3;
    if (change.removes_object) change.bytes += strlen(change.preload) + 1;
    if (change.adds_object) change.bytes += strlen(PRELOAD) + strlen(own_object) + 2 + (change.preload ? strlen(change.preload) : 0);
    if (change.folders) change.bytes += strlen(change.folders) + change.folder_bytes + 1;
    return change;
}

/* Copies LD_PRELOAD without this object. Returns the end, behind the terminating zero. */
static char *without_object(const char *preload, char *to)
{
    to = stpcpy(to, PRELOAD);
    char *first = to;
    for (const char *at = preload + strlen(PRELOAD); *at; at += *at != 0) {
        size_t length = strcspn(at, ": ");
        if (length > 0 && !(length == strlen(own_object) && memcmp(at, own_object, length) == 0)) {
            if (to > first) *to++ = ':';
            to = mempcpy(to, at, length);
        }
        at += length;
    }
    *to++ = 0;
    return to;
}

char *const *environment_changed(char *const *environment, const struct changed_environment *change, char **into, char *text)
{
    char **to = into;
    for (; environment && *environment; environment++) {
        if (*environment == change->folders) {
            char buffer[PATH_MAX];
            const char *list = *environment + strlen(LIBRARIES), *real;
            *to++ = text;
            text = stpcpy(text, *environment);
            while ((real = next_mapped(&list, buffer)))
                if (!strstr(list, real)) text = stpcpy(stpcpy(text, ":"), real);
            text++;
        } else if (change->removes_object && *environment == change->preload) {
            *to++ = text;
            text = without_object(*environment, text);
        } else if (!change->adds_object || *environment != change->preload)
            *to++ = *environment;
    }
    if (change->adds_object) {
        *to++ = text;
        text = stpcpy(stpcpy(text, PRELOAD), own_object);
        if (change->preload && change->preload[strlen(PRELOAD)]) text = stpcpy(stpcpy(text, ":"), change->preload + strlen(PRELOAD));
        text++;
    }
    if (change->adds_setting) *to++ = files_variable;
    *to = NULL;
    return into;
}
