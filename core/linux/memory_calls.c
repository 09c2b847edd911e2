/* System calls about the address space: thin wrappers around core/mm. */
#include "linuxio.h"
#include <weir/aspace.h>
#include <weir/trap.h>

long sys_mmap(const uint64_t a[6])
{
    struct aspace *as = current_process()->aspace;
    struct file_ref ref;
    long r;

    if (a[3] & MAP_ANONYMOUS)
        return aspace_mmap(as, a[0], a[1], (unsigned)a[2], (unsigned)a[3], NULL, 0);
    ref = file_ref_get(a[4]);
    if (!ref.file)
        return -EBADF;
    r = aspace_mmap(as, a[0], a[1], (unsigned)a[2], (unsigned)a[3], ref.file, a[5]);
    file_ref_put(ref);
    return r;
}

long sys_munmap(const uint64_t a[6])
{
    return aspace_munmap(current_process()->aspace, a[0], a[1]);
}

long sys_mprotect(const uint64_t a[6])
{
    return aspace_mprotect(current_process()->aspace, a[0], a[1], (unsigned)a[2]);
}

/* Protection keys: none, so only the key that means no key. */
long sys_pkey_mprotect(const uint64_t a[6])
{
    return (int)a[3] == -1 ? sys_mprotect(a) : -EINVAL;
}

long sys_pkey_alloc(const uint64_t a[6])
{
    return -ENOSPC;
}

long sys_mremap(const uint64_t a[6])
{
    return aspace_mremap(current_process()->aspace, a[0], a[1], a[2], (unsigned)a[3], a[4]);
}

long sys_madvise(const uint64_t a[6])
{
    return aspace_madvise(current_process()->aspace, a[0], a[1], (int)a[2]);
}

long sys_msync(const uint64_t a[6])
{
    return aspace_msync(current_process()->aspace, a[0], a[1], (int)a[2]);
}

long sys_brk(const uint64_t a[6])
{
    return (long)aspace_brk(current_process()->aspace, a[0]);
}

/* Nothing is ever paged out, so locking is filling. */
long sys_mlock(const uint64_t a[6])
{
    uint64_t start = ALIGN_DOWN(a[0], PAGE_SIZE), end = ALIGN_UP(a[0] + a[1], PAGE_SIZE);

    if (end < start || end > USER_TOP)
        return -ENOMEM;
    for (; start < end; start += PAGE_SIZE) {
        int r = aspace_fault(current_process()->aspace, start, FAULT_USER);
        if (r)
            return -ENOMEM;
        cond_resched();
    }
    return 0;
}

long sys_mlock2(const uint64_t a[6])
{
    const uint64_t on_fault = 1;

    if (a[2] & ~on_fault)
        return -EINVAL;
    return a[2] ? 0 : sys_mlock(a);
}

long sys_munlock(const uint64_t a[6])
{
    return 0;
}

long sys_mlockall(const uint64_t a[6])
{
    return a[0] && a[0] < 8 ? 0 : -EINVAL;
}

long sys_munlockall(const uint64_t a[6])
{
    return 0;
}

/* One node: every policy means the same. */
long sys_get_mempolicy(const uint64_t a[6])
{
    int mode = 0;
    uint64_t nodes = 1;
    const uint64_t flag_addr = 2, flag_mems_allowed = 4;

    if (a[4] & ~7UL)
        return -EINVAL;
    if (a[0] && copy_to_user(a[0], &mode, sizeof(mode)))
        return -EFAULT;
    if (a[1]) {
        if (a[2] < 1)
            return -EINVAL;
        if (!(a[4] & flag_mems_allowed) && !(a[4] & flag_addr))
            nodes = 0;
        if (zero_user(a[1], DIV_ROUND_UP(a[2], 64) * 8) || copy_to_user(a[1], &nodes, sizeof(nodes)))
            return -EFAULT;
    }
    return 0;
}

long sys_set_mempolicy(const uint64_t a[6])
{
    return 0;
}

long sys_mbind(const uint64_t a[6])
{
    return 0;
}

long sys_mincore(const uint64_t a[6])
{
    uint64_t pages = DIV_ROUND_UP(a[1], PAGE_SIZE);
    const uint8_t resident = 1;

    /* Everything that is mapped counts as resident: it is never paged out, at most not yet filled. */
    if (!IS_ALIGNED(a[0], PAGE_SIZE))
        return -EINVAL;
    for (uint64_t i = 0; i < pages; i++) {
        if (copy_to_user(a[2] + i, &resident, 1))
            return -EFAULT;
    }
    return 0;
}
