/*
 * Code that runs in every program: clock calls without entering the kernel. Built as a shared object of its own,
 * mapped by exec; the data page lies before it. The arithmetic is that of clock_monotonic_ns.
 */
#include "core/linux/vdso_data.h"

#define EXPORT __attribute__((visibility("default")))
#define NSEC_PER_SEC 1000000000ULL

struct timespec {
    int64_t sec, nsec;
};
struct timeval {
    int64_t sec, usec;
};
enum { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW = 4, CLOCK_REALTIME_COARSE = 5,
       CLOCK_MONOTONIC_COARSE = 6, CLOCK_BOOTTIME = 7 };
enum { CALL_GETTIMEOFDAY = 96, CALL_TIME = 201, CALL_CLOCK_GETTIME = 228, CALL_CLOCK_GETRES = 229, CALL_GETCPU = 309 };

extern const volatile struct vdso_data vdso_data_page __attribute__((visibility("hidden")));

static inline long system_call(long number, long a, long b, long c)
{
    long r;

    __asm__ volatile("syscall" : "=a"(r) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return r;
}

/* LFENCE: the counter is not read before the data that scale it, nor before what the program did earlier. */
static inline uint64_t read_tsc(void)
{
    uint32_t low, high;

    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

/* Nanoseconds of the monotonic clock, plus the offset to the epoch if wanted. False = ask the kernel. */
static inline int read_clock(int realtime, uint64_t *ns)
{
    const volatile struct vdso_data *d = &vdso_data_page;
    uint32_t sequence;

    do {
        uint64_t tsc, delta;
        sequence = d->sequence;
        __asm__ volatile("" : : : "memory"); /* x86 keeps loads in order; the compiler must too */
        if (!d->usable)
            return 0;
        tsc = read_tsc();
        delta = tsc > d->tsc_base ? tsc - d->tsc_base : 0;
        *ns = (uint64_t)((unsigned __int128)delta * d->mult >> d->shift) + d->base_ns;
        if (realtime)
            *ns += d->realtime_offset_ns;
        __asm__ volatile("" : : : "memory");
    } while (__builtin_expect((sequence & 1) || sequence != d->sequence, 0));
    return 1;
}

EXPORT int __vdso_clock_gettime(int clock, struct timespec *ts);
EXPORT int __vdso_clock_gettime(int clock, struct timespec *ts)
{
    const unsigned known = 1u << CLOCK_REALTIME | 1u << CLOCK_MONOTONIC | 1u << CLOCK_MONOTONIC_RAW |
                           1u << CLOCK_REALTIME_COARSE | 1u << CLOCK_MONOTONIC_COARSE | 1u << CLOCK_BOOTTIME;
    int realtime = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    uint64_t ns;

    if ((unsigned)clock < 32 && (known >> clock & 1) && read_clock(realtime, &ns)) {
        ts->sec = (int64_t)(ns / NSEC_PER_SEC);
        ts->nsec = (int64_t)(ns % NSEC_PER_SEC);
        return 0;
    }
    return (int)system_call(CALL_CLOCK_GETTIME, clock, (long)ts, 0);
}

EXPORT int __vdso_gettimeofday(struct timeval *tv, void *zone);
EXPORT int __vdso_gettimeofday(struct timeval *tv, void *zone)
{
    uint64_t ns;

    if (!zone && tv && read_clock(1, &ns)) {
        tv->sec = (int64_t)(ns / NSEC_PER_SEC);
        tv->usec = (int64_t)(ns % NSEC_PER_SEC / 1000);
        return 0;
    }
    return (int)system_call(CALL_GETTIMEOFDAY, (long)tv, (long)zone, 0);
}

EXPORT int64_t __vdso_time(int64_t *out);
EXPORT int64_t __vdso_time(int64_t *out)
{
    uint64_t ns;
    int64_t sec;

    if (!read_clock(1, &ns))
        return system_call(CALL_TIME, (long)out, 0, 0);
    sec = (int64_t)(ns / NSEC_PER_SEC);
    if (out)
        *out = sec;
    return sec;
}

EXPORT int __vdso_clock_getres(int clock, struct timespec *ts);
EXPORT int __vdso_clock_getres(int clock, struct timespec *ts)
{
    return (int)system_call(CALL_CLOCK_GETRES, clock, (long)ts, 0);
}

EXPORT int __vdso_getcpu(unsigned *cpu, unsigned *node, void *unused);
EXPORT int __vdso_getcpu(unsigned *cpu, unsigned *node, void *unused)
{
    return (int)system_call(CALL_GETCPU, (long)cpu, (long)node, (long)unused);
}
