/* A library for closed_unseen. */
#include <unistd.h>
__attribute__((visibility("default"))) int module_close(int fd);
int module_close(int fd) { return close(fd); }
