/*
 * Who maps a page cache: areas in buckets by cache, so that truncation can take the pages out of every
 * address space. A bucket's mutex is lock C of aspace_internal.h.
 */
#include "aspace_internal.h"
#include <weir/init.h>

#define BUCKETS 512u

struct bucket {
    struct mutex lock;
    struct list areas; /* lock; in order of arrival: a child of fork stands behind its parent */
};
static struct bucket buckets[BUCKETS];

static struct bucket *bucket_of(const struct pagecache *c)
{
    return &buckets[(((uintptr_t)c >> 6) * 0x9e3779b97f4a7c15UL) >> 55];
}

void mapping_lock(struct vm_area *a)
{
    if (a->file)
        mutex_lock(&bucket_of(area_cache(a))->lock);
}

void mapping_unlock(struct vm_area *a)
{
    if (a->file)
        mutex_unlock(&bucket_of(area_cache(a))->lock);
}

void mapping_add_locked(struct vm_area *a)
{
    if (a->file)
        list_add_tail(&bucket_of(area_cache(a))->areas, &a->cache_link);
}

void mapping_remove_locked(struct vm_area *a)
{
    if (a->file)
        list_del(&a->cache_link);
}

void mapping_add(struct vm_area *a)
{
    mapping_lock(a);
    mapping_add_locked(a);
    mapping_unlock(a);
}

void mapping_remove(struct vm_area *a)
{
    mapping_lock(a);
    mapping_remove_locked(a);
    mapping_unlock(a);
}

/*
 * The file was cut: its size is already the new one. A fault that still saw the old size installs its entry
 * under the page lock, before or after the pass below: before, it is removed here; after, it sees the new
 * size and fails (see fault.c). Private copies beyond the end go too, as in Linux.
 */
static void mapping_unmap(struct pagecache *c, uint64_t first_index)
{
    struct bucket *b = bucket_of(c);
    struct vm_area *a;

    mutex_lock(&b->lock);
    list_for_each_entry(a, &b->areas, cache_link) {
        uint64_t first = a->offset >> PAGE_SHIFT;
        uint64_t pages = (a->end - a->start) >> PAGE_SHIFT;
        struct gather g;
        if (area_cache(a) != c || first + pages <= first_index)
            continue;
        uint64_t skip = first_index > first ? first_index - first : 0;
        gather_begin(&g, a->as, (pages - skip) << PAGE_SHIFT);
        zap_range(&g, a->start + (skip << PAGE_SHIFT), a->end);
        gather_end(&g);
    }
    mutex_unlock(&b->lock);
}

static void mapping_init(void)
{
    for (unsigned i = 0; i < BUCKETS; i++) {
        mutex_init(&buckets[i].lock);
        list_init(&buckets[i].areas);
    }
    pagecache_set_unmap_hook(mapping_unmap);
}
INIT_CALL(INIT_CORE, mapping_init);
