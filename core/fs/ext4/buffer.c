/* Metadata blocks in memory: hash by block number, LRU of clean unused ones, list of dirty ones. All under fs->lock. */
#include "ext4.h"

#define BUCKETS 1024u

int ext4_buffers_init(struct ext4_fs *fs)
{
    fs->buckets = kcalloc(BUCKETS, sizeof *fs->buckets);
    if (!fs->buckets)
        return -ENOMEM;
    for (unsigned n = 0; n < BUCKETS; n++)
        list_init(&fs->buckets[n]);
    list_init(&fs->lru);
    list_init(&fs->dirty);
    /* 1/32 of memory, at least 1 MiB. */
    fs->buffer_limit = (uint32_t)MAX(mm_total_pages() / 32, 256ul);
    return 0;
}
static void buffer_free(struct ext4_fs *fs, struct ext4_buffer *b)
{
    list_del(&b->hash_link);
    list_del(&b->lru_link);
    list_del(&b->dirty_link);
    fs->buffer_count--;
    page_put(b->page);
    kfree(b);
}
void ext4_buffers_destroy(struct ext4_fs *fs)
{
    for (unsigned n = 0; fs->buckets && n < BUCKETS; n++) {
        while (!list_empty(&fs->buckets[n]))
            buffer_free(fs, list_first(&fs->buckets[n], struct ext4_buffer, hash_link));
    }
    kfree(fs->buckets);
    fs->buckets = NULL;
}

static struct list *bucket_of(struct ext4_fs *fs, uint64_t block)
{
    return &fs->buckets[(block * 0x9e3779b97f4a7c15ULL >> 40) % BUCKETS];
}
static struct ext4_buffer *find(struct ext4_fs *fs, uint64_t block)
{
    struct ext4_buffer *b;
    list_for_each_entry(b, bucket_of(fs, block), hash_link) {
        if (b->block == block)
            return b;
    }
    return NULL;
}
static void take(struct ext4_buffer *b)
{
    b->refcount++;
    list_del(&b->lru_link);
}
static struct ext4_buffer *make(struct ext4_fs *fs, uint64_t block)
{
    while (fs->buffer_count >= fs->buffer_limit && !list_empty(&fs->lru))
        buffer_free(fs, list_first(&fs->lru, struct ext4_buffer, lru_link));
    struct ext4_buffer *b = kzalloc(sizeof *b);
    struct page *p = b ? page_alloc(0, MM_RECLAIM) : NULL;
    if (!p) {
        kfree(b);
        return NULL;
    }
    b->page = p;
    b->data = page_virt(p);
    b->block = block;
    b->refcount = 1;
    list_init(&b->lru_link);
    list_init(&b->dirty_link);
    list_add(bucket_of(fs, block), &b->hash_link);
    fs->buffer_count++;
    return b;
}

int ext4_buffer_read(struct ext4_fs *fs, uint64_t block, enum ext4_phase phase, struct ext4_buffer **out)
{
    assert(mutex_is_mine(&fs->lock));
    if (!block || block >= fs->block_count) {
        log_error("%s: metadata block %lu is outside the file system", fs->sb->source, (unsigned long)block);
        return -EUCLEAN;
    }
    struct ext4_buffer *b = find(fs, block);
    if (b) {
        take(b);
    } else {
        b = make(fs, block);
        if (!b)
            return -ENOMEM;
        int r = block_read(fs->device, block * EXT4_BLOCK_SIZE, b->data, EXT4_BLOCK_SIZE);
        if (r) {
            buffer_free(fs, b);
            return r;
        }
    }
    b->phase = (uint8_t)phase;
    *out = b;
    return 0;
}
int ext4_buffer_new(struct ext4_fs *fs, uint64_t block, enum ext4_phase phase, struct ext4_buffer **out)
{
    assert(mutex_is_mine(&fs->lock));
    if (!block || block >= fs->block_count)
        return -EUCLEAN;
    struct ext4_buffer *b = find(fs, block);
    if (b)
        take(b);
    else
        b = make(fs, block);
    if (!b)
        return -ENOMEM;
    memset(b->data, 0, EXT4_BLOCK_SIZE);
    b->phase = (uint8_t)phase;
    b->checked = true;
    b->fresh = false;
    *out = b;
    return 0;
}
void ext4_buffer_put(struct ext4_fs *fs, struct ext4_buffer *b)
{
    if (--b->refcount == 0 && !b->dirty)
        list_add_tail(&fs->lru, &b->lru_link);
}
void ext4_buffer_dirty(struct ext4_fs *fs, struct ext4_buffer *b)
{
    assert(b->refcount);
    if (b->dirty)
        return;
    b->dirty = true;
    atomic_store_relaxed(&fs->dirty_count, fs->dirty_count + 1);
    list_add_tail(&fs->dirty, &b->dirty_link);
    writeback_metadata_dirtied();
}
void ext4_buffer_forget(struct ext4_fs *fs, uint64_t block)
{
    struct ext4_buffer *b = find(fs, block);
    if (!b)
        return;
    if (b->dirty) {
        b->dirty = false;
        atomic_store_relaxed(&fs->dirty_count, fs->dirty_count - 1);
        list_del(&b->dirty_link);
    }
    if (!b->refcount)
        buffer_free(fs, b);
    else
        b->checked = false;
}
