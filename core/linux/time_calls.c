/* Clocks and sleeping. Most programs ask the vDSO; these serve where it cannot. */
#include "linuxio.h"
#include "vdso.h"
#include <weir/time.h>

enum {
    CLOCK_REALTIME,
    CLOCK_MONOTONIC,
    CLOCK_PROCESS_CPUTIME,
    CLOCK_THREAD_CPUTIME,
    CLOCK_MONOTONIC_RAW,
    CLOCK_REALTIME_COARSE,
    CLOCK_MONOTONIC_COARSE,
    CLOCK_BOOTTIME,
    CLOCK_REALTIME_ALARM,
    CLOCK_BOOTTIME_ALARM,
    CLOCK_TAI = 11
};
#define TIMER_ABSTIME 1u

static uint64_t process_cpu_ns(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&p->siglock), total = p->utime_ns + p->stime_ns;
    struct task *t;

    list_for_each_entry (t, &p->tasks, process_link)
        total += atomic_load_relaxed(&t->thread->runtime_ns);
    spin_unlock_irqrestore(&p->siglock, flags);
    return total;
}

/* Clock ids of other processes and threads (negative: ~pid << 3 | kind). */
static int cpu_clock_of(int clock, uint64_t *ns)
{
    int pid = ~(clock >> 3);
    struct process *p;

    if (pid == 0 || (clock & 4)) { /* own, or a thread's: only the caller's is offered */
        if ((clock & 4) && pid != 0 && pid != current_task()->tid)
            return -EINVAL;
        *ns = clock & 4 ? current->runtime_ns : process_cpu_ns(current_process());
        return 0;
    }
    p = process_find(pid);
    if (!p)
        return -EINVAL;
    *ns = process_cpu_ns(p);
    process_put(p);
    return 0;
}

static int clock_read(int clock, uint64_t *ns)
{
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_REALTIME_ALARM:
    case CLOCK_TAI:
        *ns = clock_realtime_ns();
        return 0;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
    case CLOCK_BOOTTIME_ALARM:
        *ns = clock_monotonic_ns();
        return 0;
    case CLOCK_PROCESS_CPUTIME:
        *ns = process_cpu_ns(current_process());
        return 0;
    case CLOCK_THREAD_CPUTIME:
        *ns = current->runtime_ns;
        return 0;
    default:
        return clock < 0 ? cpu_clock_of(clock, ns) : -EINVAL;
    }
}

long sys_clock_gettime(const uint64_t a[6])
{
    uint64_t ns;
    int error = clock_read((int)a[0], &ns);

    return error ? error : timespec_put(a[1], ns);
}

long sys_clock_getres(const uint64_t a[6])
{
    uint64_t ns;
    int error = clock_read((int)a[0], &ns);

    if (error || !a[1])
        return error;
    return timespec_put(a[1], 1);
}

static void set_realtime(uint64_t ns)
{
    clock_set_realtime_ns(ns);
    vdso_update(); /* programs read the clock there, without a call */
}

long sys_clock_settime(const uint64_t a[6])
{
    uint64_t ns;
    int error = timespec_get(a[1], &ns);

    if (error)
        return error;
    if (a[0] != CLOCK_REALTIME)
        return -EINVAL;
    if (current_process()->cred.uid)
        return -EPERM;
    set_realtime(ns);
    return 0;
}

long sys_gettimeofday(const uint64_t a[6])
{
    uint64_t ns = clock_realtime_ns(), zone = 0;
    struct timeval_weir tv = {(int64_t)(ns / NSEC_PER_SEC),
                              (int64_t)(ns % NSEC_PER_SEC / NSEC_PER_USEC)};

    if (a[0] && copy_to_user(a[0], &tv, sizeof(tv)))
        return -EFAULT;
    return a[1] ? copy_to_user(a[1], &zone, sizeof(zone)) : 0;
}

long sys_settimeofday(const uint64_t a[6])
{
    struct timeval_weir tv;

    if (a[0] && copy_from_user(&tv, a[0], sizeof(tv)))
        return -EFAULT;
    if (a[0] && (tv.sec < 0 || tv.usec < 0 || tv.usec >= 1000000))
        return -EINVAL;
    if (current_process()->cred.uid)
        return -EPERM;
    if (a[0])
        set_realtime((uint64_t)tv.sec * NSEC_PER_SEC + (uint64_t)tv.usec * NSEC_PER_USEC);
    return 0;
}

long sys_time(const uint64_t a[6])
{
    int64_t now = (int64_t)(clock_realtime_ns() / NSEC_PER_SEC);

    return a[0] && copy_to_user(a[0], &now, sizeof(now)) ? -EFAULT : now;
}

/* ---- sleeping ---- */

/* A relative sleep goes on to the same deadline when no handler ran; what is left goes to
 * left_addr. */
static long sleep_relative(uint64_t deadline_ns, uint64_t left_addr)
{
    struct task *t = current_task();
    uint64_t now;

    if (!sleep_until_ns_interruptible(deadline_ns))
        return 0;
    now = clock_monotonic_ns();
    if (now >= deadline_ns)
        return 0;
    if (left_addr && timespec_put(left_addr, deadline_ns - now))
        return -EFAULT;
    t->restart_block[0] = RESTART_NANOSLEEP;
    t->restart_block[1] = (int64_t)deadline_ns;
    t->restart_block[2] = (int64_t)left_addr;
    return -ERESTART_RESTARTBLOCK;
}

long nanosleep_restart(struct task *t)
{
    return sleep_relative((uint64_t)t->restart_block[1], (uint64_t)t->restart_block[2]);
}

long sys_nanosleep(const uint64_t a[6])
{
    uint64_t ns;
    int error = timespec_get(a[0], &ns);

    return error ? error : sleep_relative(deadline_after(ns), a[1]);
}

static bool clock_can_sleep(uint64_t clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME ||
           clock == CLOCK_TAI;
}

long sys_clock_nanosleep(const uint64_t a[6])
{
    uint64_t ns;
    int error;

    if (!clock_can_sleep(a[0]))
        return (int)a[0] == CLOCK_THREAD_CPUTIME || a[0] > CLOCK_TAI ? -EINVAL : -EOPNOTSUPP;
    error = timespec_get(a[2], &ns);
    if (error)
        return error;
    if (!(a[1] & TIMER_ABSTIME))
        return sleep_relative(deadline_after(ns), a[3]);
    if (a[0] == CLOCK_REALTIME || a[0] == CLOCK_TAI)
        ns = deadline_of_realtime(ns);
    return sleep_until_ns_interruptible(ns) ? -ERESTARTNOHAND : 0;
}
