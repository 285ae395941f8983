/* held.h: counts what a process holds: descriptors, and mapped memory that belongs to no named file. */
#ifndef HELD_H
#define HELD_H

#include "check.h"
#include <dirent.h>
#include <stdbool.h>

struct held {
    int descriptors, mappings;
    long kilobytes;
};

static inline struct held held(void)
{
    struct held h = {0};
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while (readdir(folder)) h.descriptors++;
    closedir(folder);
    FILE *file = fopen("/proc/self/smaps", "re");
    CHECK(file);
    char line[512];
    bool nameless = false;
    unsigned long from, to;
    long kilobytes;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            nameless = strstr(line, "/memfd:") != NULL;
            h.mappings += nameless;
        } else if (nameless && sscanf(line, "Rss: %ld kB", &kilobytes) == 1) {
            h.kilobytes += kilobytes;
        }
    }
    fclose(file);
    return h;
}

/* Allows for two segments and some records that are about to be released. */
static inline void no_more_than(struct held before, const char *when)
{
    struct held now = held();
    if (now.descriptors > before.descriptors + 2 || now.mappings > before.mappings + 2 || now.kilobytes > before.kilobytes + 700) {
        fprintf(stderr, "%s: %d descriptors, %d mappings, %ld kB; before %d, %d, %ld\n", when, now.descriptors, now.mappings,
                now.kilobytes, before.descriptors, before.mappings, before.kilobytes);
        exit(1);
    }
}

#endif
