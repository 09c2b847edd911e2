/* Inode table: (super block, number) -> inode. Buckets have their own spinlock; counts go to zero under it, so a
 * lookup never revives a dying inode. */
#include "fs.h"
#include <weir/spinlock.h>
#include <weir/time.h>

#define BUCKETS 4096
/* Key: b the bucket's lock */
static struct bucket {
    spinlock_t lock;
    struct list inodes; /* b; next NULL until first used */
} buckets[BUCKETS];
static uint64_t count; /* a */

static struct bucket *bucket_of(const struct super_block *sb, uint64_t ino)
{
    return &buckets[((ino ^ (uintptr_t)sb >> 6) * 0x9e3779b97f4a7c15ULL >> 32) % BUCKETS];
}
uint64_t inode_count(void) { return atomic_load_relaxed(&count); }

struct inode *inode_new(struct super_block *sb, uint64_t ino, const struct pagecache_ops *cache_ops)
{
    struct inode *i = kzalloc(sizeof *i);
    if (!i)
        return NULL;
    i->ino = ino;
    i->sb = sb;
    i->nlink = 1;
    i->refcount = 1;
    rw_mutex_init(&i->lock);
    pagecache_init(&i->cache, cache_ops, i);
    list_init(&i->hash_link);
    list_init(&i->dirty_link);
    atomic_fetch_add(&count, 1);
    return i;
}

struct inode *inode_find(struct super_block *sb, uint64_t ino)
{
    struct bucket *b = bucket_of(sb, ino);
    struct inode *found = NULL, *i;
    spin_lock(&b->lock);
    if (b->inodes.next) {
        list_for_each_entry(i, &b->inodes, hash_link) {
            if (i->ino == ino && i->sb == sb) {
                atomic_fetch_add(&i->refcount, 1);
                found = i;
                break;
            }
        }
    }
    spin_unlock(&b->lock);
    return found;
}
void inode_publish(struct inode *i)
{
    struct bucket *b = bucket_of(i->sb, i->ino);
    spin_lock(&b->lock);
    if (!b->inodes.next)
        list_init(&b->inodes);
    list_add(&b->inodes, &i->hash_link);
    spin_unlock(&b->lock);
}

void inode_get(struct inode *i) { atomic_fetch_add(&i->refcount, 1); }
void inode_put(struct inode *i)
{
    uint32_t old = atomic_load_relaxed(&i->refcount);
    /* Deleted, and only dirtiness keeps it: what is dirty will never be read, so drop it instead of writing it. */
    if (old > 1 && !atomic_load_relaxed(&i->nlink) && i->cache.ops &&
        old - 1 == atomic_load_relaxed(&i->internal_refs) && atomic_load_relaxed(&i->cache.dirty_count)) {
        pagecache_truncate(&i->cache, 0);
        old = atomic_load_relaxed(&i->refcount);
    }
    while (old > 1) {
        if (atomic_cas(&i->refcount, &old, old - 1))
            return;
    }
    struct bucket *b = bucket_of(i->sb, i->ino);
    spin_lock(&b->lock);
    bool last = atomic_fetch_sub(&i->refcount, 1) == 1;
    if (last)
        list_del(&i->hash_link);
    spin_unlock(&b->lock);
    if (!last)
        return;
    /* Nobody else can reach it. Dirty pages hold a reference, so the cache is clean unless the file is deleted. */
    pagecache_destroy(&i->cache);
    if (i->ops && i->ops->evict)
        i->ops->evict(i);
    atomic_fetch_sub(&count, 1);
    kfree(i);
}
void inode_hold_cache(struct pagecache *c)
{
    struct inode *i = c->owner;
    inode_get(i);
    atomic_fetch_add(&i->internal_refs, 1);
}
void inode_release_cache(struct pagecache *c)
{
    struct inode *i = c->owner;
    atomic_fetch_sub(&i->internal_refs, 1);
    inode_put(i);
}

struct timespec_weir time_now(void)
{
    uint64_t ns = clock_realtime_ns();
    return (struct timespec_weir){ (int64_t)(ns / NSEC_PER_SEC), (int64_t)(ns % NSEC_PER_SEC) };
}

void inode_fill_stat(struct inode *i, struct stat_weir *out)
{
    memset(out, 0, sizeof *out);
    out->st_dev = i->sb ? i->sb->dev : 0;
    out->st_ino = i->ino;
    out->st_mode = i->mode;
    out->st_nlink = atomic_load_relaxed(&i->nlink);
    out->st_uid = i->uid;
    out->st_gid = i->gid;
    out->st_rdev = i->rdev;
    out->st_size = (int64_t)atomic_load_acquire(&i->size);
    out->st_blksize = 4096;
    if (i->ops && i->ops->blocks)
        out->st_blocks = (int64_t)i->ops->blocks(i);
    else
        out->st_blocks = (int64_t)(atomic_load_relaxed(&i->cache.page_count) * 8);
    out->st_atim = i->atime;
    out->st_mtim = i->mtime;
    out->st_ctim = i->ctime;
}
