/* mremap: growing, shrinking and moving an area. */
#include "aspace_internal.h"

#define MREMAP_MAYMOVE 1u
#define MREMAP_FIXED   2u

/* Move the entries of [from, from + len) to `to`. Entries of huge pages and those without room for a table are
 * dropped where a fault can bring them back; private pages must move, so their tables are made first. */
static int move_entries(struct vm_area *a, uint64_t from, uint64_t to, uint64_t len)
{
    struct aspace *as = a->as;

    for (uint64_t done = 0; done < len; done += PAGE_SIZE) {
        uint64_t *src, *dst, e;
        spin_lock(&as->page_lock);
        src = pagetable_entry(&as->pt, from + done, 1, false);
        e = src ? pte_read(src) : 0;
        dst = e ? pagetable_entry(&as->pt, to + done, 1, true) : NULL;
        if (dst) {
            pte_write(src, 0);
            pte_write(dst, e);
        }
        spin_unlock(&as->page_lock);
        if (e && !dst)
            return -ENOMEM;
        if (!src)
            done = ALIGN_DOWN(from + done, HUGE_SIZE) + HUGE_SIZE - PAGE_SIZE - from;
        cond_resched();
    }
    return 0;
}

/* a, which is exactly the old range, goes to `to` with new_len bytes. */
static int move_area(struct vm_area *a, uint64_t to, uint64_t new_len, struct list *dead)
{
    struct aspace *as = a->as;
    uint64_t from = a->start, len = a->end - a->start;
    struct vm_area *n = area_alloc(as);
    struct gather g;
    int r = 0;

    if (!n)
        return -ENOMEM;
    n->start = to;
    n->end = to + new_len;
    n->offset = a->offset;
    n->prot = a->prot;
    n->flags = a->flags;
    n->has_anonymous = a->has_anonymous;
    n->file = a->file;
    n->shm = a->shm;
    if (n->file)
        file_get(n->file);
    if (n->shm)
        shm_object_get(n->shm);
    mapping_add(n); /* behind a in the list: a truncation that missed an entry there meets it here */
    area_insert(as, n);
    if (area_is_private(a))
        r = move_entries(a, from, to, len);
    if (r) { /* take back what has moved */
        int back = move_entries(n, to, from, len);
        assert(!back); /* the tables are there */
        a = n;
    }
    pagetable_flush(&as->pt, from, from + len);
    mapping_remove(a);
    gather_begin(&g, as, len);
    zap_range(&g, a->start, a->end);
    gather_end(&g);
    area_remove(as, a);
    list_add_tail(dead, &a->cache_link);
    if (!r)
        area_merge(n, dead);
    return r;
}

static bool can_grow(struct vm_area *a, uint64_t new_end)
{
    return new_end <= USER_TOP && area_range_free(a->as, a->end, new_end) &&
           (!a->shm || a->offset + (new_end - a->start) <= shm_object_size(a->shm));
}

static int64_t remap_move(struct vm_area *a, uint64_t new_len, unsigned flags, uint64_t new_addr,
                          struct list *dead)
{
    struct aspace *as = a->as;
    uint64_t old = a->start, old_end = a->end;
    int64_t to = (int64_t)new_addr;
    int r;

    if (flags & MREMAP_FIXED) {
        r = unmap_locked(as, new_addr, new_addr + new_len, dead);
        if (r)
            return r;
        a = area_find(as, old);
        if (!a || a->start != old || a->end != old_end)
            return -EFAULT;
    } else {
        to = area_find_free(as, 0, new_len, a->shm && new_len >= HUGE_SIZE ? HUGE_SIZE : PAGE_SIZE,
                            a->shm && new_len >= HUGE_SIZE ? a->offset & (HUGE_SIZE - 1) : 0);
        if (to < 0)
            return to;
    }
    r = move_area(a, (uint64_t)to, new_len, dead);
    return r ? r : to;
}

static int64_t remap_locked(struct aspace *as, uint64_t old, uint64_t old_len, uint64_t new_len,
                            unsigned flags, uint64_t new_addr, struct list *dead)
{
    struct vm_area *a = area_find(as, old);
    int r;

    if (!a || a->start > old || a->end - old < old_len)
        return -EFAULT;
    if (new_len < old_len) {
        r = unmap_locked(as, old + new_len, old + old_len, dead);
        if (r || !(flags & MREMAP_FIXED))
            return r ? r : (int64_t)old;
        old_len = new_len;
        a = area_find(as, old);
    } else if (new_len == old_len && !(flags & MREMAP_FIXED)) {
        return (int64_t)old;
    }
    if (((new_len - old_len) >> PAGE_SHIFT) > mm_total_pages())
        return -ENOMEM;
    if (!(flags & MREMAP_FIXED) && a->end == old + old_len && can_grow(a, old + new_len)) {
        area_set_range(a, a->start, old + new_len, a->offset);
        area_merge(a, dead);
        return (int64_t)old;
    }
    if (!(flags & MREMAP_MAYMOVE))
        return -ENOMEM;
    if (a->start < old && !(a = area_split(a, old)))
        return -ENOMEM;
    if (a->end > old + old_len && !area_split(a, old + old_len))
        return -ENOMEM;
    return remap_move(a, new_len, flags, new_addr, dead);
}

int64_t aspace_mremap(struct aspace *as, uint64_t old, uint64_t old_len, uint64_t new_len,
                      unsigned flags, uint64_t new_addr)
{
    struct list dead = LIST_INIT(dead);
    int64_t r;

    if (old_len > USER_TOP || new_len > USER_TOP)
        return -EINVAL;
    old_len = ALIGN_UP(old_len, PAGE_SIZE);
    new_len = ALIGN_UP(new_len, PAGE_SIZE);
    /* Doubling a shared mapping (old length 0) is not offered. */
    if (!IS_ALIGNED(old, PAGE_SIZE) || !new_len || !old_len || (flags & ~(MREMAP_MAYMOVE | MREMAP_FIXED)) ||
        old > USER_TOP - old_len)
        return -EINVAL;
    if (flags & MREMAP_FIXED) {
        if (!(flags & MREMAP_MAYMOVE) || !IS_ALIGNED(new_addr, PAGE_SIZE) || new_addr < USER_BOTTOM ||
            new_addr > USER_TOP - new_len || (new_addr < old + old_len && old < new_addr + new_len))
            return -EINVAL;
    }
    rw_write_lock(&as->lock);
    r = remap_locked(as, old, old_len, new_len, flags, new_addr, &dead);
    rw_write_unlock(&as->lock);
    area_free_list(&dead);
    return r;
}
