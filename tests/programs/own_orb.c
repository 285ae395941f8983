/* own_orb.c: a program (and, with PLUG_IN, its plug-in) that has an ORB within the plug-in: no omniORB library is in the process, and
 * the ORB's first function can only be found in the object that calls it. A preload object that takes the call has to find it. */
#include <dlfcn.h>
#include <stdio.h>

typedef const char *entry(void);

#ifdef PLUG_IN
#define EXPORTED __attribute__((visibility("default")))

/* By omniORB's name, and called as any exported function is: through a table that who is loaded first may fill. */
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
