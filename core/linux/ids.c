/* Who a process is: numbers, groups, sessions, users. */
#include "task_internal.h"

long sys_getpid(const uint64_t a[6])
{
    return current_process()->pid;
}

long sys_gettid(const uint64_t a[6])
{
    return current_task()->tid;
}

long sys_getppid(const uint64_t a[6])
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *parent = current_process()->parent;
    int pid = parent ? parent->pid : 0;

    spin_unlock_irqrestore(&process_tree_lock, flags);
    return pid;
}

long sys_set_tid_address(const uint64_t a[6])
{
    current_task()->clear_child_tid = a[0];
    return current_task()->tid;
}

long sys_set_robust_list(const uint64_t a[6])
{
    if (a[1] != 24)
        return -EINVAL;
    current_task()->robust_list = a[0];
    return 0;
}

long sys_get_robust_list(const uint64_t a[6])
{
    const uint64_t len = 24;

    if (a[0] && (int)a[0] != current_task()->tid)
        return -EPERM;
    if (copy_to_user(a[1], &current_task()->robust_list, 8) || copy_to_user(a[2], &len, 8))
        return -EFAULT;
    return 0;
}

/* ---- groups and sessions ---- */

/* fn on the process with this pid (0 = the caller), with the tree locked. */
static long with_process(int pid, long (*fn)(struct process *p))
{
    uint64_t flags = spin_lock_irqsave(&process_tree_lock);
    struct process *p = pid ? process_find_locked(pid) : current_process();
    long r = p ? fn(p) : -ESRCH;

    spin_unlock_irqrestore(&process_tree_lock, flags);
    return r;
}

static long pgid_of(struct process *p)
{
    return p->pgid;
}

static long sid_of(struct process *p)
{
    return p->sid;
}

long sys_getpgid(const uint64_t a[6])
{
    return with_process((int)a[0], pgid_of);
}

long sys_getpgrp(const uint64_t a[6])
{
    return with_process(0, pgid_of);
}

long sys_getsid(const uint64_t a[6])
{
    return with_process((int)a[0], sid_of);
}

struct group_search {
    int pgid, sid;
    bool found;
};

static void group_in_session(struct process *p, void *arg)
{
    struct group_search *s = arg;

    if (!s->sid || p->sid == s->sid)
        s->found = true;
}

/* A group of this number, in this session (0 = any), exists at the moment. */
static bool group_exists(int pgid, int sid)
{
    struct group_search s = {pgid, sid, false};

    process_group_for_each(pgid, group_in_session, &s);
    return s.found;
}

long sys_setsid(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t flags;

    /* Only this process can make its number a group's, so looking first is no race. */
    if (group_exists(p->pid, 0))
        return -EPERM;
    flags = spin_lock_irqsave(&process_tree_lock);
    p->sid = p->pgid = p->pid;
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return p->pid;
}

static long setpgid_locked(struct process *p, int pgid, bool group_there)
{
    struct process *self = current_process();

    if (p != self && p->parent != self)
        return -ESRCH;
    if (p != self && p->execed)
        return -EACCES;
    if (p->sid == p->pid || p->sid != self->sid || (pgid != p->pid && !group_there))
        return -EPERM;
    p->pgid = pgid;
    return 0;
}

long sys_setpgid(const uint64_t a[6])
{
    int pid = a[0] ? (int)a[0] : current_process()->pid, pgid = a[1] ? (int)a[1] : pid;
    struct process *p;
    uint64_t flags;
    bool there;
    long r = -ESRCH;

    if (pgid < 0)
        return -EINVAL;
    there = group_exists(pgid, current_process()->sid);
    flags = spin_lock_irqsave(&process_tree_lock);
    p = process_find_locked(pid);
    if (p)
        r = setpgid_locked(p, pgid, there);
    spin_unlock_irqrestore(&process_tree_lock, flags);
    return r;
}

/* ---- users: one for the whole image ---- */

long sys_getuid(const uint64_t a[6])
{
    return current_process()->cred.uid;
}

long sys_geteuid(const uint64_t a[6])
{
    return current_process()->cred.uid;
}

long sys_getgid(const uint64_t a[6])
{
    return current_process()->cred.gid;
}

long sys_getegid(const uint64_t a[6])
{
    return current_process()->cred.gid;
}

static long put_three(const uint64_t a[6], uint32_t id)
{
    for (unsigned i = 0; i < 3; i++) {
        if (copy_to_user(a[i], &id, sizeof(id)))
            return -EFAULT;
    }
    return 0;
}

long sys_getresuid(const uint64_t a[6])
{
    return put_three(a, current_process()->cred.uid);
}

long sys_getresgid(const uint64_t a[6])
{
    return put_three(a, current_process()->cred.gid);
}

/* Changing to what one is already succeeds; root may become another once and for all (nginx, at its start). */
static long change_id(uint32_t *id, uint64_t wanted, bool root)
{
    uint32_t n = (uint32_t)wanted;

    if (n == (uint32_t)-1 || n == *id)
        return 0;
    if (!root)
        return -EPERM;
    *id = n;
    return 0;
}

static bool is_root(void)
{
    return current_process()->cred.uid == 0;
}

long sys_setuid(const uint64_t a[6])
{
    return change_id(&current_process()->cred.uid, a[0], is_root());
}

long sys_setgid(const uint64_t a[6])
{
    return change_id(&current_process()->cred.gid, a[0], is_root());
}

static long change_ids(uint32_t *id, const uint64_t a[6], unsigned count)
{
    bool root = is_root();
    long r = 0;

    for (unsigned i = 0; !r && i < count; i++)
        r = change_id(id, a[i], root);
    return r;
}

long sys_setreuid(const uint64_t a[6])
{
    return change_ids(&current_process()->cred.uid, a, 2);
}

long sys_setregid(const uint64_t a[6])
{
    return change_ids(&current_process()->cred.gid, a, 2);
}

long sys_setresuid(const uint64_t a[6])
{
    return change_ids(&current_process()->cred.uid, a, 3);
}

long sys_setresgid(const uint64_t a[6])
{
    return change_ids(&current_process()->cred.gid, a, 3);
}

/* File access goes by the one uid, so these return what they were told or refuse. */
long sys_setfsuid(const uint64_t a[6])
{
    return current_process()->cred.uid;
}

long sys_setfsgid(const uint64_t a[6])
{
    return current_process()->cred.gid;
}

long sys_getgroups(const uint64_t a[6])
{
    return (int)a[0] < 0 ? -EINVAL : 0;
}

long sys_setgroups(const uint64_t a[6])
{
    return is_root() ? 0 : -EPERM;
}

/* ---- capabilities ---- */

#define CAP_LAST 40
#define CAP_VERSION_1 0x19980330u
#define CAP_VERSION_3 0x20080522u
#define CAP_VERSION_2 0x20071026u

static uint64_t capability_set(void)
{
    return is_root() ? (1ULL << (CAP_LAST + 1)) - 1 : 0;
}

static long capability_words(uint64_t header_addr, unsigned *words)
{
    uint32_t header[2];

    if (copy_from_user(header, header_addr, sizeof(header)))
        return -EFAULT;
    *words = header[0] == CAP_VERSION_1 ? 1 : 2;
    if (header[0] != CAP_VERSION_1 && header[0] != CAP_VERSION_2 && header[0] != CAP_VERSION_3) {
        header[0] = CAP_VERSION_3;
        return copy_to_user(header_addr, header, sizeof(header[0])) ? -EFAULT : -EINVAL;
    }
    return 0;
}

long sys_capget(const uint64_t a[6])
{
    uint64_t set = capability_set();
    uint32_t data[2][3];
    unsigned words;
    long r = capability_words(a[0], &words);

    if (r)
        return a[1] ? r : (r == -EINVAL ? 0 : r); /* asked for the version only */
    for (unsigned i = 0; i < 2; i++) {
        data[i][0] = data[i][1] = (uint32_t)(set >> (32 * i));
        data[i][2] = 0;
    }
    return a[1] && copy_to_user(a[1], data, words * sizeof(data[0])) ? -EFAULT : 0;
}

long sys_capset(const uint64_t a[6])
{
    uint64_t set = capability_set();
    uint32_t data[2][3] = {{0}};
    unsigned words;
    long r = capability_words(a[0], &words);

    if (r)
        return r;
    if (copy_from_user(data, a[1], words * sizeof(data[0])))
        return -EFAULT;
    for (unsigned i = 0; i < 2; i++) {
        uint32_t have = (uint32_t)(set >> (32 * i));
        if ((data[i][0] | data[i][1]) & ~have)
            return -EPERM;
    }
    return 0;
}
