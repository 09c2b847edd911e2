/*
 * Inside of core/mm's address spaces.
 *
 * Locks, in the order in which they are taken:
 *   A  aspace->lock        faults hold it for reading, everything that changes areas for writing
 *   C  the bucket of a page cache in the list of mappings (mapping.c); guards start, end and offset of
 *      areas that map files, so that a truncation can walk them without A
 *   p  aspace->page_lock   page-table entries and counters; a spinlock: nothing under it may block
 * Tables of the page table are freed only with A held for writing, and only where no area is left, so a
 * reader of A (or of C, inside an area of the list) may walk them without p and use p to change entries.
 *
 * A page-table entry of the user half is in one of these forms:
 *   0                          nothing; a fault makes it
 *   no bit of the two below    an anonymous page of ours, one reference held (or the zero page, none)
 *   PTE_SOFT_FILE              a page of a page cache, one reference held; if writable, counted by
 *                              pagecache_map_writable as well
 *   PTE_SOFT_SHARED            a page that a shm_object owns, no reference held
 * PTE_SOFT_COW: the page may be shared by other address spaces (fork); a write must copy or prove that it is
 * alone. PTE_SOFT_NONE instead of PTE_PRESENT: the area is PROT_NONE at the moment, the page is kept.
 */
#ifndef WEIR_MM_ASPACE_INTERNAL_H
#define WEIR_MM_ASPACE_INTERNAL_H
#include <weir/aspace.h>
#include <weir/atomic.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/pagecache.h>
#include <weir/pagetable.h>
#include <weir/printk.h>
#include <weir/rbtree.h>
#include <weir/string.h>
#include <weir/vfs.h>

#define PTE_SOFT_FILE (1UL << 11)
#define PTE_SOFT_NONE PTE_GLOBAL /* only in entries that are not present */

#define AREA_LIMIT      65530u          /* areas of one address space, as Linux */
#define USER_BOTTOM     0x10000UL       /* lowest address that may be mapped */
#define STACK_GUARD     (256 * PAGE_SIZE) /* kept free below an area that grows down */
#define STACK_TOP_LIMIT 0x00007ffffffde000UL

enum area_flag {
    AREA_SHARED = 1,
    AREA_GROWSDOWN = 2,
    AREA_NOT_WRITABLE = 4, /* mprotect may never add PROT_WRITE */
    AREA_DONTFORK = 8,
    AREA_NORESERVE = 16,
};

/* Key: I immutable, A, C, p as above. */
struct vm_area {
    struct rb_node node;      /* A */
    uint64_t start, end;      /* A and, with a file, C */
    uint64_t offset;          /* A and C: of start, in the file or object, bytes */
    unsigned prot;            /* A */
    unsigned flags;           /* A enum area_flag */
    bool has_anonymous;       /* p a private page was installed at some time: fork must copy entries */
    struct aspace *as;        /* I */
    struct file *file;        /* I referenced; NULL for memory */
    struct shm_object *shm;   /* I referenced; NULL if private or file */
    struct list cache_link;   /* C */
};

/* Key as above; I immutable after creation or exec's layout. */
struct aspace {
    uint32_t refcount;        /* a */
    struct pagetable pt;      /* p */
    struct rw_mutex lock;     /* A */
    spinlock_t page_lock;     /* p */
    struct rb_tree areas;     /* A */
    struct vm_area *last_found; /* a a hint; cleared under A for writing */
    unsigned area_count;      /* A */
    uint64_t virtual_bytes;   /* A */
    uint64_t anonymous_pages; /* p */
    uint64_t shared_pages;    /* p file and object pages mapped */
    uint64_t mmap_top;        /* I mappings without an address go below it */
    uint64_t brk_start, brk;  /* A */
    uint64_t stack_top;       /* I end of the stack area; 0 = none */
    uint64_t stack_limit;     /* a bytes that the stack may grow to */
};

static inline struct vm_area *area_of(struct rb_node *n)
{
    return n ? container_of(n, struct vm_area, node) : NULL;
}
static inline struct vm_area *area_next(struct vm_area *a)
{
    return area_of(rb_next(&a->node));
}
static inline struct vm_area *area_prev(struct vm_area *a)
{
    return area_of(rb_prev(&a->node));
}
static inline struct pagecache *area_cache(const struct vm_area *a)
{
    return a->file ? &a->file->inode->cache : NULL;
}
static inline bool area_is_private(const struct vm_area *a)
{
    return !(a->flags & AREA_SHARED);
}
/* Index of the page at va in the area's file or object. */
static inline uint64_t area_index(const struct vm_area *a, uint64_t va)
{
    return (a->offset + (va - a->start)) >> PAGE_SHIFT;
}

/* Entries are read without p by the fault path, so every access is one whole load or store. */
static inline uint64_t pte_read(const uint64_t *pte)
{
    return atomic_load_relaxed(pte);
}
static inline void pte_write(uint64_t *pte, uint64_t value)
{
    atomic_store_release(pte, value);
}
/* Bits of a present entry for these rights, without PTE_WRITE. Accessed and dirty are preset: nothing
 * reads them, and the processor need not write them back. */
static inline uint64_t pte_base(unsigned prot)
{
    return PTE_PRESENT | PTE_USER | PTE_ACCESSED | PTE_DIRTY | (prot & PROT_EXEC ? 0 : PTE_NX);
}
static inline struct page *pte_page(uint64_t e)
{
    return page_of_phys(e & PTE_ADDR);
}

/* ---- area.c: the tree of areas. A held for writing unless said otherwise ---- */
struct vm_area *area_find(struct aspace *as, uint64_t addr); /* lowest with end > addr; A for reading */
struct vm_area *area_alloc(struct aspace *as) __must_check;
/* Drops the references to file and object: A must NOT be held (a last file_put may do anything). */
void area_free(struct vm_area *a);
void area_insert(struct aspace *as, struct vm_area *a);
void area_remove(struct aspace *as, struct vm_area *a);
/* Cut a at addr: a keeps the lower part. NULL = no memory. */
struct vm_area *area_split(struct vm_area *a, uint64_t addr) __must_check;
/* Join a with equal neighbours; freed ones are chained to *dead (by cache_link). Returns the survivor. */
struct vm_area *area_merge(struct vm_area *a, struct list *dead);
/* Move the borders of an area that is in the tree and keeps its place there. */
void area_set_range(struct vm_area *a, uint64_t start, uint64_t end, uint64_t offset);
/* A free range of len below mmap_top whose start is congruent to phase modulo align; -ENOMEM. */
int64_t area_find_free(struct aspace *as, uint64_t hint, uint64_t len, uint64_t align, uint64_t phase);
bool area_range_free(struct aspace *as, uint64_t start, uint64_t end);
void area_free_list(struct list *dead); /* without A */

/* ---- mapping.c: who maps a page cache ---- */
void mapping_add(struct vm_area *a);
void mapping_remove(struct vm_area *a);
void mapping_lock(struct vm_area *a);   /* C; nothing for areas without a file */
void mapping_unlock(struct vm_area *a);
void mapping_add_locked(struct vm_area *a);
void mapping_remove_locked(struct vm_area *a);

/* ---- zap.c: take entries out; pages go only after every CPU has forgotten them ---- */
struct gather {
    struct aspace *as;
    uint64_t start, end;      /* cleared since the last flush; start >= end: nothing */
    unsigned count, limit;
    bool dead;                /* no CPU uses the page table: nothing to flush */
    struct page **pages;
    struct page *few[32];
};
void gather_begin(struct gather *g, struct aspace *as, uint64_t bytes_expected);
void gather_end(struct gather *g); /* flushes and drops the pages */
void zap_range(struct gather *g, uint64_t start, uint64_t end);
/* Drop one entry that the caller has cleared, p held; the gather has room for it. */
void zap_entry_locked(struct gather *g, uint64_t va, uint64_t e);
static inline bool gather_full(const struct gather *g)
{
    return g->count == g->limit;
}
void gather_flush(struct gather *g);
/* Free page tables of [start, end) that no area needs any more. A for writing. */
void zap_tables(struct aspace *as, uint64_t start, uint64_t end);

/* ---- map.c ---- */
/* Take [start, end) out of the tree and the page table; areas to free go to dead. A for writing. */
int unmap_locked(struct aspace *as, uint64_t start, uint64_t end, struct list *dead) __must_check;

/* ---- fault.c ---- */
extern struct page *zero_page;
extern uint64_t zero_page_phys;
static inline bool pte_is_zero_page(uint64_t e)
{
    return (e & PTE_ADDR) == zero_page_phys;
}
/* Pins of an anonymous page are counted in page->private. */
static inline bool page_is_pinned(const struct page *p)
{
    return atomic_load_relaxed(&p->private) != NULL;
}

/* ---- shm_object.c ---- */
/* The page at index, made if absent, not referenced (the object owns it). *chunk_head gets the first page of a 2 MiB
 * chunk that holds it, or NULL. -ENOMEM, -EIO beyond the end. May block. */
int shm_object_page(struct shm_object *o, uint64_t index, struct page **out, struct page **chunk_head) __must_check;
struct page *shm_object_find(struct shm_object *o, uint64_t index); /* NULL if absent */
#endif
