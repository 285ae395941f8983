/* mappings.c: which prefixes stand for which folders.
 *
 * What it is:   the variable MOTET_FILES, read once: `PREFIX=FOLDER[=ro][:PREFIX=FOLDER...]`. A backslash before `:`, `=` or a backslash makes it
 *               a part of a name. `ro`: the export is read-only.
 * What it isn't: a check that folders exist. An entry that is no such pair is left out, and so is one whose folder lies beneath a prefix.
 *
 * Signal and fork safety: nothing changes after the constructor but `may_be_inside`, which only becomes true. */
#include "files.h"

#include <sys/auxv.h>
#include <sys/syscall.h>

extern char **environ;

struct mapping mappings[FILES_MAPPINGS_MAX];
size_t mapping_count;
bool any_read_only, may_be_inside;
char files_variable[FILES_TEXT_BYTES] = FILES_VARIABLE "=", own_object[PATH_MAX];

static char names[FILES_TEXT_BYTES];
unsigned char first_bytes[256];

/* Whether a path is `base` or beneath it. */
static bool is_within(const char *path, size_t length, struct text base)
{
    if (length < base.length || memcmp(path, base.at, base.length) != 0) return false;
    return length == base.length || path[base.length] == '/' || base.length == 1;
}

const struct mapping *mapping_of(const char *path, size_t length)
{
    for (size_t i = 0; i < mapping_count; i++)
        if (is_within(path, length, mappings[i].prefix)) return &mappings[i];
    return NULL;
}

const struct mapping *mapping_by_folder(const char *path, size_t length)
{
    const struct mapping *best = NULL;
    for (size_t i = 0; i < mapping_count; i++)
        if (is_within(path, length, mappings[i].folder) && (!best || mappings[i].folder.length > best->folder.length)) best = &mappings[i];
    return best;
}

/* Calls `visit` for each component of a prefix. True as soon as it returns true. */
static bool any_component(bool (*visit)(const char *name, size_t length, const void *with), const void *with)
{
    for (size_t i = 0; i < mapping_count; i++)
        for (const char *at = mappings[i].prefix.at; *at; ) {
            size_t length = strcspn(++at, "/");
            if (visit(at, length, with)) return true;
            at += length;
        }
    return false;
}

static bool same_name(const char *name, size_t length, const void *with)
{
    const struct text *text = with;
    return length == text->length && memcmp(name, text->at, length) == 0;
}

static bool note_byte(const char *name, size_t length, const void *with)
{
    (void)length, (void)with;
    first_bytes[(unsigned char)*name] |= BEGINS_COMPONENT;
    return false;
}

bool is_prefix_component(const char *name, size_t length)
{
    struct text text = {name, length};
    return any_component(same_name, &text);
}

/* Copies a field up to an unescaped `:` or `=` or the end, as an absolute path without needless slashes. Returns what follows; NULL: no such path. */
static const char *take_path(const char *from, char **to, struct text *path)
{
    char *start = *to;
    const char *end = names + sizeof names - 1;
    if (*from != '/') return NULL;
    for (; *from && *from != ':' && *from != '='; from++) {
        if (*from == '\\' && !*++from) return NULL;
        if (*to == end) return NULL;
        if (*from == '/' && *to > start && (*to)[-1] == '/') continue;
        *(*to)++ = *from;
    }
    if (*to - start > 1 && (*to)[-1] == '/') --*to;
    *path = (struct text){start, (size_t)(*to - start)};
    *(*to)++ = 0;
    for (const char *at = start; (at = strchr(at, '/')); at++)
        if (at[1] == '.' && (at[2] == '/' || at[2] == 0 || (at[2] == '.' && (at[3] == '/' || at[3] == 0)))) return NULL;
    return path->length < PATH_MAX / 2 ? from : NULL;
}

static const char *next_entry(const char *at)
{
    for (; *at && *at != ':'; at++)
        if (*at == '\\' && at[1]) at++;
    return *at ? at + 1 : at;
}

static void insert(struct mapping mapping)
{
    size_t at = mapping_count++;
    for (; at > 0 && mappings[at - 1].prefix.length < mapping.prefix.length; at--) mappings[at] = mappings[at - 1];
    mappings[at] = mapping;
}

static bool has_prefix(struct text prefix)
{
    for (size_t i = 0; i < mapping_count; i++)
        if (prefix.length == mappings[i].prefix.length && memcmp(prefix.at, mappings[i].prefix.at, prefix.length) == 0) return true;
    return false;
}

static void parse(const char *entry)
{
    char *to = names;
    for (; *entry && mapping_count < FILES_MAPPINGS_MAX; entry = next_entry(entry)) {
        struct mapping mapping = {0};
        char *kept = to;
        const char *at = take_path(entry, &to, &mapping.prefix);
        if (at && *at == '=') at = take_path(at + 1, &to, &mapping.folder);
        else at = NULL;
        if (at && strncmp(at, "=ro", 3) == 0) mapping.read_only = true, at += 3;
        if (at && (*at == 0 || *at == ':') && mapping.prefix.length > 1 && !has_prefix(mapping.prefix))
            insert(mapping);
        else
            to = kept;
    }
    /* A folder beneath a prefix has no path that the program could not also mean otherwise. A folder that is its own prefix has. */
    for (size_t i = 0; i < mapping_count;) {
        const struct mapping *over = mapping_of(mappings[i].folder.at, mappings[i].folder.length);
        if (over && (over != &mappings[i] || over->prefix.length != mappings[i].folder.length)) {
            mapping_count--;
            memmove(mappings + i, mappings + i + 1, (mapping_count - i) * sizeof *mappings);
        } else
            i++;
    }
}

static const char *variable(const char *name)
{
    size_t length = strlen(name);
    for (char **at = environ; at && *at; at++)
        if (strncmp(*at, name, length) == 0 && (*at)[length] == '=') return *at + length + 1;
    return NULL;
}

static void record_own_object(const char *preload)
{
    for (const char *at = preload; at && *at;) {
        size_t length = strcspn(at, ": ");
        const char *slash = memrchr(at, '/', length);
        const char *name = slash ? slash + 1 : at;
        if ((size_t)(at + length - name) == strlen(FILES_OBJECT) && memcmp(name, FILES_OBJECT, strlen(FILES_OBJECT)) == 0 && length < sizeof own_object)
            memcpy(own_object, at, length);
        at += length + (at[length] != 0);
    }
}

__attribute__((constructor(101))) static void read_mappings(void)
{
    /* A set-user-ID program takes no settings from the user who starts it. */
    const char *text = getauxval(AT_SECURE) ? NULL : variable(FILES_VARIABLE);
    char *value = files_variable + sizeof FILES_VARIABLE;
    if (!text || !*text || strlen(text) >= (size_t)(files_variable + sizeof files_variable - value)) return;
    strcpy(value, text);
    record_own_object(variable("LD_PRELOAD"));
    parse(text);
    for (size_t i = 0; i < mapping_count; i++) {
        first_bytes[(unsigned char)mappings[i].prefix.at[1]] |= BEGINS_PREFIX;
        any_read_only |= mappings[i].read_only;
    }
    any_component(note_byte, NULL);
    char here[PATH_MAX];
    long length = mapping_count ? RAW(SYS_getcwd, here, sizeof here, 0, 0) : 0;
    may_be_inside = length > 1 && mapping_by_folder(here, (size_t)length - 1);
}
