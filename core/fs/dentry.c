/*
 * Name cache. One spinlock, dcache_lock, guards the hash, the parents, the names and the counts; it is held for one
 * step of a walk. Unused dentries stay hashed, on an LRU list, up to a bound; a dentry holds its parent and inode.
 */
#include "fs.h"
#include <weir/printk.h>
#include <weir/spinlock.h>

#define BUCKETS 8192
#define UNUSED_MAX 32768

static spinlock_t dcache_lock = SPINLOCK_INIT;
static struct list buckets[BUCKETS];           /* dcache_lock; next NULL until first used */
static struct list unused = LIST_INIT(unused); /* dcache_lock: refcount 0, oldest first */
static unsigned unused_count;                  /* dcache_lock */

static uint32_t hash_name(const struct dentry *parent, const char *name, size_t len)
{
    uint64_t h = 0xcbf29ce484222325ULL ^ (uintptr_t)parent >> 5;
    for (size_t i = 0; i < len; i++)
        h = (h ^ (uint8_t)name[i]) * 0x100000001b3ULL;
    return (uint32_t)(h ^ h >> 32);
}
static struct list *bucket_of(uint32_t hash)
{
    struct list *b = &buckets[hash % BUCKETS];
    if (!b->next)
        list_init(b);
    return b;
}

static struct dentry *dentry_alloc(struct super_block *sb, const char *name, size_t len)
{
    struct dentry *d = kzalloc(sizeof *d);
    if (!d)
        return NULL;
    d->name = len <= DENTRY_INLINE_NAME ? d->inline_name : kmalloc(len);
    if (!d->name) {
        kfree(d);
        return NULL;
    }
    memcpy(d->name, name, len);
    d->name_len = (uint16_t)len;
    d->refcount = 1;
    d->sb = sb;
    d->parent = d;
    list_init(&d->hash_link);
    list_init(&d->lru_link);
    return d;
}
static void dentry_free(struct dentry *d)
{
    if (d->name != d->inline_name)
        kfree(d->name);
    kfree(d);
}

static void get_locked(struct dentry *d)
{
    if (d->refcount++ == 0) {
        list_del(&d->lru_link);
        unused_count--;
    }
}
static void unhash_locked(struct dentry *d)
{
    if (d->hashed) {
        list_del(&d->hash_link);
        d->hashed = false;
    }
}
/* Drop one reference. Dentries that die go on `dead`, parents included: freed by the caller without the lock. */
static void put_locked(struct dentry *d, struct list *dead)
{
    while (d) {
        assert(d->refcount);
        if (--d->refcount)
            return;
        if (d->hashed) {
            list_add_tail(&unused, &d->lru_link);
            unused_count++;
            return;
        }
        list_add_tail(dead, &d->lru_link);
        d = d->parent != d ? d->parent : NULL;
    }
}
static void kill_oldest_locked(struct dentry *d, struct list *dead)
{
    unhash_locked(d);
    list_del(&d->lru_link);
    unused_count--;
    d->refcount = 1;
    put_locked(d, dead);
}
static void free_dead(struct list *dead)
{
    while (!list_empty(dead)) {
        struct dentry *d = list_first(dead, struct dentry, lru_link);
        list_del(&d->lru_link);
        if (d->inode)
            inode_put(d->inode);
        dentry_free(d);
    }
}

void dentry_get(struct dentry *d)
{
    spin_lock(&dcache_lock);
    get_locked(d);
    spin_unlock(&dcache_lock);
}
void dentry_put(struct dentry *d)
{
    struct list dead = LIST_INIT(dead);
    spin_lock(&dcache_lock);
    put_locked(d, &dead);
    for (int i = 0; i < 8 && unused_count > UNUSED_MAX; i++)
        kill_oldest_locked(list_first(&unused, struct dentry, lru_link), &dead);
    spin_unlock(&dcache_lock);
    free_dead(&dead);
}
struct inode *dentry_inode(struct dentry *d) { return d->inode; }

struct dentry *dentry_new_root(struct super_block *sb, struct inode *root)
{
    struct dentry *d = dentry_alloc(sb, "", 0);
    if (!d) {
        inode_put(root);
        return NULL;
    }
    d->inode = root;
    return d;
}

static struct dentry *find_locked(struct dentry *parent, const char *name, size_t len, uint32_t hash)
{
    struct dentry *d;
    list_for_each_entry(d, bucket_of(hash), hash_link) {
        if (d->hash == hash && d->parent == parent && d->name_len == len && !memcmp(d->name, name, len)) {
            get_locked(d);
            return d;
        }
    }
    return NULL;
}
struct dentry *dentry_find(struct dentry *parent, const char *name, size_t len)
{
    if (parent->sb->uncached)
        return NULL;
    uint32_t hash = hash_name(parent, name, len);
    spin_lock(&dcache_lock);
    struct dentry *d = find_locked(parent, name, len, hash);
    spin_unlock(&dcache_lock);
    return d;
}

struct dentry *dentry_add(struct dentry *parent, const char *name, size_t len, struct inode *inode)
{
    struct dentry *d = dentry_alloc(parent->sb, name, len), *found = NULL;
    if (!d) {
        if (inode)
            inode_put(inode);
        return NULL;
    }
    d->inode = inode;
    d->hash = hash_name(parent, name, len);
    spin_lock(&dcache_lock);
    if (!parent->sb->uncached)
        found = find_locked(parent, name, len, d->hash);
    if (!found) {
        get_locked(parent);
        d->parent = parent;
        if (!parent->sb->uncached) {
            list_add(bucket_of(d->hash), &d->hash_link);
            d->hashed = true;
        }
    }
    spin_unlock(&dcache_lock);
    if (found) {
        if (inode)
            inode_put(inode);
        dentry_free(d);
        return found;
    }
    return d;
}

void dentry_forget(struct dentry *d)
{
    spin_lock(&dcache_lock);
    if (d->refcount) /* the caller's reference */
        unhash_locked(d);
    spin_unlock(&dcache_lock);
}

/* Only a directory that is being removed or replaced gets here, so the scan of the LRU list is rare. */
static void forget_if(bool (*match)(struct dentry *d, void *arg), void *arg)
{
    struct list dead = LIST_INIT(dead);
    struct dentry *d, *next;
    spin_lock(&dcache_lock);
    bool again;
    do {
        again = false;
        list_for_each_entry_safe(d, next, &unused, lru_link) {
            if (match(d, arg)) {
                /* A parent may become unused, and be next's neighbour: start over from a safe place. */
                kill_oldest_locked(d, &dead);
                again = true;
            }
        }
    } while (again);
    spin_unlock(&dcache_lock);
    free_dead(&dead);
}
static bool match_parent(struct dentry *d, void *arg) { return d->parent == arg; }
static bool match_super(struct dentry *d, void *arg) { return d->sb == arg; }
void dentry_forget_children(struct dentry *d) { forget_if(match_parent, d); }
void dentry_drop_unused(struct super_block *sb) { forget_if(match_super, sb); }

int dentry_move(struct dentry *d, struct dentry *to_parent, const char *name, size_t len)
{
    struct list dead = LIST_INIT(dead);
    char *fresh = len <= DENTRY_INLINE_NAME ? d->inline_name : kmalloc(len), *old = NULL;
    if (!fresh)
        return -ENOMEM;
    uint32_t hash = hash_name(to_parent, name, len);
    spin_lock(&dcache_lock);
    struct dentry *replaced = find_locked(to_parent, name, len, hash);
    if (replaced) {
        unhash_locked(replaced);
        put_locked(replaced, &dead);
    }
    unhash_locked(d);
    if (d->name != d->inline_name)
        old = d->name;
    memcpy(fresh, name, len);
    d->name = fresh;
    d->name_len = (uint16_t)len;
    d->hash = hash;
    struct dentry *from = d->parent;
    get_locked(to_parent);
    d->parent = to_parent;
    if (!d->sb->uncached) {
        list_add(bucket_of(hash), &d->hash_link);
        d->hashed = true;
    }
    put_locked(from, &dead);
    spin_unlock(&dcache_lock);
    free_dead(&dead);
    kfree(old);
    return 0;
}

bool dentry_is_below(struct dentry *d, struct dentry *ancestor)
{
    spin_lock(&dcache_lock);
    while (d != ancestor && d->parent != d)
        d = d->parent;
    spin_unlock(&dcache_lock);
    return d == ancestor;
}

struct dentry *dentry_cross_mounts(struct dentry *d)
{
    struct list dead = LIST_INIT(dead);
    spin_lock(&dcache_lock);
    while (d->mounted) {
        get_locked(d->mounted);
        struct dentry *root = d->mounted;
        put_locked(d, &dead);
        d = root;
    }
    spin_unlock(&dcache_lock);
    free_dead(&dead);
    return d;
}
struct dentry *dentry_parent_of(struct dentry *d)
{
    spin_lock(&dcache_lock);
    while (d->parent == d && d->mountpoint)
        d = d->mountpoint;
    d = d->parent;
    get_locked(d);
    spin_unlock(&dcache_lock);
    return d;
}
void dentry_set_mounted(struct dentry *at, struct dentry *root)
{
    spin_lock(&dcache_lock);
    get_locked(at); /* as long as the mount lives: for ever */
    at->mounted = root;
    root->mountpoint = at;
    spin_unlock(&dcache_lock);
}

/* Built from the end of buf. A name that was removed gets Linux's suffix. */
char *vfs_path(struct dentry *d, char *buf, size_t size)
{
    size_t at = size;
    if (size < 2)
        return err_ptr(-ENAMETOOLONG);
    buf[--at] = 0;
    spin_lock(&dcache_lock);
    static const char suffix[] = " (deleted)";
    bool gone = !d->hashed && d->parent != d && !d->sb->uncached;
    if (gone && at >= sizeof suffix) {
        at -= sizeof suffix - 1;
        memcpy(buf + at, suffix, sizeof suffix - 1);
    }
    size_t tail = at;
    for (;;) {
        while (d->parent == d && d->mountpoint)
            d = d->mountpoint;
        if (d->parent == d)
            break;
        if (at < d->name_len + 1u) {
            spin_unlock(&dcache_lock);
            return err_ptr(-ENAMETOOLONG);
        }
        at -= d->name_len;
        memcpy(buf + at, d->name, d->name_len);
        buf[--at] = '/';
        d = d->parent;
    }
    spin_unlock(&dcache_lock);
    if (at == tail && at)
        buf[--at] = '/';
    return buf + at;
}
