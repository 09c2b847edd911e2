/* Commits: snapshot of the dirty metadata, ordered writing, release of what became free. See ext4.h. */
#include "ext4.h"

void ext4_mark_inode(struct ext4_inode *ei, bool data)
{
    struct ext4_fs *fs = ei->fs;
    spin_lock(&fs->dirty_lock);
    ei->sync_seq = fs->running_seq;
    if (data)
        ei->data_seq = fs->running_seq;
    if (!ei->listed) {
        ei->listed = true;
        if (!ei->committing) { /* else put_inodes moves it back, reference and all */
            inode_get(ei->vfs);
            atomic_fetch_add(&ei->vfs->internal_refs, 1);
            list_add_tail(&fs->dirty_inodes, &ei->vfs->dirty_link);
        }
    }
    spin_unlock(&fs->dirty_lock);
    writeback_metadata_dirtied();
}

void ext4_fail(struct ext4_fs *fs, const char *what, int error)
{
    if (!atomic_exchange(&fs->error, error))
        log_error("%s: %s failed: error %d; the file system is read-only from here on", fs->sb->source, what, -error);
    atomic_store_relaxed(&fs->sb->read_only, true);
}

/* ---- writing a snapshot ---- */
struct copy { uint64_t block; struct page *page; uint32_t phase; };
struct snapshot { struct copy *copies; uint32_t count; };

static bool copy_before(const struct copy *a, const struct copy *b)
{
    return a->phase != b->phase ? a->phase < b->phase : a->block < b->block;
}
static void sift(struct copy *c, uint32_t at, uint32_t count)
{
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= count)
            return;
        if (child + 1 < count && copy_before(&c[child], &c[child + 1]))
            child++;
        if (!copy_before(&c[at], &c[child]))
            return;
        struct copy t = c[at];
        c[at] = c[child];
        c[child] = t;
        at = child;
    }
}
static void sort_copies(struct copy *c, uint32_t count)
{
    for (uint32_t n = count / 2; n-- > 0;)
        sift(c, n, count);
    for (uint32_t end = count; end-- > 1;) {
        struct copy t = c[0];
        c[0] = c[end];
        c[end] = t;
        sift(c, 0, end);
    }
}

struct batch { struct completion done; uint32_t left; int status; };
static void batch_end(struct block_request *r, int status)
{
    struct batch *b = r->arg;
    if (status)
        atomic_store_relaxed(&b->status, status);
    if (atomic_fetch_sub(&b->left, 1) == 1)
        completion_complete(&b->done);
}
/* All copies of one phase, neighbours in one request; waits. */
static int write_phase(struct ext4_fs *fs, const struct copy *c, uint32_t count)
{
    struct block_request *requests = kcalloc(count, sizeof *requests);
    struct block_segment *segments = kcalloc(count, sizeof *segments);
    int r = 0;
    if (!requests || !segments) { /* slow, but needs no memory */
        for (uint32_t n = 0; n < count && !r; n++)
            r = block_write(fs->device, c[n].block * EXT4_BLOCK_SIZE, page_virt(c[n].page), EXT4_BLOCK_SIZE);
    } else {
        struct batch b = { .left = 1 };
        struct block_plug plug;
        completion_init(&b.done);
        block_plug_start(&plug);
        for (uint32_t n = 0, used = 0; n < count; used++) {
            uint32_t first = n;
            do {
                segments[n] = (struct block_segment){ page_phys(c[n].page), EXT4_BLOCK_SIZE };
                n++;
            } while (n < count && c[n].block == c[n - 1].block + 1);
            requests[used] = (struct block_request){ .device = fs->device, .op = BLOCK_WRITE,
                .sector = c[first].block * (EXT4_BLOCK_SIZE / SECTOR_SIZE), .segments = &segments[first],
                .segment_count = n - first, .end = batch_end, .arg = &b };
            atomic_fetch_add(&b.left, 1);
            block_submit_plugged(&plug, &requests[used]);
        }
        block_plug_finish(&plug);
        if (atomic_fetch_sub(&b.left, 1) != 1)
            completion_wait(&b.done);
        r = atomic_load_acquire(&b.status);
    }
    kfree(requests);
    kfree(segments);
    return r;
}
static int write_snapshot(struct ext4_fs *fs, struct snapshot *s)
{
    int r = 0;
    sort_copies(s->copies, s->count);
    for (uint32_t n = 0; n < s->count && !r;) {
        uint32_t end = n + 1;
        while (end < s->count && s->copies[end].phase == s->copies[n].phase)
            end++;
        r = write_phase(fs, s->copies + n, end - n);
        n = end;
    }
    return r;
}

/* ---- taking a snapshot ---- */
static int add_copy(struct snapshot *s, uint64_t block, uint32_t phase, char **data)
{
    struct page *p = page_alloc(0, MM_RECLAIM);
    if (!p)
        return -ENOMEM;
    s->copies[s->count++] = (struct copy){ block, p, phase };
    *data = page_virt(p);
    return 0;
}
/* Buffers stay dirty if there is no memory for their copies; F held. */
static int take_snapshot(struct ext4_fs *fs, struct snapshot *s)
{
    struct ext4_buffer *b, *next;
    char *data;
    *s = (struct snapshot){ 0 };
    if (!fs->dirty_count)
        return 0;
    s->copies = kmalloc(2ul * fs->dirty_count * sizeof *s->copies);
    if (!s->copies)
        return -ENOMEM;
    list_for_each_entry(b, &fs->dirty, dirty_link) {
        int r = add_copy(s, b->block, b->phase, &data);
        if (r)
            return r;
        memcpy(data, b->data, EXT4_BLOCK_SIZE);
        if (b->phase == PHASE_DIRECTORY && b->fresh) {
            r = add_copy(s, b->block, PHASE_EXTENT, &data);
            if (r)
                return r;
            ext4_dir_skeleton(fs, b->owner_seed, b->data, data);
        }
    }
    list_for_each_entry_safe(b, next, &fs->dirty, dirty_link) {
        b->dirty = b->fresh = false;
        list_del(&b->dirty_link);
        if (!b->refcount)
            list_add_tail(&fs->lru, &b->lru_link);
    }
    atomic_store_relaxed(&fs->dirty_count, 0);
    return 0;
}
static void drop_snapshot(struct snapshot *s)
{
    for (uint32_t n = 0; n < s->count; n++)
        page_put(s->copies[n].page);
    kfree(s->copies);
}

/* Dirty inodes into their buffers. Their references are collected in `held`. F held. */
static int store_inodes(struct ext4_fs *fs, struct list *inodes, uint64_t seq)
{
    struct inode *i;
    int result = 0;
    list_for_each_entry(i, inodes, dirty_link) {
        struct ext4_inode *ei = ext4_i(i);
        /* Deleted, and nobody has it open: it will be cleared rather than stored. */
        if (!i->nlink && atomic_load_relaxed(&i->refcount) == 1)
            continue;
        int r = ext4_inode_store(ei, seq);
        if (r && !result)
            result = r;
    }
    return result;
}
static void put_inodes(struct list *inodes)
{
    while (!list_empty(inodes)) {
        struct inode *i = list_first(inodes, struct inode, dirty_link);
        struct ext4_inode *ei = ext4_i(i);
        struct ext4_fs *fs = ei->fs;
        spin_lock(&fs->dirty_lock);
        list_del(&i->dirty_link);
        ei->committing = false;
        bool again = ei->listed;
        if (again)
            list_add_tail(&fs->dirty_inodes, &i->dirty_link);
        else
            atomic_fetch_sub(&i->internal_refs, 1);
        spin_unlock(&fs->dirty_lock);
        if (!again)
            inode_put(i);
    }
}

/* The commit `seq` is on disk. F held; unlinked inodes that were cleared go to `dead`. */
static int release_pending(struct ext4_fs *fs, uint64_t seq, struct list *dead)
{
    struct ext4_inode *ei, *next;
    int result = 0;
    while (!list_empty(&fs->pending)) { /* in order of seq */
        struct ext4_pending *p = list_first(&fs->pending, struct ext4_pending, link);
        if (p->seq > seq)
            break;
        list_del(&p->link);
        if (p->is_inode)
            ext4_ino_free_now(fs, (uint32_t)p->first, p->is_dir);
        else
            ext4_blocks_free_now(fs, p->first, p->count);
        kfree(p);
    }
    list_for_each_entry_safe(ei, next, &fs->to_free, free_link) {
        if (ei->unlink_seq > seq)
            continue;
        int r = ext4_inode_clear(ei);
        if (r)
            result = r;
        list_del(&ei->free_link);
        list_add_tail(dead, &ei->free_link);
    }
    return result;
}

/* commit_lock held. */
static int commit_once(struct ext4_fs *fs)
{
    struct list inodes = LIST_INIT(inodes), dead = LIST_INIT(dead);
    struct snapshot s;
    struct inode *i;
    mutex_lock(&fs->lock);
    spin_lock(&fs->dirty_lock);
    uint64_t seq = fs->running_seq++;
    list_splice_tail(&inodes, &fs->dirty_inodes);
    /* From here on a change marks the inode for the next commit; it stays on our list until put_inodes. */
    list_for_each_entry(i, &inodes, dirty_link) {
        ext4_i(i)->listed = false;
        ext4_i(i)->committing = true;
    }
    spin_unlock(&fs->dirty_lock);
    int r = atomic_load_relaxed(&fs->error);
    if (!r)
        r = store_inodes(fs, &inodes, seq);
    if (!r)
        r = ext4_groups_store(fs);
    s = (struct snapshot){ 0 };
    if (!r)
        r = take_snapshot(fs, &s);
    mutex_unlock(&fs->lock);
    if (!r)
        r = write_snapshot(fs, &s);
    drop_snapshot(&s);
    if (r == -ENOMEM) {
        /* Nothing was written and nothing is lost: everything belongs to the next commit. */
        list_for_each_entry(i, &inodes, dirty_link)
            ext4_mark_inode(ext4_i(i), true);
    } else if (r) {
        ext4_fail(fs, "writing metadata", r);
    }
    put_inodes(&inodes); /* deleted ones come to to_free here */
    mutex_lock(&fs->lock);
    if (!r)
        r = release_pending(fs, seq, &dead);
    mutex_unlock(&fs->lock);
    if (!r) /* release: who sees the number sees its frees */
        atomic_store_release(&fs->committed_seq, seq);
    while (!list_empty(&dead)) {
        struct ext4_inode *ei = list_first(&dead, struct ext4_inode, free_link);
        list_del(&ei->free_link);
        ext4_inode_free(ei);
    }
    return r;
}
int ext4_commit_upto(struct ext4_fs *fs, uint64_t seq)
{
    int r = 0;
    while (!r && atomic_load_acquire(&fs->committed_seq) < seq) {
        mutex_lock(&fs->commit_lock);
        /* Whoever held the lock before may have done it for us. */
        if (atomic_load_acquire(&fs->committed_seq) < seq)
            r = commit_once(fs);
        mutex_unlock(&fs->commit_lock);
    }
    return r;
}
int ext4_commit(struct ext4_fs *fs)
{
    spin_lock(&fs->dirty_lock);
    uint64_t seq = fs->running_seq;
    spin_unlock(&fs->dirty_lock);
    return ext4_commit_upto(fs, seq);
}
int ext4_release_space(struct ext4_fs *fs)
{
    int r = 0;
    /* A deleted file: its name, then its inode, then its bits: three commits. */
    for (int n = 0; n < 4 && !r; n++) {
        mutex_lock(&fs->lock);
        spin_lock(&fs->dirty_lock);
        bool idle = list_empty(&fs->pending) && list_empty(&fs->to_free) && list_empty(&fs->dirty_inodes);
        spin_unlock(&fs->dirty_lock);
        mutex_unlock(&fs->lock);
        if (idle)
            break;
        r = ext4_commit(fs);
    }
    return r;
}

/* ---- device cache ---- */
int ext4_flush(struct ext4_fs *fs)
{
    mutex_lock(&fs->flush_lock);
    /* A flush that has begun already may have missed our data: the next one counts. */
    uint64_t mine = fs->flush_started + 1;
    while (atomic_load_relaxed(&fs->flush_done) < mine) {
        if (!fs->flush_running) {
            atomic_store_relaxed(&fs->flush_running, true);
            uint64_t n = ++fs->flush_started;
            mutex_unlock(&fs->flush_lock);
            int r = block_flush(fs->device);
            if (r)
                ext4_fail(fs, "flush", r);
            mutex_lock(&fs->flush_lock);
            atomic_store_relaxed(&fs->flush_running, false);
            atomic_store_release(&fs->flush_done, n);
            wake_all(&fs->flush_wait);
        } else {
            mutex_unlock(&fs->flush_lock);
            wait_event(&fs->flush_wait, atomic_load_acquire(&fs->flush_done) >= mine ||
                       !atomic_load_relaxed(&fs->flush_running));
            mutex_lock(&fs->flush_lock);
        }
    }
    mutex_unlock(&fs->flush_lock);
    return atomic_load_acquire(&fs->error);
}
