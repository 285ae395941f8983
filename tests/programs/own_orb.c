/* A program, and with PLUG_IN its plug-in, that has an ORB inside the plug-in. No omniORB library is in the process, and ORB_init is found
 * only in the object that calls it. A preload object that intercepts the call has to find it there. */
#include <dlfcn.h>
#include <stdio.h>

typedef const char *entry(void);

#ifdef PLUG_IN
#define EXPORTED __attribute__((visibility("default")))

/* Has omniORB's name and is called like any exported function: through a table entry that an object loaded earlier may fill. */
EXPORTED void *own_init(int *argc, char **argv, const char *identifier, const char *(*options)[2]) __asm__("_ZN5CORBA8ORB_initERiPPcPKcPA2_S4_");

void *own_init(int *argc, char **argv, const char *identifier, const char *(*options)[2])
{
    static char orb[] = "the plug-in's own ORB";
    return *argc == 7 && argv && identifier && !options ? orb : "other arguments";
}

EXPORTED const char *initialised(void)
{
    int argc = 7;
    char *argv[] = {NULL};
    return own_init(&argc, argv, "omniORB4", NULL);
}
#else
int main(int argc, char **argv)
{
    void *plug_in = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    entry *initialised = plug_in ? (entry *)dlsym(plug_in, "initialised") : NULL;
    if (!initialised) return 1;
    puts(initialised());
    puts(initialised());
    return 0;
}
#endif
