/*
 * Shared anonymous memory: MAP_SHARED|MAP_ANONYMOUS, System V segments, the vDSO.
 *
 * The object owns its pages from the first touch until its own end; mappings hold a reference to the object and
 * none to the pages. Each 2 MiB chunk is one word: nothing yet, one order-9 allocation (bit 0 set), or a table of
 * 512 single pages. A chunk never changes its kind.
 */
#include "aspace_internal.h"

#define CHUNK_PAGES  512u
#define CHUNK_HUGE   1UL

/* Key: I immutable, l lock */
struct shm_object {
    uint32_t refcount;   /* a */
    spinlock_t lock;
    uint64_t size;       /* I bytes, whole pages */
    uint64_t chunks;     /* I */
    uintptr_t *chunk;    /* l: written under it, read without */
};

struct shm_object *shm_object_create(uint64_t size)
{
    struct shm_object *o;

    size = ALIGN_UP(size, PAGE_SIZE);
    if (!size || size > (1UL << 46))
        return NULL;
    o = kzalloc(sizeof(*o));
    if (!o)
        return NULL;
    o->refcount = 1;
    spin_init(&o->lock);
    o->size = size;
    o->chunks = DIV_ROUND_UP(size, HUGE_SIZE);
    o->chunk = kcalloc(o->chunks, sizeof(*o->chunk));
    if (!o->chunk) {
        kfree(o);
        return NULL;
    }
    return o;
}

void shm_object_get(struct shm_object *o)
{
    atomic_fetch_add(&o->refcount, 1);
}

static void chunk_free(uintptr_t c)
{
    struct page **table;

    if (!c)
        return;
    if (c & CHUNK_HUGE) {
        page_put((struct page *)(c & ~CHUNK_HUGE));
        return;
    }
    table = (struct page **)c;
    for (unsigned i = 0; i < CHUNK_PAGES; i++) {
        if (table[i])
            page_put(table[i]);
    }
    kfree(table);
}

void shm_object_put(struct shm_object *o)
{
    if (atomic_fetch_sub(&o->refcount, 1) != 1)
        return;
    for (uint64_t i = 0; i < o->chunks; i++) {
        chunk_free(o->chunk[i]);
        cond_resched();
    }
    kfree(o->chunk);
    kfree(o);
}

uint64_t shm_object_size(const struct shm_object *o)
{
    return o->size;
}

static struct page *chunk_page(uintptr_t c, uint64_t index)
{
    if (!c)
        return NULL;
    if (c & CHUNK_HUGE)
        return (struct page *)(c & ~CHUNK_HUGE) + index % CHUNK_PAGES;
    return atomic_load_acquire(&((struct page **)c)[index % CHUNK_PAGES]);
}

struct page *shm_object_find(struct shm_object *o, uint64_t index)
{
    if (index >= o->size >> PAGE_SHIFT)
        return NULL;
    /* Acquire, paired with the release in the two installers: the page's zeroes are seen before its pointer. */
    return chunk_page(atomic_load_acquire(&o->chunk[index / CHUNK_PAGES]), index);
}

/* Large pages only while memory is plentiful: a chunk costs 2 MiB for the first byte touched. */
static bool chunk_may_be_huge(struct shm_object *o, uint64_t chunk)
{
    return (chunk + 1) * HUGE_SIZE <= o->size &&
           mm_free_pages() > MAX(mm_total_pages() / 4, 8UL * CHUNK_PAGES);
}

/* Make the chunk's word: an order-9 page, or an empty table. */
static int chunk_create(struct shm_object *o, uint64_t index)
{
    uint64_t n = index / CHUNK_PAGES;
    struct page *huge = chunk_may_be_huge(o, n) ? page_alloc(HUGE_ORDER, MM_ZERO) : NULL;
    uintptr_t c = (uintptr_t)huge | CHUNK_HUGE;
    bool lost;

    if (!huge) {
        c = (uintptr_t)kcalloc(CHUNK_PAGES, sizeof(struct page *));
        if (!c)
            return -ENOMEM;
    }
    spin_lock(&o->lock);
    lost = o->chunk[n] != 0;
    if (!lost)
        atomic_store_release(&o->chunk[n], c);
    spin_unlock(&o->lock);
    if (lost)
        chunk_free(c);
    return 0;
}

int shm_object_set_page(struct shm_object *o, uint64_t index, struct page *p)
{
    struct page **table;
    bool lost;

    if (!o->chunk[index / CHUNK_PAGES]) {
        int r = chunk_create(o, index);
        if (r)
            return r;
    }
    table = (struct page **)o->chunk[index / CHUNK_PAGES];
    assert(!((uintptr_t)table & CHUNK_HUGE));
    spin_lock(&o->lock);
    lost = table[index % CHUNK_PAGES] != NULL;
    if (!lost)
        atomic_store_release(&table[index % CHUNK_PAGES], p);
    spin_unlock(&o->lock);
    return lost ? -EEXIST : 0;
}

int shm_object_page(struct shm_object *o, uint64_t index, struct page **out,
                    struct page **chunk_head)
{
    uintptr_t c;

    if (index >= o->size >> PAGE_SHIFT)
        return -EIO;
    while (!(*out = shm_object_find(o, index))) {
        c = atomic_load_acquire(&o->chunk[index / CHUNK_PAGES]);
        if (!c) {
            int r = chunk_create(o, index);
            if (r)
                return r;
        } else if (!(c & CHUNK_HUGE)) {
            struct page *p = page_alloc(0, MM_ZERO | MM_RECLAIM);
            if (!p)
                return -ENOMEM;
            /* Another CPU was first: its page counts, ours goes. */
            if (shm_object_set_page(o, index, p))
                page_put(p);
        }
    }
    c = o->chunk[index / CHUNK_PAGES];
    *chunk_head = c & CHUNK_HUGE ? (struct page *)(c & ~CHUNK_HUGE) : NULL;
    return 0;
}
