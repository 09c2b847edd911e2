/*
 * File data. Blocks are allocated when dirty pages are written (delayed allocation): write() only promises the room
 * (reservation, one block a page). A page over mapped, written blocks goes out with an asynchronous request and nothing
 * else. A page that needs blocks, or lies over an unwritten extent, or past the size on disk, takes the slow way: allocate,
 * write, wait, and only then enter the extents and the size in memory. So a commit never meets an extent without data.
 *
 * page->private holds two bits: the page has a block; a block is reserved for it.
 */
#include "ext4.h"

#define PAGE_MAPPED 1ul
#define PAGE_RESERVED_BLOCK 2ul
#define IO_PAGES 256u

static uintptr_t *bits_of(struct page *p) { return (uintptr_t *)(void *)&p->private; }
static void set_mapped(struct ext4_fs *fs, struct page *p)
{
    if (atomic_exchange(bits_of(p), PAGE_MAPPED) & PAGE_RESERVED_BLOCK)
        ext4_unreserve(fs, 1);
}
static void drop_page(struct pagecache *c, struct page *p, bool dirty)
{
    struct inode *i = c->owner;
    if (atomic_exchange(bits_of(p), 0ul) & PAGE_RESERVED_BLOCK)
        ext4_unreserve(ext4_fs_of(i), 1);
}

int ext4_reserve_page(struct inode *i, struct page *p)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_mapping at;
    if (atomic_load_relaxed(&ei->fs->error))
        return -EROFS;
    if (p->index >= UINT32_MAX - 1)
        return -EFBIG;
    if (atomic_load_relaxed(bits_of(p)))
        return 0;
    int r = ext4_map_lookup(ei, (uint32_t)p->index, &at);
    if (r)
        return r;
    if (at.mapped) {
        atomic_fetch_or(bits_of(p), PAGE_MAPPED);
        return 0;
    }
    if (!ext4_reserve(ei->fs, 1)) {
        /* What was deleted is given back by commits only; what others reserved becomes exact when it is written. */
        r = ext4_release_space(ei->fs);
        if (r)
            return r;
        if (!ext4_reserve(ei->fs, 1))
            return -ENOSPC;
    }
    if (atomic_fetch_or(bits_of(p), PAGE_RESERVED_BLOCK) & PAGE_RESERVED_BLOCK)
        ext4_unreserve(ei->fs, 1);
    return 0;
}

/* ---- reading ---- */
/* Bytes past the end of the file are zero in memory, whatever the disk holds. */
static void clear_past_end(struct inode *i, struct page *p)
{
    uint64_t size = atomic_load_acquire(&i->size), start = p->index << PAGE_SHIFT;
    if (size <= start)
        memset(page_virt(p), 0, PAGE_SIZE);
    else if (size - start < PAGE_SIZE)
        memset((char *)page_virt(p) + (size - start), 0, PAGE_SIZE - (size - start));
}
static int read_page(struct pagecache *c, struct page *p)
{
    struct inode *i = c->owner;
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_mapping at = { 0 };
    if (p->index < UINT32_MAX) {
        int r = ext4_map_lookup(ei, (uint32_t)p->index, &at);
        if (r)
            return r;
    }
    if (!at.mapped || at.unwritten) {
        memset(page_virt(p), 0, PAGE_SIZE);
        return 0;
    }
    struct block_segment segment = { page_phys(p), PAGE_SIZE };
    struct block_request q = { .device = ei->fs->device, .op = BLOCK_READ, .sector = at.first * (PAGE_SIZE / SECTOR_SIZE),
                               .segments = &segment, .segment_count = 1 };
    int r = block_submit_wait(&q);
    if (!r) {
        atomic_fetch_or(bits_of(p), PAGE_MAPPED);
        clear_past_end(i, p);
    }
    return r;
}

/* One request for pages of one file at consecutive blocks. */
struct io {
    struct block_request request;
    struct block_segment *segments;
    struct page **pages;
    uint32_t count;
    struct wait *wait;          /* slow way: who waits, else NULL */
    char memory[];
};
struct wait { struct completion done; uint32_t left; int status; };

static struct io *io_new(struct ext4_fs *fs, enum block_op op, uint64_t block, struct page **pages, uint32_t count)
{
    struct io *io = kmalloc(sizeof *io + count * (sizeof(struct block_segment) + sizeof(struct page *)));
    if (!io)
        return NULL;
    memset(io, 0, sizeof *io);
    io->segments = (void *)io->memory;
    io->pages = (void *)(io->segments + count);
    io->count = count;
    for (uint32_t n = 0; n < count; n++) {
        io->segments[n] = (struct block_segment){ page_phys(pages[n]), PAGE_SIZE };
        io->pages[n] = pages[n];
    }
    io->request = (struct block_request){ .device = fs->device, .op = op, .sector = block * (PAGE_SIZE / SECTOR_SIZE),
                                          .segments = io->segments, .segment_count = count, .arg = io };
    return io;
}
static void read_end(struct block_request *r, int status)
{
    struct io *io = r->arg;
    for (uint32_t n = 0; n < io->count; n++) {
        struct page *p = io->pages[n];
        if (!status) {
            atomic_fetch_or(bits_of(p), PAGE_MAPPED);
            clear_past_end(p->cache->owner, p);
        }
        pagecache_end_read(p, status);
    }
    kfree(io);
}
static void read_pages(struct pagecache *c, struct page **pages, unsigned count)
{
    struct inode *i = c->owner;
    struct ext4_inode *ei = ext4_i(i);
    struct block_plug plug;
    block_plug_start(&plug);
    for (unsigned n = 0; n < count;) {
        struct ext4_mapping at = { 0 };
        int r = pages[n]->index < UINT32_MAX ? ext4_map_lookup(ei, (uint32_t)pages[n]->index, &at) : -EFBIG;
        uint32_t run = r ? 1 : MAX(MIN(MIN(at.count, count - n), IO_PAGES), 1u);
        struct io *io = NULL;
        if (!r && at.mapped && !at.unwritten) {
            io = io_new(ei->fs, BLOCK_READ, at.first, pages + n, run);
            if (io) {
                io->request.end = read_end;
                block_submit_plugged(&plug, &io->request);
            } else {
                r = -ENOMEM; /* read-ahead only: whoever needs the page reads it again */
            }
        }
        for (uint32_t k = 0; !io && k < run; k++) {
            if (!r)
                memset(page_virt(pages[n + k]), 0, PAGE_SIZE);
            pagecache_end_read(pages[n + k], r);
        }
        n += run;
    }
    block_plug_finish(&plug);
}

/* ---- writing ---- */
static void write_end(struct block_request *r, int status)
{
    struct io *io = r->arg;
    struct wait *w = io->wait;
    for (uint32_t n = 0; !w && n < io->count; n++)
        pagecache_end_writeback(io->pages[n], status);
    if (w) {
        if (status)
            atomic_store_relaxed(&w->status, status);
        if (atomic_fetch_sub(&w->left, 1) == 1)
            completion_complete(&w->done);
    }
    kfree(io);
}
/* Pages at consecutive blocks; w NULL = the pages end by themselves. */
static void submit_write(struct ext4_fs *fs, struct block_plug *plug, uint64_t block, struct page **pages, uint32_t count, struct wait *w)
{
    struct io *io = io_new(fs, BLOCK_WRITE, block, pages, count);
    if (io) {
        io->request.end = write_end;
        io->wait = w;
        if (w)
            atomic_fetch_add(&w->left, 1);
        block_submit_plugged(plug, &io->request);
        return;
    }
    for (uint32_t n = 0; n < count; n++) { /* without memory: one at a time */
        struct block_segment s = { page_phys(pages[n]), PAGE_SIZE };
        struct block_request q = { .device = fs->device, .op = BLOCK_WRITE, .sector = (block + n) * (PAGE_SIZE / SECTOR_SIZE),
                                   .segments = &s, .segment_count = 1 };
        int r = block_submit_wait(&q);
        if (!w)
            pagecache_end_writeback(pages[n], r);
        else if (r)
            atomic_store_relaxed(&w->status, r);
    }
}

/* Up to IO_PAGES consecutive pages that take the slow way. */
struct piece { uint32_t block, count; uint64_t first; bool made, unwritten; };
#define PIECES 24u
struct slow { struct inode *i; struct page **pages; uint32_t count; struct piece pieces[PIECES]; uint32_t used, covered; };

static int plan(struct slow *s)
{
    struct ext4_inode *ei = ext4_i(s->i);
    struct ext4_fs *fs = ei->fs;
    uint32_t block = (uint32_t)s->pages[0]->index, last = block + s->count - 1;
    uint64_t goal = 0;
    mutex_lock(&fs->lock);
    int r = ext4_map_load(ei);
    for (s->used = 0; !r && block <= last && s->used < PIECES;) {
        struct ext4_mapping at;
        struct piece *p = &s->pieces[s->used];
        ext4_map_find(ei, block, &at);
        uint32_t want = MIN(at.count, last - block + 1);
        *p = (struct piece){ .block = block, .count = want, .first = at.first, .unwritten = at.unwritten };
        if (!at.mapped) {
            p->made = true;
            if (!goal)
                goal = ext4_map_goal(ei, block);
            r = ext4_blocks_alloc(fs, goal, want, false, &p->first, &p->count);
            if (r == -ENOSPC) /* reserved pages have a claim on the last blocks too */
                r = ext4_blocks_alloc(fs, goal, want, true, &p->first, &p->count);
            goal = p->first + p->count;
        }
        if (!r) {
            block += p->count;
            s->used++;
        }
    }
    s->covered = block - (uint32_t)s->pages[0]->index;
    mutex_unlock(&fs->lock);
    return s->covered ? 0 : r;
}
/* The data are on disk: now the map may say so. */
static int enter(struct slow *s)
{
    struct ext4_inode *ei = ext4_i(s->i);
    struct ext4_fs *fs = ei->fs;
    int r = 0;
    mutex_lock(&fs->lock);
    rw_write_lock(&ei->map_lock);
    for (uint32_t n = 0; n < s->used && !r; n++) {
        struct piece *p = &s->pieces[n];
        if (p->made)
            r = ext4_map_set(ei, p->block, p->first, p->count, false);
        else if (p->unwritten)
            r = ext4_map_written(ei, p->block, p->count);
        if (!r)
            p->made = false;
    }
    rw_write_unlock(&ei->map_lock);
    uint64_t size = atomic_load_acquire(&s->i->size), end = (s->pages[0]->index + s->covered) << PAGE_SHIFT;
    if (!r && MIN(size, end) > ei->disk_size)
        atomic_store_relaxed(&ei->disk_size, MIN(size, end));
    ext4_mark_inode(ei, true);
    mutex_unlock(&fs->lock);
    return r;
}
static void give_back(struct slow *s)
{
    struct ext4_fs *fs = ext4_fs_of(s->i);
    mutex_lock(&fs->lock);
    for (uint32_t n = 0; n < s->used; n++) {
        if (s->pieces[n].made)
            ext4_blocks_free_now(fs, s->pieces[n].first, s->pieces[n].count);
    }
    mutex_unlock(&fs->lock);
}
static void write_slow(struct inode *i, struct page **pages, uint32_t count)
{
    struct ext4_fs *fs = ext4_fs_of(i);
    while (count) {
        struct slow s = { .i = i, .pages = pages, .count = count };
        struct wait w = { .left = 1 };
        struct block_plug plug;
        int r = atomic_load_relaxed(&fs->error);
        if (!r)
            r = plan(&s);
        if (r == -ENOSPC && !ext4_release_space(fs))
            r = plan(&s);
        if (r)
            s.covered = count;
        if (!r) {
            completion_init(&w.done);
            block_plug_start(&plug);
            for (uint32_t n = 0; n < s.used; n++)
                submit_write(fs, &plug, s.pieces[n].first, pages + (s.pieces[n].block - (uint32_t)pages[0]->index), s.pieces[n].count, &w);
            block_plug_finish(&plug);
            if (atomic_fetch_sub(&w.left, 1) != 1)
                completion_wait(&w.done);
            r = atomic_load_acquire(&w.status);
            if (!r)
                r = enter(&s);
            if (r)
                give_back(&s);
        }
        for (uint32_t n = 0; n < s.covered; n++) {
            if (!r)
                set_mapped(fs, pages[n]);
            pagecache_end_writeback(pages[n], r);
        }
        pages += s.covered;
        count -= s.covered;
    }
}

/* Pages from `pages` on that can go out as they are, at consecutive blocks: their number and *block. 0 = the first one
 * cannot. */
static uint32_t fast_run(struct ext4_inode *ei, struct page **pages, uint32_t count, uint64_t *block)
{
    struct ext4_mapping at;
    uint64_t index = pages[0]->index, size = atomic_load_acquire(&ei->vfs->size);
    if (ext4_map_lookup(ei, (uint32_t)index, &at) || !at.mapped || at.unwritten)
        return 0;
    *block = at.first;
    uint32_t n = 0;
    while (n < MIN(count, at.count) && n < IO_PAGES && pages[n]->index == index + n &&
           MIN((index + n + 1) << PAGE_SHIFT, size) <= atomic_load_relaxed(&ei->disk_size))
        n++;
    return n;
}
static void write_pages(struct pagecache *c, struct page **pages, unsigned count)
{
    struct inode *i = c->owner;
    struct ext4_inode *ei = ext4_i(i);
    struct block_plug plug;
    block_plug_start(&plug);
    for (unsigned n = 0; n < count;) {
        uint64_t block;
        uint32_t run = fast_run(ei, pages + n, count - n, &block);
        if (run) {
            for (uint32_t k = 0; k < run; k++)
                set_mapped(ei->fs, pages[n + k]);
            submit_write(ei->fs, &plug, block, pages + n, run, NULL);
        } else {
            run = 1;
            while (n + run < count && run < IO_PAGES * 2 && pages[n + run]->index == pages[n]->index + run &&
                   !fast_run(ei, pages + n + run, 1, &block))
                run++;
            block_plug_finish(&plug); /* do not keep the fast ones waiting */
            write_slow(i, pages + n, run);
            block_plug_start(&plug);
        }
        n += run;
    }
    block_plug_finish(&plug);
}
const struct pagecache_ops ext4_pagecache_ops = {
    .read_page = read_page, .read_pages = read_pages, .write_pages = write_pages, .drop_page = drop_page,
    .hold = inode_hold_cache, .release = inode_release_cache,
};

/* ---- size ---- */
int ext4_truncate(struct inode *i, uint64_t size)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_fs *fs = ei->fs;
    uint64_t old = i->size;
    if (atomic_load_relaxed(&fs->error))
        return -EROFS;
    if (size > (uint64_t)UINT32_MAX << PAGE_SHIFT)
        return -EFBIG;
    int r = 0;
    if (size > old)
        r = filemap_zero_tail(i, old);
    if (!r && size < old && (size & PAGE_MASK)) {
        /* The rest of the last page is zero from here on, on disk too. */
        r = filemap_zero_tail(i, size);
        if (r == -ENOSPC) /* an old hole on a full disk: nothing there to clear */
            r = 0;
    }
    if (r)
        return r;
    atomic_store_release(&i->size, size); /* before the pages go: a fault must not bring one back */
    if (size < old)
        pagecache_truncate(&i->cache, DIV_ROUND_UP(size, PAGE_SIZE));
    mutex_lock(&fs->lock);
    if (size < old) {
        r = ext4_map_load(ei);
        rw_write_lock(&ei->map_lock);
        if (!r)
            r = ext4_map_remove(ei, (uint32_t)DIV_ROUND_UP(size, PAGE_SIZE), UINT32_MAX);
        rw_write_unlock(&ei->map_lock);
    }
    if (size < ei->disk_size || size > old)
        atomic_store_relaxed(&ei->disk_size, size);
    i->mtime = i->ctime = time_now();
    ext4_mark_inode(ei, true);
    mutex_unlock(&fs->lock);
    return r;
}

#define FALLOC_KEEP_SIZE 1
/* Unwritten extents for the holes of [first, last]. F held for one round at a time. */
static int preallocate(struct ext4_inode *ei, uint32_t first, uint32_t last)
{
    struct ext4_fs *fs = ei->fs;
    uint64_t goal = 0;
    int r = 0;
    for (uint32_t block = first; !r && block <= last;) {
        struct ext4_mapping at;
        uint64_t start;
        uint32_t got = 0;
        mutex_lock(&fs->lock);
        r = ext4_map_load(ei);
        if (!r) {
            ext4_map_find(ei, block, &at);
            got = MIN(at.count, last - block + 1);
            /* Blocks promised to dirty pages are not ours. */
            uint64_t unused = atomic_load_relaxed(&fs->free_blocks), promised = atomic_load_relaxed(&fs->reserved);
            if (!at.mapped && unused <= promised + promised / 64 + 64)
                r = -ENOSPC;
            else if (!at.mapped)
                r = ext4_blocks_alloc(fs, goal ? goal : ext4_map_goal(ei, block),
                                      (uint32_t)MIN(MIN(got, unused - promised), EXT4_EXTENT_MAX_LEN - 1), false, &start, &got);
        }
        if (!r && !at.mapped) {
            goal = start + got;
            rw_write_lock(&ei->map_lock);
            r = ext4_map_set(ei, block, start, got, true);
            rw_write_unlock(&ei->map_lock);
            if (r)
                ext4_blocks_free_now(fs, start, got);
            ext4_mark_inode(ei, true);
        }
        mutex_unlock(&fs->lock);
        if (!r && (last - block) < got)
            break;
        block += r ? 0 : got;
    }
    return r;
}
int ext4_fallocate(struct inode *i, int mode, uint64_t offset, uint64_t len)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_fs *fs = ei->fs;
    if (mode & ~FALLOC_KEEP_SIZE)
        return -EOPNOTSUPP;
    if (atomic_load_relaxed(&fs->error) || atomic_load_relaxed(&fs->sb->read_only))
        return -EROFS;
    uint64_t end = offset + len, first = offset >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
    if (last >= UINT32_MAX - 1)
        return -EFBIG;
    if (DIV_ROUND_UP(len, PAGE_SIZE) > fs->block_count)
        return -ENOSPC;
    /* Dirty pages of the range get their blocks the ordinary way first. */
    int r = pagecache_write_and_wait(&i->cache, first, last);
    if (!r)
        r = preallocate(ei, (uint32_t)first, (uint32_t)last);
    if (r == -ENOSPC && !ext4_release_space(fs))
        r = preallocate(ei, (uint32_t)first, (uint32_t)last);
    if (!r && !(mode & FALLOC_KEEP_SIZE) && end > i->size) {
        r = filemap_zero_tail(i, i->size);
        if (r)
            return r;
        atomic_store_release(&i->size, end);
        mutex_lock(&fs->lock);
        atomic_store_relaxed(&ei->disk_size, end);
        mutex_unlock(&fs->lock);
    }
    i->ctime = time_now();
    if (end <= i->size || !(mode & FALLOC_KEEP_SIZE))
        i->mtime = i->ctime;
    ext4_mark_inode(ei, true);
    return r;
}

int ext4_sync_inode(struct inode *i, bool datasync)
{
    struct ext4_inode *ei = ext4_i(i);
    struct ext4_fs *fs = ei->fs;
    int r = i->cache.ops ? pagecache_write_and_wait(&i->cache, 0, UINT64_MAX - 1) : 0;
    spin_lock(&fs->dirty_lock);
    uint64_t seq = datasync ? ei->data_seq : ei->sync_seq;
    spin_unlock(&fs->dirty_lock);
    int committed = atomic_load_relaxed(&fs->sb->read_only) && !atomic_load_relaxed(&fs->error) ? 0 : ext4_commit_upto(fs, seq);
    int flushed = ext4_flush(fs);
    return r ? r : committed ? committed : flushed;
}

const struct file_ops ext4_file_ops = { .read = filemap_read, .write = filemap_write, .seekable = true };
const struct file_ops ext4_dir_ops = { .readdir = ext4_readdir, .seekable = true };
