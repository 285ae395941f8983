/* fine_clock.c: a clock for `redis-cli --latency`, which counts whole milliseconds. Preloaded, gettimeofday runs a thousand times
 * faster, so that what the program takes for milliseconds are microseconds. Nothing else of it changes. */
#include <sys/time.h>
#include <time.h>

int gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_MONOTONIC, &now);
    unsigned long long ns = now.tv_sec * 1000000000ull + now.tv_nsec;
    t->tv_sec = ns / 1000000;
    t->tv_usec = ns % 1000000;
    return 0;
}
