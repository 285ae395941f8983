/* environment.h: the environment of programs that a program starts; see environment.c. */
#ifndef MOTET_FILES_ENVIRONMENT_H
#define MOTET_FILES_ENVIRONMENT_H

#include "files.h"

/* What an environment lacks, or has too much. */
struct changed_environment {
    size_t slots, bytes; /* 1: nothing is to change; else the room that environment_changed() needs */
    bool adds_setting, adds_object, removes_object;
    const char *preload, *folders; /* entries that are replaced */
    size_t folder_bytes;
};

/* Whether a program, by its path or descriptor, cannot load this object. */
bool image_is_foreign(int folder, const char *path);
bool descriptor_is_foreign(int fd);

/* `foreign`: what the program's image says. */
struct changed_environment environment_changes(char *const *environment, bool foreign);
char *const *environment_changed(char *const *environment, const struct changed_environment *change, char **into, char *text);

/* Makes CALL with `env`: the given environment, with what it lacks, or without this object if the image is foreign. */
#define WITH_ENVIRONMENT(environment, FOREIGN, CALL)                                                                             \
    do {                                                                                                                \
        char *const *env = (environment);                                                                               \
        struct changed_environment change_ = environment_changes(env, mapping_count && (FOREIGN));                                                 \
        char *changed_[change_.slots], text_[change_.bytes];                                                            \
        if (change_.slots > 1) env = environment_changed(env, &change_, changed_, text_);                               \
        CALL;                                                                                                           \
    } while (0)

#endif
