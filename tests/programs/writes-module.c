/* A library that records in its root directory that it was loaded. */
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void loaded(void) { close(creat("/loaded", 0600)); }
