/* prctl and arch_prctl. */
#include "task_internal.h"
#include <weir/pagetable.h>
#include <weir/trap.h>

enum {
    PR_SET_PDEATHSIG = 1, PR_GET_PDEATHSIG = 2, PR_GET_DUMPABLE = 3, PR_SET_DUMPABLE = 4, PR_GET_KEEPCAPS = 7,
    PR_SET_KEEPCAPS = 8, PR_GET_TIMING = 13, PR_SET_NAME = 15, PR_GET_NAME = 16, PR_GET_SECCOMP = 21,
    PR_CAPBSET_READ = 23, PR_CAPBSET_DROP = 24, PR_GET_SECUREBITS = 27, PR_SET_SECUREBITS = 28,
    PR_SET_TIMERSLACK = 29, PR_GET_TIMERSLACK = 30, PR_SET_NO_NEW_PRIVS = 38, PR_GET_NO_NEW_PRIVS = 39,
    PR_SET_THP_DISABLE = 41, PR_GET_THP_DISABLE = 42, PR_CAP_AMBIENT = 47, PR_SET_PTRACER = 0x59616d61,
};
#define CAP_LAST 40
#define TIMERSLACK_NS 50000

static long set_pdeath_signal(int signo)
{
    struct process *p = current_process();
    uint64_t flags;

    if (signo < 0 || signo > NSIG)
        return -EINVAL;
    flags = spin_lock_irqsave(&p->siglock);
    p->pdeath_signal = signo;
    spin_unlock_irqrestore(&p->siglock, flags);
    return 0;
}

static long set_name(uint64_t addr)
{
    char name[16] = {0};
    ssize_t n = copy_string_from_user(name, addr, sizeof(name));

    if (n == -EFAULT)
        return n;
    name[15] = '\0'; /* longer ones are cut */
    str_copy(current->name, name, sizeof(current->name));
    if (current_task()->tid == current_process()->pid)
        str_copy(current_process()->name, name, sizeof(current_process()->name));
    return 0;
}

static long ambient(const uint64_t a[6])
{
    enum { IS_SET = 1, RAISE = 2, LOWER = 3, CLEAR_ALL = 4 };

    if (a[1] == CLEAR_ALL)
        return a[2] | a[3] | a[4] ? -EINVAL : 0;
    if (a[2] > CAP_LAST || a[3] || a[4])
        return -EINVAL;
    switch (a[1]) {
    case IS_SET:
    case LOWER:
        return 0;
    case RAISE:
        return -EPERM;
    default:
        return -EINVAL;
    }
}

long sys_prctl(const uint64_t a[6])
{
    struct process *p = current_process();
    int value;

    switch ((int)a[0]) {
    case PR_SET_PDEATHSIG:
        return set_pdeath_signal((int)a[1]);
    case PR_GET_PDEATHSIG:
        value = p->pdeath_signal;
        return copy_to_user(a[1], &value, sizeof(value)) ? -EFAULT : 0;
    case PR_GET_DUMPABLE:
        return p->dumpable;
    case PR_SET_DUMPABLE:
        if (a[1] > 1)
            return -EINVAL;
        p->dumpable = a[1];
        return 0;
    case PR_GET_KEEPCAPS:
    case PR_GET_TIMING:
    case PR_GET_SECCOMP:
    case PR_GET_SECUREBITS:
    case PR_GET_NO_NEW_PRIVS:
    case PR_GET_THP_DISABLE:
        return 0;
    case PR_SET_KEEPCAPS:
    case PR_SET_NO_NEW_PRIVS:
    case PR_SET_THP_DISABLE:
        return a[1] <= 1 ? 0 : -EINVAL;
    case PR_SET_NAME:
        return set_name(a[1]);
    case PR_GET_NAME:
        return copy_to_user(a[1], current->name, 16) ? -EFAULT : 0;
    case PR_CAPBSET_READ:
        return a[1] <= CAP_LAST ? 1 : -EINVAL;
    case PR_CAPBSET_DROP:
        return p->cred.uid ? -EPERM : (a[1] <= CAP_LAST ? 0 : -EINVAL);
    case PR_SET_SECUREBITS:
        return -EPERM;
    case PR_SET_TIMERSLACK:
        return 0;
    case PR_GET_TIMERSLACK:
        return TIMERSLACK_NS;
    case PR_CAP_AMBIENT:
        return ambient(a);
    case PR_SET_PTRACER:
        return 0;
    default:
        return -EINVAL;
    }
}

enum { ARCH_SET_GS = 0x1001, ARCH_SET_FS = 0x1002, ARCH_GET_FS = 0x1003, ARCH_GET_GS = 0x1004 };

long sys_arch_prctl(const uint64_t a[6])
{
    uint64_t base;

    switch ((int)a[0]) {
    case ARCH_SET_FS:
        if (a[1] >= USER_TOP)
            return -EPERM;
        arch_set_fs_base(a[1]);
        return 0;
    case ARCH_GET_FS:
        base = arch_get_fs_base();
        return copy_to_user(a[1], &base, sizeof(base)) ? -EFAULT : 0;
    default:
        return -EINVAL;
    }
}
