/*
 * motet_module.h: modules that `motet node` loads into its process (driver `shared`).
 *
 * A module is a shared object that defines the table `motet_module`. All of its functions are called by one thread, one after another: load,
 * then start and stop any number of times, then unload. Each may be NULL. load and start return 0, or a number that is reported as the
 * error; so does stop, after which the module counts as stopped all the same. Threads of the module have ended when unload returns.
 *
 *     #include <motet_module.h>
 *
 *     static int start(void) { return 0; }
 *     const struct motet_module motet_module = {
 *         .version = MOTET_MODULE_VERSION, .size = sizeof(struct motet_module), .start = start };
 */
#ifndef MOTET_MODULE_H
#define MOTET_MODULE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the table. A node refuses modules of another one. Later fields of the same version are added at the end. */
#define MOTET_MODULE_VERSION 1

/* What the node offers to a module, from load until unload returns. Any thread may call its functions. */
struct motet_module_host {
    uint32_t version; /* MOTET_MODULE_VERSION of the node */
    uint32_t size;    /* size of this struct in the node */
    const char *name; /* the module's name */
    /* An attribute of the descriptor, in capital letters; NULL: there is none. The text stays until unload. */
    const char *(*attribute)(const struct motet_module_host *host, const char *label);
    /* Appends a line to the module's log. */
    void (*log)(const struct motet_module_host *host, const char *line);
};

/* The module's table. */
struct motet_module {
    uint32_t version; /* MOTET_MODULE_VERSION */
    uint32_t size;    /* sizeof(struct motet_module) */
    int (*load)(const struct motet_module_host *host);
    int (*start)(void);
    int (*stop)(void);
    void (*unload)(void);
};

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const struct motet_module motet_module;

#ifdef __cplusplus
}
#endif

#endif
