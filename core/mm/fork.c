/* Doubling an address space: private pages become copy-on-write on both sides, shared ones are mapped by faults. */
#include "aspace_internal.h"

/* The child's entry for the parent's e at *src, which may become read-only. 0 = none. -ENOMEM only for a copy. */
static int copy_entry_locked(uint64_t *src, uint64_t *dst, struct aspace *child)
{
    uint64_t e = pte_read(src);
    struct page *p = pte_page(e), *copy;

    if (e & PTE_SOFT_FILE) {
        page_get(p);
        pte_write(dst, e);
        child->shared_pages++;
        return 0;
    }
    if (p == zero_page) {
        pte_write(dst, e);
        return 0;
    }
    child->anonymous_pages++;
    if (unlikely(page_is_pinned(p))) {
        /* A device writes into it: it stays the parent's alone, or the result would go astray. */
        copy = page_alloc(0, 0);
        if (!copy) {
            child->anonymous_pages--;
            return -ENOMEM;
        }
        copy->flags |= PAGE_ANONYMOUS;
        copy->private = NULL;
        memcpy(page_virt(copy), page_virt(p), PAGE_SIZE);
        pte_write(dst, page_phys(copy) | (e & ~(PTE_ADDR | PTE_SOFT_COW)) | (e & PTE_SOFT_COW));
        return 0;
    }
    page_get(p);
    e = (e & ~PTE_WRITE) | PTE_SOFT_COW;
    pte_write(src, e);
    pte_write(dst, e);
    return 0;
}

/* One table's part of [va, end); both page locks held. Returns how far it came, or -ENOMEM. */
static int64_t copy_table_locked(struct aspace *parent, struct aspace *child, uint64_t va, uint64_t end)
{
    uint64_t *pmd = pagetable_entry(&parent->pt, va, 2, false), *src, *dst = NULL;
    uint64_t next = MIN(end, ALIGN_DOWN(va, HUGE_SIZE) + HUGE_SIZE);

    if (!pmd)
        return (int64_t)MIN(end, ALIGN_DOWN(va, 1UL << 30) + (1UL << 30));
    src = pte_read(pmd) ? pagetable_entry(&parent->pt, va, 1, false) : NULL;
    if (!src)
        return (int64_t)next;
    for (; va < next; va += PAGE_SIZE, src++) {
        if (!pte_read(src))
            continue;
        if (!dst && !(dst = pagetable_entry(&child->pt, ALIGN_DOWN(va, HUGE_SIZE), 1, true)))
            return -ENOMEM;
        if (copy_entry_locked(src, &dst[(va >> PAGE_SHIFT) % 512], child))
            return -ENOMEM;
    }
    return (int64_t)next;
}

static int copy_private(struct vm_area *a, struct aspace *child)
{
    for (uint64_t va = a->start; va < a->end;) {
        int64_t next;
        spin_lock(&a->as->page_lock);
        spin_lock(&child->page_lock);
        next = copy_table_locked(a->as, child, va, a->end);
        spin_unlock(&child->page_lock);
        spin_unlock(&a->as->page_lock);
        if (next < 0)
            return (int)next;
        va = (uint64_t)next;
        cond_resched();
    }
    return 0;
}

/* Shared memory on 2 MiB entries: one word each, worth copying; without memory a fault will do. */
static void copy_huge(struct vm_area *a, struct aspace *child)
{
    uint64_t va = ALIGN_UP(a->start, HUGE_SIZE);

    for (; va + HUGE_SIZE <= a->end; va += HUGE_SIZE) {
        uint64_t *src = pagetable_entry(&a->as->pt, va, 2, false), *dst;
        if (!src || !(pte_read(src) & PTE_HUGE))
            continue;
        dst = pagetable_entry(&child->pt, va, 2, true);
        if (!dst)
            return;
        pte_write(dst, pte_read(src));
        child->shared_pages += HUGE_SIZE / PAGE_SIZE;
    }
}

/* Areas come in ascending order: each belongs to the right of the last one. */
static void append_area(struct aspace *child, struct vm_area *n, struct vm_area *last)
{
    rb_insert(&child->areas, &n->node, last ? &last->node : NULL, last ? &last->node.right : &child->areas.root);
    child->area_count++;
    child->virtual_bytes += n->end - n->start;
}

/* *last is the child's highest area so far. */
static int copy_area(struct vm_area *a, struct aspace *child, struct vm_area **last)
{
    struct vm_area *n = area_alloc(child);

    if (!n)
        return -ENOMEM;
    n->start = a->start;
    n->end = a->end;
    n->offset = a->offset;
    n->prot = a->prot;
    n->flags = a->flags;
    n->has_anonymous = a->has_anonymous;
    n->file = a->file;
    n->shm = a->shm;
    if (n->file)
        file_get(n->file);
    if (n->shm)
        shm_object_get(n->shm);
    /* In the list of mappings behind the parent's area before entries are copied: a truncation that goes on
     * meanwhile cleans the parent first and then the child, so that nothing copied escapes it. */
    mapping_add(n);
    append_area(child, n, *last);
    *last = n;
    if (n->shm)
        copy_huge(a, child);
    else if (area_is_private(a) && a->has_anonymous)
        return copy_private(a, child);
    return 0;
}

struct aspace *aspace_fork(struct aspace *parent)
{
    struct aspace *child = aspace_create();
    struct vm_area *last = NULL;
    int r = 0;

    if (!child)
        return NULL;
    rw_write_lock(&parent->lock);
    child->mmap_top = parent->mmap_top;
    child->brk_start = parent->brk_start;
    child->brk = parent->brk;
    child->stack_top = parent->stack_top;
    child->stack_limit = parent->stack_limit;
    for (struct vm_area *a = area_of(rb_first(&parent->areas)); !r && a; a = area_next(a)) {
        if (!(a->flags & AREA_DONTFORK))
            r = copy_area(a, child, &last);
    }
    /* Once for all: no CPU writes to a page through the right that was taken away. */
    pagetable_flush(&parent->pt, 0, USER_TOP);
    rw_write_unlock(&parent->lock);
    if (r) {
        aspace_put(child);
        return NULL;
    }
    return child;
}
