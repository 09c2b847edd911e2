/*
 * The end of tasks and processes. Order of a process's end: its tasks are gone but one; descriptors closed, shared
 * memory detached, memory given back; only then the parent is told, so that whoever has waited for a process can
 * rely on its locks, pipes and attachments being gone.
 */
#include "task_internal.h"

#define SA_NOCLDWAIT 0x2UL

void vfork_complete(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);

    if (p->vfork_done)
        completion_complete(p->vfork_done);
    p->vfork_done = NULL;
    spin_unlock_irqrestore(&process_tree_lock, flags);
}

static void kill_other_tasks_locked(struct process *p)
{
    struct task *t;

    list_for_each_entry(t, &p->tasks, process_link) {
        if (t != current_task())
            thread_kill(t->thread);
    }
    /* Stopped ones wait for a condition that includes their kill. */
    wake_all(&p->stop_wait);
}

int exit_other_tasks(void)
{
    struct process *p = current_process();
    struct completion alone;
    uint64_t flags;
    int r = 0;

    completion_init(&alone);
    flags = spin_lock_irqsave(&process_tree_lock);
    if (p->exiting || p->exec_wait) {
        r = -EAGAIN;
    } else if (p->task_count > 1) {
        p->exec_wait = &alone;
        kill_other_tasks_locked(p);
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    if (r || !p->exec_wait)
        return r;
    r = wait_event_killable(&alone.wait, atomic_load_acquire(&alone.done));
    flags = spin_lock_irqsave(&process_tree_lock);
    p->exec_wait = NULL;
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return r ? -EAGAIN : 0;
}

static void reparent_children_locked(struct process *p)
{
    struct process *c, *next;
    const struct siginfo_weir info = {.code = 0, .pid = p->pid, .uid = p->cred.uid};

    list_for_each_entry_safe(c, next, &p->children, sibling) {
        list_del(&c->sibling);
        c->parent = process_first;
        list_add_tail(&process_first->children, &c->sibling);
        if (c->state == PROCESS_RUNNING && c->pdeath_signal)
            signal_send_process(c, c->pdeath_signal, &info);
        if (c->state == PROCESS_ZOMBIE) {
            /* Nobody asked for it while its parent lived; the first process may. */
            wake_all(&process_first->child_wait);
        }
    }
}

static bool parent_ignores_children(struct process *parent, int signo)
{
    bool ignores;

    spin_lock(&parent->siglock);
    ignores = signo == SIGCHLD && (parent->actions[SIGCHLD - 1].handler == SIG_IGN_WEIR ||
                                   (parent->actions[SIGCHLD - 1].flags & SA_NOCLDWAIT));
    spin_unlock(&parent->siglock);
    return ignores;
}

enum { CLD_EXITED = 1, CLD_KILLED = 2, CLD_DUMPED = 3 };

static void tell_parent_locked(struct process *p)
{
    struct process *parent = p->parent;
    int status = p->exit_status;
    struct siginfo_weir info = {
        .signo = p->exit_signal,
        .pid = p->pid,
        .uid = p->cred.uid,
        .code = status & 0x7f ? (status & 0x80 ? CLD_DUMPED : CLD_KILLED) : CLD_EXITED,
        .status = status & 0x7f ? status & 0x7f : (status >> 8) & 0xff,
    };

    if (p->exit_signal)
        signal_send_process(parent, p->exit_signal, &info);
    wake_all(&parent->child_wait);
}

/* The last task of p is the caller; its number is off the lists already. */
static void process_end(struct process *p)
{
    bool gone = false;
    uint64_t flags;

    signal_process_end(p);
    sysv_shm_exit(p);
    aspace_use(NULL);
    process_release_resources(p);
    vfork_complete(p);
    if (p == process_first)
        init_ended(p->exit_status);

    flags = spin_lock_irqsave(&process_tree_lock);
    reparent_children_locked(p);
    p->state = PROCESS_ZOMBIE;
    if (parent_ignores_children(p->parent, p->exit_signal)) {
        /* The parent never waits for it; a wait for all children must notice all the same. */
        process_reap_locked(p);
        gone = true;
    }
    tell_parent_locked(p);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    if (gone)
        process_put(p);
}

/* Take the task off its process. True if it was the last one: *status is then the process's. */
static bool leave_process(struct task *t, int status)
{
    struct process *p = t->process;
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    bool last;

    p->utime_ns += current->runtime_ns;
    task_unlink_locked(t);
    last = !p->task_count;
    if (last && !p->exiting) {
        p->exiting = true;
        p->exit_status = status;
    }
    if (p->exec_wait && p->task_count == 1)
        completion_complete(p->exec_wait);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return last;
}

void task_exit(int status)
{
    struct task *t = current_task();
    struct process *p = t->process;
    struct aspace *as = p->aspace;
    struct files *fs = p->files;

    futex_task_exit(t);
    signal_task_end(t);
    if (leave_process(t, status)) {
        process_end(p);
    } else {
        /* This task's own references: p may have dropped its own by now, if the last task was quick. */
        aspace_use(NULL);
        files_put(fs);
        aspace_put(as);
    }
    current->task = NULL;
    task_free(t);
    thread_exit();
}

void process_exit_group(int status)
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);

    if (!p->exiting) {
        p->exiting = true;
        p->exit_status = status;
        kill_other_tasks_locked(p);
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    task_exit(status);
}

long sys_exit(const uint64_t a[6])
{
    task_exit((int)(a[0] & 0xff) << 8);
}

long sys_exit_group(const uint64_t a[6])
{
    process_exit_group((int)(a[0] & 0xff) << 8);
}
