/* Limits, use of resources, and what a program may know of the machine. */
#include "task_internal.h"
#include <weir/random.h>

struct rlimit_weir {
    uint64_t soft, hard;
};

static long get_limit(struct process *p, unsigned which, uint64_t addr)
{
    struct rlimit_weir l;

    if (which >= RLIMIT_COUNT)
        return -EINVAL;
    l = (struct rlimit_weir){p->rlimit[which].soft, p->rlimit[which].hard};
    return copy_to_user(addr, &l, sizeof(l)) ? -EFAULT : 0;
}

static long set_limit(struct process *p, unsigned which, const struct rlimit_weir *l)
{
    if (which >= RLIMIT_COUNT || l->soft > l->hard)
        return -EINVAL;
    if (l->hard > p->rlimit[which].hard && p->cred.uid)
        return -EPERM;
    if (which == RLIMIT_NOFILE && l->hard > (1UL << 20))
        return -EPERM;
    p->rlimit[which].soft = l->soft;
    p->rlimit[which].hard = l->hard;
    if (which == RLIMIT_STACK && p == current_process())
        aspace_set_stack_limit(p->aspace, l->soft);
    return 0;
}

long sys_getrlimit(const uint64_t a[6])
{
    return get_limit(current_process(), (unsigned)a[0], a[1]);
}

long sys_setrlimit(const uint64_t a[6])
{
    struct rlimit_weir l;

    if (copy_from_user(&l, a[1], sizeof(l)))
        return -EFAULT;
    return set_limit(current_process(), (unsigned)a[0], &l);
}

long sys_prlimit64(const uint64_t a[6])
{
    struct process *p = a[0] ? process_find((int)a[0]) : current_process();
    struct rlimit_weir l;
    long r = 0;

    if (!p)
        return -ESRCH;
    if (a[2] && copy_from_user(&l, a[2], sizeof(l)))
        r = -EFAULT;
    if (!r && a[3])
        r = get_limit(p, (unsigned)a[1], a[3]);
    if (!r && a[2])
        r = set_limit(p, (unsigned)a[1], &l);
    if (!r && (unsigned)a[1] >= RLIMIT_COUNT)
        r = -EINVAL;
    if (a[0])
        process_put(p);
    return r;
}

/* ---- time used ---- */

enum { RUSAGE_SELF = 0, RUSAGE_CHILDREN = -1, RUSAGE_THREAD = 1 };

struct rusage_weir {
    int64_t utime_sec, utime_usec, stime_sec, stime_usec;
    int64_t max_rss_kib, unused[11];
    int64_t voluntary_switches, involuntary_switches;
};

long sys_getrusage(const uint64_t a[6])
{
    struct process *p = current_process();
    struct rusage_weir ru = {0};
    uint64_t ns, virtual_bytes, private_bytes, shared_bytes;

    switch ((int)a[0]) {
    case RUSAGE_SELF:
        ns = process_cpu_time_ns(p);
        break;
    case RUSAGE_CHILDREN:
        ns = p->child_time_ns;
        break;
    case RUSAGE_THREAD:
        ns = current->runtime_ns;
        break;
    default:
        return -EINVAL;
    }
    aspace_usage(p->aspace, &virtual_bytes, &private_bytes, &shared_bytes);
    ru.utime_sec = (int64_t)(ns / NSEC_PER_SEC);
    ru.utime_usec = (int64_t)(ns % NSEC_PER_SEC / NSEC_PER_USEC);
    ru.max_rss_kib = (int64_t)((private_bytes + shared_bytes) >> 10);
    ru.voluntary_switches = (int64_t)current->switches;
    return copy_to_user(a[1], &ru, sizeof(ru)) ? -EFAULT : 0;
}

#define TICKS_PER_SEC 100

static int64_t ticks(uint64_t ns)
{
    return (int64_t)(ns / (NSEC_PER_SEC / TICKS_PER_SEC));
}

long sys_times(const uint64_t a[6])
{
    struct process *p = current_process();
    const int64_t t[4] = {ticks(process_cpu_time_ns(p)), 0, ticks(p->child_time_ns), 0};

    if (a[0] && copy_to_user(a[0], t, sizeof(t)))
        return -EFAULT;
    return ticks(clock_monotonic_ns());
}

/* ---- the machine ---- */

long sys_uname(const uint64_t a[6])
{
    struct {
        char system[65], node[65], release[65], version[65], machine[65], domain[65];
    } u;

    memset(&u, 0, sizeof(u));
    str_copy(u.system, "Linux", sizeof(u.system));
    str_copy(u.node, "weir", sizeof(u.node));
    /* The Linux whose calls are offered; glibc refuses to run on one that is too old. */
    str_copy(u.release, "6.1.0-weir", sizeof(u.release));
    str_copy(u.version, "#1 SMP Weir", sizeof(u.version));
    str_copy(u.machine, "x86_64", sizeof(u.machine));
    str_copy(u.domain, "(none)", sizeof(u.domain));
    return copy_to_user(a[0], &u, sizeof(u)) ? -EFAULT : 0;
}

static void count_process(struct process *p, void *arg)
{
}

long sys_sysinfo(const uint64_t a[6])
{
    struct {
        int64_t uptime;
        uint64_t loads[3], total_ram, free_ram, shared_ram, buffer_ram, total_swap, free_swap;
        uint16_t processes, pad;
        uint64_t total_high, free_high;
        uint32_t unit;
        char rest[4];
    } info;

    memset(&info, 0, sizeof(info));
    info.uptime = (int64_t)(clock_monotonic_ns() / NSEC_PER_SEC);
    info.total_ram = mm_total_pages() << PAGE_SHIFT;
    info.free_ram = mm_free_pages() << PAGE_SHIFT;
    info.processes = (uint16_t)process_for_each(count_process, NULL);
    info.unit = 1;
    return copy_to_user(a[0], &info, sizeof(info)) ? -EFAULT : 0;
}

long sys_getrandom(const uint64_t a[6])
{
    const uint64_t known_flags = 7; /* NONBLOCK, RANDOM, INSECURE: never short of entropy once booted */
    uint64_t done = 0, len = MIN(a[1], 0x7fffffffUL);
    uint8_t buf[256];

    if (a[2] & ~known_flags)
        return -EINVAL;
    while (done < len) {
        size_t part = MIN(len - done, sizeof(buf));
        random_bytes(buf, part);
        if (copy_to_user(a[0] + done, buf, part))
            return done ? (long)done : -EFAULT;
        done += part;
        if (thread_signal_pending(current))
            break;
        cond_resched();
    }
    memset(buf, 0, sizeof(buf));
    return (long)done;
}

long sys_getcpu(const uint64_t a[6])
{
    uint32_t cpu = this_cpu()->id, node = 0;

    if (a[0] && copy_to_user(a[0], &cpu, sizeof(cpu)))
        return -EFAULT;
    if (a[1] && copy_to_user(a[1], &node, sizeof(node)))
        return -EFAULT;
    return 0;
}

long sys_personality(const uint64_t a[6])
{
    return 0; /* PER_LINUX, whatever was asked for */
}

/* Restartable sequences are not offered; glibc goes on without. */
long sys_rseq(const uint64_t a[6])
{
    return -ENOSYS;
}
