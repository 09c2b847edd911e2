/* The areas of an address space: a tree by address, cutting, joining, and finding free room. */
#include "aspace_internal.h"
#include <weir/init.h>

static struct slab_cache *area_slab;

static void area_init(void)
{
    area_slab = slab_create("vm_area", sizeof(struct vm_area), 64);
    if (!area_slab)
        panic("no memory for the area cache");
}
INIT_CALL(INIT_CORE, area_init);

struct vm_area *area_find(struct aspace *as, uint64_t addr)
{
    struct vm_area *hint = atomic_load_relaxed(&as->last_found), *found = NULL;
    struct rb_node *n = as->areas.root;

    if (hint && hint->start <= addr && addr < hint->end)
        return hint;
    while (n) {
        struct vm_area *a = area_of(n);
        if (a->end > addr) {
            found = a;
            if (a->start <= addr)
                break;
            n = n->left;
        } else {
            n = n->right;
        }
    }
    if (found && found->start <= addr)
        atomic_store_relaxed(&as->last_found, found);
    return found;
}

struct vm_area *area_alloc(struct aspace *as)
{
    struct vm_area *a = slab_alloc(area_slab);

    if (!a)
        return NULL;
    memset(a, 0, sizeof(*a));
    a->as = as;
    list_init(&a->cache_link);
    return a;
}

void area_free(struct vm_area *a)
{
    if (a->file)
        file_put(a->file);
    if (a->shm)
        shm_object_put(a->shm);
    slab_free(area_slab, a);
}

void area_free_list(struct list *dead)
{
    while (!list_empty(dead)) {
        struct vm_area *a = list_first(dead, struct vm_area, cache_link);
        list_del(&a->cache_link);
        area_free(a);
    }
}

void area_insert(struct aspace *as, struct vm_area *a)
{
    struct rb_node **link = &as->areas.root, *parent = NULL;

    while (*link) {
        parent = *link;
        link = a->start < area_of(parent)->start ? &parent->left : &parent->right;
    }
    rb_insert(&as->areas, &a->node, parent, link);
    as->area_count++;
    as->virtual_bytes += a->end - a->start;
}

void area_remove(struct aspace *as, struct vm_area *a)
{
    rb_remove(&as->areas, &a->node);
    as->area_count--;
    as->virtual_bytes -= a->end - a->start;
    atomic_store_relaxed(&as->last_found, NULL);
}

void area_set_range(struct vm_area *a, uint64_t start, uint64_t end, uint64_t offset)
{
    mapping_lock(a);
    a->as->virtual_bytes += (end - start) - (a->end - a->start);
    a->start = start;
    a->end = end;
    a->offset = offset;
    mapping_unlock(a);
}

struct vm_area *area_split(struct vm_area *a, uint64_t addr)
{
    struct vm_area *upper;

    assert(addr > a->start && addr < a->end && IS_ALIGNED(addr, PAGE_SIZE));
    if (a->as->area_count >= AREA_LIMIT)
        return NULL;
    upper = area_alloc(a->as);
    if (!upper)
        return NULL;
    upper->start = addr;
    upper->end = a->end;
    upper->offset = a->offset + (addr - a->start);
    upper->prot = a->prot;
    upper->flags = a->flags;
    upper->has_anonymous = a->has_anonymous;
    upper->file = a->file;
    upper->shm = a->shm;
    if (upper->file)
        file_get(upper->file);
    if (upper->shm)
        shm_object_get(upper->shm);
    /* Both halves appear in the list of mappings at once: a truncation sees one or the other state. */
    mapping_lock(a);
    a->as->virtual_bytes -= a->end - addr;
    a->end = addr;
    mapping_add_locked(upper);
    mapping_unlock(a);
    area_insert(a->as, upper);
    return upper;
}

static bool areas_join(const struct vm_area *low, const struct vm_area *high)
{
    if (low->end != high->start || low->prot != high->prot || low->flags != high->flags ||
        low->file != high->file || low->shm != high->shm || (low->flags & AREA_GROWSDOWN))
        return false;
    return (!low->file && !low->shm) || low->offset + (low->end - low->start) == high->offset;
}

/* The lower area takes over the upper one's range. */
static void areas_absorb(struct vm_area *low, struct vm_area *high, struct list *dead)
{
    uint64_t end = high->end;

    area_remove(low->as, high);
    mapping_lock(low);
    mapping_remove_locked(high);
    low->as->virtual_bytes += end - low->end;
    low->end = end;
    low->has_anonymous |= high->has_anonymous;
    mapping_unlock(low);
    list_add_tail(dead, &high->cache_link);
}

struct vm_area *area_merge(struct vm_area *a, struct list *dead)
{
    struct vm_area *other = area_prev(a);

    if (other && areas_join(other, a)) {
        areas_absorb(other, a, dead);
        a = other;
    }
    other = area_next(a);
    if (other && areas_join(a, other))
        areas_absorb(a, other, dead);
    return a;
}

bool area_range_free(struct aspace *as, uint64_t start, uint64_t end)
{
    struct vm_area *a = area_find(as, start);

    return !a || a->start >= end;
}

/* Highest start in [low, high - len] that is congruent to phase modulo align, or 0. */
static uint64_t fit_below(uint64_t low, uint64_t high, uint64_t len, uint64_t align, uint64_t phase)
{
    uint64_t start;

    if (high < len || high - len < low)
        return 0;
    start = ((high - len - phase) & ~(align - 1)) + phase;
    if (start > high - len)
        start -= align;
    return start >= low && start + len <= high ? start : 0;
}

int64_t area_find_free(struct aspace *as, uint64_t hint, uint64_t len, uint64_t align,
                       uint64_t phase)
{
    struct vm_area *above;
    uint64_t high = as->mmap_top;

    hint &= ~PAGE_MASK;
    if (hint >= USER_BOTTOM && hint < USER_TOP && len <= USER_TOP - hint &&
        area_range_free(as, hint, hint + len))
        return (int64_t)hint;

    /* Top down: the gaps between neighbours, from the highest area that reaches below mmap_top. */
    above = area_find(as, as->mmap_top - 1);
    if (above && above->start < high)
        high = above->start;
    for (struct vm_area *a = above ? area_prev(above) : area_of(rb_last(&as->areas));;) {
        uint64_t low = a ? a->end : USER_BOTTOM;
        uint64_t start = fit_below(low, high, len, align, phase);
        if (start)
            return (int64_t)start;
        if (!a)
            return -ENOMEM;
        high = a->start;
        a = area_prev(a);
    }
}
