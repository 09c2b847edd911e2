/*
 * Regular files through the page cache. Readers take no inode lock: a page once up to date stays so. Writers hold
 * inode->lock; program memory is copied with a page reference and without page locks, so it may be a mapping of the
 * same file.
 */
#include "fs.h"

#define READAHEAD_MIN 8u
#define READAHEAD_MAX 64u

/* Bytes of [pos, pos+n) that lie in one page. */
static size_t in_page(uint64_t pos, uint64_t n) { return (size_t)MIN(n, PAGE_SIZE - (pos & PAGE_MASK)); }

/*
 * A page that is not cached is wanted. A reader that goes on where it stopped doubles its window up to
 * READAHEAD_MAX; one that jumps about reads what it asked for. `wanted` = pages of this call from index on.
 */
static void readahead(struct file *f, uint64_t index, uint64_t wanted, uint64_t size)
{
    uint64_t end = DIV_ROUND_UP(size, PAGE_SIZE);
    uint32_t window = atomic_load_relaxed(&f->readahead_window);
    if (index == atomic_load_relaxed(&f->readahead_next) || index == 0)
        window = MIN(MAX(window * 2, READAHEAD_MIN), READAHEAD_MAX);
    else
        window = 0;
    atomic_store_relaxed(&f->readahead_window, window);
    uint64_t count = MIN(MAX(wanted, window), MIN(end - index, 256));
    if (count > 1)
        pagecache_readahead(&f->inode->cache, index, (unsigned)count);
}

ssize_t filemap_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct inode *i = f->inode;
    uint64_t pos = *offset, start = pos;
    while (u->resid) {
        uint64_t size = atomic_load_acquire(&i->size);
        if (pos >= size)
            break;
        size_t n = in_page(pos, MIN(u->resid, size - pos));
        uint64_t index = pos >> PAGE_SHIFT;
        struct page *p = pagecache_find(&i->cache, index);
        if (!p) {
            if (i->cache.ops)
                readahead(f, index, DIV_ROUND_UP(MIN(u->resid, size - pos) + (pos & PAGE_MASK), PAGE_SIZE), size);
            int r = pagecache_get_page(&i->cache, index, &p);
            if (r) {
                if (pos == start)
                    return r;
                break;
            }
        }
        size_t copied = uio_copy_out(u, (char *)page_virt(p) + (pos & PAGE_MASK), n);
        page_put(p);
        pos += copied;
        if (copied < n) {
            if (pos == start)
                return -EFAULT;
            break;
        }
        cond_resched();
    }
    atomic_store_relaxed(&f->readahead_next, DIV_ROUND_UP(pos, PAGE_SIZE));
    *offset = pos;
    return (ssize_t)(pos - start);
}

int filemap_zero_tail(struct inode *i, uint64_t from)
{
    if (!(from & PAGE_MASK))
        return 0;
    struct page *p;
    int r = pagecache_get_page(&i->cache, from >> PAGE_SHIFT, &p);
    if (r)
        return r;
    if (i->ops->reserve)
        r = i->ops->reserve(i, p);
    if (!r) {
        memset((char *)page_virt(p) + (from & PAGE_MASK), 0, PAGE_SIZE - (from & PAGE_MASK));
        pagecache_mark_dirty(p);
    }
    page_put(p);
    return r;
}

/* The page to write n bytes at pos into, referenced. Where the page is absent and will be overwritten whole it is not
 * read: a fresh page is filled from u and then put into the cache (*filled tells, *copied says how much). */
static int page_for_write(struct inode *i, struct uio *u, uint64_t pos, size_t n, struct page **out, size_t *copied)
{
    uint64_t index = pos >> PAGE_SHIFT;
    *copied = 0;
    *out = pagecache_find(&i->cache, index);
    if (*out)
        return 0;
    /* Whole page, or the rest of it lies beyond the end: nothing to read. */
    uint64_t size = i->size;
    bool fresh = n == PAGE_SIZE || (!(pos & PAGE_MASK) && pos + n >= size);
    if (!fresh)
        return pagecache_get_page(&i->cache, index, out);
    struct page *p = page_alloc(0, MM_RECLAIM);
    if (!p)
        return -ENOMEM;
    p->private = NULL;
    struct uio before = *u;
    *copied = uio_copy_in(u, page_virt(p), n);
    int r = 0;
    if (*copied == n) {
        memset((char *)page_virt(p) + n, 0, PAGE_SIZE - n);
        r = pagecache_add_page(&i->cache, index, p);
        if (!r) {
            *out = p;
            return 0;
        }
    }
    /* A reader brought the page in meanwhile, or the program's memory ended early: the ordinary way. */
    int got = r && r != -EEXIST ? r : pagecache_get_page(&i->cache, index, out);
    if (!got)
        memcpy((char *)page_virt(*out) + (pos & PAGE_MASK), page_virt(p), *copied);
    else
        *u = before;
    page_put(p);
    return got;
}

/* One page's worth. i->lock held. Bytes written, or -errno if none. */
static ssize_t write_page(struct inode *i, struct uio *u, uint64_t pos, size_t n)
{
    struct page *p;
    size_t copied;
    int r = page_for_write(i, u, pos, n, &p, &copied);
    if (r)
        return r;
    /* Room first: where there is none the page stays clean, whatever was copied into it... */
    r = i->ops->reserve ? i->ops->reserve(i, p) : 0;
    if (!r && !copied)
        copied = uio_copy_in(u, (char *)page_virt(p) + (pos & PAGE_MASK), n);
    if (!r && copied) {
        /* The size before the dirty bit: write-back must see how far the page counts. */
        if (pos + copied > i->size) {
            atomic_store_release(&i->size, pos + copied);
            if (i->ops->touched)
                i->ops->touched(i, true);
        }
        pagecache_mark_dirty(p);
    }
    page_put(p);
    if (r) {
        /* ... and a fresh one that never reaches the disk must not be read either. */
        if (copied)
            pagecache_drop_clean(&i->cache, pos >> PAGE_SHIFT, pos >> PAGE_SHIFT);
        return r;
    }
    return copied ? (ssize_t)copied : -EFAULT;
}

ssize_t filemap_write(struct file *f, struct uio *u, uint64_t *offset)
{
    struct inode *i = f->inode;
    ssize_t result = 0;
    if (!u->resid)
        return 0;
    /* Most of the faults happen here rather than under the lock. */
    int r = uio_prefault(u, MIN(u->resid, 16 * PAGE_SIZE), false);
    if (r)
        return r;
    rw_write_lock(&i->lock);
    uint64_t pos = f->flags & O_APPEND ? i->size : *offset, start = pos;
    if (pos > i->size) {
        r = filemap_zero_tail(i, i->size);
        if (r)
            result = r;
    }
    while (!r && u->resid) {
        ssize_t n = write_page(i, u, pos, in_page(pos, u->resid));
        if (n < 0) {
            result = n;
            break;
        }
        pos += (uint64_t)n;
        cond_resched();
    }
    if (pos > start) {
        result = (ssize_t)(pos - start);
        i->mtime = i->ctime = time_now();
        if (!(i->mode & S_IFDIR) && (i->mode & 06000))
            i->mode &= ~06000u;
        if (i->ops->touched)
            i->ops->touched(i, false);
        *offset = pos;
    }
    rw_write_unlock(&i->lock);
    if (i->cache.ops)
        pagecache_throttle();
    if (pos > start && (f->flags & O_DIRECT)) {
        r = pagecache_write_and_wait(&i->cache, start >> PAGE_SHIFT, (pos - 1) >> PAGE_SHIFT);
        if (r)
            return r;
    }
    return result;
}
