/*
 * Clean file pages in order of use, for reclaim: second chance by PAGE_REFERENCED. Sharded so that inserting pages
 * does not meet on one lock. Order: a cache's lock, then a shard's; reclaim goes the other way with try-locks.
 */
#include "pagecache_internal.h"

#define SHARDS 16
/* Key: s the shard's lock */
static struct lru_shard {
    spinlock_t lock;
    struct list pages; /* s oldest first */
    uint64_t count;    /* s */
    bool ready;        /* s */
} __cacheline shards[SHARDS];
static bool registered;


static uint64_t shrink(uint64_t wanted);

static struct lru_shard *shard_of(struct page *p) { return &shards[(uintptr_t)p / sizeof *p % SHARDS]; }

void lru_add(struct page *p)
{
    struct lru_shard *s = shard_of(p);
    if (!atomic_load_relaxed(&registered) && !atomic_exchange(&registered, true))
        mm_register_shrinker(shrink);
    spin_lock(&s->lock);
    if (!s->ready) {
        list_init(&s->pages);
        s->ready = true;
    }
    list_add_tail(&s->pages, &p->link);
    atomic_store_relaxed(&s->count, s->count + 1);
    spin_unlock(&s->lock);
}
void lru_remove(struct page *p)
{
    struct lru_shard *s = shard_of(p);
    spin_lock(&s->lock);
    list_del(&p->link);
    atomic_store_relaxed(&s->count, s->count - 1);
    spin_unlock(&s->lock);
}

/* Look at up to `scan` of the oldest pages; freed ones are put after the lock is gone. */
static uint64_t shrink_shard(struct lru_shard *s, uint64_t wanted, uint64_t scan)
{
    struct list freed = LIST_INIT(freed);
    uint64_t n = 0;
    spin_lock(&s->lock);
    while (s->ready && scan-- && n < wanted && !list_empty(&s->pages)) {
        struct page *p = list_first(&s->pages, struct page, link);
        /* On the list, so it is in a cache, and that cache cannot go while we hold this lock. */
        struct pagecache *c = p->cache;
        bool gone = false;
        if (atomic_fetch_and(&p->flags, ~PAGE_REFERENCED) & PAGE_REFERENCED) {
            /* second chance */
        } else if (spin_try_lock(&c->lock)) {
            gone = pagecache_try_evict_locked(c, p);
            spin_unlock(&c->lock);
        }
        list_del(&p->link);
        list_add_tail(gone ? &freed : &s->pages, &p->link);
        n += gone;
        atomic_store_relaxed(&s->count, s->count - gone);
    }
    spin_unlock(&s->lock);
    while (!list_empty(&freed)) {
        struct page *p = list_first(&freed, struct page, link);
        list_del(&p->link);
        page_put(p);
    }
    return n;
}

static uint64_t shrink(uint64_t wanted)
{
    static uint32_t turn;
    uint64_t freed = 0;
    for (unsigned round = 0; round < 3 && freed < wanted; round++) {
        for (unsigned i = 0; i < SHARDS && freed < wanted; i++) {
            struct lru_shard *s = &shards[atomic_fetch_add(&turn, 1) % SHARDS];
            uint64_t scan = MIN(atomic_load_relaxed(&s->count), round ? 4096 : 256);
            freed += shrink_shard(s, MIN(wanted - freed, 256), scan);
        }
    }
    return freed;
}
