/*
 * x86-64 four-level page tables of one address space, and TLB coherence. Owned by an address space
 * (core/mm), which serialises changes with its own lock; the CPUs that have it loaded are tracked
 * here. The kernel half (PML4 256..511) is shared by all and never changes in its top level after boot.
 */
#ifndef WEIR_PAGETABLE_H
#define WEIR_PAGETABLE_H
#include <weir/bitmap.h>

#define PTE_PRESENT  (1UL << 0)
#define PTE_WRITE    (1UL << 1)
#define PTE_USER     (1UL << 2)
#define PTE_PWT      (1UL << 3)
#define PTE_PCD      (1UL << 4)
#define PTE_ACCESSED (1UL << 5)
#define PTE_DIRTY    (1UL << 6)
#define PTE_HUGE     (1UL << 7)
#define PTE_GLOBAL   (1UL << 8)
#define PTE_SOFT_COW (1UL << 9)   /* software: write fault copies */
#define PTE_SOFT_SHARED (1UL << 10)
#define PTE_NX       (1UL << 63)
#define PTE_ADDR     0x000ffffffffff000UL
#define USER_TOP     0x00007ffffffff000UL /* first address that is not the program's */

struct pagetable {
    uint64_t *root;          /* I PML4 in the direct map */
    uint64_t generation;     /* a flushes so far */
    struct cpumask active;   /* a CPUs that run a thread of it */
    struct cpumask loaded;   /* a those, and CPUs that went on to a kernel thread and kept it (lazily) */
};

int pagetable_init(struct pagetable *pt) __must_check; /* -ENOMEM */
/* Free all user-half table pages (not the pages they map). No thread may use it any more; CPUs that still have it
 * loaded are made to leave. Thread context, interrupts on, no spinlock held. */
void pagetable_destroy(struct pagetable *pt);
/* Entry for va at level 1 (4 KiB) or 2 (2 MiB); NULL if absent and !create, or no memory. With level
 * 1, returns NULL also where a 2 MiB entry covers va. The owner's lock must be held. */
uint64_t *pagetable_entry(struct pagetable *pt, uint64_t va, unsigned level, bool create);
/* Free the level-1 table under a level-2 entry range that holds no present entry (after munmap).
 * Does the shoot-down it needs. */
void pagetable_prune(struct pagetable *pt, uint64_t start, uint64_t end);
/* Make this CPU use pt (NULL = kernel only). Interrupts off or in schedule(). */
void pagetable_load(struct pagetable *pt);
/* The same for a switch of threads: with NULL, the one that was in use stays loaded, in case its thread is the next. */
void pagetable_switch(struct pagetable *pt);
/* After entries of [start, end) were cleared or lost rights: no CPU uses the old ones any more when
 * this returns. Thread context, interrupts on, no spinlock held. Pages may be freed only after it. */
void pagetable_flush(struct pagetable *pt, uint64_t start, uint64_t end);
/* Only this CPU (a fault that added rights). */
void pagetable_flush_local(uint64_t va);
#endif
