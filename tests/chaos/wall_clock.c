/* A wall clock of one's own for one process, put in front of the C library by LD_PRELOAD.
 *
 * The file that EVENKEEL_WALL_CLOCK names holds a number, the nanoseconds by which this clock is ahead of the host's. Whoever changes
 * the number has the clock jump. The other clocks are the host's. A wait for a moment of this clock (librdkafka has such, and no other
 * waits with conditions) ends when it would have ended had the clock not jumped since it began. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static const int64_t nothing = 0;
static const volatile int64_t *ahead = &nothing;
static int (*clock_gettime_of_host)(clockid_t, struct timespec *);
static int (*timedwait_of_host)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*c11_timedwait_of_host)(cnd_t *, mtx_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void) {
    clock_gettime_of_host = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    /* On x86-64 there is an older one of the same name, for older conditions. */
    void *wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
    if (!wait)
        wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    timedwait_of_host = (int (*)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *))wait;
    c11_timedwait_of_host = (int (*)(cnd_t *, mtx_t *, const struct timespec *))dlsym(RTLD_NEXT, "cnd_timedwait");
    const char *name = getenv("EVENKEEL_WALL_CLOCK");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *page = mmap(NULL, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED)
        ahead = page;
    close(file);
}

static struct timespec moved(struct timespec at, int64_t by) {
    int64_t nanos = at.tv_nsec + by;
    int64_t seconds = nanos / 1000000000;
    nanos -= seconds * 1000000000;
    if (nanos < 0) {
        nanos += 1000000000;
        seconds -= 1;
    }
    at.tv_sec += seconds;
    at.tv_nsec = nanos;
    return at;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!clock_gettime_of_host)
        begin();
    int failed = clock_gettime_of_host(clock, at);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *at = moved(*at, *ahead);
    return failed;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock, const struct timespec *restrict until) {
    struct timespec by_host = moved(*until, -*ahead);
    if (!timedwait_of_host)
        begin();
    return timedwait_of_host(condition, lock, &by_host);
}

/* The one of C11, which is not made of the one above. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict lock, const struct timespec *restrict until) {
    struct timespec by_host = moved(*until, -*ahead);
    if (!c11_timedwait_of_host)
        begin();
    return c11_timedwait_of_host(condition, lock, &by_host);
}
