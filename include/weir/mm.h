/*
 * Physical pages, kernel heap, kernel virtual mappings.
 *
 * All RAM is mapped read-write, no-execute at PHYS_MAP_BASE. Exhaustion is an error (NULL), never a
 * panic. Allocation may reclaim clean page-cache pages when MM_RECLAIM is given, and may then block.
 */
#ifndef WEIR_MM_H
#define WEIR_MM_H
#include <weir/list.h>
#include <weir/atomic.h>

#define PAGE_SHIFT 12
#define PAGE_SIZE  4096UL
#define PAGE_MASK  (PAGE_SIZE - 1)
#define HUGE_SHIFT 21
#define HUGE_SIZE  (1UL << HUGE_SHIFT)
#define HUGE_ORDER 9

#if !__STDC_HOSTED__
#define PHYS_MAP_BASE 0xffff888000000000UL
static inline void *phys_to_virt(uint64_t phys) { return (void *)(phys + PHYS_MAP_BASE); }
static inline uint64_t direct_to_phys(const void *v) { return (uint64_t)v - PHYS_MAP_BASE; }
#endif
/* Physical address of any mapped kernel address (direct map, image, kernel stacks, vmap). */
uint64_t virt_to_phys(const void *v);

enum page_flag {
    PAGE_LOCKED = 1 << 0,    /* owner does I/O or changes identity; see pagecache_lock_page */
    PAGE_UPTODATE = 1 << 1,
    PAGE_DIRTY = 1 << 2,
    PAGE_WRITEBACK = 1 << 3,
    PAGE_ERROR = 1 << 4,
    PAGE_REFERENCED = 1 << 5,
    PAGE_HEAD = 1 << 6,      /* first page of an order > 0 allocation; refcount lives here */
    PAGE_TAIL = 1 << 7,      /* private points to the head */
    PAGE_RESERVED = 1 << 8,  /* not RAM, firmware, kernel image */
    PAGE_SLAB = 1 << 9,      /* cut into heap objects */
    PAGE_ANONYMOUS = 1 << 10, /* private page of an address space; cleared by page_alloc */
};

struct pagecache;
/* One for each 4 KiB frame of RAM. Key: a atomic, M page allocator's lock, P owner pagecache's lock. */
struct page {
    uint32_t refcount;        /* a 0 = free */
    uint32_t flags;           /* a enum page_flag */
    struct list link;         /* M free lists, or P LRU */
    struct pagecache *cache;  /* P NULL for anonymous and kernel pages */
    uint64_t index;           /* P page index in cache */
    void *private;            /* owner's */
    uint32_t order;           /* M order of the allocation (head page) */
    uint32_t map_writable;    /* a writable shared mappings; while > 0 the page stays dirty */
};

struct page *page_of_phys(uint64_t phys); /* NULL if not RAM */
uint64_t page_phys(const struct page *p);
static inline void *page_virt(const struct page *p);

enum mm_flags { MM_ZERO = 1, MM_RECLAIM = 2 };
/* 2^order contiguous pages, aligned to their size, refcount 1. Any context without MM_RECLAIM;
 * thread context with interrupts on and no spinlock with it. */
struct page *page_alloc(unsigned order, unsigned mm_flags) __must_check;
struct page *page_alloc_below(unsigned order, unsigned mm_flags, uint64_t phys_limit) __must_check;
void page_get(struct page *p);
void page_put(struct page *p); /* frees at zero; accepts a tail page (acts on its head) */
uint64_t mm_free_pages(void);
uint64_t mm_total_pages(void);
/* Called with a number of pages wanted; returns the number freed. Registered once at boot. */
void mm_register_shrinker(uint64_t (*fn)(uint64_t pages_wanted));

/* Heap: 16-byte aligned (a power-of-two size is aligned to its size up to a page), any size; large
 * ones come from vmap'ed pages. Any context for size <= 2 pages, thread context above. */
void *kmalloc(size_t size) __must_check;
void *kzalloc(size_t size) __must_check;
void *kcalloc(size_t n, size_t size) __must_check; /* checks for overflow */
void *krealloc(void *p, size_t old_size, size_t new_size) __must_check;
void kfree(void *p); /* NULL allowed */
uint64_t heap_live(void); /* objects of kmalloc and of all slab caches in use; exact while nobody allocates. Thread context */
/* Slab caches for hot objects. */
struct slab_cache;
struct slab_cache *slab_create(const char *name, size_t size, size_t align);
void *slab_alloc(struct slab_cache *c) __must_check; /* not zeroed */
void slab_free(struct slab_cache *c, void *obj);

/* Kernel virtual area: map pages contiguously, with an unmapped guard page on each side. */
enum vmap_prot { VMAP_RW = 0, VMAP_RO = 1, VMAP_RX = 2, VMAP_UNCACHED = 4 };
void *vmap(struct page *const *pages, size_t count, unsigned vmap_prot) __must_check;
void *vmap_phys(uint64_t phys, size_t size, unsigned vmap_prot) __must_check; /* device memory, any alignment */
/* Reserve a range without pages; then map pieces of it (lwIP instances: shared text, private data). */
void *vmap_reserve(size_t size) __must_check;
int vmap_install(void *at, struct page *page, unsigned vmap_prot) __must_check;
void vunmap(void *addr); /* frees the range, not the pages */

#if !__STDC_HOSTED__
static inline void *page_virt(const struct page *p) { return phys_to_virt(page_phys(p)); }
#endif
#endif
