/* Scheduling as programs see it: yielding, affinity, niceness; every thread is SCHED_OTHER. */
#include "task_internal.h"

/* The thread of a task (0 = the caller), referenced; NULL = none. */
static struct thread *thread_of(int tid)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct task *t = tid ? task_find_locked(tid) : current_task();
    struct thread *thread = t ? t->thread : NULL;

    if (thread)
        thread_get(thread);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return thread;
}

long sys_sched_yield(const uint64_t a[6])
{
    thread_yield();
    return 0;
}

long sys_sched_setaffinity(const uint64_t a[6])
{
    struct cpumask mask = {{0}};
    struct thread *t;
    bool any = false;

    if (copy_from_user(mask.bits, a[2], MIN(a[1], sizeof(mask.bits))))
        return -EFAULT;
    for (unsigned i = 0; i < CPU_MAX; i++) {
        if (i >= cpu_count())
            bitmap_clear(mask.bits, i);
        else
            any |= bitmap_test(mask.bits, i);
    }
    if (!any)
        return -EINVAL;
    t = thread_of((int)a[0]);
    if (!t)
        return -ESRCH;
    thread_set_affinity(t, &mask);
    thread_put(t);
    return 0;
}

long sys_sched_getaffinity(const uint64_t a[6])
{
    uint64_t bytes = ALIGN_UP(DIV_ROUND_UP(cpu_count(), 8), 8);
    struct cpumask mask = {{0}};
    struct thread *t;

    if (a[1] < bytes || (a[1] & 7))
        return -EINVAL;
    t = thread_of((int)a[0]);
    if (!t)
        return -ESRCH;
    for (unsigned i = 0; i < cpu_count(); i++) {
        if (bitmap_test(t->affinity.bits, i))
            bitmap_set(mask.bits, i);
    }
    thread_put(t);
    return copy_to_user(a[2], mask.bits, bytes) ? -EFAULT : (long)bytes;
}

/* ---- policy: SCHED_OTHER with priority 0 ---- */

enum { SCHED_OTHER = 0, SCHED_FIFO = 1, SCHED_RR = 2, SCHED_BATCH = 3, SCHED_IDLE = 5 };
#define SCHED_RESET_ON_FORK 0x40000000

static long check_tid(int tid)
{
    struct thread *t = tid < 0 ? NULL : thread_of(tid);

    if (!t)
        return tid < 0 ? -EINVAL : -ESRCH;
    thread_put(t);
    return 0;
}

long sys_sched_getscheduler(const uint64_t a[6])
{
    long r = check_tid((int)a[0]);

    return r ? r : SCHED_OTHER;
}

long sys_sched_setscheduler(const uint64_t a[6])
{
    long r = check_tid((int)a[0]);
    int policy = (int)a[1] & ~SCHED_RESET_ON_FORK, priority;

    if (r)
        return r;
    if (copy_from_user(&priority, a[2], sizeof(priority)))
        return -EFAULT;
    if (policy == SCHED_FIFO || policy == SCHED_RR)
        return -EPERM;
    if ((policy != SCHED_OTHER && policy != SCHED_BATCH && policy != SCHED_IDLE) || priority)
        return -EINVAL;
    return 0;
}

long sys_sched_getparam(const uint64_t a[6])
{
    long r = check_tid((int)a[0]);
    int priority = 0;

    if (r)
        return r;
    return copy_to_user(a[1], &priority, sizeof(priority)) ? -EFAULT : 0;
}

long sys_sched_setparam(const uint64_t a[6])
{
    long r = check_tid((int)a[0]);
    int priority;

    if (r)
        return r;
    if (copy_from_user(&priority, a[1], sizeof(priority)))
        return -EFAULT;
    return priority ? -EINVAL : 0;
}

long sys_sched_get_priority_max(const uint64_t a[6])
{
    return a[0] == SCHED_FIFO || a[0] == SCHED_RR ? 99 : (a[0] <= SCHED_IDLE ? 0 : -EINVAL);
}

long sys_sched_get_priority_min(const uint64_t a[6])
{
    return a[0] == SCHED_FIFO || a[0] == SCHED_RR ? 1 : (a[0] <= SCHED_IDLE ? 0 : -EINVAL);
}

long sys_sched_rr_get_interval(const uint64_t a[6])
{
    const int64_t slice[2] = {0, 3000000};

    return copy_to_user(a[1], slice, sizeof(slice)) ? -EFAULT : 0;
}

/* ---- niceness ---- */

enum { PRIO_PROCESS, PRIO_PGRP, PRIO_USER };

struct nice_search {
    int which, who;
    bool set;
    int nice; /* to set, or the lowest found */
    bool found, denied;
};

static void nice_visit(struct process *p, void *arg)
{
    struct nice_search *s = arg;
    struct task *t;

    if ((s->which == PRIO_PGRP && p->pgid != s->who) ||
        (s->which == PRIO_USER && (int)p->cred.uid != s->who))
        return;
    list_for_each_entry(t, &p->tasks, process_link) {
        if (s->which == PRIO_PROCESS && t->tid != s->who)
            continue;
        s->found = true;
        if (!s->set)
            s->nice = MIN(s->nice, t->thread->entity.nice);
        else if (s->nice < t->thread->entity.nice && current_process()->cred.uid)
            s->denied = true;
        else
            thread_set_nice(t->thread, s->nice);
    }
}

static long nice_search(struct nice_search *s, uint64_t which, uint64_t who)
{
    s->which = (int)which;
    s->who = (int)who;
    if (which > PRIO_USER)
        return -EINVAL;
    if (!s->who)
        s->who = which == PRIO_PROCESS ? current_task()->tid
                 : which == PRIO_PGRP  ? current_process()->pgid
                                       : (int)current_process()->cred.uid;
    process_for_each(nice_visit, s);
    return s->found ? 0 : -ESRCH;
}

long sys_setpriority(const uint64_t a[6])
{
    struct nice_search s = {.set = true, .nice = (int)a[2]};
    long r;

    s.nice = MAX(-20, MIN(19, s.nice));
    r = nice_search(&s, a[0], a[1]);
    return r ? r : (s.denied ? -EACCES : 0);
}

long sys_getpriority(const uint64_t a[6])
{
    struct nice_search s = {.nice = 19};
    long r = nice_search(&s, a[0], a[1]);

    return r ? r : 20 - s.nice;
}

/* ---- membarrier ---- */

enum { MEMBARRIER_QUERY = 0, MEMBARRIER_GLOBAL = 1, MEMBARRIER_GLOBAL_EXPEDITED = 2, MEMBARRIER_REGISTER_GLOBAL = 4,
       MEMBARRIER_PRIVATE_EXPEDITED = 8, MEMBARRIER_REGISTER_PRIVATE = 16 };

static void barrier_interrupt(void *arg)
{
    barrier_full(); /* the program's accesses before the interrupt are seen before those after it */
}

long sys_membarrier(const uint64_t a[6])
{
    struct cpumask all = {{0}};

    switch ((int)a[0]) {
    case MEMBARRIER_QUERY:
        return MEMBARRIER_GLOBAL | MEMBARRIER_GLOBAL_EXPEDITED | MEMBARRIER_REGISTER_GLOBAL |
               MEMBARRIER_PRIVATE_EXPEDITED | MEMBARRIER_REGISTER_PRIVATE;
    case MEMBARRIER_REGISTER_GLOBAL:
    case MEMBARRIER_REGISTER_PRIVATE:
        return 0;
    case MEMBARRIER_GLOBAL:
    case MEMBARRIER_GLOBAL_EXPEDITED:
    case MEMBARRIER_PRIVATE_EXPEDITED:
        for (unsigned i = 0; i < cpu_count(); i++)
            bitmap_set(all.bits, i);
        barrier_full();
        cpu_call(&all, barrier_interrupt, NULL);
        return 0;
    default:
        return -EINVAL;
    }
}
