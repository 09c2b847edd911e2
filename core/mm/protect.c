/* mprotect, madvise, msync, mremap: changes to what is mapped already. */
#include "aspace_internal.h"
#include <weir/trap.h>

/* The entry after its area got prot. Sets *lost if some CPU may hold more rights than it gives. */
static uint64_t entry_with_prot(uint64_t e, unsigned prot, bool *lost, struct page **unmapped)
{
    uint64_t n = (e & (PTE_ADDR | PTE_HUGE | PTE_SOFT_COW | PTE_SOFT_FILE | PTE_SOFT_SHARED));

    if (!prot) {
        n |= PTE_SOFT_NONE;
    } else {
        n |= pte_base(prot);
        /* A copy-on-write or page-cache page becomes writable by a fault only. */
        if ((prot & PROT_WRITE) &&
            (!(e & (PTE_SOFT_COW | PTE_SOFT_FILE)) || ((e & PTE_SOFT_FILE) && (e & PTE_WRITE))))
            n |= PTE_WRITE;
    }
    if ((e & PTE_SOFT_FILE) && (e & PTE_WRITE) && !(n & PTE_WRITE))
        *unmapped = pte_page(e);
    if (e & PTE_PRESENT)
        *lost |= !(n & PTE_PRESENT) || ((e & PTE_WRITE) && !(n & PTE_WRITE)) ||
                 (!(e & PTE_NX) && (n & PTE_NX));
    return n;
}

/* One table's part of [va, end), p held. Returns how far it came. */
static uint64_t protect_table_locked(struct aspace *as, uint64_t va, uint64_t end, unsigned prot,
                                     bool *lost)
{
    uint64_t *pmd = pagetable_entry(&as->pt, va, 2, false), *pte;
    uint64_t next = MIN(end, ALIGN_DOWN(va, HUGE_SIZE) + HUGE_SIZE);
    struct page *unmapped = NULL;

    if (!pmd)
        return MIN(end, ALIGN_DOWN(va, 1UL << 30) + (1UL << 30));
    if (pte_read(pmd) & PTE_HUGE) {
        if (prot && next - va == HUGE_SIZE) {
            pte_write(pmd, entry_with_prot(pte_read(pmd), prot, lost, &unmapped));
        } else {
            /* Faults will map the parts. */
            pte_write(pmd, 0);
            as->shared_pages -= HUGE_SIZE / PAGE_SIZE;
            *lost = true;
        }
        return next;
    }
    pte = pte_read(pmd) ? pagetable_entry(&as->pt, va, 1, false) : NULL;
    for (; pte && va < next; va += PAGE_SIZE, pte++) {
        uint64_t e = pte_read(pte);
        if (!e)
            continue;
        unmapped = NULL;
        pte_write(pte, entry_with_prot(e, prot, lost, &unmapped));
        /* Safe before the flush: the page is dirty now and stays so until it is written back. A store that comes
         * in through a stale TLB until the flush is part of the same mprotect call's past. */
        if (unmapped)
            pagecache_unmap_writable(unmapped);
    }
    return next;
}

static void protect_entries(struct vm_area *a, uint64_t start, uint64_t end, unsigned prot)
{
    bool lost = false;

    for (uint64_t va = start; va < end;) {
        spin_lock(&a->as->page_lock);
        va = protect_table_locked(a->as, va, end, prot, &lost);
        spin_unlock(&a->as->page_lock);
        cond_resched();
    }
    if (lost)
        pagetable_flush(&a->as->pt, ALIGN_DOWN(start, HUGE_SIZE), ALIGN_UP(end, HUGE_SIZE));
}

static int protect_area(struct vm_area *a, uint64_t start, uint64_t end, unsigned prot,
                        struct list *dead, struct vm_area **done)
{
    *done = a;
    if (a->prot == prot)
        return 0;
    if ((prot & PROT_WRITE) && (a->flags & AREA_NOT_WRITABLE))
        return -EACCES;
    if (a->start < start && !(a = area_split(a, start)))
        return -ENOMEM;
    if (a->end > end && !area_split(a, end))
        return -ENOMEM;
    a->prot = prot;
    protect_entries(a, a->start, a->end, prot);
    *done = area_merge(a, dead);
    return 0;
}

#define PROT_GROWSDOWN 0x01000000u

int aspace_mprotect(struct aspace *as, uint64_t addr, uint64_t len, unsigned prot)
{
    struct list dead = LIST_INIT(dead);
    uint64_t end = addr + ALIGN_UP(len, PAGE_SIZE);
    struct vm_area *a;
    int r = 0;

    if (!IS_ALIGNED(addr, PAGE_SIZE) || (prot & ~(PROT_READ | PROT_WRITE | PROT_EXEC | PROT_GROWSDOWN)))
        return -EINVAL;
    if (!len)
        return 0;
    if (end < addr || end > USER_TOP)
        return -ENOMEM;
    rw_write_lock(&as->lock);
    a = area_find(as, addr);
    if (a && (prot & PROT_GROWSDOWN) && (a->flags & AREA_GROWSDOWN))
        addr = a->start;
    prot &= PROT_READ | PROT_WRITE | PROT_EXEC;
    while (!r && addr < end) {
        a = area_find(as, addr);
        if (!a || a->start > addr) {
            r = -ENOMEM;
            break;
        }
        r = protect_area(a, addr, end, prot, &dead, &a);
        addr = a->end;
    }
    rw_write_unlock(&as->lock);
    area_free_list(&dead);
    return r;
}

enum { ADVICE_NORMAL = 0, ADVICE_DONTNEED = 4, ADVICE_FREE = 8, ADVICE_REMOVE = 9, ADVICE_DONTFORK = 10,
       ADVICE_DOFORK = 11, ADVICE_LAST_HINT = 25 };

/* DONTNEED and FREE under the area lock held for reading: areas stay, their pages go. */
static int advise_drop(struct aspace *as, uint64_t start, uint64_t end)
{
    struct vm_area *a;
    struct gather g;
    uint64_t at = start;
    int r = 0;

    rw_read_lock(&as->lock);
    gather_begin(&g, as, end - start);
    for (a = area_find(as, start); a && a->start < end; a = area_next(a)) {
        if (a->start > at)
            r = -ENOMEM;
        zap_range(&g, MAX(start, a->start), MIN(end, a->end));
        at = a->end;
    }
    if (at < end)
        r = -ENOMEM;
    gather_end(&g);
    rw_read_unlock(&as->lock);
    return r;
}

static int advise_fork(struct aspace *as, uint64_t start, uint64_t end, bool dont)
{
    struct vm_area *a;
    int r = 0;

    rw_write_lock(&as->lock);
    for (a = area_find(as, start); !r && a && a->start < end; a = area_next(a)) {
        if (a->start < start && !(a = area_split(a, start)))
            r = -ENOMEM;
        else if (a->end > end && !area_split(a, end))
            r = -ENOMEM;
        else
            a->flags = dont ? a->flags | AREA_DONTFORK : a->flags & ~AREA_DONTFORK;
    }
    rw_write_unlock(&as->lock);
    return r;
}

int aspace_madvise(struct aspace *as, uint64_t addr, uint64_t len, int advice)
{
    uint64_t end = addr + ALIGN_UP(len, PAGE_SIZE);

    if (!IS_ALIGNED(addr, PAGE_SIZE) || end < addr || end > USER_TOP)
        return -EINVAL;
    if (advice < ADVICE_NORMAL || advice > ADVICE_LAST_HINT || (advice > 4 && advice < ADVICE_FREE))
        return -EINVAL;
    if (!len)
        return 0;
    switch (advice) {
    case ADVICE_DONTNEED:
    case ADVICE_FREE: /* the pages may be freed at any time: now is one */
        return advise_drop(as, addr, end);
    case ADVICE_REMOVE:
        return -EOPNOTSUPP;
    case ADVICE_DONTFORK:
    case ADVICE_DOFORK:
        return advise_fork(as, addr, end, advice == ADVICE_DONTFORK);
    default:
        return 0; /* hints about use, huge pages, dumps */
    }
}

#define MS_ASYNC 1
#define MS_INVALIDATE 2
#define MS_SYNC 4

int aspace_msync(struct aspace *as, uint64_t addr, uint64_t len, int flags)
{
    uint64_t end = addr + ALIGN_UP(len, PAGE_SIZE);
    int r = 0;

    if (!IS_ALIGNED(addr, PAGE_SIZE) || (flags & ~(MS_ASYNC | MS_INVALIDATE | MS_SYNC)) ||
        ((flags & MS_ASYNC) && (flags & MS_SYNC)))
        return -EINVAL;
    if (end < addr || end > USER_TOP)
        return -ENOMEM;
    while (addr < end) {
        struct file *f = NULL;
        struct vm_area *a;

        rw_read_lock(&as->lock);
        a = area_find(as, addr);
        if (!a || a->start >= end) {
            rw_read_unlock(&as->lock);
            return -ENOMEM;
        }
        if (a->start > addr)
            r = -ENOMEM;
        if ((flags & MS_SYNC) && a->file && !area_is_private(a)) {
            f = a->file;
            file_get(f);
        }
        addr = a->end;
        rw_read_unlock(&as->lock);
        /* Without the area lock: write-back takes the inode's. */
        if (f) {
            int e = file_sync(f, true);
            if (e && !r)
                r = e;
            file_put(f);
        }
    }
    return r;
}
