/* The signal system calls. */
#include "signal_internal.h"

long sys_rt_sigaction(const uint64_t a[6])
{
    struct process *p = current_process();
    struct sigaction_weir new_action, old;
    int signo = (int)a[0];
    uint64_t flags;

    if (a[3] != sizeof(sigset_weir) || signo < 1 || signo > NSIG)
        return -EINVAL;
    if (a[1] && (SIGNALS_UNBLOCKABLE & SIGBIT(signo)))
        return -EINVAL;
    if (a[1] && copy_from_user(&new_action, a[1], sizeof(new_action)))
        return -EFAULT;
    flags = spin_lock_irqsave(&p->siglock);
    old = p->actions[signo - 1];
    if (a[1]) {
        new_action.mask &= ~SIGNALS_UNBLOCKABLE;
        p->actions[signo - 1] = new_action;
        /* POSIX: setting to ignore discards what is pending, blocked or not. */
        if (new_action.handler == SIG_IGN_WEIR ||
            (new_action.handler == SIG_DFL_WEIR && (SIGNALS_IGNORED & SIGBIT(signo))))
            signal_discard_locked(p, SIGBIT(signo));
    }
    spin_unlock_irqrestore(&p->siglock, flags);
    if (a[2] && copy_to_user(a[2], &old, sizeof(old)))
        return -EFAULT;
    return 0;
}

enum { SIG_BLOCK = 0, SIG_UNBLOCK = 1, SIG_SETMASK = 2 };

long sys_rt_sigprocmask(const uint64_t a[6])
{
    struct task *t = current_task();
    sigset_weir old = t->blocked, wanted;

    if (a[3] != sizeof(sigset_weir))
        return -EINVAL;
    if (a[1]) {
        if (copy_from_user(&wanted, a[1], sizeof(wanted)))
            return -EFAULT;
        switch ((int)a[0]) {
        case SIG_BLOCK:
            wanted |= old;
            break;
        case SIG_UNBLOCK:
            wanted = old & ~wanted;
            break;
        case SIG_SETMASK:
            break;
        default:
            return -EINVAL;
        }
        if ((wanted & ~SIGNALS_UNBLOCKABLE) != old)
            sigmask_set(wanted);
    }
    if (a[2] && copy_to_user(a[2], &old, sizeof(old)))
        return -EFAULT;
    return 0;
}

long sys_rt_sigpending(const uint64_t a[6])
{
    struct task *t = current_task();
    sigset_weir set = (t->pending.set | t->process->shared.set) & t->blocked;

    if (a[1] > sizeof(set))
        return -EINVAL;
    return copy_to_user(a[0], &set, a[1]);
}

/* Wait with some blocked signals able to wake: they stay blocked, so that none is delivered
 * instead. */
static int wait_for_signal(sigset_weir set, uint64_t deadline_ns, struct siginfo_weir *info)
{
    struct task *t = current_task();
    struct process *p = t->process;
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    int signo = signal_take_locked(t, set, info);

    if (!signo && deadline_ns) {
        int error;

        t->wait_set = set;
        signal_recalc_locked(t);
        spin_unlock_irqrestore(&p->siglock, flags);
        error = sleep_until_ns_interruptible(deadline_ns);
        flags = spin_lock_irqsave(&p->siglock);
        t->wait_set = 0;
        signo = signal_take_locked(t, set, info);
        if (!signo)
            signo = error ? -EINTR : -EAGAIN;
    } else if (!signo) {
        signo = -EAGAIN;
    }
    signal_recalc_locked(t);
    spin_unlock_irqrestore(&p->siglock, flags);
    return signo;
}

long sys_rt_sigtimedwait(const uint64_t a[6])
{
    struct siginfo_weir info;
    uint64_t deadline_ns = TIME_FOREVER, timeout_ns;
    uint8_t out[128];
    sigset_weir set;
    int signo;

    if (a[3] != sizeof(set))
        return -EINVAL;
    if (copy_from_user(&set, a[0], sizeof(set)))
        return -EFAULT;
    if (a[2]) {
        int error = timespec_get(a[2], &timeout_ns);

        if (error)
            return error;
        deadline_ns = timeout_ns ? deadline_after(timeout_ns) : 0;
    }
    signo = wait_for_signal(set & ~SIGNALS_UNBLOCKABLE, deadline_ns, &info);
    if (signo > 0 && a[1]) {
        siginfo_to_user_layout(&info, out);
        if (copy_to_user(a[1], out, sizeof(out)))
            return -EFAULT;
    }
    return signo;
}

/* Sleep until a handler has run. */
static long pause_until_signal(void)
{
    while (!thread_signal_pending(current))
        (void)!sleep_until_ns_interruptible(TIME_FOREVER);
    return -ERESTARTNOHAND;
}

long sys_rt_sigsuspend(const uint64_t a[6])
{
    int error = a[0] ? mask_swap_from_user(a[0], a[1]) : -EFAULT;

    return error ? error : pause_until_signal();
}

long sys_pause(const uint64_t a[6])
{
    return pause_until_signal();
}

long sys_sigaltstack(const uint64_t a[6])
{
    struct task *t = current_task();
    uint64_t rsp = t->regs->rsp;
    struct {
        uint64_t sp;
        int32_t flags, pad;
        uint64_t size;
    } wanted;

    /* Both may name the same memory: the new one is read before the old one is written. */
    if (a[0] && copy_from_user(&wanted, a[0], sizeof(wanted)))
        return -EFAULT;
    if (a[1]) {
        long error = altstack_get(t, rsp, a[1]);

        if (error)
            return error;
    }
    if (!a[0])
        return 0;
    return altstack_set(t, rsp, wanted.sp, wanted.flags, wanted.size);
}

/* ---- sending ---- */

struct kill_request {
    int signo;
    int except; /* pid that is left out, 0 = none */
    struct siginfo_weir info;
    unsigned sent;
    int error;
};

static void kill_request_init(struct kill_request *k, int signo)
{
    struct process *p = current_process();

    *k = (struct kill_request){.signo = signo};
    k->info =
        (struct siginfo_weir){.signo = signo, .code = SI_USER, .pid = p->pid, .uid = p->cred.uid};
}

static void kill_each(struct process *p, void *arg)
{
    struct kill_request *k = arg;

    if (p->pid == k->except)
        return;
    k->sent++;
    if (k->signo) {
        int error = signal_send_process(p, k->signo, &k->info);

        k->error = error ? error : k->error;
    }
}

static long kill_all(int signo)
{
    struct kill_request k;

    kill_request_init(&k, signo);
    k.except = current_process()->pid;
    process_for_each(kill_each, &k);
    return k.sent ? k.error : -ESRCH;
}

static long kill_group(int pgid, int signo)
{
    struct kill_request k;

    kill_request_init(&k, signo);
    process_group_for_each(pgid, kill_each, &k);
    return k.sent ? k.error : -ESRCH;
}

static long kill_one(int pid, int signo)
{
    struct kill_request k;
    struct process *p;

    p = pid == current_process()->pid ? NULL : process_find(pid);
    if (!p && pid != current_process()->pid)
        return -ESRCH;
    kill_request_init(&k, signo);
    kill_each(p ? p : current_process(), &k);
    if (p)
        process_put(p);
    return k.error;
}

long sys_kill(const uint64_t a[6])
{
    int pid = (int)a[0], signo = (int)a[1];

    if (signo < 0 || signo > NSIG)
        return -EINVAL;
    if (pid > 0)
        return kill_one(pid, signo);
    if (pid == 0)
        return kill_group(current_process()->pgid, signo);
    if (pid == -1)
        return kill_all(signo);
    return pid == INT32_MIN ? -ESRCH : kill_group(-pid, signo);
}

/* Send to task tid of p; tid may be gone. */
static long kill_task_of(struct process *p, int tid, int signo, const struct siginfo_weir *info)
{
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    struct task *t = signal_find_task_locked(p, tid);
    long result = t ? 0 : -ESRCH;

    if (t && signo)
        result = signal_send_locked(p, t, signo, info);
    spin_unlock_irqrestore(&p->siglock, flags);
    return result;
}

static long kill_task(int pid, int tid, int signo, const struct siginfo_weir *info)
{
    struct process *p;
    long result;

    if (pid <= 0 || tid <= 0 || signo < 0 || signo > NSIG)
        return -EINVAL;
    p = process_find(pid);
    if (!p)
        return -ESRCH;
    result = kill_task_of(p, tid, signo, info);
    process_put(p);
    return result;
}

static struct siginfo_weir tkill_info(int signo)
{
    struct process *p = current_process();

    return (struct siginfo_weir){
        .signo = signo, .code = SI_TKILL, .pid = p->pid, .uid = p->cred.uid};
}

long sys_tgkill(const uint64_t a[6])
{
    struct siginfo_weir info = tkill_info((int)a[2]);

    return kill_task((int)a[0], (int)a[1], (int)a[2], &info);
}

struct task_search {
    int tid, signo;
    struct siginfo_weir info;
    long result;
};

static void kill_if_task_of(struct process *p, void *arg)
{
    struct task_search *s = arg;

    if (s->result == -ESRCH)
        s->result = kill_task_of(p, s->tid, s->signo, &s->info);
}

long sys_tkill(const uint64_t a[6])
{
    struct task_search s = {(int)a[0], (int)a[1], tkill_info((int)a[1]), -ESRCH};

    if (s.tid <= 0 || s.signo < 0 || s.signo > NSIG)
        return -EINVAL;
    process_for_each(kill_if_task_of, &s);
    return s.result;
}

/* siginfo that a program made up: only codes that no kernel event has. */
static int siginfo_from_user(uint64_t addr, int signo, struct siginfo_weir *info)
{
    uint32_t raw[32];

    if (copy_from_user(raw, addr, sizeof(raw)))
        return -EFAULT;
    *info = (struct siginfo_weir){.signo = signo,
                                  .errno_value = (int)raw[1],
                                  .code = (int)raw[2],
                                  .pid = (int)raw[4],
                                  .uid = raw[5],
                                  .value = raw[6] | (uint64_t)raw[7] << 32};
    return 0;
}

long sys_rt_sigqueueinfo(const uint64_t a[6])
{
    int pid = (int)a[0], signo = (int)a[1];
    struct siginfo_weir info;
    struct process *p;
    int error = siginfo_from_user(a[2], signo, &info);

    if (error)
        return error;
    if (signo < 0 || signo > NSIG)
        return -EINVAL;
    if ((info.code >= 0 || info.code == SI_TKILL) && pid != current_process()->pid)
        return -EPERM;
    p = process_find(pid);
    if (!p)
        return -ESRCH;
    error = signo ? signal_send_process(p, signo, &info) : 0;
    process_put(p);
    return error;
}

long sys_rt_tgsigqueueinfo(const uint64_t a[6])
{
    int signo = (int)a[2];
    struct siginfo_weir info;
    int error = siginfo_from_user(a[3], signo, &info);

    if (error)
        return error;
    if ((info.code >= 0 || info.code == SI_TKILL) && (int)a[0] != current_process()->pid)
        return -EPERM;
    return kill_task((int)a[0], (int)a[1], signo, &info);
}

long sys_restart_syscall(const uint64_t a[6])
{
    struct task *t = current_task();

    switch (t->restart_block[0]) {
    case RESTART_NANOSLEEP:
        return nanosleep_restart(t);
    case RESTART_POLL:
        return poll_restart(t);
    case RESTART_FUTEX:
        return futex_restart(t);
    default:
        return -EINTR;
    }
}
