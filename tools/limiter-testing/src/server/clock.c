/*
 * Preloaded into a server, so that a test can move the server's wall clock.
 *
 * LIMITER_CLOCK names a file with one number: the microseconds by which the server's clock is ahead
 * of the machine's clock. The file is mapped, so a new number applies to the next reading of the
 * clock. Monotonic clocks do not change.
 *
 * The machine's clock is read by the system call. A lookup of the function in the C library could
 * allocate, and some allocators read the time while they start.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LOADED "the clock of this server is movable\n"

static const volatile int64_t unmoved = 0;
static const volatile int64_t *ahead_us = &unmoved;

__attribute__((constructor)) static void map_clock(void)
{
    const char *path = getenv("LIMITER_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *ahead_us, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    /* The test waits for this text: a loader only warns of a library that it cannot preload. */
    if (page != MAP_FAILED && write(STDERR_FILENO, LOADED, sizeof LOADED - 1) > 0)
        ahead_us = page;
}

int clock_gettime(clockid_t id, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, id, now);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        int64_t ns = now->tv_sec * SECOND + now->tv_nsec + *ahead_us * 1000;
        /* Rounded down also before 1970. */
        now->tv_nsec = (ns % SECOND + SECOND) % SECOND;
        now->tv_sec = (ns - now->tv_nsec) / SECOND;
    }
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now)
{
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}
