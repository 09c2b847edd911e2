/*
 * Kernel virtual ranges: [guard page][n pages], the next range's guard closing the end.
 *
 * All bookkeeping is in page-table entries that are not present: the guard's entry holds n, and while a
 * range is free its first entry holds the address of the next free range. So allocating a range needs no memory
 * but page tables, and a stack can be made before the heap works.
 *
 * Freed ranges wait on the lazy list until one flush of all CPUs serves many of them: a stale translation
 * is harmless as long as its address is not given out again.
 */
#include <weir/errno.h>
#include <weir/cpu.h>
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include "core/mm/mm_private.h"

#define GUARD_MARK (1UL << 9)   /* software bits of an entry that is not present */
#define EXACT_MAX 64            /* longer ranges are rounded up to a power of two, so that they fit each other */
#define LISTS (EXACT_MAX + 1 + 64)
#define LAZY_PAGES_MAX 8192

static spinlock_t lock = SPINLOCK_INIT; /* v: leaf but for the page allocator's; interrupts off */
static uint64_t next_va = VMAP_BASE;    /* v */
static uint64_t reusable[LISTS];        /* v flushed ranges, see list_for */
static uint64_t lazy;                   /* v */
static uint64_t lazy_pages;             /* v */

/* Tables of a range exist from its first allocation on and are never freed. */
static uint64_t *entry(uint64_t va)
{
    return kernel_pte(va, false);
}

static uint64_t range_pages(uint64_t va)
{
    uint64_t *guard = entry(va - PAGE_SIZE);
    if (!guard || !(*guard & GUARD_MARK) || (*guard & PTE_PRESENT))
        panic("vmap: %#lx is not the start of a range", (unsigned long)va);
    return (*guard & PTE_ADDR) >> PAGE_SHIFT;
}

static uint64_t link_of(uint64_t va)
{
    uint64_t low = *entry(va) & PTE_ADDR;
    return low ? low | 0xffff000000000000UL : 0;
}

static void push(uint64_t *list, uint64_t va)
{
    *entry(va) = *list & PTE_ADDR;
    *list = va;
}

static size_t round_pages(size_t pages)
{
    return pages <= EXACT_MAX ? pages : 1UL << (64 - __builtin_clzl(pages - 1));
}

/* Ranges of this length, which round_pages has made. */
static uint64_t *list_for(size_t pages)
{
    return &reusable[pages <= EXACT_MAX ? pages : EXACT_MAX + 1 + (size_t)__builtin_ctzl(pages)];
}

static uint64_t range_reuse_locked(size_t pages)
{
    uint64_t *list = list_for(pages), va = *list;
    if (!va)
        return 0;
    *list = link_of(va);
    *entry(va) = 0;
    return va;
}

static uint64_t range_extend_locked(size_t pages)
{
    uint64_t va = next_va + PAGE_SIZE, end = va + (pages << PAGE_SHIFT);
    if (pages > (VMAP_END - VMAP_BASE) >> PAGE_SHIFT || end + PAGE_SIZE > VMAP_END)
        return 0;
    /* The step to the next 2 MiB needs one more table; the last page may lie in it. */
    for (uint64_t at = next_va; at < end; at = ALIGN_DOWN(at, HUGE_SIZE) + HUGE_SIZE) {
        if (!kernel_pte(at, true))
            return 0;
    }
    *entry(next_va) = pages << PAGE_SHIFT | GUARD_MARK;
    next_va = end;
    return va;
}

static void purge(void)
{
    uint64_t flags = spin_lock_irqsave(&lock);
    uint64_t list = lazy;
    lazy = 0;
    lazy_pages = 0;
    spin_unlock_irqrestore(&lock, flags);
    if (!list)
        return;
    kernel_tlb_flush_all();
    flags = spin_lock_irqsave(&lock);
    while (list) {
        uint64_t va = list, pages = range_pages(va);
        list = link_of(va);
        push(list_for(pages), va);
    }
    spin_unlock_irqrestore(&lock, flags);
}

static uint64_t range_alloc(size_t pages)
{
    if (!pages)
        return 0;
    pages = round_pages(pages);
    if (atomic_load_relaxed(&lazy_pages) > LAZY_PAGES_MAX && kernel_can_flush())
        purge();
    uint64_t flags = spin_lock_irqsave(&lock);
    uint64_t va = range_reuse_locked(pages);
    if (!va)
        va = range_extend_locked(pages);
    spin_unlock_irqrestore(&lock, flags);
    return va;
}

static void range_free(uint64_t va, size_t pages)
{
    for (size_t i = 0; i < pages; i++)
        *entry(va + (i << PAGE_SHIFT)) = 0;
    uint64_t flags = spin_lock_irqsave(&lock);
    push(&lazy, va);
    lazy_pages += pages;
    spin_unlock_irqrestore(&lock, flags);
}

void *vmap_reserve(size_t size)
{
    return (void *)range_alloc(ALIGN_UP(size, PAGE_SIZE) >> PAGE_SHIFT);
}

int vmap_install(void *at, struct page *page, unsigned vmap_prot)
{
    uint64_t *pte = entry((uint64_t)at);
    if (!pte)
        return -EINVAL;
    bool was_present = *pte & PTE_PRESENT;
    *pte = page_phys(page) | kernel_pte_bits(vmap_prot);
    /* Replacing a mapping is for its owner alone: other CPUs have not used it. */
    if (was_present)
        kernel_tlb_flush_local((uint64_t)at);
    return 0;
}

void *vmap(struct page *const *pages, size_t count, unsigned vmap_prot)
{
    uint64_t va = range_alloc(count), bits = kernel_pte_bits(vmap_prot);
    for (size_t i = 0; va && i < count; i++)
        *entry(va + (i << PAGE_SHIFT)) = page_phys(pages[i]) | bits;
    return (void *)va;
}

void *vmap_phys(uint64_t phys, size_t size, unsigned vmap_prot)
{
    uint64_t start = ALIGN_DOWN(phys, PAGE_SIZE), end = ALIGN_UP(phys + size, PAGE_SIZE);
    size_t count = (end - start) >> PAGE_SHIFT;
    if (end <= start || (end & ~PTE_ADDR))
        return NULL;
    uint64_t va = range_alloc(count), bits = kernel_pte_bits(vmap_prot);
    for (size_t i = 0; va && i < count; i++)
        *entry(va + (i << PAGE_SHIFT)) = (start + (i << PAGE_SHIFT)) | bits;
    return va ? (void *)(va + (phys - start)) : NULL;
}

void vunmap(void *addr)
{
    if (!addr)
        return;
    uint64_t va = ALIGN_DOWN((uint64_t)addr, PAGE_SIZE);
    range_free(va, range_pages(va));
}

void vmap_free_with_pages(void *addr)
{
    uint64_t va = (uint64_t)addr;
    size_t pages = range_pages(va);
    for (size_t i = 0; i < pages; i++) {
        uint64_t *pte = entry(va + (i << PAGE_SHIFT));
        struct page *p = page_of_phys(*pte & PTE_ADDR);
        bool present = *pte & PTE_PRESENT;
        *pte = 0;
        /* A translation of this CPU may be cached still, but nothing uses the address any more. */
        if (present && p)
            page_put(p);
    }
    range_free(va, pages);
}

bool vmap_contains(const void *v)
{
    return (uint64_t)v >= VMAP_BASE && (uint64_t)v < VMAP_END;
}
