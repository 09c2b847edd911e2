/*
 * Life of a cached page. Absent -> inserted LOCKED and not UPTODATE -> read -> UPTODATE, unlocked. Dirtied by a
 * writer or a mapping: DIRTY, tagged in the tree. Write-back, under the cache's lock: DIRTY off, WRITEBACK on; the
 * completion clears WRITEBACK. A page leaves the tree under the cache's lock, only while it is neither LOCKED nor
 * WRITEBACK, and cache becomes NULL. The tree holds one reference.
 *
 * UPTODATE never goes away while the page is in the tree, so readers need the lock only to find the page. Data are
 * copied to and from programs with a reference and no page lock held.
 */
#include "pagecache_internal.h"
#include <weir/errno.h>
#include <weir/string.h>

#define WAIT_TABLE 256
static struct wait_queue wait_table[WAIT_TABLE];
static bool wait_table_ready;
static void (*unmap_hook)(struct pagecache *c, uint64_t first_index);
uint64_t pagecache_total, pagecache_dirty_total, pagecache_writeback_total, pagecache_memory_total;

/* ---- page flags and waiting ---- */
static struct wait_queue *wait_queue_of(struct page *p)
{
    return &wait_table[((uintptr_t)p / sizeof *p * 0x9e3779b97f4a7c15ULL >> 40) % WAIT_TABLE];
}
void page_wait_clear(struct page *p, uint32_t flag) { wait_event(wait_queue_of(p), !page_has(p, flag)); }
static void clear_and_wake(struct page *p, uint32_t clear, uint32_t set)
{
    struct wait_queue *q = wait_queue_of(p);
    if (set)
        atomic_fetch_or(&p->flags, set); /* seen before the unlock is */
    atomic_fetch_and(&p->flags, ~clear);
    if (wait_queue_active(q))
        wake_all(q);
}
void page_lock(struct page *p)
{
    while (atomic_fetch_or(&p->flags, PAGE_LOCKED) & PAGE_LOCKED)
        page_wait_clear(p, PAGE_LOCKED);
}
void page_unlock(struct page *p) { clear_and_wake(p, PAGE_LOCKED, 0); }
void pagecache_end_read(struct page *p, int status)
{
    clear_and_wake(p, PAGE_LOCKED, status ? PAGE_ERROR : PAGE_UPTODATE);
}
void pagecache_end_writeback(struct page *p, int status)
{
    struct pagecache *c = p->cache; /* stable: the page does not leave while WRITEBACK */
    if (status) {
        atomic_store_relaxed(&c->error, status);
        atomic_fetch_add(&c->error_sequence, 1);
    }
    atomic_fetch_sub(&pagecache_writeback_total, 1);
    clear_and_wake(p, PAGE_WRITEBACK, 0);
}

/* ---- cache ---- */
void pagecache_init(struct pagecache *c, const struct pagecache_ops *ops, void *owner)
{
    if (!wait_table_ready) { /* the first cache is made at boot, by one thread */
        for (unsigned i = 0; i < WAIT_TABLE; i++)
            wait_queue_init(&wait_table[i]);
        wait_table_ready = true;
    }
    memset(c, 0, sizeof *c);
    spin_init(&c->lock);
    c->ops = ops;
    c->owner = owner;
    list_init(&c->dirty_link);
}

static void count_page(struct pagecache *c, int64_t n)
{
    atomic_fetch_add(c->ops ? &pagecache_total : &pagecache_memory_total, (uint64_t)n);
}

/* Insert with the cache's lock held; takes a reference. */
static int insert_locked(struct pagecache *c, uint64_t index, struct page *p)
{
    int r = radix_insert(&c->tree, index, p);
    if (r)
        return r;
    page_get(p);
    p->index = index;
    atomic_store_relaxed(&p->cache, c);
    c->page_count++;
    count_page(c, 1);
    if (c->ops)
        lru_add(p);
    return 0;
}
/* The page must be neither LOCKED nor WRITEBACK. The tree's reference passes to the caller. */
static void remove_locked(struct pagecache *c, struct page *p)
{
    radix_remove(&c->tree, p->index);
    bool dirty = atomic_fetch_and(&p->flags, ~PAGE_DIRTY) & PAGE_DIRTY;
    if (dirty && c->ops) { /* memory-only caches mark pages but do not count them */
        c->dirty_count--;
        atomic_fetch_sub(&pagecache_dirty_total, 1);
    }
    if (c->ops)
        lru_remove(p);
    c->page_count--;
    count_page(c, -1);
    if (c->ops && c->ops->drop_page)
        c->ops->drop_page(c, p, dirty);
    atomic_store_relaxed(&p->cache, NULL);
    atomic_fetch_and(&p->flags, ~(PAGE_UPTODATE | PAGE_REFERENCED | PAGE_ERROR));
}
/* For reclaim, which holds the LRU's lock and the cache's: only a page that nobody uses. */
bool pagecache_try_evict_locked(struct pagecache *c, struct page *p)
{
    /* References are taken under the cache's lock, which we hold, or by who has one already. */
    if (atomic_load_relaxed(&p->refcount) != 1 || page_has(p, PAGE_LOCKED | PAGE_DIRTY | PAGE_WRITEBACK) ||
        atomic_load_relaxed(&p->map_writable))
        return false;
    radix_remove(&c->tree, p->index);
    c->page_count--;
    count_page(c, -1);
    if (c->ops->drop_page)
        c->ops->drop_page(c, p, false);
    atomic_store_relaxed(&p->cache, NULL);
    atomic_fetch_and(&p->flags, ~(PAGE_UPTODATE | PAGE_REFERENCED | PAGE_ERROR));
    return true;
}

static struct page *find_get(struct pagecache *c, uint64_t index)
{
    spin_lock(&c->lock);
    struct page *p = radix_get(c->tree, index);
    if (p)
        page_get(p);
    spin_unlock(&c->lock);
    if (p && !page_has(p, PAGE_REFERENCED))
        atomic_fetch_or(&p->flags, PAGE_REFERENCED);
    return p;
}
struct page *pagecache_find(struct pagecache *c, uint64_t index)
{
    struct page *p = find_get(c, index);
    if (p && !page_has(p, PAGE_UPTODATE)) {
        page_put(p);
        return NULL;
    }
    return p;
}

int pagecache_add_page(struct pagecache *c, uint64_t index, struct page *p)
{
    atomic_fetch_or(&p->flags, PAGE_UPTODATE);
    spin_lock(&c->lock);
    int r = insert_locked(c, index, p);
    spin_unlock(&c->lock);
    return r;
}

/* A new page at index, LOCKED and referenced; or the one that was there (*made = false). */
static int find_or_make(struct pagecache *c, uint64_t index, struct page **out, bool *made)
{
    *made = false;
    *out = find_get(c, index);
    if (*out)
        return 0;
    struct page *p = page_alloc(0, MM_RECLAIM | (c->ops ? 0 : MM_ZERO));
    if (!p)
        return -ENOMEM;
    p->private = NULL;
    atomic_fetch_or(&p->flags, c->ops ? PAGE_LOCKED : PAGE_UPTODATE);
    spin_lock(&c->lock);
    int r = insert_locked(c, index, p);
    spin_unlock(&c->lock);
    if (r) {
        atomic_fetch_and(&p->flags, ~(PAGE_LOCKED | PAGE_UPTODATE));
        page_put(p);
        if (r != -EEXIST)
            return r;
        /* Lost the race; the other page may be gone again by now. */
        *out = find_get(c, index);
        return *out ? 0 : find_or_make(c, index, out, made);
    }
    *out = p;
    *made = true;
    return 0;
}

int pagecache_get_page(struct pagecache *c, uint64_t index, struct page **out)
{
    for (;;) {
        struct page *p;
        bool made;
        int r = find_or_make(c, index, &p, &made);
        if (r)
            return r;
        if (page_has(p, PAGE_UPTODATE)) {
            *out = p;
            return 0;
        }
        if (!made)
            page_lock(p);
        if (atomic_load_relaxed(&p->cache) != c) { /* truncated meanwhile */
            page_unlock(p);
            page_put(p);
            continue;
        }
        if (!page_has(p, PAGE_UPTODATE)) {
            atomic_fetch_and(&p->flags, ~PAGE_ERROR);
            r = c->ops->read_page(c, p);
        }
        clear_and_wake(p, PAGE_LOCKED, r ? PAGE_ERROR : PAGE_UPTODATE);
        if (r) {
            page_put(p);
            return r;
        }
        *out = p;
        return 0;
    }
}

void pagecache_readahead(struct pagecache *c, uint64_t first, unsigned count)
{
    struct page *batch[64];
    unsigned n = 0;
    if (!c->ops || !c->ops->read_pages)
        return;
    for (uint64_t index = first; index <= first + count; index++) {
        struct page *p = NULL;
        bool made = false;
        if (index < first + count && find_or_make(c, index, &p, &made))
            count = 0; /* no memory: read what we have */
        if (made)
            batch[n++] = p;
        else if (p)
            page_put(p);
        if (n && (!made || n == ARRAY_SIZE(batch))) {
            c->ops->read_pages(c, batch, n);
            for (unsigned i = 0; i < n; i++)
                page_put(batch[i]); /* the tree's reference lasts while LOCKED */
            n = 0;
        }
    }
}

/* ---- dirtying ---- */
void pagecache_mark_dirty(struct page *p)
{
    struct pagecache *c = atomic_load_relaxed(&p->cache);
    if (!c || (page_has(p, PAGE_DIRTY) && c->ops))
        return;
    if (!c->ops) {
        atomic_fetch_or(&p->flags, PAGE_DIRTY);
        return;
    }
    spin_lock(&c->lock);
    bool first = false;
    if (p->cache == c && !(atomic_fetch_or(&p->flags, PAGE_DIRTY) & PAGE_DIRTY)) {
        radix_tag_set(c->tree, p->index, RADIX_DIRTY);
        first = c->dirty_count++ == 0;
        atomic_fetch_add(&pagecache_dirty_total, 1);
    }
    spin_unlock(&c->lock);
    if (first)
        writeback_cache_dirtied(c);
}
void pagecache_map_writable(struct page *p)
{
    atomic_fetch_add(&p->map_writable, 1);
    pagecache_mark_dirty(p);
}
void pagecache_unmap_writable(struct page *p)
{
    /* Write-back left DIRTY set while the count was above zero, so the last stores go out with the next one. */
    atomic_fetch_sub(&p->map_writable, 1);
}

/* ---- write-back of one cache ---- */
/* Collect up to `size` dirty pages from *index on, marked WRITEBACK and referenced. Pages that are being
 * written already: skipped, or with `wait` one of them is returned in *busy (referenced). */
static unsigned collect_dirty(struct pagecache *c, uint64_t *index, uint64_t last, struct page **batch, unsigned size,
                              bool wait, struct page **busy)
{
    unsigned n = 0;
    *busy = NULL;
    spin_lock(&c->lock);
    while (n < size) {
        struct page *p = radix_next_tagged(c->tree, index, last, RADIX_DIRTY);
        if (!p)
            break;
        if (page_has(p, PAGE_WRITEBACK)) {
            if (wait) {
                page_get(p);
                *busy = p;
                break;
            }
        } else {
            if (!atomic_load_relaxed(&p->map_writable)) {
                atomic_fetch_and(&p->flags, ~PAGE_DIRTY);
                radix_tag_clear(c->tree, *index, RADIX_DIRTY);
                c->dirty_count--;
                atomic_fetch_sub(&pagecache_dirty_total, 1);
            }
            atomic_fetch_or(&p->flags, PAGE_WRITEBACK);
            radix_tag_set(c->tree, *index, RADIX_WRITEBACK);
            atomic_fetch_add(&pagecache_writeback_total, 1);
            page_get(p);
            batch[n++] = p;
        }
        if (*index == last) {
            (*index)++;
            break;
        }
        (*index)++;
    }
    spin_unlock(&c->lock);
    return n;
}

static void write_range(struct pagecache *c, uint64_t first, uint64_t last, bool wait)
{
    struct page *few[8], *busy;
    /* A few pages (a WAL flush) need no allocation. */
    bool many = atomic_load_relaxed(&c->dirty_count) > ARRAY_SIZE(few);
    struct page **batch = many ? kmalloc(PAGECACHE_BATCH * sizeof *batch) : NULL;
    unsigned size = batch ? PAGECACHE_BATCH : ARRAY_SIZE(few);
    uint64_t index = first;
    if (!batch)
        batch = few; /* write-back must go on without memory */
    while (index <= last && index >= first) {
        unsigned n = collect_dirty(c, &index, last, batch, size, wait, &busy);
        if (n) {
            c->ops->write_pages(c, batch, n);
            for (unsigned i = 0; i < n; i++)
                page_put(batch[i]);
        }
        if (busy) {
            page_wait_clear(busy, PAGE_WRITEBACK);
            page_put(busy);
        }
        if (!n && !busy)
            break;
        cond_resched();
    }
    if (batch != few)
        kfree(batch);
}

int pagecache_wait(struct pagecache *c, uint64_t first, uint64_t last)
{
    uint32_t before = atomic_load_relaxed(&c->error_sequence);
    uint64_t index = first;
    for (;;) {
        struct page *busy = NULL;
        spin_lock(&c->lock);
        struct page *p;
        while (!busy && (p = radix_next_tagged(c->tree, &index, last, RADIX_WRITEBACK))) {
            /* The tag is cleared here, not by the completion, which may not take the lock. */
            if (page_has(p, PAGE_WRITEBACK)) {
                page_get(p);
                busy = p;
            } else {
                radix_tag_clear(c->tree, index, RADIX_WRITEBACK);
            }
        }
        spin_unlock(&c->lock);
        if (!busy)
            break;
        page_wait_clear(busy, PAGE_WRITEBACK);
        page_put(busy);
    }
    return atomic_load_relaxed(&c->error_sequence) == before ? 0 : atomic_load_relaxed(&c->error);
}

int pagecache_start_write(struct pagecache *c, uint64_t first, uint64_t last)
{
    if (!c->ops)
        return 0;
    write_range(c, first, last, false);
    writeback_cache_clean(c);
    return 0;
}
int pagecache_write_and_wait(struct pagecache *c, uint64_t first, uint64_t last)
{
    if (!c->ops)
        return 0;
    uint32_t before = atomic_load_relaxed(&c->error_sequence);
    write_range(c, first, last, true);
    int r = pagecache_wait(c, first, last);
    writeback_cache_clean(c);
    return atomic_load_relaxed(&c->error_sequence) == before ? r : atomic_load_relaxed(&c->error);
}
int pagecache_check_error(struct pagecache *c, uint32_t *seen)
{
    uint32_t now = atomic_load_acquire(&c->error_sequence);
    uint32_t old = atomic_exchange(seen, now);
    return now == old ? 0 : atomic_load_relaxed(&c->error);
}

/* ---- removal ---- */
void pagecache_set_unmap_hook(void (*fn)(struct pagecache *, uint64_t)) { unmap_hook = fn; }

/* Remove [first, last]; busy pages are waited for, or skipped when only_clean (then used ones are, too). */
static uint64_t remove_range(struct pagecache *c, uint64_t first, uint64_t last, bool only_clean)
{
    uint64_t index = first, removed = 0;
    for (;;) {
        struct page *batch[16], *busy = NULL, *p;
        unsigned n = 0;
        spin_lock(&c->lock);
        while (n < ARRAY_SIZE(batch) && (p = radix_next(c->tree, &index, last))) {
            uint64_t at = index++;
            if (only_clean && (page_has(p, PAGE_DIRTY | PAGE_WRITEBACK | PAGE_LOCKED) ||
                               atomic_load_relaxed(&p->refcount) != 1))
                continue;
            if (page_has(p, PAGE_LOCKED | PAGE_WRITEBACK)) {
                page_get(p);
                busy = p;
                index = at;
                break;
            }
            remove_locked(c, p);
            batch[n++] = p;
        }
        spin_unlock(&c->lock);
        for (unsigned i = 0; i < n; i++)
            page_put(batch[i]);
        removed += n;
        if (busy) {
            page_wait_clear(busy, PAGE_LOCKED | PAGE_WRITEBACK);
            page_put(busy);
        } else if (!n) {
            return removed;
        }
        cond_resched();
    }
}
void pagecache_truncate(struct pagecache *c, uint64_t first_index)
{
    if (unmap_hook)
        unmap_hook(c, first_index);
    if (remove_range(c, first_index, UINT64_MAX - 1, false) && unmap_hook)
        unmap_hook(c, first_index); /* a fault may have mapped a page between the two */
    writeback_cache_clean(c);
}
uint64_t pagecache_drop_clean(struct pagecache *c, uint64_t first, uint64_t last)
{
    return c->ops ? remove_range(c, first, last, true) : 0;
}
void pagecache_destroy(struct pagecache *c)
{
    remove_range(c, 0, UINT64_MAX - 1, false);
    writeback_cache_clean(c);
}
void pagecache_counts(struct pagecache_counts *out)
{
    out->cached = atomic_load_relaxed(&pagecache_total);
    out->dirty = atomic_load_relaxed(&pagecache_dirty_total);
    out->writeback = atomic_load_relaxed(&pagecache_writeback_total);
    out->shmem = atomic_load_relaxed(&pagecache_memory_total);
}
