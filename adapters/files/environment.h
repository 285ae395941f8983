/* environment.h: the environment of programs that a program starts; see environment.c. */
#ifndef MOTET_FILES_ENVIRONMENT_H
#define MOTET_FILES_ENVIRONMENT_H

#include "files.h"

/* What an environment lacks. */
struct changed_environment {
    size_t slots, bytes; /* 1: nothing is lacking; else the room that environment_changed() needs */
    bool adds_setting, adds_object;
    const char *preload, *folders; /* entries that are replaced */
    size_t folder_bytes;
};

struct changed_environment environment_changes(char *const *environment);
char *const *environment_changed(char *const *environment, const struct changed_environment *change, char **into, char *text);

/* Makes CALL with `env`: the given environment, with what it lacks. */
#define WITH_ENVIRONMENT(environment, CALL)                                                                             \
    do {                                                                                                                \
        char *const *env = (environment);                                                                               \
        struct changed_environment change_ = environment_changes(env);                                                  \
        char *changed_[change_.slots], text_[change_.bytes];                                                            \
        if (change_.slots > 1) env = environment_changed(env, &change_, changed_, text_);                               \
        CALL;                                                                                                           \
    } while (0)

#endif
