/* mmap, munmap and brk. */
#include "aspace_internal.h"
#include <weir/trap.h>

#define MAP_TYPE 0x0fu
#define MAP_SHARED_VALIDATE 0x03u
#define LARGE_ALIGN_FROM HUGE_SIZE /* shared memory at least this large is placed on 2 MiB borders */

/* Split so that no area crosses addr. */
static int split_at(struct aspace *as, uint64_t addr)
{
    struct vm_area *a = area_find(as, addr);

    if (!a || a->start >= addr)
        return 0;
    return area_split(a, addr) ? 0 : -ENOMEM;
}

int unmap_locked(struct aspace *as, uint64_t start, uint64_t end, struct list *dead)
{
    struct vm_area *a, *next;
    struct gather g;

    if (area_range_free(as, start, end))
        return 0;
    if (split_at(as, start) || split_at(as, end))
        return -ENOMEM;
    gather_begin(&g, as, end - start);
    for (a = area_find(as, start); a && a->start < end; a = next) {
        next = area_next(a);
        mapping_remove(a);
        zap_range(&g, a->start, a->end);
        area_remove(as, a);
        list_add_tail(dead, &a->cache_link);
    }
    gather_end(&g);
    zap_tables(as, start, end);
    return 0;
}

static bool is_zero_device(const struct file *f)
{
    return f->inode && (f->inode->mode & S_IFMT) == S_IFCHR && f->inode->rdev == ((1 << 8) | 5);
}

static int check_file(const struct file *f, unsigned prot, bool shared)
{
    unsigned access = f->flags & O_ACCMODE;

    if (access == O_WRONLY)
        return -EACCES;
    if (shared && (prot & PROT_WRITE) && access != O_RDWR)
        return -EACCES;
    if (!f->inode || !S_ISREG(f->inode->mode))
        return -ENODEV;
    return 0;
}

static int check_request(uint64_t len, unsigned prot, unsigned flags, struct file *file,
                         uint64_t offset)
{
    unsigned type = flags & MAP_TYPE;

    if (!len || (type != MAP_SHARED && type != MAP_PRIVATE && type != MAP_SHARED_VALIDATE))
        return -EINVAL;
    if (len > USER_TOP)
        return -ENOMEM;
    if (!IS_ALIGNED(offset, PAGE_SIZE))
        return -EINVAL;
    if (offset + len < offset || offset + len > (uint64_t)INT64_MAX)
        return -EOVERFLOW;
    /* Huge pages on demand of the program do not exist; large shared memory gets them unasked. */
    if (flags & MAP_HUGETLB)
        return -ENOMEM;
    /* Refuse what can never be filled; NORESERVE says that it never will be. */
    if (!file && !(flags & MAP_NORESERVE) && prot != 0 && (len >> PAGE_SHIFT) > mm_total_pages())
        return -ENOMEM;
    return file ? check_file(file, prot, type != MAP_PRIVATE) : 0;
}

/* Everything about a new area but its place. */
static struct vm_area *new_area(struct aspace *as, unsigned prot, unsigned flags,
                                struct file *file, struct shm_object *shm, uint64_t offset)
{
    struct vm_area *a = area_alloc(as);

    if (!a)
        return NULL;
    a->prot = prot & (PROT_READ | PROT_WRITE | PROT_EXEC);
    a->flags = flags;
    a->offset = offset;
    a->file = file;
    a->shm = shm;
    if (file)
        file_get(file);
    return a;
}

static int64_t choose_address(struct aspace *as, uint64_t addr, uint64_t len, unsigned flags,
                              const struct vm_area *a)
{
    uint64_t align = PAGE_SIZE, phase = 0;

    if (flags & (MAP_FIXED | MAP_FIXED_NOREPLACE)) {
        if (!IS_ALIGNED(addr, PAGE_SIZE))
            return -EINVAL;
        if (addr > USER_TOP || len > USER_TOP - addr)
            return -ENOMEM;
        if (addr < USER_BOTTOM)
            return -EPERM;
        if ((flags & MAP_FIXED_NOREPLACE) && !area_range_free(as, addr, addr + len))
            return -EEXIST;
        return (int64_t)addr;
    }
    if (a->shm && len >= LARGE_ALIGN_FROM) {
        align = HUGE_SIZE;
        phase = a->offset & (HUGE_SIZE - 1);
    }
    return area_find_free(as, addr, len, align, phase);
}

/* Put a in its place; on failure it goes to dead. */
static int64_t place_area(struct aspace *as, struct vm_area *a, uint64_t addr, uint64_t len,
                          unsigned flags, struct list *dead)
{
    int64_t where = choose_address(as, addr, len, flags, a);
    int r = 0;

    if (where >= 0 && as->area_count >= AREA_LIMIT)
        where = -ENOMEM;
    if (where >= 0 && (flags & MAP_FIXED))
        r = unmap_locked(as, where, where + len, dead);
    if (where < 0 || r) {
        list_add_tail(dead, &a->cache_link);
        return r ? r : where;
    }
    a->start = where;
    a->end = where + len;
    mapping_add(a);
    area_insert(as, a);
    area_merge(a, dead);
    return where;
}

/* MAP_POPULATE: best effort, as in Linux. */
static void populate(struct aspace *as, uint64_t start, uint64_t len, unsigned prot)
{
    unsigned bits = FAULT_USER | (prot & PROT_WRITE ? FAULT_WRITE : 0);

    for (uint64_t va = start; va < start + len; va += PAGE_SIZE) {
        if (aspace_fault(as, va, bits) || (current->pending & THREAD_KILL))
            return;
        cond_resched();
    }
}

static int64_t map_area(struct aspace *as, struct vm_area *a, uint64_t addr, uint64_t len,
                        unsigned flags)
{
    struct list dead = LIST_INIT(dead);
    unsigned prot = a->prot;
    int64_t where;

    rw_write_lock(&as->lock);
    where = place_area(as, a, addr, len, flags, &dead);
    rw_write_unlock(&as->lock);
    area_free_list(&dead);
    if (where >= 0 && (flags & MAP_POPULATE) && prot)
        populate(as, where, len, prot);
    return where;
}

int64_t aspace_mmap(struct aspace *as, uint64_t addr, uint64_t len, unsigned prot, unsigned flags,
                    struct file *file, uint64_t offset)
{
    struct shm_object *shm = NULL;
    unsigned area_flags = 0;
    struct vm_area *a;
    int r;

    if (flags & MAP_ANONYMOUS)
        file = NULL;
    if (file && is_zero_device(file)) {
        file = NULL;
        flags |= MAP_ANONYMOUS;
    }
    if (!file)
        offset = 0;
    if (len > USER_TOP)
        return -ENOMEM;
    len = ALIGN_UP(len, PAGE_SIZE);
    r = check_request(len, prot, flags, file, offset);
    if (r)
        return r;
    if ((flags & MAP_TYPE) != MAP_PRIVATE) {
        area_flags |= AREA_SHARED;
        if (file && (file->flags & O_ACCMODE) != O_RDWR)
            area_flags |= AREA_NOT_WRITABLE;
        if (!file && !(shm = shm_object_create(len)))
            return -ENOMEM;
    } else if ((flags & MAP_GROWSDOWN) && !file) {
        area_flags |= AREA_GROWSDOWN;
    }
    if (flags & MAP_NORESERVE)
        area_flags |= AREA_NORESERVE;
    a = new_area(as, prot, area_flags, file, shm, offset);
    if (!a) {
        if (shm)
            shm_object_put(shm);
        return -ENOMEM;
    }
    return map_area(as, a, addr, len, flags);
}

int64_t aspace_map_shm(struct aspace *as, uint64_t addr, unsigned prot, struct shm_object *obj)
{
    unsigned area_flags = AREA_SHARED | (prot & PROT_WRITE ? 0 : AREA_NOT_WRITABLE);
    struct vm_area *a = new_area(as, prot, area_flags, NULL, obj, 0);

    if (!a)
        return -ENOMEM;
    shm_object_get(obj);
    return map_area(as, a, addr, shm_object_size(obj), addr ? MAP_FIXED_NOREPLACE : 0);
}

int aspace_munmap(struct aspace *as, uint64_t addr, uint64_t len)
{
    struct list dead = LIST_INIT(dead);
    int r;

    if (!IS_ALIGNED(addr, PAGE_SIZE) || !len || addr > USER_TOP || len > USER_TOP - addr)
        return -EINVAL;
    rw_write_lock(&as->lock);
    r = unmap_locked(as, addr, addr + ALIGN_UP(len, PAGE_SIZE), &dead);
    rw_write_unlock(&as->lock);
    area_free_list(&dead);
    return r;
}

static int brk_grow(struct aspace *as, uint64_t from, uint64_t to, struct list *dead)
{
    struct vm_area *a;

    if (!area_range_free(as, from, to + STACK_GUARD) || ((to - from) >> PAGE_SHIFT) > mm_total_pages())
        return -ENOMEM;
    a = new_area(as, PROT_READ | PROT_WRITE, 0, NULL, NULL, 0);
    if (!a)
        return -ENOMEM;
    a->start = from;
    a->end = to;
    area_insert(as, a);
    area_merge(a, dead);
    return 0;
}

uint64_t aspace_brk(struct aspace *as, uint64_t new_break)
{
    struct list dead = LIST_INIT(dead);
    uint64_t from, to, result;
    int r = 0;

    rw_write_lock(&as->lock);
    if (new_break >= as->brk_start && new_break < USER_TOP - STACK_GUARD) {
        from = ALIGN_UP(as->brk, PAGE_SIZE);
        to = ALIGN_UP(new_break, PAGE_SIZE);
        if (to > from)
            r = brk_grow(as, from, to, &dead);
        else if (to < from)
            r = unmap_locked(as, to, from, &dead);
        if (!r)
            as->brk = new_break;
    }
    result = as->brk;
    rw_write_unlock(&as->lock);
    area_free_list(&dead);
    return result;
}
