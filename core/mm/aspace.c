/* Life of an address space, and what others may know of it. */
#include "aspace_internal.h"
#include <weir/init.h>

struct aspace *aspace_create(void)
{
    struct aspace *as = kzalloc(sizeof(*as));

    if (!as)
        return NULL;
    if (pagetable_init(&as->pt)) {
        kfree(as);
        return NULL;
    }
    as->refcount = 1;
    rw_mutex_init(&as->lock);
    spin_init(&as->page_lock);
    as->mmap_top = STACK_TOP_LIMIT - (256UL << 20);
    return as;
}

void aspace_get(struct aspace *as)
{
    atomic_fetch_add(&as->refcount, 1);
}

/* Nobody uses it any more: no CPU has it loaded, nobody can fault in it. */
static void aspace_destroy(struct aspace *as)
{
    struct list dead = LIST_INIT(dead);
    struct vm_area *a;
    struct gather g;

    /* Out of the lists of mappings first: after this no truncation looks into the tables. */
    for (a = area_of(rb_first(&as->areas)); a; a = area_next(a))
        mapping_remove(a);
    gather_begin(&g, as, as->virtual_bytes);
    g.dead = true;
    for (a = area_of(rb_first(&as->areas)); a; a = area_next(a))
        zap_range(&g, a->start, a->end);
    gather_end(&g);
    assert(!as->anonymous_pages && !as->shared_pages);
    pagetable_destroy(&as->pt);
    /* The tree as a whole goes, so nothing is taken out of it; its links are read until the last area is on the list. */
    for (a = area_of(rb_first(&as->areas)); a; a = area_next(a))
        list_add_tail(&dead, &a->cache_link);
    area_free_list(&dead);
    kfree(as);
}

void aspace_put(struct aspace *as)
{
    if (as && atomic_fetch_sub(&as->refcount, 1) == 1)
        aspace_destroy(as);
}

struct pagetable *aspace_pagetable(struct aspace *as)
{
    return &as->pt;
}

struct aspace *aspace_current(void)
{
    struct pagetable *pt = current->pagetable;

    return pt ? container_of(pt, struct aspace, pt) : NULL;
}

struct aspace *aspace_use(struct aspace *as)
{
    struct aspace *before = aspace_current();
    uint64_t flags = irq_save();

    current->pagetable = as ? &as->pt : NULL;
    pagetable_load(current->pagetable);
    irq_restore(flags);
    return before;
}

int aspace_set_layout(struct aspace *as, uint64_t mmap_top, uint64_t stack_top,
                      uint64_t stack_limit, unsigned stack_prot)
{
    const uint64_t first_bytes = 33 * PAGE_SIZE;
    struct vm_area *a = area_alloc(as);

    if (!a)
        return -ENOMEM;
    as->mmap_top = mmap_top;
    as->stack_top = stack_top;
    as->stack_limit = MAX(stack_limit, first_bytes);
    a->start = stack_top - first_bytes;
    a->end = stack_top;
    a->prot = stack_prot;
    a->flags = AREA_GROWSDOWN;
    rw_write_lock(&as->lock);
    area_insert(as, a);
    rw_write_unlock(&as->lock);
    return 0;
}

void aspace_set_brk(struct aspace *as, uint64_t start)
{
    as->brk_start = as->brk = start;
}

void aspace_set_stack_limit(struct aspace *as, uint64_t bytes)
{
    atomic_store_relaxed(&as->stack_limit, bytes);
}

void aspace_usage(struct aspace *as, uint64_t *virtual_bytes, uint64_t *private_bytes,
                  uint64_t *shared_bytes)
{
    /* Estimates for display and ranking: read without the locks. */
    *virtual_bytes = atomic_load_relaxed(&as->virtual_bytes);
    *private_bytes = atomic_load_relaxed(&as->anonymous_pages) << PAGE_SHIFT;
    *shared_bytes = atomic_load_relaxed(&as->shared_pages) << PAGE_SHIFT;
}

static const char *area_name(struct vm_area *a, char *buf, size_t size)
{
    if (a->file && a->file->dentry) {
        char *path = vfs_path(a->file->dentry, buf, size);
        return is_err(path) ? "" : path;
    }
    if (a->shm)
        return a->flags & AREA_NOT_WRITABLE ? "[vdso]" : "/dev/zero (deleted)";
    if (a->end == a->as->stack_top)
        return "[stack]";
    if (a->start >= a->as->brk_start && a->end <= ALIGN_UP(a->as->brk, PAGE_SIZE))
        return "[heap]";
    return "";
}

int aspace_show_maps(struct aspace *as, struct seq *s)
{
    char *buf = kmalloc(PATH_MAX_WEIR);

    if (!buf)
        return -ENOMEM;
    rw_read_lock(&as->lock);
    for (struct vm_area *a = area_of(rb_first(&as->areas)); a; a = area_next(a)) {
        uint64_t ino = a->file ? a->file->inode->ino : 0;
        seq_printf(s, "%08lx-%08lx %c%c%c%c %08lx 00:00 %lu %26s%s\n", (unsigned long)a->start,
                   (unsigned long)a->end, a->prot & PROT_READ ? 'r' : '-',
                   a->prot & PROT_WRITE ? 'w' : '-', a->prot & PROT_EXEC ? 'x' : '-',
                   a->flags & AREA_SHARED ? 's' : 'p', (unsigned long)(a->file ? a->offset : 0),
                   (unsigned long)ino, "", area_name(a, buf, PATH_MAX_WEIR));
    }
    rw_read_unlock(&as->lock);
    kfree(buf);
    return 0;
}
