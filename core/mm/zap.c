/* Taking entries out of page tables: clear, make every CPU forget, only then drop the pages. */
#include "aspace_internal.h"

#define GIB (1UL << 30)
/* A gathered pointer with bit 0 set: also a writable mapping of a page-cache page goes. */
#define WAS_WRITABLE 1UL

void gather_begin(struct gather *g, struct aspace *as, uint64_t bytes_expected)
{
    struct page *big = NULL;

    g->as = as;
    g->start = USER_TOP;
    g->end = 0;
    g->count = 0;
    g->dead = false;
    if (bytes_expected > ARRAY_SIZE(g->few) * PAGE_SIZE)
        big = page_alloc(0, 0);
    g->pages = big ? page_virt(big) : g->few;
    g->limit = big ? PAGE_SIZE / sizeof(*g->pages) : ARRAY_SIZE(g->few);
}

void gather_flush(struct gather *g)
{
    if (g->start < g->end && !g->dead)
        pagetable_flush(&g->as->pt, g->start, g->end);
    for (unsigned i = 0; i < g->count; i++) {
        uintptr_t v = (uintptr_t)g->pages[i];
        struct page *p = (struct page *)(v & ~WAS_WRITABLE);
        if (v & WAS_WRITABLE)
            pagecache_unmap_writable(p);
        page_put(p);
    }
    g->count = 0;
    g->start = USER_TOP;
    g->end = 0;
}

void gather_end(struct gather *g)
{
    gather_flush(g);
    if (g->pages != g->few)
        page_put(page_of_phys(direct_to_phys(g->pages)));
}

static void gather_range(struct gather *g, uint64_t start, uint64_t end)
{
    g->start = MIN(g->start, start);
    g->end = MAX(g->end, end);
}

void zap_entry_locked(struct gather *g, uint64_t va, uint64_t e)
{
    uintptr_t p;

    if (e & PTE_PRESENT)
        gather_range(g, va, va + PAGE_SIZE);
    if (e & PTE_SOFT_SHARED) {
        g->as->shared_pages--;
        return;
    }
    if (pte_is_zero_page(e))
        return;
    p = (uintptr_t)pte_page(e);
    if (e & PTE_SOFT_FILE) {
        g->as->shared_pages--;
        if (e & PTE_WRITE)
            p |= WAS_WRITABLE;
    } else {
        g->as->anonymous_pages--;
    }
    g->pages[g->count++] = (struct page *)p;
}

/* The part of [va, end) that one level-1 table holds, or a gap; p held. Returns how far it came. */
static uint64_t zap_table_locked(struct gather *g, uint64_t va, uint64_t end)
{
    uint64_t *pmd = pagetable_entry(&g->as->pt, va, 2, false), *pte;
    uint64_t next;

    if (!pmd)
        return MIN(end, ALIGN_DOWN(va, GIB) + GIB);
    next = MIN(end, ALIGN_DOWN(va, HUGE_SIZE) + HUGE_SIZE);
    if (!pte_read(pmd))
        return next;
    if (pte_read(pmd) & PTE_HUGE) {
        /* Part of it may stay mapped: a fault brings that back, the object has the pages. */
        pte_write(pmd, 0);
        g->as->shared_pages -= HUGE_SIZE / PAGE_SIZE;
        gather_range(g, ALIGN_DOWN(va, HUGE_SIZE), ALIGN_DOWN(va, HUGE_SIZE) + HUGE_SIZE);
        return next;
    }
    pte = pagetable_entry(&g->as->pt, va, 1, false);
    for (; pte && va < next && !gather_full(g); va += PAGE_SIZE, pte++) {
        uint64_t e = pte_read(pte);
        if (!e)
            continue;
        pte_write(pte, 0);
        zap_entry_locked(g, va, e);
    }
    return pte ? va : next;
}

void zap_range(struct gather *g, uint64_t start, uint64_t end)
{
    while (start < end) {
        spin_lock(&g->as->page_lock);
        start = zap_table_locked(g, start, end);
        spin_unlock(&g->as->page_lock);
        if (gather_full(g))
            gather_flush(g);
        cond_resched();
    }
}

void zap_tables(struct aspace *as, uint64_t start, uint64_t end)
{
    struct vm_area *next, *prev;

    /* Small ranges are likely to be mapped again soon: their table may stay. */
    if (end - start < HUGE_SIZE)
        return;
    /* Only whole tables without an area: a truncation may be walking those of a neighbour. */
    next = area_find(as, start);
    prev = next ? area_prev(next) : area_of(rb_last(&as->areas));
    assert(!next || next->start >= end);
    start = ALIGN_DOWN(start, HUGE_SIZE);
    if (prev)
        start = ALIGN_UP(MAX(prev->end, start), HUGE_SIZE);
    end = ALIGN_UP(end, HUGE_SIZE);
    if (next)
        end = MIN(next->start, end);
    end = ALIGN_DOWN(end, HUGE_SIZE);
    if (start < end)
        pagetable_prune(&as->pt, start, end);
}
