/* fork, vfork, clone and clone3: a new process, or a new task of the same one. */
#include "task_internal.h"
#include <weir/trap.h>

#define CSIGNAL              0x000000ffUL
#define CLONE_VM             0x00000100UL
#define CLONE_FS             0x00000200UL
#define CLONE_FILES          0x00000400UL
#define CLONE_SIGHAND        0x00000800UL
#define CLONE_PIDFD          0x00001000UL
#define CLONE_VFORK          0x00004000UL
#define CLONE_PARENT         0x00008000UL
#define CLONE_THREAD         0x00010000UL
#define CLONE_SETTLS         0x00080000UL
#define CLONE_PARENT_SETTID  0x00100000UL
#define CLONE_CHILD_CLEARTID 0x00200000UL
#define CLONE_CHILD_SETTID   0x01000000UL
#define CLONE_NEW_ANYTHING   0x7e020080UL /* namespaces */
#define CLONE_CLEAR_SIGHAND  0x100000000UL

struct clone_request {
    uint64_t flags;       /* without the signal */
    int exit_signal;
    uint64_t stack;       /* 0 = the caller's */
    uint64_t parent_tid, child_tid, tls;
};

static int check_flags(const struct clone_request *rq)
{
    uint64_t f = rq->flags;

    if (f & CLONE_NEW_ANYTHING)
        return -EPERM;
    if (((f & CLONE_THREAD) && !(f & CLONE_SIGHAND)) || ((f & CLONE_SIGHAND) && !(f & CLONE_VM)) ||
        ((f & CLONE_SIGHAND) && (f & CLONE_CLEAR_SIGHAND)))
        return -EINVAL;
    /* A task shares everything; a process shares memory at most. Other mixtures are not offered. */
    if (f & CLONE_THREAD)
        return (f & (CLONE_FILES | CLONE_FS)) == (CLONE_FILES | CLONE_FS) ? 0 : -EINVAL;
    if (f & (CLONE_SIGHAND | CLONE_FILES | CLONE_FS | CLONE_PIDFD))
        return -EINVAL;
    return rq->exit_signal >= 0 && rq->exit_signal <= NSIG ? 0 : -EINVAL;
}

/* The thread behind a new task: registers, FPU and thread pointer of the caller. */
static int make_thread(struct task *t, struct aspace *as, const struct clone_request *rq)
{
    struct trapframe regs = *current_task()->regs;
    void *fpu = fpu_alloc();

    if (!fpu)
        return -ENOMEM;
    fpu_copy(fpu, current);
    regs.rax = 0;
    regs.orig_rax = (uint64_t)-1;
    if (rq->stack)
        regs.rsp = rq->stack;
    t->thread = thread_create_user(current->name, &regs, aspace_pagetable(as), fpu,
                                   rq->flags & CLONE_SETTLS ? rq->tls : arch_get_fs_base(), t);
    if (!t->thread) {
        fpu_free(fpu);
        return -ENOMEM;
    }
    thread_set_affinity(t->thread, &current->affinity);
    if (current->entity.nice)
        thread_set_nice(t->thread, current->entity.nice);
    return 0;
}

/* Numbers that the flags want written; faults are the program's problem, as in Linux. */
static void store_tids(const struct clone_request *rq, struct task *t, struct aspace *child_space)
{
    int tid = t->tid;
    int r = 0;

    if (rq->flags & CLONE_PARENT_SETTID)
        r = copy_to_user(rq->parent_tid, &tid, sizeof(tid));
    if (!r && (rq->flags & CLONE_CHILD_SETTID))
        r = aspace_write(child_space, rq->child_tid, &tid, sizeof(tid));
    if (r)
        log_debug("clone: thread number %d could not be stored", tid);
    if (rq->flags & CLONE_CHILD_CLEARTID)
        t->clear_child_tid = rq->child_tid;
}

static long clone_thread(const struct clone_request *rq)
{
    struct process *p = current_process();
    int tid = pid_alloc();
    struct task *t;
    uint64_t flags;
    int r;

    if (tid < 0)
        return tid;
    t = task_alloc(p, tid);
    r = t ? make_thread(t, p->aspace, rq) : -ENOMEM;
    if (r) {
        if (t)
            task_free(t);
        pid_free(tid);
        return r;
    }
    signal_task_init(t);
    t->blocked = current_task()->blocked;
    store_tids(rq, t, p->aspace);
    aspace_get(p->aspace);
    files_get(p->files);

    flags = spin_lock_irqsave(&process_tree_lock);
    task_link_locked(t);
    /* exit_group or exec by another task, which did not see this one in the list. */
    if (p->exiting || p->exec_wait)
        thread_kill(t->thread);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    /* It may end before we return: nothing of t is touched after this. */
    thread_start(t->thread);
    return tid;
}

static void copy_process_fields(struct process *c, struct process *p, const struct clone_request *rq)
{
    c->exit_signal = rq->exit_signal;
    c->umask = p->umask;
    c->cred = p->cred;
    c->arg_start = p->arg_start;
    c->arg_end = p->arg_end;
    c->dumpable = p->dumpable;
    memcpy(c->rlimit, p->rlimit, sizeof(c->rlimit));
    memcpy(c->name, p->name, sizeof(c->name));
    fd_pin_cwd(p, &c->cwd);
    c->exe = p->exe;
    if (c->exe)
        dentry_get(c->exe);
}

/* What a process consists of, before anybody sees it. On failure the caller drops what there is. */
static int build_process(struct process *c, const struct clone_request *rq, struct task **task)
{
    struct process *p = current_process();
    int r;

    copy_process_fields(c, p, rq);
    c->files = files_copy(p->files);
    if (!c->files)
        return -ENOMEM;
    if (rq->flags & CLONE_VM) {
        aspace_get(p->aspace);
        c->aspace = p->aspace;
    } else {
        c->aspace = aspace_fork(p->aspace);
    }
    if (!c->aspace)
        return -ENOMEM;
    /* With CLONE_VM it is the parent's attachments that the child looks at until it execs. */
    if (!(rq->flags & CLONE_VM)) {
        r = sysv_shm_fork(c, p);
        if (r)
            return r;
    }
    *task = task_alloc(c, c->pid);
    if (!*task)
        return -ENOMEM;
    r = make_thread(*task, c->aspace, rq);
    if (r)
        return r;
    signal_fork(c, *task, p);
    if (!(rq->flags & CLONE_VM) || (rq->flags & CLONE_VFORK)) {
        (*task)->altstack_base = current_task()->altstack_base;
        (*task)->altstack_size = current_task()->altstack_size;
        (*task)->altstack_flags = current_task()->altstack_flags;
    }
    if (rq->flags & CLONE_CLEAR_SIGHAND)
        signal_exec(c);
    store_tids(rq, *task, c->aspace);
    return 0;
}

static void discard_process(struct process *c, struct task *t)
{
    sysv_shm_exit(c);
    process_release_resources(c);
    pid_free(c->pid);
    if (t)
        task_free(t);
    process_put(c);
}

/* In the tree from here on. -EAGAIN if the caller is being killed: it must not leave children behind. */
static int publish_process(struct process *c, struct task *t, bool siblings)
{
    struct process *p = current_process();
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    int r = 0;

    if (p->exiting) {
        r = -EAGAIN;
    } else {
        c->pgid = p->pgid;
        c->sid = p->sid;
        process_link_locked(c, siblings && p->parent ? p->parent : p);
        task_link_locked(t);
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return r;
}

static void vfork_wait(struct process *c, struct completion *done)
{
    uint64_t flags;

    /* A kill ends the wait early; the child goes on. */
    if (wait_event_killable(&done->wait, atomic_load_acquire(&done->done)))
        log_debug("vfork: parent of %d killed while waiting", c->pid);
    /* The child completes with this lock held: past it, nobody looks at our stack any more. */
    flags = spin_lock_irqsave(&process_tree_lock);
    c->vfork_done = NULL;
    spin_unlock_irqrestore(&process_tree_lock, flags);
}

static long clone_process(const struct clone_request *rq)
{
    struct completion done;
    struct process *c;
    struct task *t = NULL;
    int pid = pid_alloc();
    int r;

    if (pid < 0)
        return pid;
    c = process_alloc();
    if (!c) {
        pid_free(pid);
        return -ENOMEM;
    }
    c->pid = pid;
    r = build_process(c, rq, &t);
    if (!r && (rq->flags & CLONE_VFORK)) {
        completion_init(&done);
        c->vfork_done = &done;
    }
    if (!r)
        r = publish_process(c, t, rq->flags & CLONE_PARENT);
    if (r) {
        discard_process(c, t);
        return r;
    }
    process_get(c);
    thread_start(t->thread);
    if (rq->flags & CLONE_VFORK)
        vfork_wait(c, &done);
    process_put(c);
    return pid;
}

static long do_clone(const struct clone_request *rq)
{
    int r = check_flags(rq);

    if (r)
        return r;
    return rq->flags & CLONE_THREAD ? clone_thread(rq) : clone_process(rq);
}

long sys_fork(const uint64_t a[6])
{
    const struct clone_request rq = {.exit_signal = SIGCHLD};

    return do_clone(&rq);
}

long sys_vfork(const uint64_t a[6])
{
    const struct clone_request rq = {.flags = CLONE_VM | CLONE_VFORK, .exit_signal = SIGCHLD};

    return do_clone(&rq);
}

long sys_clone(const uint64_t a[6])
{
    const struct clone_request rq = {
        .flags = (a[0] & 0xffffffffUL) & ~CSIGNAL,
        .exit_signal = (int)(a[0] & CSIGNAL),
        .stack = a[1],
        .parent_tid = a[2],
        .child_tid = a[3],
        .tls = a[4],
    };

    /* clone has no place for a pidfd beside PARENT_SETTID; both at once are refused by Linux as well. */
    return do_clone(&rq);
}

/* Linux's struct clone_args; sizes 64, 80 and 88 exist. */
struct clone_args {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
    uint64_t set_tid, set_tid_size, cgroup;
};

long sys_clone3(const uint64_t a[6])
{
    struct clone_args args = {0};
    struct clone_request rq;

    if (a[1] < 64)
        return -EINVAL;
    if (a[1] > sizeof(args))
        return -E2BIG;
    if (copy_from_user(&args, a[0], a[1]))
        return -EFAULT;
    if (args.set_tid || args.set_tid_size || args.cgroup || (args.flags & CSIGNAL) ||
        args.exit_signal > NSIG || (!args.stack != !args.stack_size))
        return -EINVAL;
    rq = (struct clone_request){
        .flags = args.flags,
        .exit_signal = (int)args.exit_signal,
        .stack = args.stack ? args.stack + args.stack_size : 0,
        .parent_tid = args.parent_tid,
        .child_tid = args.child_tid,
        .tls = args.tls,
    };
    if ((rq.flags & CLONE_THREAD) && rq.exit_signal)
        return -EINVAL;
    return do_clone(&rq);
}
