/* libfabric_api.c: the libfabric that has loaded this provider.
 *
 * The library that calls fi_prov_ini() is found by the caller's address: its fi_dupinfo() makes structs of its size, and its fi_version() is
 * the version that the provider must claim. The provider is not linked to libfabric: MPI libraries bring their own, and a second one in the
 * process would be a different library of the same name. */
#include "fabric.h"

#include <dlfcn.h>

static struct fi_info *(*dupinfo)(const struct fi_info *info);
static void (*freeinfo)(struct fi_info *info);
static uint32_t version;

bool libfabric_find(const void *caller)
{
    Dl_info where;
    void *host = dladdr(caller, &where) && where.dli_fname ? dlopen(where.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!host) host = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!host) return false;
    dupinfo = (struct fi_info *(*)(const struct fi_info *))dlsym(host, "fi_dupinfo");
    freeinfo = (void (*)(struct fi_info *))dlsym(host, "fi_freeinfo");
    uint32_t (*ask)(void) = (uint32_t(*)(void))dlsym(host, "fi_version");
    version = ask ? ask() : 0;
    return dupinfo && freeinfo && ask; /* `host` stays open: it cannot go before us */
}

struct fi_info *libfabric_info(void) { return dupinfo(NULL); }
void libfabric_free_info(struct fi_info *info) { freeinfo(info); }
uint32_t libfabric_version(void) { return version; }
