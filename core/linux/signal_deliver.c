/* Acting on pending signals on the way back to ring 3, and restarting the call they interrupted. */
#include "signal_internal.h"

#define SYSCALL_INSTRUCTION 2 /* bytes */

/* Tell the parent that the process stopped or goes on. */
static void notify_parent(struct process *p, int code, int signo)
{
    struct siginfo_weir info = {
        .signo = SIGCHLD, .code = code, .pid = p->pid, .uid = p->cred.uid, .status = signo};
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *parent = p->parent;

    if (parent) {
        if (!(parent->actions[SIGCHLD - 1].flags & SA_NOCLDSTOP))
            (void)signal_send_process(parent, SIGCHLD, &info);
        wake_all(&parent->child_wait);
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
}

/* The default action of a stop signal; siglock is held on entry and released. */
static void stop_process(struct process *p, int signo, uint64_t flags)
{
    struct task *t;

    p->stopped = true;
    p->stop_report = signo << 8 | 0x7f;
    list_for_each_entry (t, &p->tasks, process_link) {
        if (t != current_task())
            thread_interrupt(t->thread);
    }
    spin_unlock_irqrestore(&p->siglock, flags);
    notify_parent(p, CLD_STOPPED, signo);
}

static bool may_run(struct process *p)
{
    return !atomic_load_acquire(&p->stopped) ||
           (atomic_load_relaxed(&current->pending) & THREAD_KILL);
}

static void wait_while_stopped(struct process *p)
{
    (void)wait_event_killable(&p->stop_wait, may_run(p));
    if (p->stop_report == 0xffff &&
        current_task() == list_first(&p->tasks, struct task, process_link))
        notify_parent(p, CLD_CONTINUED, SIGCONT);
}

static __noreturn void die(struct process *p, int signo, const struct siginfo_weir *info,
                           const struct trapframe *tf)
{
    if (SIGBIT(signo) & (SIGNALS_SYNCHRONOUS | SIGBIT(SIGABRT)))
        log_warn("%s (pid %d) ends by signal %d, code %d, at %#lx, address %#lx", p->name, p->pid,
                 signo, info->code, (unsigned long)tf->rip, (unsigned long)info->addr);
    process_exit_group(signo); /* without the bit 0x80: no core file is written */
}

/* What the interrupted call returns when a handler runs now. */
static void restart_with_handler(struct trapframe *tf, uint64_t action_flags)
{
    if ((int64_t)tf->rax == -ERESTARTSYS && (action_flags & SA_RESTART)) {
        tf->rax = tf->orig_rax;
        tf->rip -= SYSCALL_INSTRUCTION;
    } else {
        tf->rax = (uint64_t)-EINTR;
    }
}

static void restart_without_handler(struct trapframe *tf)
{
    switch (-(int64_t)tf->rax) {
    case ERESTART_NEVER:
        tf->rax = (uint64_t)-EINTR;
        return;
    case ERESTART_RESTARTBLOCK:
        tf->rax = SYSCALL_restart_syscall;
        break;
    default:
        tf->rax = tf->orig_rax;
        break;
    }
    tf->rip -= SYSCALL_INSTRUCTION;
}

/* Enter the handler: frame first, then the mask that holds while it runs. */
static void run_handler(struct trapframe *tf, int signo, const struct siginfo_weir *info,
                        const struct sigaction_weir *action)
{
    struct task *t = current_task();
    sigset_weir saved = t->restore_mask ? t->saved_mask : t->blocked;
    sigset_weir mask = t->blocked | action->mask;

    t->restore_mask = false;
    if (signal_frame_push(tf, signo, info, action, saved)) {
        struct siginfo_weir fault = {.signo = SIGSEGV, .code = SI_KERNEL};

        if (signo == SIGSEGV) { /* its own handler cannot run: no second try */
            uint64_t flags = spin_lock_irqsave(&t->process->siglock);

            t->process->actions[SIGSEGV - 1].handler = SIG_DFL_WEIR;
            spin_unlock_irqrestore(&t->process->siglock, flags);
        }
        signal_force(SIGSEGV, &fault);
        return;
    }
    if (!(action->flags & SA_NODEFER))
        mask |= SIGBIT(signo);
    sigmask_set(mask);
}

/* Take one signal and act. False when nothing is left to do. */
static bool deliver_one(struct trapframe *tf, bool *restart)
{
    struct task *t = current_task();
    struct process *p = t->process;
    struct sigaction_weir action;
    struct siginfo_weir info;
    uint64_t flags;
    int signo;

    if (atomic_load_relaxed(&p->exiting))
        task_exit(p->exit_status);
    flags = spin_lock_irqsave(&p->siglock);
    if (p->shared.set & SIGBIT(SIGKILL)) {
        spin_unlock_irqrestore(&p->siglock, flags);
        process_exit_group(SIGKILL);
    }
    if (atomic_load_relaxed(&current->pending) & THREAD_KILL) {
        /* Another task of the process is about to exec. */
        spin_unlock_irqrestore(&p->siglock, flags);
        task_exit(0);
    }
    if (p->stopped) {
        spin_unlock_irqrestore(&p->siglock, flags);
        wait_while_stopped(p);
        return true;
    }
    signo = signal_take_locked(t, ~t->blocked, &info);
    if (!signo) {
        signal_recalc_locked(t);
        spin_unlock_irqrestore(&p->siglock, flags);
        return false;
    }
    action = p->actions[signo - 1];
    if (action.handler != SIG_DFL_WEIR && action.handler != SIG_IGN_WEIR) {
        if (action.flags & SA_RESETHAND)
            p->actions[signo - 1].handler = SIG_DFL_WEIR;
        spin_unlock_irqrestore(&p->siglock, flags);
        if (*restart)
            restart_with_handler(tf, action.flags);
        *restart = false;
        run_handler(tf, signo, &info, &action);
        return true;
    }
    if (action.handler == SIG_DFL_WEIR && (SIGNALS_STOP & SIGBIT(signo))) {
        stop_process(p, signo, flags);
        return true;
    }
    spin_unlock_irqrestore(&p->siglock, flags);
    if (action.handler == SIG_DFL_WEIR && !(SIGNALS_IGNORED & SIGBIT(signo)))
        die(p, signo, &info, tf);
    return true;
}

void signal_return_to_user(struct trapframe *tf)
{
    struct task *t = current_task();
    bool restart = t->restart;

    t->restart = false;
    while (deliver_one(tf, &restart))
        ;
    if (restart)
        restart_without_handler(tf);
    if (t->restore_mask) {
        /* No handler ran under the swapped mask. The old one may let signals in that it kept out.
         */
        mask_restore();
        restart = false;
        while (deliver_one(tf, &restart))
            ;
    }
}
