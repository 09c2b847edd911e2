/* Shared by pagecache.c, pagecache_lru.c and writeback.c. */
#ifndef FS_PAGECACHE_INTERNAL_H
#define FS_PAGECACHE_INTERNAL_H
#include <weir/pagecache.h>
#include <weir/sched.h>
#include "radix.h"

#define PAGECACHE_BATCH 512   /* pages collected for one write_pages call (2 MiB) */

static inline bool page_has(const struct page *p, uint32_t flag) { return atomic_load_acquire(&p->flags) & flag; }
void page_lock(struct page *p);
void page_unlock(struct page *p);
void page_wait_clear(struct page *p, uint32_t flag); /* sleep until the flag is clear */

/* LRU of clean file pages; the cache's lock is held. */
void lru_add(struct page *p);
void lru_remove(struct page *p);

/* Counters of all caches (pages), atomic. */
extern uint64_t pagecache_total, pagecache_dirty_total, pagecache_writeback_total, pagecache_memory_total;

bool pagecache_try_evict_locked(struct pagecache *c, struct page *p); /* for the LRU; c->lock held */

/* writeback.c */
void writeback_cache_dirtied(struct pagecache *c); /* first dirty page; cache's lock not held */
void writeback_cache_clean(struct pagecache *c);   /* maybe clean now: take it off the list. Thread context, no lock */
#endif
