/* Holding on to a program's memory from outside its page tables: pages for I/O, keys for futex words. */
#include "aspace_internal.h"
#include <weir/trap.h>

static void page_pin(struct page *p)
{
    page_get(p);
    if (p->flags & PAGE_ANONYMOUS)
        atomic_fetch_add((uintptr_t *)&p->private, 1);
}

static void page_unpin(struct page *p)
{
    if (p->flags & PAGE_ANONYMOUS)
        atomic_fetch_sub((uintptr_t *)&p->private, 1);
    page_put(p);
}

/* The page that the entry for va maps with the rights wanted, pinned; NULL if a fault must come first. A held. */
static struct page *pin_mapped(struct aspace *as, uint64_t va, bool write)
{
    const uint64_t need = PTE_PRESENT | (write ? PTE_WRITE : 0);
    struct page *p = NULL;
    uint64_t *entry, e;

    spin_lock(&as->page_lock);
    entry = pagetable_entry(&as->pt, va, 2, false);
    e = entry ? pte_read(entry) : 0;
    if (e & PTE_HUGE) {
        if ((e & need) == need)
            p = pte_page(e) + ((va >> PAGE_SHIFT) % (HUGE_SIZE / PAGE_SIZE));
    } else if (e) {
        entry = pagetable_entry(&as->pt, va, 1, false);
        e = entry ? pte_read(entry) : 0;
        if ((e & need) == need)
            p = pte_page(e);
    }
    if (p)
        page_pin(p);
    spin_unlock(&as->page_lock);
    return p;
}

int aspace_pin(struct aspace *as, uint64_t addr, size_t len, bool write, struct page **pages,
               unsigned max)
{
    uint64_t va = addr & ~PAGE_MASK, end = addr + len;
    unsigned count = 0;

    if (end < addr || end > USER_TOP)
        return -EFAULT;
    for (; va < end && count < max; va += PAGE_SIZE) {
        for (;;) {
            int r;
            rw_read_lock(&as->lock);
            pages[count] = pin_mapped(as, va, write);
            rw_read_unlock(&as->lock);
            if (pages[count])
                break;
            r = aspace_fault(as, va, FAULT_USER | (write ? FAULT_WRITE : 0));
            if (r)
                return count ? (int)count : (r == -ENOMEM ? r : -EFAULT);
        }
        count++;
    }
    return (int)count;
}

void aspace_unpin(struct aspace *as, struct page **pages, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        page_unpin(pages[i]);
}

enum { KEY_PRIVATE, KEY_SHM, KEY_INODE };

int aspace_futex_key(struct aspace *as, uint64_t addr, bool private, struct futex_key *out)
{
    struct vm_area *a;
    int r = 0;

    if (addr >= USER_TOP || !IS_ALIGNED(addr, 4))
        return addr >= USER_TOP ? -EFAULT : -EINVAL;
    /* The address space lives as long as a thread of it waits: no reference. */
    *out = (struct futex_key){.object = as, .offset = addr, .kind = KEY_PRIVATE};
    if (private)
        return 0;
    rw_read_lock(&as->lock);
    a = area_find(as, addr);
    if (!a || a->start > addr) {
        r = -EFAULT;
    } else if (a->shm) {
        shm_object_get(a->shm);
        *out = (struct futex_key){a->shm, a->offset + (addr - a->start), KEY_SHM};
    } else if (a->file && !area_is_private(a)) {
        inode_get(a->file->inode);
        *out = (struct futex_key){a->file->inode, a->offset + (addr - a->start), KEY_INODE};
    }
    rw_read_unlock(&as->lock);
    return r;
}

void futex_key_get(struct futex_key *k)
{
    if (k->kind == KEY_SHM)
        shm_object_get(k->object);
    else if (k->kind == KEY_INODE)
        inode_get(k->object);
}

void futex_key_put(struct futex_key *k)
{
    if (k->kind == KEY_SHM)
        shm_object_put(k->object);
    else if (k->kind == KEY_INODE)
        inode_put(k->object);
}

/* Whole pages at a time through the kernel's own mapping, so as need not be in use. */
static int copy_remote(struct aspace *as, uint64_t addr, void *buf, size_t len, bool write)
{
    while (len) {
        size_t part = MIN(len, PAGE_SIZE - (addr & PAGE_MASK));
        struct page *p;
        int r = aspace_pin(as, addr, part, write, &p, 1);
        char *mem;

        if (r < 0)
            return r;
        mem = (char *)page_virt(p) + (addr & PAGE_MASK);
        if (write)
            memcpy(mem, buf, part);
        else
            memcpy(buf, mem, part);
        aspace_unpin(as, &p, 1);
        addr += part;
        buf = (char *)buf + part;
        len -= part;
    }
    return 0;
}

int aspace_write(struct aspace *as, uint64_t addr, const void *src, size_t len)
{
    return copy_remote(as, addr, (void *)(uintptr_t)src, len, true);
}

int aspace_read(struct aspace *as, uint64_t addr, void *dst, size_t len)
{
    return copy_remote(as, addr, dst, len, false);
}
