/* execve: replace the program of the current process. Everything that can fail is done before anything is given up. */
#include "task_internal.h"
#include "linuxio.h"
#include <weir/trap.h>

#define STRING_LIMIT (128UL << 10) /* one argument, as Linux */

/* One string of the program's, with room that grows until it fits. */
static int add_user_string(struct exec_strings *s, uint64_t addr)
{
    ssize_t n = -ENAMETOOLONG;

    for (size_t room = 256; n == -ENAMETOOLONG && room <= STRING_LIMIT; room *= 8) {
        int r = exec_reserve_strings(s, room);
        if (r)
            return r;
        n = copy_string_from_user(s->data + s->len, addr, room);
    }
    if (n < 0)
        return n == -ENAMETOOLONG ? -E2BIG : (int)n;
    s->len += (size_t)n + 1;
    return 0;
}

static int add_user_vector(struct exec_strings *s, uint64_t vector, unsigned *count)
{
    *count = 0;
    while (vector) {
        uint64_t addr;
        int r;
        if (copy_from_user(&addr, vector, sizeof(addr)))
            return -EFAULT;
        if (!addr)
            break;
        r = add_user_string(s, addr);
        if (r)
            return r;
        vector += sizeof(addr);
        (*count)++;
        cond_resched();
    }
    return 0;
}

/* From here on there is no way back: the old program is gone. */
static void commit(struct program_start *start, const char *path)
{
    struct process *p = current_process();
    struct task *t = current_task();
    struct aspace *old = p->aspace;
    struct dentry *old_exe = p->exe;
    uint64_t flags;

    futex_task_exit(t);
    sysv_shm_exit(p);
    aspace_use(start->as);
    flags = spin_lock_irqsave(&process_tree_lock);
    p->aspace = start->as;
    p->exe = start->exe;
    spin_unlock_irqrestore(&process_tree_lock, flags);
    vfork_complete(p);
    aspace_put(old);
    if (old_exe)
        dentry_put(old_exe);
    p->arg_start = start->arg_start;
    p->arg_end = start->arg_end;
    p->execed = true;
    p->dumpable = true;
    process_set_name(p, path);
    str_copy(current->name, p->name, sizeof(current->name));
    files_close_on_exec(p->files);
    signal_exec(p);
    t->altstack_base = t->altstack_size = 0;
    t->altstack_flags = 0;
    t->clear_child_tid = t->set_child_tid = t->robust_list = 0;
    fpu_reset_current();
    arch_set_fs_base(0);
}

static void set_registers(struct trapframe *tf, const struct program_start *start)
{
    memset(tf, 0, sizeof(*tf));
    tf->orig_rax = (uint64_t)-1;
    tf->rip = start->rip;
    tf->rsp = start->rsp;
    tf->cs = TRAP_USER_CS;
    tf->ss = TRAP_USER_SS;
    tf->rflags = 0x202;
}

/* The remaining task answers to the number of the process, whichever it was. */
static void become_first_task(void)
{
    struct process *p = current_process();
    struct task *t = current_task();
    int old = t->tid;
    uint64_t flags;

    if (old == p->pid)
        return;
    flags = spin_lock_irqsave(&process_tree_lock);
    task_unlink_locked(t); /* frees the old number */
    t->tid = p->pid;
    task_link_locked(t);
    spin_unlock_irqrestore(&process_tree_lock, flags);
}

static long do_execve(struct dentry *cwd, const char *path, uint64_t argv, uint64_t envp)
{
    struct process *p = current_process();
    struct exec_strings strings = {0};
    struct program_start start = {0};
    long r = add_user_vector(&strings, argv, &strings.argc);

    /* A program without argv[0] is a trap for its author; Linux gives it an empty one. */
    if (!r && !strings.argc) {
        r = exec_add_string(&strings, "");
        strings.argc = 1;
    }
    if (!r)
        r = add_user_vector(&strings, envp, &strings.envc);
    if (!r)
        r = exec_load(cwd, path, &strings, &p->cred, p->rlimit[RLIMIT_STACK].soft, &start);
    kfree(strings.data);
    if (r)
        return r;
    r = exit_other_tasks();
    if (r) {
        aspace_put(start.as);
        if (start.exe)
            dentry_put(start.exe);
        return r;
    }
    become_first_task();
    commit(&start, path);
    set_registers(current_task()->regs, &start);
    return 0;
}

long sys_execve(const uint64_t a[6])
{
    char *path = path_get(a[0]);
    struct dentry *cwd;
    long r;

    if (is_err(path))
        return ptr_err(path);
    fd_pin_cwd(current_process(), &cwd);
    r = do_execve(cwd, path, a[1], a[2]);
    dentry_put(cwd);
    path_put(path);
    return r;
}

long sys_execveat(const uint64_t a[6])
{
    const uint64_t empty_path = 0x1000;
    char *path;
    struct dentry *cwd;
    long r;

    if (a[4] & empty_path)
        return -EOPNOTSUPP; /* of a descriptor alone */
    path = path_get(a[1]);
    if (is_err(path))
        return ptr_err(path);
    cwd = path_base((int)a[0]);
    if (is_err(cwd)) {
        r = ptr_err(cwd);
    } else {
        r = do_execve(cwd, path, a[2], a[3]);
        dentry_put(cwd);
    }
    path_put(path);
    return r;
}
