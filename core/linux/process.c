/* The tables of processes and tasks: numbers, look-up, references. */
#include "task_internal.h"
#include <weir/init.h>

#define PID_LIMIT 32768
#define HASH_SIZE 1024u

spinlock_t process_tree_lock = SPINLOCK_INIT;
struct process *process_first;

static struct list process_hash[HASH_SIZE]; /* process_tree_lock, as all of these */
static struct list task_hash[HASH_SIZE];
static struct list all_processes = LIST_INIT(all_processes);
static uint64_t pid_used[BITMAP_WORDS(PID_LIMIT)];
static int pid_last;
static bool pid_wrapped;

static void process_tables_init(void)
{
    for (unsigned i = 0; i < HASH_SIZE; i++) {
        list_init(&process_hash[i]);
        list_init(&task_hash[i]);
    }
}
INIT_CALL(INIT_CORE, process_tables_init);

/* A number that still names a group or a session must not become a pid. */
static bool names_group_locked(int pid)
{
    struct process *p;

    list_for_each_entry(p, &all_processes, all_link) {
        if (p->pgid == pid || p->sid == pid)
            return true;
    }
    return false;
}

int pid_alloc(void)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    int result = -EAGAIN;

    /* Cyclic, so that a number comes back as late as possible. */
    for (unsigned tries = 0; tries < 2 * PID_LIMIT; tries++) {
        unsigned n = bitmap_next_clear(pid_used, PID_LIMIT, (unsigned)pid_last + 1);
        if (n >= PID_LIMIT) {
            pid_wrapped = true;
            if (pid_last == 1)
                break;
            pid_last = 1;
            continue;
        }
        pid_last = (int)n;
        if (!n || (pid_wrapped && names_group_locked((int)n)))
            continue;
        bitmap_set(pid_used, n);
        result = (int)n;
        break;
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return result;
}

static void pid_free_locked(int pid)
{
    bitmap_clear(pid_used, (unsigned)pid);
}

void pid_free(int pid)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);

    pid_free_locked(pid);
    spin_unlock_irqrestore(&process_tree_lock, flags);
}

struct process *process_find_locked(int pid)
{
    struct process *p;

    list_for_each_entry(p, &process_hash[(unsigned)pid % HASH_SIZE], pid_link) {
        if (p->pid == pid)
            return p;
    }
    return NULL;
}

struct task *task_find_locked(int tid)
{
    struct task *t;

    list_for_each_entry(t, &task_hash[(unsigned)tid % HASH_SIZE], tid_link) {
        if (t->tid == tid)
            return t;
    }
    return NULL;
}

struct process *process_find(int pid)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *p = process_find_locked(pid);

    if (p)
        process_get(p);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return p;
}

void process_get(struct process *p)
{
    atomic_fetch_add(&p->refcount, 1);
}

void process_put(struct process *p)
{
    if (atomic_fetch_sub(&p->refcount, 1) != 1)
        return;
    assert(list_empty(&p->tasks) && list_empty(&p->children) && list_empty(&p->all_link));
    kfree(p);
}

int process_next_pid(int after)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *p;
    int next = 0;

    list_for_each_entry(p, &all_processes, all_link) {
        if (p->pid > after && (!next || p->pid < next))
            next = p->pid;
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return next;
}

unsigned process_group_for_each(int pgid, void (*fn)(struct process *, void *), void *arg)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *p;
    unsigned n = 0;

    list_for_each_entry(p, &all_processes, all_link) {
        if (p->pgid == pgid) {
            fn(p, arg);
            n++;
        }
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return n;
}

unsigned process_for_each(void (*fn)(struct process *, void *), void *arg)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *p;
    unsigned n = 0;

    list_for_each_entry(p, &all_processes, all_link) {
        fn(p, arg);
        n++;
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return n;
}

struct aspace *process_aspace_get(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct aspace *as = p->aspace;

    if (as)
        aspace_get(as);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return as;
}

struct files *process_files_get(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct files *fs = p->files;

    if (fs)
        files_get(fs);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return fs;
}

uint64_t process_cpu_time_ns(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    uint64_t sum = p->utime_ns + p->stime_ns;
    struct task *t;

    list_for_each_entry(t, &p->tasks, process_link) {
        sum += t->thread->runtime_ns;
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return sum;
}

struct process *process_alloc(void)
{
    struct process *p = kzalloc(sizeof(*p));

    if (!p)
        return NULL;
    p->refcount = 1;
    p->dumpable = true;
    p->start_ns = clock_monotonic_ns();
    list_init(&p->children);
    list_init(&p->sibling);
    list_init(&p->tasks);
    list_init(&p->pid_link);
    list_init(&p->all_link);
    list_init(&p->shm_attachments);
    wait_queue_init(&p->child_wait);
    spin_init(&p->siglock);
    return p;
}

struct task *task_alloc(struct process *p, int tid)
{
    struct task *t = kzalloc(sizeof(*t));

    if (!t)
        return NULL;
    t->tid = tid;
    t->process = p;
    list_init(&t->process_link);
    list_init(&t->tid_link);
    process_get(p);
    return t;
}

void task_free(struct task *t)
{
    struct process *p = t->process;

    if (t->thread)
        thread_put(t->thread);
    kfree(t);
    process_put(p);
}

void process_link_locked(struct process *p, struct process *parent)
{
    list_add(&process_hash[(unsigned)p->pid % HASH_SIZE], &p->pid_link);
    list_add_tail(&all_processes, &p->all_link);
    p->parent = parent;
    if (parent)
        list_add_tail(&parent->children, &p->sibling);
}

void process_reap_locked(struct process *p)
{
    p->state = PROCESS_REAPED;
    list_del(&p->sibling);
    list_del(&p->pid_link);
    list_del(&p->all_link);
    pid_free_locked(p->pid);
}

void task_link_locked(struct task *t)
{
    struct process *p = t->process;

    list_add(&task_hash[(unsigned)t->tid % HASH_SIZE], &t->tid_link);
    spin_lock(&p->siglock);
    list_add_tail(&p->tasks, &t->process_link);
    p->task_count++;
    spin_unlock(&p->siglock);
}

void task_unlink_locked(struct task *t)
{
    struct process *p = t->process;

    list_del(&t->tid_link);
    spin_lock(&p->siglock);
    list_del(&t->process_link);
    p->task_count--;
    spin_unlock(&p->siglock);
    /* The first task's number is the process's, which goes when that is reaped. */
    if (t->tid != p->pid)
        pid_free_locked(t->tid);
}

void process_release_resources(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct aspace *as = p->aspace;
    struct files *fs = p->files;
    struct dentry *cwd = p->cwd, *exe = p->exe;

    p->aspace = NULL;
    p->files = NULL;
    p->cwd = p->exe = NULL;
    spin_unlock_irqrestore(&process_tree_lock, flags);
    if (fs)
        files_put(fs);
    aspace_put(as);
    if (cwd)
        dentry_put(cwd);
    if (exe)
        dentry_put(exe);
}

void process_set_name(struct process *p, const char *path)
{
    const char *slash = strrchr(path, '/');

    str_copy(p->name, slash ? slash + 1 : path, sizeof(p->name));
}
