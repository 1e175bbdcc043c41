/* Clock of a chaos run, loaded into every process of a driver (LD_PRELOAD): the machine's time plus an offset in nanoseconds, which
   the file that CHAOS_CLOCK names holds. The monotonic clock stays, as it does when an operator or NTP sets the time.
   Not covered: waits until an absolute time of day, which neither Python nor Java uses for its time-outs. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *offset_ns;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *found = mmap(0, sizeof *offset_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found != MAP_FAILED)
        offset_ns = found;
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    if (!failed && offset_ns && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t now = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + *offset_ns;
        at->tv_sec = now / 1000000000;
        at->tv_nsec = now % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
