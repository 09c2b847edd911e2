/*
 * Page faults. The area lock is held for reading, so several threads of a process fault at once; what they install
 * is decided under page_lock, after everything that may block. Who finds the entry changed drops his page and
 * lets the processor try again.
 */
#include "aspace_internal.h"
#include <weir/init.h>
#include <weir/trap.h>

#define AROUND_PAGES 16u

struct page *zero_page;
uint64_t zero_page_phys;
static bool (*oom_hook)(void);

void aspace_set_oom_hook(bool (*fn)(void))
{
    oom_hook = fn;
}

static void fault_init(void)
{
    zero_page = page_alloc(0, MM_ZERO);
    if (!zero_page)
        panic("no memory for the zero page");
    zero_page_phys = page_phys(zero_page);
}
INIT_CALL(INIT_CORE, fault_init);

/* The level-1 entry for va, its table made if need be. NULL = no memory. */
static uint64_t *entry_for(struct aspace *as, uint64_t va)
{
    uint64_t *pte = pagetable_entry(&as->pt, va, 1, false);

    for (unsigned attempt = 0; !pte && attempt < 2; attempt++) {
        struct page *p = attempt ? page_alloc(0, MM_RECLAIM) : NULL;
        if (p)
            page_put(p); /* reclaim has made room that an allocation under a spinlock cannot make */
        spin_lock(&as->page_lock);
        pte = pagetable_entry(&as->pt, va, 1, true);
        spin_unlock(&as->page_lock);
    }
    return pte;
}

static struct page *anonymous_page(unsigned mm_flags)
{
    struct page *p = page_alloc(0, mm_flags | MM_RECLAIM);

    if (p) {
        p->flags |= PAGE_ANONYMOUS;
        p->private = NULL;
    }
    return p;
}

/* An access that was refused, but the entry allows it by now: another thread was faster, or the TLB was stale. */
static int fault_spurious(uint64_t va)
{
    pagetable_flush_local(va);
    return 0;
}

/* Nothing was there: let p, to which we hold a reference, be the private page at va. */
static int install_anonymous(struct vm_area *a, uint64_t va, uint64_t *pte, struct page *p)
{
    struct aspace *as = a->as;
    uint64_t e = page_phys(p) | pte_base(a->prot) | (a->prot & PROT_WRITE ? PTE_WRITE : 0);
    bool lost;

    spin_lock(&as->page_lock);
    lost = pte_read(pte) != 0;
    if (!lost) {
        pte_write(pte, e);
        as->anonymous_pages++;
        a->has_anonymous = true;
    }
    spin_unlock(&as->page_lock);
    if (lost)
        page_put(p);
    return 0;
}

static int fault_anonymous(struct vm_area *a, uint64_t va, uint64_t *pte, bool write)
{
    struct page *p;

    if (!write) {
        spin_lock(&a->as->page_lock);
        if (!pte_read(pte)) {
            pte_write(pte, zero_page_phys | pte_base(a->prot) | PTE_SOFT_COW);
            a->has_anonymous = true;
        }
        spin_unlock(&a->as->page_lock);
        return 0;
    }
    p = anonymous_page(MM_ZERO);
    return p ? install_anonymous(a, va, pte, p) : -ENOMEM;
}

/* Alone with the page: writing needs no copy. Checked with page_lock held, which keeps pins away; fork and other
 * mappers of the page would have to hold a reference already. */
static bool cow_reuse_locked(uint64_t *pte, uint64_t e)
{
    struct page *p = pte_page(e);

    if ((e & PTE_SOFT_FILE) || p == zero_page || atomic_load_acquire(&p->refcount) != 1)
        return false;
    pte_write(pte, (e & ~PTE_SOFT_COW) | PTE_WRITE);
    return true;
}

/* Replace old entry e by a writable copy in p; p is taken over. */
static void cow_install(struct vm_area *a, uint64_t va, uint64_t *pte, uint64_t e, struct page *p)
{
    struct aspace *as = a->as;
    struct page *old = pte_page(e);
    bool lost;

    spin_lock(&as->page_lock);
    lost = pte_read(pte) != e;
    if (!lost) {
        pte_write(pte, page_phys(p) | pte_base(a->prot) | PTE_WRITE);
        if (e & PTE_SOFT_FILE)
            as->shared_pages--;
        if ((e & PTE_SOFT_FILE) || old == zero_page)
            as->anonymous_pages++;
        a->has_anonymous = true;
    }
    spin_unlock(&as->page_lock);
    if (lost) {
        page_put(p);
        return;
    }
    /* Other threads must not read the old page once this one has written to the new. */
    pagetable_flush(&as->pt, va, va + PAGE_SIZE);
    if (old != zero_page)
        page_put(old);
}

static int fault_cow(struct vm_area *a, uint64_t va, uint64_t *pte, uint64_t e)
{
    struct aspace *as = a->as;
    struct page *old = pte_page(e), *p;

    spin_lock(&as->page_lock);
    if (pte_read(pte) != e) {
        spin_unlock(&as->page_lock);
        return 0;
    }
    if (cow_reuse_locked(pte, e)) {
        spin_unlock(&as->page_lock);
        return fault_spurious(va);
    }
    /* Ours while we copy: another thread may replace the entry and drop the last reference. */
    page_get(old);
    spin_unlock(&as->page_lock);

    p = anonymous_page(old == zero_page ? MM_ZERO : 0);
    if (p && old != zero_page)
        memcpy(page_virt(p), page_virt(old), PAGE_SIZE);
    if (p)
        cow_install(a, va, pte, e, p);
    page_put(old);
    return p ? 0 : -ENOMEM;
}

static uint64_t file_pages(const struct vm_area *a)
{
    return DIV_ROUND_UP(atomic_load_acquire(&a->file->inode->size), PAGE_SIZE);
}

/* A page of a shared mapping is about to be written through an entry that is read-only so far, or absent (e 0).
 * Takes over a reference to p if it installs it, which it tells by *installed. */
static int file_write_shared(struct vm_area *a, uint64_t va, uint64_t *pte, uint64_t e,
                             struct page *p)
{
    struct aspace *as = a->as;
    bool fits, in_file;

    /* Dirty before it can be written, so that write-back never misses a store. */
    pagecache_map_writable(p);
    spin_lock(&as->page_lock);
    in_file = area_index(a, va) < file_pages(a);
    fits = pte_read(pte) == e && in_file;
    if (fits) {
        pte_write(pte, page_phys(p) | pte_base(a->prot) | PTE_SOFT_FILE | PTE_WRITE);
        if (!e)
            as->shared_pages++;
    }
    spin_unlock(&as->page_lock);
    if (!fits)
        pagecache_unmap_writable(p);
    if (!fits || e)
        page_put(p);
    return in_file ? fault_spurious(va) : -EIO;
}

/* Map p, found for va, and those of its neighbours that are in the cache, for reading. */
static int file_map_around(struct vm_area *a, uint64_t va, uint64_t *pte, struct page *found)
{
    struct aspace *as = a->as;
    const uint64_t soft = PTE_SOFT_FILE | (area_is_private(a) ? PTE_SOFT_COW : 0);
    const uint64_t window = AROUND_PAGES * PAGE_SIZE;
    uint64_t start = MAX(ALIGN_DOWN(va, window), a->start);
    uint64_t end = MIN(ALIGN_DOWN(va, window) + window, a->end);
    unsigned count = (end - start) >> PAGE_SHIFT, self = (va - start) >> PAGE_SHIFT;
    uint64_t first = area_index(a, start), limit = file_pages(a);
    struct page *pages[AROUND_PAGES];
    int r = 0;

    pte -= self; /* the window lies within one table */
    for (unsigned i = 0; i < count; i++) {
        pages[i] = NULL;
        if (i == self)
            pages[i] = found;
        else if (!pte_read(&pte[i]) && first + i < limit)
            pages[i] = pagecache_find(area_cache(a), first + i);
    }
    spin_lock(&as->page_lock);
    limit = file_pages(a); /* again: see mapping_unmap */
    for (unsigned i = 0; i < count; i++) {
        if (!pages[i] || pte_read(&pte[i]) || first + i >= limit)
            continue;
        pte_write(&pte[i], page_phys(pages[i]) | pte_base(a->prot) | soft);
        as->shared_pages++;
        pages[i] = NULL;
    }
    if (first + self >= limit)
        r = -EIO;
    spin_unlock(&as->page_lock);
    for (unsigned i = 0; i < count; i++) {
        if (pages[i])
            page_put(pages[i]);
    }
    return r;
}

static int fault_file(struct vm_area *a, uint64_t va, uint64_t *pte, bool write)
{
    struct page *p, *copy;
    int r;

    if (area_index(a, va) >= file_pages(a))
        return -EIO;
    r = pagecache_get_page(area_cache(a), area_index(a, va), &p);
    if (r)
        return r == -ENOMEM ? r : -EIO;
    if (!write)
        return file_map_around(a, va, pte, p);
    if (!area_is_private(a))
        return file_write_shared(a, va, pte, 0, p);
    copy = anonymous_page(0);
    if (copy)
        memcpy(page_virt(copy), page_virt(p), PAGE_SIZE);
    page_put(p);
    return copy ? install_anonymous(a, va, pte, copy) : -ENOMEM;
}

static int fault_write_protected(struct vm_area *a, uint64_t va, uint64_t *pte, uint64_t e)
{
    struct page *p;

    if (area_is_private(a))
        return fault_cow(a, va, pte, e);
    spin_lock(&a->as->page_lock);
    if (pte_read(pte) != e) {
        spin_unlock(&a->as->page_lock);
        return 0;
    }
    p = pte_page(e);
    page_get(p);
    spin_unlock(&a->as->page_lock);
    return file_write_shared(a, va, pte, e, p);
}

static uint64_t shm_bits(const struct vm_area *a)
{
    return pte_base(a->prot) | PTE_SOFT_SHARED | (a->prot & PROT_WRITE ? PTE_WRITE : 0);
}

/* Map the whole 2 MiB chunk with one entry, if the area covers it in step. True if that was done (or was there). */
static bool shm_map_huge(struct vm_area *a, uint64_t va, struct page *head)
{
    struct aspace *as = a->as;
    uint64_t base = ALIGN_DOWN(va, HUGE_SIZE), *pmd;
    bool mapped = false;

    if (base < a->start || base + HUGE_SIZE > a->end ||
        !IS_ALIGNED(a->offset + (base - a->start), HUGE_SIZE))
        return false;
    spin_lock(&as->page_lock);
    pmd = pagetable_entry(&as->pt, va, 2, true);
    if (pmd && !pte_read(pmd)) {
        pte_write(pmd, page_phys(head) | shm_bits(a) | PTE_HUGE);
        as->shared_pages += HUGE_SIZE / PAGE_SIZE;
    }
    if (pmd)
        mapped = pte_read(pmd) & PTE_HUGE;
    spin_unlock(&as->page_lock);
    return mapped;
}

static int fault_shm(struct vm_area *a, uint64_t va)
{
    struct aspace *as = a->as;
    const uint64_t window = AROUND_PAGES * PAGE_SIZE;
    uint64_t start = MAX(ALIGN_DOWN(va, window), a->start);
    uint64_t end = MIN(ALIGN_DOWN(va, window) + window, a->end);
    struct page *p, *head;
    uint64_t *pte;
    int r = shm_object_page(a->shm, area_index(a, va), &p, &head);

    if (r)
        return r;
    if (head && shm_map_huge(a, va, head))
        return fault_spurious(va);
    pte = entry_for(as, va);
    if (!pte)
        return -ENOMEM;
    pte -= (va - start) >> PAGE_SHIFT;
    spin_lock(&as->page_lock);
    for (uint64_t v = start; v < end; v += PAGE_SIZE, pte++) {
        struct page *q = v == va ? p : shm_object_find(a->shm, area_index(a, v));
        if (!q || pte_read(pte))
            continue;
        pte_write(pte, page_phys(q) | shm_bits(a));
        as->shared_pages++;
    }
    spin_unlock(&as->page_lock);
    return fault_spurious(va);
}

static int fault_area(struct vm_area *a, uint64_t va, bool write)
{
    uint64_t *pte, e;

    if (a->shm)
        return fault_shm(a, va);
    pte = entry_for(a->as, va);
    if (!pte)
        return -ENOMEM;
    e = pte_read(pte);
    if (e) {
        if (write && !(e & PTE_WRITE))
            return fault_write_protected(a, va, pte, e);
        return fault_spurious(va);
    }
    return a->file ? fault_file(a, va, pte, write) : fault_anonymous(a, va, pte, write);
}

static bool access_allowed(unsigned prot, unsigned fault_bits)
{
    if (fault_bits & FAULT_WRITE)
        return prot & PROT_WRITE;
    if (fault_bits & FAULT_EXEC)
        return prot & PROT_EXEC;
    return prot != 0; /* the processor cannot refuse reading what may be written or executed */
}

/* Extend the area above va down to it, if it is a stack with room. 0 = look again. */
static int stack_grow(struct aspace *as, uint64_t va)
{
    struct vm_area *a, *below;
    int r = -EFAULT;

    rw_write_lock(&as->lock);
    a = area_find(as, va);
    if (a && a->start <= va) {
        r = 0;
    } else if (a && (a->flags & AREA_GROWSDOWN) &&
               a->end - va <= atomic_load_relaxed(&as->stack_limit) && va >= USER_BOTTOM + STACK_GUARD) {
        below = area_prev(a);
        if (!below || !below->prot || below->end + STACK_GUARD <= va) {
            area_set_range(a, va, a->end, 0);
            r = 0;
        }
    }
    rw_write_unlock(&as->lock);
    return r;
}

static int fault_once(struct aspace *as, uint64_t addr, unsigned fault_bits)
{
    struct vm_area *a;
    int r;

    if (addr >= USER_TOP)
        return -EFAULT;
    rw_read_lock(&as->lock);
    while (!(a = area_find(as, addr)) || a->start > addr) {
        bool stack = a && (a->flags & AREA_GROWSDOWN);
        rw_read_unlock(&as->lock);
        r = stack ? stack_grow(as, addr & ~PAGE_MASK) : -EFAULT;
        if (r)
            return r;
        rw_read_lock(&as->lock);
    }
    if (access_allowed(a->prot, fault_bits))
        r = fault_area(a, addr & ~PAGE_MASK, fault_bits & FAULT_WRITE);
    else
        r = -EACCES;
    rw_read_unlock(&as->lock);
    return r;
}

int aspace_fault(struct aspace *as, uint64_t addr, unsigned fault_bits)
{
    int r;

    do {
        r = fault_once(as, addr, fault_bits);
    } while (unlikely(r == -ENOMEM) && oom_hook && oom_hook());
    return r;
}
