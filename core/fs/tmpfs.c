/*
 * Files in memory: the page cache without a file system behind it. Directories are lists of entries, each with a
 * cookie that only grows, so that a reader's position survives removals. An entry holds a reference of its inode.
 */
#include "fs.h"
#include <weir/printk.h>

/* Key: d the directory's inode->lock */
struct tmpfs_entry {
    struct list link;       /* d */
    struct inode *inode;    /* d referenced */
    uint64_t cookie;        /* d */
    uint16_t len;           /* d */
    char name[];            /* d */
};
struct tmpfs_node {
    struct list entries;    /* d directories */
    uint64_t next_cookie;   /* d */
    struct inode *parent;   /* d directories: not referenced */
    char *target;           /* I symbolic links */
};
struct tmpfs_super { uint64_t next_ino; /* a */ };

static const struct inode_ops tmpfs_inode_ops;
static const struct file_ops tmpfs_file_ops, tmpfs_dir_ops;

static struct inode *tmpfs_inode(struct super_block *sb, mode_t mode, const struct cred *c)
{
    struct tmpfs_super *ts = sb->private;
    struct inode *i = inode_new(sb, atomic_fetch_add(&ts->next_ino, 1), NULL);
    struct tmpfs_node *node = kzalloc(sizeof *node);
    if (!i || !node) {
        kfree(node);
        if (i)
            inode_put(i);
        return NULL;
    }
    list_init(&node->entries);
    node->next_cookie = 3;
    i->private = node;
    i->mode = mode;
    i->uid = c->uid;
    i->gid = c->gid;
    i->ops = &tmpfs_inode_ops;
    i->file_ops = S_ISDIR(mode) ? &tmpfs_dir_ops : S_ISREG(mode) ? &tmpfs_file_ops : NULL;
    i->atime = i->mtime = i->ctime = time_now();
    if (S_ISDIR(mode))
        i->nlink = 2;
    return i;
}

static struct tmpfs_entry *find_entry(struct inode *dir, const char *name, size_t len)
{
    struct tmpfs_node *node = dir->private;
    struct tmpfs_entry *e;
    list_for_each_entry(e, &node->entries, link) {
        if (e->len == len && !memcmp(e->name, name, len))
            return e;
    }
    return NULL;
}
static int tmpfs_lookup(struct inode *dir, const char *name, size_t len, struct inode **out)
{
    struct tmpfs_entry *e = find_entry(dir, name, len);
    if (!e)
        return -ENOENT;
    inode_get(e->inode);
    *out = e->inode;
    return 0;
}
/* Takes a reference of i. */
static int add_entry(struct inode *dir, const char *name, size_t len, struct inode *i)
{
    struct tmpfs_node *node = dir->private;
    struct tmpfs_entry *e = kmalloc(sizeof *e + len);
    if (!e)
        return -ENOMEM;
    memcpy(e->name, name, len);
    e->len = (uint16_t)len;
    e->cookie = node->next_cookie++;
    inode_get(i);
    e->inode = i;
    list_add_tail(&node->entries, &e->link);
    dir->mtime = dir->ctime = time_now();
    return 0;
}
static void remove_entry(struct inode *dir, struct tmpfs_entry *e)
{
    list_del(&e->link);
    inode_put(e->inode);
    kfree(e);
    dir->mtime = dir->ctime = time_now();
}

static int new_node(struct inode *dir, const char *name, size_t len, mode_t mode, const struct cred *c, const char *target,
                    struct inode **out)
{
    struct inode *i = tmpfs_inode(dir->sb, mode, c);
    if (!i)
        return -ENOMEM;
    struct tmpfs_node *node = i->private;
    int r = 0;
    if (target) {
        size_t size = strlen(target) + 1;
        node->target = kmalloc(size);
        if (node->target)
            memcpy(node->target, target, size);
        else
            r = -ENOMEM;
        i->size = size - 1;
    }
    if (!r)
        r = add_entry(dir, name, len, i);
    if (r) {
        i->nlink = 0;
        inode_put(i);
        return r;
    }
    if (S_ISDIR(mode)) {
        node->parent = dir;
        dir->nlink++;
    }
    *out = i;
    return 0;
}
static int tmpfs_create(struct inode *dir, const char *name, size_t len, mode_t mode, const struct cred *c, struct inode **out)
{
    return new_node(dir, name, len, mode, c, NULL, out);
}
static int tmpfs_symlink(struct inode *dir, const char *name, size_t len, const char *target, const struct cred *c, struct inode **out)
{
    return new_node(dir, name, len, S_IFLNK | 0777, c, target, out);
}
static int tmpfs_link(struct inode *dir, const char *name, size_t len, struct inode *target)
{
    int r = add_entry(dir, name, len, target);
    if (!r) {
        atomic_fetch_add(&target->nlink, 1);
        target->ctime = time_now();
    }
    return r;
}
static int tmpfs_unlink(struct inode *dir, const char *name, size_t len, struct inode *victim)
{
    struct tmpfs_entry *e = find_entry(dir, name, len);
    if (!e)
        return -ENOENT;
    atomic_fetch_sub(&victim->nlink, 1);
    victim->ctime = time_now();
    remove_entry(dir, e);
    return 0;
}
static int tmpfs_rmdir(struct inode *dir, const char *name, size_t len, struct inode *victim)
{
    struct tmpfs_node *node = victim->private;
    struct tmpfs_entry *e = find_entry(dir, name, len);
    if (!e)
        return -ENOENT;
    if (!list_empty(&node->entries))
        return -ENOTEMPTY;
    victim->nlink = 0;
    dir->nlink--;
    remove_entry(dir, e);
    return 0;
}
static int tmpfs_rename(struct inode *from_dir, const char *from, size_t from_len, struct inode *node, struct inode *to_dir,
                        const char *to, size_t to_len, struct inode *replaced)
{
    struct tmpfs_entry *e = find_entry(from_dir, from, from_len), *old;
    if (!e)
        return -ENOENT;
    if (replaced && S_ISDIR(replaced->mode) && !list_empty(&((struct tmpfs_node *)replaced->private)->entries))
        return -ENOTEMPTY;
    int r = add_entry(to_dir, to, to_len, node); /* behind `old`, so that one is found first below */
    if (r)
        return r;
    if (replaced && (old = find_entry(to_dir, to, to_len))) {
        if (S_ISDIR(replaced->mode)) {
            replaced->nlink = 0;
            to_dir->nlink--;
        } else {
            atomic_fetch_sub(&replaced->nlink, 1);
        }
        remove_entry(to_dir, old);
    }
    remove_entry(from_dir, e);
    if (S_ISDIR(node->mode)) {
        ((struct tmpfs_node *)node->private)->parent = to_dir;
        from_dir->nlink--;
        to_dir->nlink++;
    }
    node->ctime = time_now();
    return 0;
}
static int tmpfs_readlink(struct inode *i, char *buf, size_t size)
{
    size_t n = MIN(size, i->size);
    memcpy(buf, ((struct tmpfs_node *)i->private)->target, n);
    return (int)n;
}
static int tmpfs_truncate(struct inode *i, uint64_t size)
{
    if (size > (uint64_t)INT64_MAX)
        return -EFBIG;
    uint64_t old = i->size;
    atomic_store_release(&i->size, size); /* before the pages go: a fault must not bring one back */
    if (size < old) {
        pagecache_truncate(&i->cache, DIV_ROUND_UP(size, PAGE_SIZE));
        struct page *p = size & PAGE_MASK ? pagecache_find(&i->cache, size >> PAGE_SHIFT) : NULL;
        if (p) {
            memset((char *)page_virt(p) + (size & PAGE_MASK), 0, PAGE_SIZE - (size & PAGE_MASK));
            page_put(p);
        }
    }
    i->mtime = i->ctime = time_now();
    return 0;
}
static int tmpfs_fallocate(struct inode *i, int mode, uint64_t offset, uint64_t len)
{
    if (mode & ~1) /* KEEP_SIZE */
        return -EOPNOTSUPP;
    if (len / PAGE_SIZE > mm_free_pages())
        return -ENOSPC;
    for (uint64_t index = offset >> PAGE_SHIFT; index <= (offset + len - 1) >> PAGE_SHIFT; index++) {
        struct page *p;
        int r = pagecache_get_page(&i->cache, index, &p);
        if (r)
            return r == -ENOMEM ? -ENOSPC : r;
        page_put(p);
        cond_resched();
    }
    if (!(mode & 1) && offset + len > i->size)
        atomic_store_release(&i->size, offset + len);
    return 0;
}
static int tmpfs_sync(struct inode *i, bool datasync) { return 0; }
static void tmpfs_evict(struct inode *i)
{
    struct tmpfs_node *node = i->private;
    while (node && !list_empty(&node->entries)) {
        struct tmpfs_entry *e = list_first(&node->entries, struct tmpfs_entry, link);
        remove_entry(i, e);
    }
    if (node)
        kfree(node->target);
    kfree(node);
}

static int tmpfs_readdir(struct file *f, struct dir_sink *sink, uint64_t *offset)
{
    struct tmpfs_node *node = f->inode->private;
    struct tmpfs_entry *e;
    if (*offset == 0) {
        if (!sink->emit(sink, ".", 1, f->inode->ino, S_IFDIR >> 12, 1))
            return 0;
        *offset = 1;
    }
    if (*offset == 1) {
        if (!sink->emit(sink, "..", 2, node->parent ? node->parent->ino : f->inode->ino, S_IFDIR >> 12, 2))
            return 0;
        *offset = 2;
    }
    list_for_each_entry(e, &node->entries, link) {
        if (e->cookie < *offset)
            continue;
        if (!sink->emit(sink, e->name, e->len, e->inode->ino, e->inode->mode >> 12, e->cookie + 1))
            return 0;
        *offset = e->cookie + 1;
    }
    return 0;
}

static const struct inode_ops tmpfs_inode_ops = {
    .lookup = tmpfs_lookup, .create = tmpfs_create, .mkdir = tmpfs_create, .symlink = tmpfs_symlink, .link = tmpfs_link,
    .unlink = tmpfs_unlink, .rmdir = tmpfs_rmdir, .rename = tmpfs_rename, .readlink = tmpfs_readlink,
    .truncate = tmpfs_truncate, .fallocate = tmpfs_fallocate, .sync = tmpfs_sync, .evict = tmpfs_evict,
};
static const struct file_ops tmpfs_file_ops = { .read = filemap_read, .write = filemap_write, .seekable = true };
static const struct file_ops tmpfs_dir_ops = { .readdir = tmpfs_readdir, .seekable = true };

static void tmpfs_statfs(struct super_block *sb, struct statfs_weir *out)
{
    out->f_type = 0x01021994;
    out->f_blocks = mm_total_pages() / 2;
    out->f_bfree = out->f_bavail = MIN(out->f_blocks, mm_free_pages());
    out->f_files = out->f_ffree = out->f_blocks;
}
static const struct super_ops tmpfs_super_ops = { .statfs = tmpfs_statfs };

int tmpfs_mount(mode_t root_mode, struct super_block **out)
{
    struct super_block *sb = kzalloc(sizeof *sb);
    struct tmpfs_super *ts = kzalloc(sizeof *ts);
    if (sb && ts) {
        ts->next_ino = 1;
        sb->ops = &tmpfs_super_ops;
        sb->type = "tmpfs";
        str_copy(sb->source, "tmpfs", sizeof sb->source);
        sb->dev = super_new_dev();
        sb->private = ts;
        struct inode *i = tmpfs_inode(sb, S_IFDIR | root_mode, &kernel_cred);
        sb->root = i ? dentry_new_root(sb, i) : NULL;
        if (sb->root) {
            *out = sb;
            return 0;
        }
    }
    kfree(sb);
    kfree(ts);
    return -ENOMEM;
}
