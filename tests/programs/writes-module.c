/* A library that says, where its root is, that it was loaded. */
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(creat("/loaded", 0600)); }
