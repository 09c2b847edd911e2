/*
 * Signals: what is pending where, who gets it, and what happens on the way back to ring 3.
 *
 * A blocked signal stays pending even when its action is to ignore it: a signalfd or sigtimedwait
 * may want it, and PostgreSQL's latches live on exactly that (SIGURG). Only an ignored signal that
 * its receiver does not block is dropped when it is sent.
 */
#include "signal_internal.h"
#include <weir/init.h>

#define RT_QUEUE_MOST 1024

struct rt_signal {
    struct list link;
    struct siginfo_weir info;
};

/* ---- pending sets (siglock held) ---- */

static void pending_init(struct sigpending_weir *q)
{
    q->set = 0;
    list_init(&q->rt_queue);
}

static void pending_discard(struct sigpending_weir *q, sigset_weir set)
{
    struct rt_signal *r, *next;

    q->set &= ~set;
    list_for_each_entry_safe (r, next, &q->rt_queue, link) {
        if (set & SIGBIT(r->info.signo)) {
            list_del(&r->link);
            kfree(r);
        }
    }
}

static unsigned pending_rt_count(const struct sigpending_weir *q)
{
    unsigned n = 0;

    for (const struct list *l = q->rt_queue.next; l != &q->rt_queue; l = l->next)
        n++;
    return n;
}

/* 0 = queued, 1 = a standard signal that is pending already, -EAGAIN = no room. */
static int pending_add(struct sigpending_weir *q, int signo, const struct siginfo_weir *info)
{
    struct rt_signal *r;

    if (signo < SIG_RT_FIRST) {
        if (q->set & SIGBIT(signo))
            return 1;
        q->info[signo] = *info;
        q->info[signo].signo = signo;
        q->set |= SIGBIT(signo);
        return 0;
    }
    if ((q->set & SIGBIT(signo)) && pending_rt_count(q) >= RT_QUEUE_MOST)
        return -EAGAIN;
    r = kmalloc(sizeof(*r));
    if (!r)
        return -EAGAIN;
    r->info = *info;
    r->info.signo = signo;
    list_add_tail(&q->rt_queue, &r->link);
    q->set |= SIGBIT(signo);
    return 0;
}

static void pending_take(struct sigpending_weir *q, int signo, struct siginfo_weir *info)
{
    struct rt_signal *r, *next;
    bool taken = false;

    q->set &= ~SIGBIT(signo);
    if (signo < SIG_RT_FIRST) {
        *info = q->info[signo];
        return;
    }
    list_for_each_entry_safe (r, next, &q->rt_queue, link) {
        if (r->info.signo != signo)
            continue;
        if (taken) { /* another of the same number waits behind it */
            q->set |= SIGBIT(signo);
            break;
        }
        *info = r->info;
        list_del(&r->link);
        kfree(r);
        taken = true;
    }
}

static int lowest_signal(sigset_weir set)
{
    if (set & SIGNALS_SYNCHRONOUS)
        set &= SIGNALS_SYNCHRONOUS;
    return __builtin_ctzll(set) + 1;
}

int signal_take_locked(struct task *t, sigset_weir set, struct siginfo_weir *info)
{
    struct sigpending_weir *q = &t->pending;
    int signo;

    if (!(q->set & set))
        q = &t->process->shared;
    if (!(q->set & set))
        return 0;
    signo = lowest_signal(q->set & set);
    pending_take(q, signo, info);
    return signo;
}

void signal_discard_locked(struct process *p, sigset_weir set)
{
    struct task *t;

    pending_discard(&p->shared, set);
    list_for_each_entry (t, &p->tasks, process_link)
        pending_discard(&t->pending, set);
}

struct task *signal_find_task_locked(struct process *p, int tid)
{
    struct task *t;

    list_for_each_entry (t, &p->tasks, process_link) {
        if (t->tid == tid)
            return t;
    }
    return NULL;
}

/* ---- who is told ---- */

/* Signals that would interrupt the task. */
static sigset_weir task_wants(const struct task *t)
{
    return ~t->blocked | t->wait_set | SIGBIT(SIGKILL);
}

void signal_recalc_locked(struct task *t)
{
    struct process *p = t->process;

    if (((t->pending.set | p->shared.set) & task_wants(t)) || p->stopped)
        atomic_fetch_or(&t->thread->pending, (uint32_t)THREAD_SIGNAL);
    else
        atomic_fetch_and(&t->thread->pending, ~(uint32_t)THREAD_SIGNAL);
}

static struct task *choose_task(struct process *p, int signo)
{
    struct task *t;

    list_for_each_entry (t, &p->tasks, process_link) {
        if (task_wants(t) & SIGBIT(signo))
            return t;
    }
    return NULL;
}

static bool action_ignores(const struct process *p, int signo)
{
    uint64_t handler = p->actions[signo - 1].handler;

    return handler == SIG_IGN_WEIR ||
           (handler == SIG_DFL_WEIR && (SIGNALS_IGNORED & SIGBIT(signo)));
}

/* As Linux: for a process it is the mask of its first task that decides. */
static bool dropped_when_sent(struct process *p, struct task *t, int signo)
{
    if (!action_ignores(p, signo))
        return false;
    if (!t)
        t = list_first(&p->tasks, struct task, process_link);
    return !(t->blocked & SIGBIT(signo));
}

static void send_kill_locked(struct process *p)
{
    struct task *t;

    p->shared.set |= SIGBIT(SIGKILL);
    p->stopped = false;
    list_for_each_entry (t, &p->tasks, process_link)
        thread_kill(t->thread);
    wake_all(&p->stop_wait);
}

/* Stop and continue signals cancel each other; a continued process runs even if it ignores SIGCONT.
 */
static void stop_continue_locked(struct process *p, int signo)
{
    if (SIGNALS_STOP & SIGBIT(signo)) {
        signal_discard_locked(p, SIGBIT(SIGCONT));
    } else if (signo == SIGCONT) {
        signal_discard_locked(p, SIGNALS_STOP);
        if (p->stopped) {
            p->stopped = false;
            p->stop_report = 0xffff;
            wake_all(&p->stop_wait);
        }
    }
}

int signal_send_locked(struct process *p, struct task *t, int signo,
                       const struct siginfo_weir *info)
{
    int result;

    if (list_empty(&p->tasks))
        return 0; /* a zombie */
    if (signo == SIGKILL) {
        send_kill_locked(p);
        return 0;
    }
    stop_continue_locked(p, signo);
    if (dropped_when_sent(p, t, signo))
        return 0;
    result = pending_add(t ? &t->pending : &p->shared, signo, info);
    if (result)
        return result < 0 ? result : 0;
    if (wait_queue_active(&p->signalfd_wait))
        wake_events(&p->signalfd_wait, POLLIN, 1);
    if (!t)
        t = choose_task(p, signo);
    else if (!(task_wants(t) & SIGBIT(signo)))
        t = NULL;
    if (t)
        thread_interrupt(t->thread);
    return 0;
}

int signal_send_process(struct process *p, int signo, const struct siginfo_weir *info)
{
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    int result = signal_send_locked(p, NULL, signo, info);

    spin_unlock_irqrestore(&p->siglock, flags);
    return result;
}

int signal_send_task(struct task *t, int signo, const struct siginfo_weir *info)
{
    uint64_t flags = spin_lock_irqsave(&t->process->siglock);
    int result = signal_send_locked(t->process, t, signo, info);

    spin_unlock_irqrestore(&t->process->siglock, flags);
    return result;
}

void signal_raise(int signo)
{
    struct siginfo_weir info = {.signo = signo,
                                .code = SI_USER,
                                .pid = current_process()->pid,
                                .uid = current_process()->cred.uid};

    (void)signal_send_task(current_task(), signo, &info);
}

void signal_force(int signo, const struct siginfo_weir *info)
{
    struct task *t = current_task();
    struct process *p = t->process;
    struct sigaction_weir *action = &p->actions[signo - 1];
    uint64_t flags = spin_lock_irqsave(&p->siglock);

    if ((t->blocked & SIGBIT(signo)) || action->handler == SIG_IGN_WEIR) {
        action->handler = SIG_DFL_WEIR; /* the instruction would fault for ever */
        t->blocked &= ~SIGBIT(signo);
    }
    pending_discard(&t->pending, SIGBIT(signo));
    (void)pending_add(&t->pending, signo, info);
    signal_recalc_locked(t);
    spin_unlock_irqrestore(&p->siglock, flags);
}

/* ---- masks ---- */

void sigmask_set_locked(struct task *t, sigset_weir mask)
{
    struct process *p = t->process;
    sigset_weir moved;

    mask &= ~SIGNALS_UNBLOCKABLE;
    /* What this task was chosen for and now blocks goes to a task that takes it. */
    moved = p->shared.set & mask & ~t->blocked;
    t->blocked = mask;
    while (unlikely(moved)) {
        struct task *other = choose_task(p, __builtin_ctzll(moved) + 1);

        if (other)
            thread_interrupt(other->thread);
        moved &= moved - 1;
    }
    signal_recalc_locked(t);
}

void sigmask_set(sigset_weir mask)
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&p->siglock);

    sigmask_set_locked(current_task(), mask);
    spin_unlock_irqrestore(&p->siglock, flags);
}

int mask_swap_from_user(uint64_t addr, uint64_t size)
{
    struct task *t = current_task();
    sigset_weir mask;

    if (!addr)
        return 0;
    if (size != sizeof(mask))
        return -EINVAL;
    if (copy_from_user(&mask, addr, sizeof(mask)))
        return -EFAULT;
    t->saved_mask = t->blocked;
    t->restore_mask = true;
    sigmask_set(mask);
    return 0;
}

void mask_restore(void)
{
    struct task *t = current_task();

    if (!t->restore_mask)
        return;
    t->restore_mask = false;
    sigmask_set(t->saved_mask);
}

int signal_take(sigset_weir set, struct siginfo_weir *info)
{
    struct task *t = current_task();
    uint64_t flags = spin_lock_irqsave(&t->process->siglock);
    int signo = signal_take_locked(t, set, info);

    if (signo)
        signal_recalc_locked(t);
    spin_unlock_irqrestore(&t->process->siglock, flags);
    return signo;
}

bool signal_any_pending(sigset_weir set)
{
    struct task *t = current_task();

    return (atomic_load_relaxed(&t->pending.set) | atomic_load_relaxed(&t->process->shared.set)) &
           set;
}

/* ---- life of a process and a task ---- */

void signal_process_init(struct process *p)
{
    spin_init(&p->siglock);
    memset(p->actions, 0, sizeof(p->actions));
    pending_init(&p->shared);
    wait_queue_init(&p->signalfd_wait);
    wait_queue_init(&p->stop_wait);
    p->stopped = false;
    p->stop_report = 0;
    p->pdeath_signal = 0;
    itimer_init(p);
}

void signal_task_init(struct task *t)
{
    pending_init(&t->pending);
    t->blocked = t->saved_mask = t->wait_set = 0;
    t->restore_mask = t->restart = t->fault_disabled = false;
    t->altstack_base = t->altstack_size = 0;
    t->altstack_flags = 0;
    t->restart_block[0] = RESTART_NONE;
}

void signal_task_end(struct task *t)
{
    struct process *p = t->process;
    uint64_t flags = spin_lock_irqsave(&p->siglock);
    sigset_weir moved = p->shared.set & ~t->blocked;

    t->blocked = ~SIGNALS_UNBLOCKABLE;
    pending_discard(&t->pending, ~0ULL);
    while (moved) {
        struct task *other = choose_task(p, __builtin_ctzll(moved) + 1);

        if (other && other != t)
            thread_interrupt(other->thread);
        moved &= moved - 1;
    }
    spin_unlock_irqrestore(&p->siglock, flags);
}

void signal_fork(struct process *child, struct task *child_task, struct process *parent)
{
    struct task *caller = current_task();
    uint64_t flags;

    signal_process_init(child);
    signal_task_init(child_task);
    flags = spin_lock_irqsave(&parent->siglock);
    memcpy(child->actions, parent->actions, sizeof(child->actions));
    child_task->blocked = caller->blocked;
    spin_unlock_irqrestore(&parent->siglock, flags);
    child_task->altstack_base = caller->altstack_base;
    child_task->altstack_size = caller->altstack_size;
    child_task->altstack_flags = caller->altstack_flags;
}

void signal_exec(struct process *p)
{
    struct task *t = current_task();
    uint64_t flags;

    posix_timers_delete(p);
    flags = spin_lock_irqsave(&p->siglock);
    for (unsigned i = 0; i < NSIG; i++) {
        bool ignored = p->actions[i].handler == SIG_IGN_WEIR;

        p->actions[i] = (struct sigaction_weir){.handler = ignored ? SIG_IGN_WEIR : SIG_DFL_WEIR};
    }
    t->altstack_base = t->altstack_size = 0;
    t->altstack_flags = 0;
    spin_unlock_irqrestore(&p->siglock, flags);
}

void signal_process_end(struct process *p)
{
    uint64_t flags;

    itimer_end(p);
    posix_timers_delete(p);
    flags = spin_lock_irqsave(&p->siglock);
    pending_discard(&p->shared, ~0ULL);
    spin_unlock_irqrestore(&p->siglock, flags);
}
