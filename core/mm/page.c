/*
 * Page allocator: buddy lists under one lock, per-CPU caches of single pages before them.
 *
 * Memory of which nothing has been used yet is not even described: the struct pages of a chunk (4 MiB) that
 * is wholly free are written when the buddy lists run dry and the chunk is needed. A guest with 8 GiB boots as
 * fast as one with 256 MiB.
 */
#include <weir/cpu.h>
#include <weir/printk.h>
#include <weir/spinlock.h>
#include <weir/string.h>
#include "arch/x86_64/memmap.h"
#include "core/mm/mm_private.h"

#define CPU_CACHE_PAGES 32
#define CPU_CACHE_BATCH 16
#define CHUNKS_MAX (PAGE_PHYS_LIMIT / PAGE_CHUNK_SIZE)
/* Reclaiming callers leave this much to those that cannot wait. */
#define RESERVE_PAGES_MIN 128
#define RECLAIM_ROUNDS 8

/* Key: o owner CPU, interrupts off */
struct cpu_pages {
    unsigned count;                        /* o */
    struct page *pages[CPU_CACHE_PAGES];   /* o */
} __cacheline;

static spinlock_t lock = SPINLOCK_INIT; /* M: buddy, deferred chunks; leaf, interrupts off */
static struct buddy buddy;              /* M */
static uint64_t chunk_is_ram[BITMAP_WORDS(CHUNKS_MAX)];
static uint64_t chunk_deferred[BITMAP_WORDS(CHUNKS_MAX)]; /* M */
static uint64_t chunk_next;             /* M no chunk below it is deferred */
static uint64_t deferred_pages;         /* M */
static uint64_t total_pages;            /* I */
static uint64_t reserve_pages;          /* I */
static struct cpu_pages cpu_pages[CPU_MAX];
static uint64_t (*shrinker)(uint64_t);  /* a */

static void chunk_describe(uint64_t chunk, uint32_t flags)
{
    struct page *p = &page_array[chunk << PAGE_CHUNK_ORDER];
    memset(p, 0, PAGE_CHUNK_PAGES * sizeof *p);
    if (!flags)
        return;
    for (uint64_t i = 0; i < PAGE_CHUNK_PAGES; i++) {
        p[i].flags = flags;
        p[i].refcount = 1;
    }
}

/* A chunk with holes, or of which boot took a part. */
static void chunk_add_partial(uint64_t chunk, const struct memmap *free)
{
    uint64_t first = chunk << PAGE_CHUNK_ORDER, last = first + PAGE_CHUNK_PAGES;
    chunk_describe(chunk, PAGE_RESERVED);
    for (unsigned i = 0; i < free->count; i++) {
        uint64_t from = MAX(first, free->ranges[i].start >> PAGE_SHIFT);
        uint64_t to = MIN(last, free->ranges[i].end >> PAGE_SHIFT);
        for (uint64_t f = from; f < to; f++) {
            page_array[f].flags = 0;
            page_array[f].refcount = 0;
        }
        if (from < to)
            buddy_add(&buddy, from, to);
    }
}

void page_init(const struct memmap *ram, const struct memmap *free)
{
    buddy_init(&buddy, page_array);
    total_pages = memmap_total(ram) >> PAGE_SHIFT;
    reserve_pages = MAX(total_pages / 256, (uint64_t)RESERVE_PAGES_MIN);
    for (unsigned i = 0; i < ram->count; i++) {
        uint64_t chunk = ram->ranges[i].start / PAGE_CHUNK_SIZE;
        uint64_t end = MIN(DIV_ROUND_UP(ram->ranges[i].end, PAGE_CHUNK_SIZE), CHUNKS_MAX);
        for (; chunk < end; chunk++) {
            if (bitmap_test(chunk_is_ram, (unsigned)chunk))
                continue; /* the range before ended in it */
            bitmap_set(chunk_is_ram, (unsigned)chunk);
            uint64_t start = chunk * PAGE_CHUNK_SIZE;
            if (memmap_contains(free, start, start + PAGE_CHUNK_SIZE)) {
                bitmap_set(chunk_deferred, (unsigned)chunk);
                deferred_pages += PAGE_CHUNK_PAGES;
            } else {
                chunk_add_partial(chunk, free);
            }
        }
    }
}

struct page *page_of_phys(uint64_t phys)
{
    uint64_t chunk = phys / PAGE_CHUNK_SIZE;
    if (chunk >= CHUNKS_MAX || !bitmap_test(chunk_is_ram, (unsigned)chunk))
        return NULL;
    return &page_array[phys >> PAGE_SHIFT];
}

uint64_t page_phys(const struct page *p)
{
    return (uint64_t)(p - page_array) << PAGE_SHIFT;
}

/* Next unused chunk below the limit into the buddy lists; false if there is none. */
static bool chunk_open_locked(uint64_t limit_frame)
{
    uint64_t c = bitmap_next_set(chunk_deferred, CHUNKS_MAX, (unsigned)chunk_next);
    chunk_next = c;
    if (c == CHUNKS_MAX || (c + 1) << PAGE_CHUNK_ORDER > limit_frame)
        return false;
    bitmap_clear(chunk_deferred, (unsigned)c);
    deferred_pages -= PAGE_CHUNK_PAGES;
    chunk_describe(c, 0);
    buddy_add(&buddy, c << PAGE_CHUNK_ORDER, (c + 1) << PAGE_CHUNK_ORDER);
    return true;
}

static struct page *alloc_locked(unsigned order, uint64_t limit_frame)
{
    for (;;) {
        struct page *p = buddy_alloc(&buddy, order, limit_frame);
        if (p || !chunk_open_locked(limit_frame))
            return p;
    }
}

static struct page *alloc_one(void)
{
    uint64_t flags = irq_save();
    struct cpu_pages *c = &cpu_pages[this_cpu()->id];
    if (!c->count) {
        spin_lock(&lock);
        while (c->count < CPU_CACHE_BATCH) {
            struct page *p = alloc_locked(0, UINT64_MAX);
            if (!p)
                break;
            c->pages[c->count++] = p;
        }
        spin_unlock(&lock);
    }
    struct page *p = c->count ? c->pages[--c->count] : NULL;
    irq_restore(flags);
    return p;
}

static struct page *alloc_block(unsigned order, uint64_t limit_frame)
{
    uint64_t flags = spin_lock_irqsave(&lock);
    struct page *p = alloc_locked(order, limit_frame);
    spin_unlock_irqrestore(&lock, flags);
    return p;
}

static struct page *alloc_raw(unsigned order, uint64_t limit_frame)
{
    return order == 0 && limit_frame == UINT64_MAX ? alloc_one() : alloc_block(order, limit_frame);
}

/* Without the per-CPU caches: cheap, and low rather than high. */
static uint64_t free_estimate(void)
{
    return atomic_load_relaxed(&buddy.free_pages) + atomic_load_relaxed(&deferred_pages);
}

static uint64_t reclaim(uint64_t wanted)
{
    uint64_t (*fn)(uint64_t) = atomic_load_acquire(&shrinker);
    return fn ? fn(wanted) : 0;
}

static void page_prepare(struct page *p, unsigned order, unsigned mm_flags)
{
    uint64_t n = 1UL << order;
    p->flags = order ? PAGE_HEAD : 0;
    p->order = order;
    p->cache = NULL;
    p->private = NULL;
    p->index = 0;
    p->map_writable = 0;
    list_init(&p->link);
    for (uint64_t i = 1; i < n; i++) {
        p[i].flags = PAGE_TAIL;
        p[i].private = p;
        p[i].refcount = 0;
        p[i].cache = NULL;
    }
    if (mm_flags & MM_ZERO)
        memset(page_virt(p), 0, n << PAGE_SHIFT);
    atomic_store_relaxed(&p->refcount, 1);
}

struct page *page_alloc_below(unsigned order, unsigned mm_flags, uint64_t phys_limit)
{
    uint64_t limit_frame = phys_limit == UINT64_MAX ? UINT64_MAX : phys_limit >> PAGE_SHIFT;
    uint64_t need = 1UL << order;
    if (order >= BUDDY_ORDERS)
        return NULL;
    if ((mm_flags & MM_RECLAIM) && free_estimate() < reserve_pages + need)
        reclaim(need + reserve_pages / 2);
    struct page *p = alloc_raw(order, limit_frame);
    for (unsigned round = 0; !p && (mm_flags & MM_RECLAIM) && round < RECLAIM_ROUNDS; round++) {
        if (!reclaim(need + reserve_pages / 2))
            break;
        p = alloc_raw(order, limit_frame);
    }
    if (p)
        page_prepare(p, order, mm_flags);
    return p;
}

struct page *page_alloc(unsigned order, unsigned mm_flags)
{
    return page_alloc_below(order, mm_flags, UINT64_MAX);
}

static struct page *page_head(struct page *p)
{
    return atomic_load_relaxed(&p->flags) & PAGE_TAIL ? p->private : p;
}

void page_get(struct page *p)
{
    p = page_head(p);
    uint32_t old = atomic_fetch_add(&p->refcount, 1);
    if (unlikely(!old))
        panic("page_get of free page %#lx", (unsigned long)page_phys(p));
}

static void free_one(struct page *p)
{
    uint64_t flags = irq_save();
    struct cpu_pages *c = &cpu_pages[this_cpu()->id];
    if (c->count == CPU_CACHE_PAGES) {
        spin_lock(&lock);
        while (c->count > CPU_CACHE_PAGES - CPU_CACHE_BATCH)
            buddy_free(&buddy, c->pages[--c->count], 0);
        spin_unlock(&lock);
    }
    c->pages[c->count++] = p;
    irq_restore(flags);
}

static void free_block(struct page *p, unsigned order)
{
    for (uint64_t i = 1; i < 1UL << order; i++) {
        p[i].flags = 0;
        p[i].private = NULL;
    }
    uint64_t flags = spin_lock_irqsave(&lock);
    buddy_free(&buddy, p, order);
    spin_unlock_irqrestore(&lock, flags);
}

void page_put(struct page *p)
{
    p = page_head(p);
    uint32_t old = atomic_fetch_sub(&p->refcount, 1);
    if (old != 1) {
        if (unlikely(!old))
            panic("page_put of free page %#lx", (unsigned long)page_phys(p));
        return;
    }
    if (unlikely(p->flags & PAGE_RESERVED))
        panic("the last reference of reserved page %#lx is gone", (unsigned long)page_phys(p));
    unsigned order = p->order;
    p->flags = 0;
    p->private = NULL;
    p->cache = NULL;
    if (order)
        free_block(p, order);
    else
        free_one(p);
}

uint64_t mm_free_pages(void)
{
    uint64_t n = free_estimate();
    for (unsigned i = 0; i < cpu_count(); i++)
        n += atomic_load_relaxed(&cpu_pages[i].count);
    return n;
}

uint64_t mm_total_pages(void)
{
    return total_pages;
}

void mm_register_shrinker(uint64_t (*fn)(uint64_t))
{
    atomic_store_release(&shrinker, fn);
}
