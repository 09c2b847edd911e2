/* Timers that send signals: setitimer(ITIMER_REAL), alarm, and POSIX timers. */
#include "signal_internal.h"

/* ---- ITIMER_REAL ---- */

static void itimer_fire(struct timer *timer)
{
    struct process *p = container_of(timer, struct process, itimer_real);
    struct siginfo_weir info = {.signo = SIGALRM, .code = SI_KERNEL};
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    uint64_t now = clock_monotonic_ns();

    /* Set anew or switched off while this call-back was on its way: not due. */
    if (p->itimer_deadline_ns && now >= p->itimer_deadline_ns) {
        if (p->itimer_interval_ns) {
            uint64_t missed = (now - p->itimer_deadline_ns) / p->itimer_interval_ns;

            p->itimer_deadline_ns += (missed + 1) * p->itimer_interval_ns;
            timer_arm(timer, p->itimer_deadline_ns);
        } else {
            p->itimer_deadline_ns = 0;
        }
        (void)signal_send_locked(p, NULL, SIGALRM, &info);
    }
    spin_unlock_irqrestore(&p->siglock, flags);
}

void itimer_init(struct process *p)
{
    timer_init(&p->itimer_real, itimer_fire);
    p->itimer_deadline_ns = p->itimer_interval_ns = 0;
    list_init(&p->posix_timers);
}

void itimer_end(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&p->siglock);

    p->itimer_deadline_ns = p->itimer_interval_ns = 0;
    spin_unlock_irqrestore(&p->siglock, flags);
    timer_cancel_sync(&p->itimer_real);
}

static uint64_t itimer_left(const struct process *p)
{
    uint64_t now = clock_monotonic_ns();

    if (!p->itimer_deadline_ns)
        return 0;
    /* An armed timer never reads as 0: that would mean disarmed. */
    return p->itimer_deadline_ns > now ? p->itimer_deadline_ns - now : NSEC_PER_USEC;
}

/* Set anew; what was left before comes back. */
static void itimer_set(uint64_t value_ns, uint64_t interval_ns, uint64_t *old_value,
                       uint64_t *old_interval)
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&p->siglock);

    *old_value = itimer_left(p);
    *old_interval = p->itimer_interval_ns;
    timer_cancel(&p->itimer_real);
    p->itimer_interval_ns = interval_ns;
    p->itimer_deadline_ns = value_ns ? deadline_after(value_ns) : 0;
    if (p->itimer_deadline_ns && p->itimer_deadline_ns != TIME_FOREVER)
        timer_arm(&p->itimer_real, p->itimer_deadline_ns);
    spin_unlock_irqrestore(&p->siglock, flags);
}

struct itimerval_user {
    struct timeval_weir interval, value;
};

static int timeval_ns(const struct timeval_weir *tv, uint64_t *ns)
{
    if (tv->sec < 0 || tv->usec < 0 || tv->usec >= 1000000)
        return -EINVAL;
    *ns = (uint64_t)MIN(tv->sec, (int64_t)(INT64_MAX / NSEC_PER_SEC - 1)) * NSEC_PER_SEC +
          (uint64_t)tv->usec * NSEC_PER_USEC;
    return 0;
}

static struct timeval_weir timeval_of(uint64_t ns)
{
    return (struct timeval_weir){(int64_t)(ns / NSEC_PER_SEC),
                                 (int64_t)(ns % NSEC_PER_SEC / NSEC_PER_USEC)};
}

static long itimer_out(uint64_t addr, uint64_t value, uint64_t interval)
{
    struct itimerval_user out = {timeval_of(interval), timeval_of(value)};

    return addr ? copy_to_user(addr, &out, sizeof(out)) : 0;
}

long sys_setitimer(const uint64_t a[6])
{
    struct itimerval_user in = {{0, 0}, {0, 0}};
    uint64_t value, interval, old_value, old_interval;

    if (a[0] > 2)
        return -EINVAL;
    if (a[1] && copy_from_user(&in, a[1], sizeof(in)))
        return -EFAULT;
    if (timeval_ns(&in.value, &value) || timeval_ns(&in.interval, &interval))
        return -EINVAL;
    if (a[0] !=
        0) /* ITIMER_VIRTUAL and ITIMER_PROF: switching off what is never on is all there is */
        return value ? -ENOSYS : itimer_out(a[2], 0, 0);
    itimer_set(value, interval, &old_value, &old_interval);
    return itimer_out(a[2], old_value, old_interval);
}

long sys_getitimer(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t value, interval, flags;

    if (a[0] > 2)
        return -EINVAL;
    if (a[0] != 0)
        return itimer_out(a[1], 0, 0);
    flags = spin_lock_irqsave(&p->siglock);
    value = itimer_left(p);
    interval = p->itimer_interval_ns;
    spin_unlock_irqrestore(&p->siglock, flags);
    return itimer_out(a[1], value, interval);
}

long sys_alarm(const uint64_t a[6])
{
    uint64_t old_value, old_interval;

    itimer_set((uint64_t)(uint32_t)a[0] * NSEC_PER_SEC, 0, &old_value, &old_interval);
    return (long)((old_value + NSEC_PER_SEC - 1) / NSEC_PER_SEC);
}

/* ---- POSIX timers ---- */

enum { SIGEV_SIGNAL = 0, SIGEV_NONE = 1, SIGEV_THREAD_ID = 4 };

/* Key: I immutable, s siglock of the process. */
struct posix_timer {
    struct list link; /* s */
    int id;           /* I */
    struct timer timer;
    struct process *process;           /* I */
    int clock, signo, notify, tid;     /* I */
    uint64_t value;                    /* I */
    uint64_t deadline_ns, interval_ns; /* s; deadline 0 = disarmed */
    int overrun;                       /* s */
};
#define POSIX_TIMERS_MOST 256

static void posix_timer_fire(struct timer *timer)
{
    struct posix_timer *pt = container_of(timer, struct posix_timer, timer);
    struct process *p = pt->process;
    struct siginfo_weir info = {
        .signo = pt->signo, .code = SI_TIMER, .pid = pt->id, .value = pt->value};
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    uint64_t now = clock_monotonic_ns();

    if (pt->deadline_ns && now >= pt->deadline_ns) {
        pt->overrun = 0;
        if (pt->interval_ns) {
            uint64_t missed = (now - pt->deadline_ns) / pt->interval_ns;

            pt->overrun = (int)MIN(missed, (uint64_t)INT32_MAX);
            pt->deadline_ns += (missed + 1) * pt->interval_ns;
            timer_arm(timer, pt->deadline_ns);
        } else {
            pt->deadline_ns = 0;
        }
        info.uid = (uint32_t)pt->overrun;
        if (pt->notify != SIGEV_NONE) {
            struct task *t =
                pt->notify == SIGEV_THREAD_ID ? signal_find_task_locked(p, pt->tid) : NULL;

            if (t || pt->notify == SIGEV_SIGNAL)
                (void)signal_send_locked(p, t, pt->signo, &info);
        }
    }
    spin_unlock_irqrestore(&p->siglock, flags);
}

static struct posix_timer *posix_timer_find_locked(struct process *p, int id)
{
    struct posix_timer *pt;

    list_for_each_entry (pt, &p->posix_timers, link) {
        if (pt->id == id)
            return pt;
    }
    return NULL;
}

static bool clock_for_timers(uint64_t clock)
{
    return clock <= 1 || clock == 7; /* REALTIME, MONOTONIC, BOOTTIME */
}

long sys_timer_create(const uint64_t a[6])
{
    struct {
        uint64_t value;
        int32_t signo, notify, tid, pad[11];
    } ev = {.signo = SIGALRM, .notify = SIGEV_SIGNAL};
    struct process *p = current_process();
    struct posix_timer *pt;
    uint64_t flags;

    _Static_assert(sizeof(ev) == 64, "Linux struct sigevent");
    if (!clock_for_timers(a[0]))
        return -EINVAL;
    if (a[1] && copy_from_user(&ev, a[1], sizeof(ev)))
        return -EFAULT;
    if ((ev.notify != SIGEV_SIGNAL && ev.notify != SIGEV_NONE && ev.notify != SIGEV_THREAD_ID) ||
        (ev.notify != SIGEV_NONE && (ev.signo < 1 || ev.signo > NSIG)))
        return -EINVAL;
    pt = kzalloc(sizeof(*pt));
    if (!pt)
        return -EAGAIN;
    timer_init(&pt->timer, posix_timer_fire);
    pt->process = p;
    pt->clock = (int)a[0];
    pt->signo = ev.signo;
    pt->notify = ev.notify;
    pt->tid = ev.tid;
    pt->value = ev.value;
    flags = spin_lock_irqsave(&p->siglock);
    while (posix_timer_find_locked(p, pt->id) && pt->id < POSIX_TIMERS_MOST)
        pt->id++;
    if (!a[1])
        pt->value = (uint64_t)pt->id;
    if (pt->id < POSIX_TIMERS_MOST)
        list_add_tail(&p->posix_timers, &pt->link);
    spin_unlock_irqrestore(&p->siglock, flags);
    if (pt->id >= POSIX_TIMERS_MOST) {
        kfree(pt);
        return -EAGAIN;
    }
    return copy_to_user(a[2], &pt->id, sizeof(int));
}

struct itimerspec_user {
    struct timespec_weir interval, value;
};

static void posix_timer_read_locked(const struct posix_timer *pt, uint64_t *value,
                                    uint64_t *interval)
{
    uint64_t now = clock_monotonic_ns();

    *interval = pt->interval_ns;
    *value = !pt->deadline_ns ? 0 : pt->deadline_ns > now ? pt->deadline_ns - now : 1;
}

static long itimerspec_out(uint64_t addr, uint64_t value, uint64_t interval)
{
    long error = timespec_put(addr, interval);

    return error ? error : timespec_put(addr + sizeof(struct timespec_weir), value);
}

#define TIMER_ABSTIME 1u

long sys_timer_settime(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t value, interval, old_value = 0, old_interval = 0, deadline = 0, flags;
    struct posix_timer *pt;
    int error;

    error = timespec_get(a[2], &interval);
    if (!error)
        error = timespec_get(a[2] + sizeof(struct timespec_weir), &value);
    if (error)
        return error;
    flags = spin_lock_irqsave(&p->siglock);
    pt = posix_timer_find_locked(p, (int)a[0]);
    if (pt) {
        posix_timer_read_locked(pt, &old_value, &old_interval);
        timer_cancel(&pt->timer);
        if (value)
            deadline = !(a[1] & TIMER_ABSTIME) ? deadline_after(value)
                       : pt->clock == 0        ? deadline_of_realtime(value)
                                               : MAX(value, 1UL);
        pt->deadline_ns = deadline;
        pt->interval_ns = interval;
        if (deadline && deadline != TIME_FOREVER)
            timer_arm(&pt->timer, deadline);
    }
    spin_unlock_irqrestore(&p->siglock, flags);
    if (!pt)
        return -EINVAL;
    return a[3] ? itimerspec_out(a[3], old_value, old_interval) : 0;
}

long sys_timer_gettime(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t value = 0, interval = 0, flags = spin_lock_irqsave(&p->siglock);
    struct posix_timer *pt = posix_timer_find_locked(p, (int)a[0]);

    if (pt)
        posix_timer_read_locked(pt, &value, &interval);
    spin_unlock_irqrestore(&p->siglock, flags);
    return pt ? itimerspec_out(a[1], value, interval) : -EINVAL;
}

long sys_timer_getoverrun(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    struct posix_timer *pt = posix_timer_find_locked(p, (int)a[0]);
    long result = pt ? pt->overrun : -EINVAL;

    spin_unlock_irqrestore(&p->siglock, flags);
    return result;
}

/* Off the list already, so nobody arms it again. */
static void posix_timer_free(struct posix_timer *pt)
{
    timer_cancel_sync(&pt->timer);
    kfree(pt);
}

long sys_timer_delete(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    struct posix_timer *pt = posix_timer_find_locked(p, (int)a[0]);

    if (pt) {
        list_del(&pt->link);
        pt->deadline_ns = pt->interval_ns = 0;
    }
    spin_unlock_irqrestore(&p->siglock, flags);
    if (!pt)
        return -EINVAL;
    posix_timer_free(pt);
    return 0;
}

void posix_timers_delete(struct process *p)
{
    for (;;) {
        uint64_t flags = spin_lock_irqsave(&p->siglock);
        struct posix_timer *pt = NULL;

        if (!list_empty(&p->posix_timers)) {
            pt = list_first(&p->posix_timers, struct posix_timer, link);
            list_del(&pt->link);
            pt->deadline_ns = pt->interval_ns = 0;
        }
        spin_unlock_irqrestore(&p->siglock, flags);
        if (!pt)
            return;
        posix_timer_free(pt);
    }
}
