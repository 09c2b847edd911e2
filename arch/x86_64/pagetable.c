/*
 * Address spaces of programs, and TLB coherence.
 *
 * A CPU that goes on to a kernel thread keeps the table loaded (lazily): nothing there uses addresses of the
 * program, and mostly the next program is the same one. It is then in `loaded` and no longer in `active`, and
 * nobody interrupts it for the sake of its TLB. Instead every flush has a number, the table's generation, and a CPU
 * remembers the last one that its TLB has followed: if that is not the table's when it uses the table again, it
 * loads CR3 anew. Only when page-table pages are to be freed must lazy CPUs leave, for the hardware may walk tables
 * at any time.
 *
 * Ordering. A CPU that starts to use a table sets its bit in `active` (a locked operation: full barrier), then reads
 * the generation, and only then loads CR3 or goes on with what the TLB has. A CPU that takes rights away writes the
 * entries, then counts the generation up (a locked operation), then reads `active`. So either the flusher sees the
 * bit and calls that CPU, or that CPU sees the generation and flushes: never neither. `tlb_generation` is never read
 * from the table when a CPU stops using it: it is what was known before the TLB was filled or flushed.
 * A CPU that leaves a table loads another CR3 first, which drops its translations (none of them is global), and then
 * clears its bit in `loaded`.
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
    pt->generation = 0;
    memset(&pt->active, 0, sizeof pt->active);
    memset(&pt->loaded, 0, sizeof pt->loaded);
    return 0;
}

/* Load another table, or the kernel's own, after which the old one may go. Interrupts off. */
static void cr3_load(struct cpu *c, struct pagetable *pt, uint64_t generation)
{
    struct arch_cpu *a = arch_of(c);
    struct pagetable *old = a->loaded;
    if (pt && pt != old)
        bitmap_test_and_set_atomic(pt->loaded.bits, c->id);
    a->loaded = pt;
    a->tlb_generation = generation;
    write_cr3(pt ? direct_to_phys(pt->root) : paging_kernel_root_phys());
    if (old && old != pt)
        bitmap_test_and_clear_atomic(old->loaded.bits, c->id);
}

void pagetable_switch(struct pagetable *pt)
{
    struct cpu *c = this_cpu();
    struct arch_cpu *a = arch_of(c);
    if (c->pagetable)
        bitmap_test_and_clear_atomic(c->pagetable->active.bits, c->id);
    c->pagetable = pt;
    if (!pt)
        return;
    bitmap_test_and_set_atomic(pt->active.bits, c->id); /* full barrier: before the generation, see the head */
    uint64_t generation = atomic_load_relaxed(&pt->generation);
    if (a->loaded != pt || a->tlb_generation != generation)
        cr3_load(c, pt, generation);
}

void pagetable_load(struct pagetable *pt)
{
    struct cpu *c = this_cpu();
    if (c->pagetable != pt)
        pagetable_switch(pt);
    if (!pt && arch_of(c)->loaded)
        cr3_load(c, NULL, 0);
}

static bool any_bit(const struct cpumask *mask)
{
    uint64_t any = 0;
    for (unsigned w = 0; w < ARRAY_SIZE(mask->bits); w++)
        any |= atomic_load_relaxed(&mask->bits[w]);
    return any;
}

static void leave_here(void *arg)
{
    struct cpu *c = this_cpu();
    uint64_t flags = irq_save();
    if (arch_of(c)->loaded == arg && c->pagetable != arg)
        cr3_load(c, NULL, 0);
    irq_restore(flags);
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
    assert(!any_bit(&pt->active));
    leave_here(pt);
    if (any_bit(&pt->loaded)) {
        struct cpumask lazy = pt->loaded; /* only CPUs that leave change it now */
        cpu_call(&lazy, leave_here, pt);
    }
    assert(!any_bit(&pt->loaded));
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

struct flush {
    struct pagetable *pt;
    uint64_t start, end, generation;
    bool tables; /* table pages will be freed */
};

static void flush_here(void *arg)
{
    const struct flush *f = arg;
    struct cpu *c = this_cpu();
    struct arch_cpu *a = arch_of(c);
    if (a->loaded != f->pt)
        return; /* it has left meanwhile, which flushed it */
    if (c->pagetable != f->pt) {
        if (f->tables)
            leave_here(f->pt);
        return; /* lazy: the generation tells it later */
    }
    if (f->generation <= a->tlb_generation)
        return; /* done with a later one that came first */
    if (f->generation != a->tlb_generation + 1 || f->end - f->start > INVLPG_MAX * PAGE_SIZE) {
        /* One in between is still on its way here, or much is to go: all at once. Read before the flush. */
        a->tlb_generation = atomic_load_relaxed(&f->pt->generation);
        write_cr3(read_cr3());
        return;
    }
    for (uint64_t va = f->start; va < f->end; va += PAGE_SIZE)
        invlpg(va);
    a->tlb_generation = f->generation;
}

static void flush(struct pagetable *pt, uint64_t start, uint64_t end, bool tables)
{
    /* Full barrier: the caller's entries before the generation, that before the mask: see the head of this file. */
    struct flush f = { pt, ALIGN_DOWN(start, PAGE_SIZE), end, atomic_fetch_add(&pt->generation, 1) + 1, tables };
    const struct cpumask *mask = tables ? &pt->loaded : &pt->active;
    struct cpumask others;
    unsigned self = this_cpu()->id;
    for (unsigned w = 0; w < ARRAY_SIZE(others.bits); w++)
        others.bits[w] = atomic_load_relaxed(&mask->bits[w]);
    bitmap_clear(others.bits, self);
    uint64_t flags = irq_save();
    flush_here(&f);
    irq_restore(flags);
    if (any_bit(&others))
        cpu_call(&others, flush_here, &f);
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
            flush(pt, ALIGN_DOWN(start, HUGE_SIZE), next, true);
        while (n)
            table_put(tables[--n]);
        start = next;
    }
}

void pagetable_flush(struct pagetable *pt, uint64_t start, uint64_t end)
{
    flush(pt, start, end, false);
}

void pagetable_flush_local(uint64_t va)
{
    invlpg(va);
}
