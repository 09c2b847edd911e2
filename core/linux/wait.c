/* wait4 and waitid. */
#include "task_internal.h"

#define WNOHANG    0x00000001u
#define WUNTRACED  0x00000002u /* WSTOPPED */
#define WEXITED    0x00000004u
#define WCONTINUED 0x00000008u
#define WNOWAIT    0x01000000u
#define WAIT_KNOWN_WAIT4 (WNOHANG | WUNTRACED | WCONTINUED | 0xe0000000u) /* __WNOTHREAD, __WALL, __WCLONE: no difference here */

#define STATUS_CONTINUED 0xffff

struct wait_request {
    int pid, pgid;    /* children with this pid, this group; 0 = any */
    unsigned options;
    /* found: */
    int found, status;
    uint32_t uid;
    uint64_t cpu_time_ns;
    struct process *reaped; /* to be put without the lock */
};

static bool matches(const struct wait_request *w, const struct process *c)
{
    return (!w->pid || c->pid == w->pid) && (!w->pgid || c->pgid == w->pgid);
}

static void fill(struct wait_request *w, struct process *c, int status)
{
    w->found = c->pid;
    w->status = status;
    w->uid = c->cred.uid;
    w->cpu_time_ns = c->utime_ns + c->stime_ns + c->child_time_ns;
}

static bool take_zombie_locked(struct wait_request *w, struct process *c)
{
    if (c->state != PROCESS_ZOMBIE || !(w->options & WEXITED))
        return false;
    fill(w, c, c->exit_status);
    if (!(w->options & WNOWAIT)) {
        current_process()->child_time_ns += w->cpu_time_ns;
        process_reap_locked(c);
        w->reaped = c;
    }
    return true;
}

static bool take_stop_report_locked(struct wait_request *w, struct process *c)
{
    int report;
    bool wanted;

    spin_lock(&c->siglock);
    report = c->stop_report;
    wanted = report == STATUS_CONTINUED ? w->options & WCONTINUED : report && (w->options & WUNTRACED);
    if (wanted && !(w->options & WNOWAIT))
        c->stop_report = 0;
    spin_unlock(&c->siglock);
    if (wanted)
        fill(w, c, report);
    return wanted;
}

/* 1 = found, 0 = children there but nothing to tell, -ECHILD. */
static int scan(struct wait_request *w)
{
    struct process *p = current_process(), *c;
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    int r = -ECHILD;

    list_for_each_entry(c, &p->children, sibling) {
        if (!matches(w, c))
            continue;
        r = 0;
        if (take_zombie_locked(w, c) || (c->state == PROCESS_RUNNING && take_stop_report_locked(w, c))) {
            r = 1;
            break;
        }
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    if (w->reaped)
        process_put(w->reaped);
    return r;
}

/* 0 with w filled (found 0: WNOHANG and nothing), or -errno. */
static long do_wait(struct wait_request *w)
{
    struct process *p = current_process();
    struct waiter waiter;
    int r;

    r = scan(w);
    if (!r && !(w->options & WNOHANG)) {
        waiter_init(&waiter, false);
        for (;;) {
            prepare_wait(&p->child_wait, &waiter, THREAD_INTERRUPTIBLE);
            r = scan(w);
            if (r)
                break;
            if (wait_schedule(THREAD_INTERRUPTIBLE, TIME_FOREVER)) {
                r = -ERESTARTSYS;
                break;
            }
        }
        finish_wait(&p->child_wait, &waiter);
    }
    return r < 0 ? r : 0;
}

struct rusage_weir {
    int64_t utime_sec, utime_usec, stime_sec, stime_usec;
    int64_t counters[14];
};

static int put_rusage(uint64_t addr, uint64_t cpu_time_ns)
{
    struct rusage_weir ru = {
        .utime_sec = (int64_t)(cpu_time_ns / NSEC_PER_SEC),
        .utime_usec = (int64_t)(cpu_time_ns % NSEC_PER_SEC / NSEC_PER_USEC),
    };

    return addr ? copy_to_user(addr, &ru, sizeof(ru)) : 0;
}

long sys_wait4(const uint64_t a[6])
{
    struct wait_request w = {.options = (unsigned)a[2] | WEXITED};
    int pid = (int)a[0];
    long r;

    if ((unsigned)a[2] & ~WAIT_KNOWN_WAIT4)
        return -EINVAL;
    if (pid == INT32_MIN)
        return -ESRCH;
    if (pid > 0)
        w.pid = pid;
    else if (pid != -1)
        w.pgid = pid ? -pid : current_process()->pgid;
    r = do_wait(&w);
    if (r || !w.found)
        return r;
    if (a[1] && copy_to_user(a[1], &w.status, sizeof(w.status)))
        return -EFAULT;
    if (put_rusage(a[3], w.cpu_time_ns))
        return -EFAULT;
    return w.found;
}

enum { P_ALL, P_PID, P_PGID };
enum { CLD_EXITED = 1, CLD_KILLED, CLD_DUMPED, CLD_TRAPPED, CLD_STOPPED, CLD_CONTINUED };

static void wait_siginfo(const struct wait_request *w, int32_t out[32])
{
    int status = w->status;

    memset(out, 0, 128);
    if (!w->found)
        return;
    out[0] = SIGCHLD;
    out[4] = w->found;
    out[5] = (int32_t)w->uid;
    if (status == STATUS_CONTINUED) {
        out[2] = CLD_CONTINUED;
        out[6] = SIGCONT;
    } else if ((status & 0xff) == 0x7f) {
        out[2] = CLD_STOPPED;
        out[6] = (status >> 8) & 0xff;
    } else if (status & 0x7f) {
        out[2] = status & 0x80 ? CLD_DUMPED : CLD_KILLED;
        out[6] = status & 0x7f;
    } else {
        out[2] = CLD_EXITED;
        out[6] = (status >> 8) & 0xff;
    }
}

long sys_waitid(const uint64_t a[6])
{
    struct wait_request w = {.options = (unsigned)a[3]};
    int32_t info[32];
    long r;

    if ((w.options & ~(WNOHANG | WUNTRACED | WEXITED | WCONTINUED | WNOWAIT | 0xe0000000u)) ||
        !(w.options & (WUNTRACED | WEXITED | WCONTINUED)))
        return -EINVAL;
    switch (a[0]) {
    case P_ALL:
        break;
    case P_PID:
        if ((int)a[1] <= 0)
            return -EINVAL;
        w.pid = (int)a[1];
        break;
    case P_PGID:
        if ((int)a[1] < 0)
            return -EINVAL;
        w.pgid = a[1] ? (int)a[1] : current_process()->pgid;
        break;
    default:
        return -EINVAL;
    }
    r = do_wait(&w);
    if (r)
        return r;
    wait_siginfo(&w, info);
    if (a[2] && copy_to_user(a[2], info, sizeof(info)))
        return -EFAULT;
    return put_rusage(a[4], w.cpu_time_ns) ? -EFAULT : 0;
}
