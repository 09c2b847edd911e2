/*
 * Address spaces of programs, and TLB coherence.
 *
 * Ordering. A CPU that starts to use a table sets its bit in `active` (a locked operation: full barrier) and
 * only then loads CR3, after which it may read entries. A CPU that takes rights away writes the entries, then
 * a full barrier, then reads `active`. So either the flusher sees the bit and calls that CPU, or that CPU's
 * first walk comes after the new entries are visible: never neither.
 * A CPU that stops using a table loads another CR3 first, which drops its translations (none of them is
 * global), and then clears its bit: a flusher that finds the bit clear needs nothing of it.
 * A CPU without a program's thread has the kernel's own tables loaded and no bit anywhere, so nobody
 * interrupts idle CPUs.
 */
#include <weir/errno.h>
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/string.h>
#include "arch/x86_64/arch.h"

#define ENTRIES 512
#define KERNEL_HALF 256
#define INDEX(va, level) (((va) >> (PAGE_SHIFT + 9 * ((level) - 1))) & (ENTRIES - 1))
#define TABLE_BITS (PTE_PRESENT | PTE_WRITE | PTE_USER | PTE_ACCESSED)
/* Above this many pages reloading CR3 is cheaper than INVLPG for each. */
#define INVLPG_MAX 32
#define LEVEL2_SPAN (1UL << 30) /* of one level-2 table */
#define PRUNE_BATCH 64

static uint64_t *table_of(uint64_t entry)
{
    return phys_to_virt(entry & PTE_ADDR);
}

int pagetable_init(struct pagetable *pt)
{
    struct page *p = page_alloc(0, 0);
    if (!p)
        return -ENOMEM;
    pt->root = page_virt(p);
    memset(pt->root, 0, KERNEL_HALF * sizeof *pt->root);
    memcpy(pt->root + KERNEL_HALF, kernel_pml4 + KERNEL_HALF, KERNEL_HALF * sizeof *pt->root);
    memset(&pt->active, 0, sizeof pt->active);
    return 0;
}

static void table_put(uint64_t entry)
{
    page_put(page_of_phys(entry & PTE_ADDR));
}

/* Free what hangs below a table of `level`: tables only, not mapped pages. */
static void tables_free(uint64_t *table, unsigned level, unsigned entries)
{
    for (unsigned i = 0; i < entries; i++) {
        if (!(table[i] & PTE_PRESENT) || (table[i] & PTE_HUGE))
            continue;
        if (level > 2)
            tables_free(table_of(table[i]), level - 1, ENTRIES);
        table_put(table[i]);
    }
}

void pagetable_destroy(struct pagetable *pt)
{
    if (!pt->root)
        return;
    for (unsigned w = 0; w < ARRAY_SIZE(pt->active.bits); w++)
        assert(!atomic_load_relaxed(&pt->active.bits[w]));
    tables_free(pt->root, 4, KERNEL_HALF);
    page_put(page_of_phys(direct_to_phys(pt->root)));
    pt->root = NULL;
}

uint64_t *pagetable_entry(struct pagetable *pt, uint64_t va, unsigned level, bool create)
{
    uint64_t *table = pt->root;
    assert(va < USER_TOP && (level == 1 || level == 2));
    for (unsigned l = 4; l > level; l--) {
        uint64_t *e = &table[INDEX(va, l)];
        if (!(*e & PTE_PRESENT)) {
            struct page *p = create ? page_alloc(0, MM_ZERO) : NULL;
            if (!p)
                return NULL;
            /* Release: walkers, hardware ones too, see the cleared table before the entry. */
            atomic_store_release(e, page_phys(p) | TABLE_BITS);
        } else if (*e & PTE_HUGE) {
            return NULL;
        }
        table = table_of(*e);
    }
    return &table[INDEX(va, level)];
}

static bool table_is_empty(const uint64_t *table)
{
    for (unsigned i = 0; i < ENTRIES; i++) {
        if (table[i])
            return false;
    }
    return true;
}

/* Unlink empty level-1 tables of [start, end) into out; returns how many, and in *next where to go on. */
static unsigned prune_collect(struct pagetable *pt, uint64_t start, uint64_t end, uint64_t *out, uint64_t *next)
{
    unsigned n = 0;
    uint64_t va = ALIGN_DOWN(start, HUGE_SIZE);
    while (va < end && n < PRUNE_BATCH) {
        uint64_t *e = pagetable_entry(pt, va, 2, false);
        if (!e) {
            va = ALIGN_DOWN(va, LEVEL2_SPAN) + LEVEL2_SPAN;
            continue;
        }
        if ((*e & PTE_PRESENT) && !(*e & PTE_HUGE) && table_is_empty(table_of(*e))) {
            out[n++] = *e;
            atomic_store_relaxed(e, 0);
        }
        va += HUGE_SIZE;
    }
    *next = va;
    return n;
}

void pagetable_prune(struct pagetable *pt, uint64_t start, uint64_t end)
{
    uint64_t tables[PRUNE_BATCH];
    end = MIN(end, USER_TOP);
    while (start < end) {
        uint64_t next;
        unsigned n = prune_collect(pt, start, end, tables, &next);
        /* CPUs cache upper entries as well; INVLPG and CR3 drop those too. Whole range: one INVLPG drops
         * the upper entries of its own address only. */
        if (n)
            pagetable_flush(pt, ALIGN_DOWN(start, HUGE_SIZE), next);
        while (n)
            table_put(tables[--n]);
        start = next;
    }
}

void pagetable_load(struct pagetable *pt)
{
    struct cpu *c = this_cpu();
    struct pagetable *old = c->pagetable;
    if (old == pt)
        return;
    /* Full barrier between bit and walk: see the head of this file. */
    if (pt)
        bitmap_test_and_set_atomic(pt->active.bits, c->id);
    c->pagetable = pt;
    write_cr3(pt ? direct_to_phys(pt->root) : paging_kernel_root_phys());
    if (old)
        bitmap_test_and_clear_atomic(old->active.bits, c->id);
}

struct flush {
    struct pagetable *pt;
    uint64_t start, end;
};

static void flush_here(void *arg)
{
    const struct flush *f = arg;
    /* It may have left meanwhile, which flushed it. */
    if (this_cpu()->pagetable != f->pt)
        return;
    if (f->end - f->start > INVLPG_MAX * PAGE_SIZE) {
        write_cr3(read_cr3());
        return;
    }
    for (uint64_t va = f->start; va < f->end; va += PAGE_SIZE)
        invlpg(va);
}

void pagetable_flush(struct pagetable *pt, uint64_t start, uint64_t end)
{
    struct flush f = { pt, ALIGN_DOWN(start, PAGE_SIZE), end };
    struct cpumask active;
    bool others = false;
    unsigned self = this_cpu()->id;
    barrier_full(); /* the caller's entries before the mask: see the head of this file */
    for (unsigned w = 0; w < ARRAY_SIZE(active.bits); w++) {
        active.bits[w] = atomic_load_relaxed(&pt->active.bits[w]);
        uint64_t own = w == self / 64 ? 1UL << (self % 64) : 0;
        others |= (active.bits[w] & ~own) != 0;
    }
    flush_here(&f);
    if (others)
        cpu_call(&active, flush_here, &f);
}

void pagetable_flush_local(uint64_t va)
{
    invlpg(va);
}
