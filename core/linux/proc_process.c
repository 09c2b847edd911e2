/* /proc/PID: what procfs asks about processes, and the files of each. */
#include "task_internal.h"
#include <weir/init.h>

static int hook_self_pid(void)
{
    return current->task ? current_process()->pid : 0;
}

static void *hook_get(int pid)
{
    return process_find(pid);
}

static void hook_put(void *p)
{
    process_put(p);
}

static struct dentry *hook_exe(void *arg)
{
    struct process *p = arg;
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct dentry *d = p->exe;

    if (d)
        dentry_get(d);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return d;
}

static struct file *hook_file(void *p, int fd)
{
    struct files *fs = process_files_get(p);
    struct file *f = fs ? files_get_file(fs, fd) : NULL;

    if (fs)
        files_put(fs);
    return f;
}

static int hook_next_fd(void *p, int after)
{
    struct files *fs = process_files_get(p);
    int fd = fs ? files_next_fd(fs, after) : -1;

    if (fs)
        files_put(fs);
    return fd;
}

struct memory_use {
    uint64_t virtual_bytes, private_bytes, shared_bytes;
};

static struct memory_use memory_use(struct process *p)
{
    struct aspace *as = process_aspace_get(p);
    struct memory_use m = {0};

    if (as) {
        aspace_usage(as, &m.virtual_bytes, &m.private_bytes, &m.shared_bytes);
        aspace_put(as);
    }
    return m;
}

static char state_letter(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    char c = p->state == PROCESS_RUNNING ? 'S' : 'Z';
    struct task *t;

    if (c == 'S' && atomic_load_relaxed(&p->stopped))
        c = 'T';
    list_for_each_entry(t, &p->tasks, process_link) {
        if (c == 'S' && atomic_load_relaxed(&t->thread->state) == THREAD_RUNNABLE)
            c = 'R';
    }
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return c;
}

static int parent_pid(struct process *p)
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    int pid = p->parent ? p->parent->pid : 0;

    spin_unlock_irqrestore(&process_tree_lock, flags);
    return pid;
}

static void show_cpus_allowed(struct seq *s)
{
    unsigned n = cpu_count();

    seq_printf(s, "Cpus_allowed_list:\t0");
    if (n > 1)
        seq_printf(s, "-%u", n - 1);
    seq_printf(s, "\nMems_allowed:\t1\nMems_allowed_list:\t0\n");
}

static int show_status(struct seq *s, void *arg)
{
    struct process *p = arg;
    struct memory_use m = memory_use(p);
    char state = state_letter(p);

    seq_printf(s, "Name:\t%s\nUmask:\t%04o\nState:\t%c (%s)\nTgid:\t%d\nPid:\t%d\nPPid:\t%d\nTracerPid:\t0\n", p->name,
               (unsigned)p->umask, state, state == 'R' ? "running" : state == 'Z' ? "zombie" : "sleeping", p->pid, p->pid,
               parent_pid(p));
    seq_printf(s, "Uid:\t%u\t%u\t%u\t%u\nGid:\t%u\t%u\t%u\t%u\nFDSize:\t64\nGroups:\t\n", p->cred.uid, p->cred.uid,
               p->cred.uid, p->cred.uid, p->cred.gid, p->cred.gid, p->cred.gid, p->cred.gid);
    seq_printf(s, "VmPeak:\t%8lu kB\nVmSize:\t%8lu kB\nVmLck:\t       0 kB\nVmHWM:\t%8lu kB\nVmRSS:\t%8lu kB\n",
               (unsigned long)(m.virtual_bytes >> 10), (unsigned long)(m.virtual_bytes >> 10),
               (unsigned long)((m.private_bytes + m.shared_bytes) >> 10),
               (unsigned long)((m.private_bytes + m.shared_bytes) >> 10));
    seq_printf(s, "RssAnon:\t%8lu kB\nRssFile:\t       0 kB\nRssShmem:\t%8lu kB\nVmData:\t%8lu kB\nVmSwap:\t       0 kB\n",
               (unsigned long)(m.private_bytes >> 10), (unsigned long)(m.shared_bytes >> 10),
               (unsigned long)(m.private_bytes >> 10));
    seq_printf(s, "Threads:\t%u\nNoNewPrivs:\t0\nSeccomp:\t0\n", p->task_count);
    show_cpus_allowed(s);
    return 0;
}

static int show_statm(struct seq *s, void *arg)
{
    struct memory_use m = memory_use(arg);

    seq_printf(s, "%lu %lu %lu 0 0 %lu 0\n", (unsigned long)(m.virtual_bytes >> PAGE_SHIFT),
               (unsigned long)((m.private_bytes + m.shared_bytes) >> PAGE_SHIFT),
               (unsigned long)(m.shared_bytes >> PAGE_SHIFT), (unsigned long)(m.private_bytes >> PAGE_SHIFT));
    return 0;
}

static int show_stat(struct seq *s, void *arg)
{
    const uint64_t tick_ns = NSEC_PER_SEC / 100;
    struct process *p = arg;
    struct memory_use m = memory_use(p);

    seq_printf(s, "%d (%s) %c %d %d %d 0 -1 4194304 0 0 0 0 %lu 0 %lu 0 20 0 %u 0 %lu %lu %lu", p->pid, p->name,
               state_letter(p), parent_pid(p), p->pgid, p->sid,
               (unsigned long)(process_cpu_time_ns(p) / tick_ns), (unsigned long)(p->child_time_ns / tick_ns),
               p->task_count, (unsigned long)(p->start_ns / tick_ns), (unsigned long)m.virtual_bytes,
               (unsigned long)((m.private_bytes + m.shared_bytes) >> PAGE_SHIFT));
    seq_printf(s, " 18446744073709551615 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
    return 0;
}

static int show_comm(struct seq *s, void *arg)
{
    struct process *p = arg;

    seq_printf(s, "%s\n", p->name);
    return 0;
}

static int show_maps(struct seq *s, void *arg)
{
    struct aspace *as = process_aspace_get(arg);
    int r = 0;

    if (as) {
        r = aspace_show_maps(as, s);
        aspace_put(as);
    }
    return r;
}

/* The argument area as the program has it now: PostgreSQL writes its process titles there. */
static int show_cmdline(struct seq *s, void *arg)
{
    struct process *p = arg;
    struct aspace *as = process_aspace_get(p);
    uint64_t at = p->arg_start, end = MIN(p->arg_end, at + 4096);
    char buf[256];

    while (as && at < end) {
        size_t part = MIN(end - at, sizeof(buf));
        if (aspace_read(as, at, buf, part))
            break;
        for (size_t i = 0; i < part; i++)
            seq_printf(s, "%c", buf[i]);
        at += part;
    }
    if (as)
        aspace_put(as);
    return 0;
}

static int show_limits(struct seq *s, void *arg)
{
    static const char *const names[RLIMIT_COUNT] = {
        "Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size",
        "Max resident set", "Max processes", "Max open files", "Max locked memory", "Max address space",
        "Max file locks", "Max pending signals", "Max msgqueue size", "Max nice priority",
        "Max realtime priority", "Max realtime timeout",
    };
    struct process *p = arg;

    seq_printf(s, "%-25s %-20s %-20s\n", "Limit", "Soft Limit", "Hard Limit");
    for (unsigned i = 0; i < RLIMIT_COUNT; i++) {
        uint64_t v[2] = {p->rlimit[i].soft, p->rlimit[i].hard};
        seq_printf(s, "%-25s", names[i]);
        for (unsigned k = 0; k < 2; k++) {
            if (v[k] == RLIM_INFINITY)
                seq_printf(s, " %-20s", "unlimited");
            else
                seq_printf(s, " %-20lu", (unsigned long)v[k]);
        }
        seq_printf(s, "\n");
    }
    return 0;
}

static void proc_process_init(void)
{
    static const struct proc_hooks hooks = {
        .self_pid = hook_self_pid,
        .process_get = hook_get,
        .process_put = hook_put,
        .next_pid = process_next_pid,
        .process_exe = hook_exe,
        .process_file = hook_file,
        .next_fd = hook_next_fd,
    };

    proc_set_hooks(&hooks);
    proc_register("self/status", show_status);
    proc_register("self/stat", show_stat);
    proc_register("self/statm", show_statm);
    proc_register("self/comm", show_comm);
    proc_register("self/maps", show_maps);
    proc_register("self/cmdline", show_cmdline);
    proc_register("self/limits", show_limits);
}
INIT_CALL(INIT_LINUX, proc_process_init);
