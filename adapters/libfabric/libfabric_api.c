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
    Dl_info symbol;
    void *library = dladdr(caller, &symbol) && symbol.dli_fname ? dlopen(symbol.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (!library) library = dlopen("libfabric.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    dupinfo = (struct fi_info *(*)(const struct fi_info *))dlsym(library, "fi_dupinfo");
    freeinfo = (void (*)(struct fi_info *))dlsym(library, "fi_freeinfo");
    uint32_t (*version_of)(void) = (uint32_t(*)(void))dlsym(library, "fi_version");
    version = version_of ? version_of() : 0;
    return dupinfo && freeinfo && version_of; /* `library` stays open, so that it is not unloaded before the provider */
}

struct fi_info *libfabric_info(void) { return dupinfo(NULL); }
void libfabric_free_info(struct fi_info *info) { freeinfo(info); }
uint32_t libfabric_version(void) { return version; }
