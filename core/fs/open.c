/* open(2) and open file descriptions. */
#include "fs.h"

static struct slab_cache *file_slab;
static void (*release_hook)(struct file *f);

void vfs_set_file_release_hook(void (*fn)(struct file *f)) { release_hook = fn; }

struct file *file_alloc(const struct file_ops *ops, void *private, unsigned flags)
{
    struct slab_cache *slab = atomic_load_acquire(&file_slab);
    if (!slab) { /* first at boot, by one thread */
        slab = slab_create("file", sizeof(struct file), 64);
        if (!slab)
            return NULL;
        atomic_store_release(&file_slab, slab);
    }
    struct file *f = slab_alloc(slab);
    if (!f)
        return NULL;
    memset(f, 0, sizeof *f);
    f->refcount = 1;
    f->flags = flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOCTTY | O_CLOEXEC);
    f->ops = ops;
    f->private = private;
    mutex_init(&f->position_lock);
    list_init(&f->epoll_items);
    return f;
}
void file_get(struct file *f) { atomic_fetch_add(&f->refcount, 1); }
void file_put(struct file *f)
{
    if (atomic_fetch_sub(&f->refcount, 1) != 1)
        return;
    if (release_hook)
        release_hook(f);
    if (f->ops && f->ops->release)
        f->ops->release(f);
    struct dentry *d = f->dentry;
    struct inode *i = f->inode;
    slab_free(file_slab, f);
    if (d)
        dentry_put(d);
    if (i)
        inode_put(i);
}

struct file *file_open_inode(struct inode *i, struct dentry *d, unsigned flags)
{
    struct file *f = file_alloc(i->file_ops, NULL, flags);
    if (!f)
        return NULL;
    f->inode = i;
    if (d)
        dentry_get(d);
    f->dentry = d;
    f->writeback_error_seen = atomic_load_relaxed(&i->cache.error_sequence);
    return f;
}

static unsigned wanted_access(unsigned flags)
{
    unsigned access = (flags & O_ACCMODE) == O_WRONLY ? 2 : (flags & O_ACCMODE) == O_RDWR ? 6 : 4;
    return access | (flags & O_TRUNC ? 2 : 0);
}

/* Checks that do not depend on how the dentry came about. `created`: no permission check, no truncation. */
static int may_open(struct dentry *d, unsigned flags, const struct cred *c, bool created)
{
    struct inode *i = d->inode;
    unsigned access = wanted_access(flags);
    if (flags & O_PATH)
        return 0;
    if (S_ISLNK(i->mode))
        return -ELOOP;
    if (S_ISDIR(i->mode) && (access & 2))
        return -EISDIR;
    if (S_ISREG(i->mode) && (access & 2) && atomic_load_relaxed(&i->sb->read_only))
        return -EROFS;
    return created ? 0 : vfs_permission(i, access, c);
}

static int truncate_on_open(struct inode *i)
{
    if (!S_ISREG(i->mode) || !i->ops->truncate)
        return 0;
    rw_write_lock(&i->lock);
    int r = i->size ? i->ops->truncate(i, 0) : 0;
    rw_write_unlock(&i->lock);
    return r;
}

/* d's reference is taken over. */
static int open_dentry(struct dentry *d, unsigned flags, const struct cred *c, bool created, struct file **out)
{
    struct inode *i = d->inode;
    int r = may_open(d, flags, c, created);
    const struct file_ops *ops = i->file_ops;
    void *private = NULL;
    if (!r && !(flags & O_PATH)) {
        if ((i->mode & S_IFMT) == S_IFCHR || (i->mode & S_IFMT) == S_IFBLK) {
            if (!ops)
                ops = devfs_find(i->mode, i->rdev, &private);
            r = ops ? 0 : -ENXIO;
        } else if (!ops) {
            r = -ENXIO; /* sockets, and fifos without a peer implementation */
        }
    }
    if (!r && (flags & O_TRUNC) && !created && !(flags & O_PATH))
        r = truncate_on_open(i);
    struct file *f = r ? NULL : file_alloc(flags & O_PATH ? NULL : ops, private, flags);
    if (!r && !f)
        r = -ENOMEM;
    if (r) {
        dentry_put(d);
        return r;
    }
    inode_get(i);
    f->inode = i;
    f->dentry = d;
    f->writeback_error_seen = atomic_load_relaxed(&i->cache.error_sequence);
    if (f->ops && f->ops->open) {
        r = f->ops->open(i, f);
        if (r) {
            f->ops = NULL; /* never opened: nothing to release */
            file_put(f);
            return r;
        }
    }
    *out = f;
    return 0;
}

/* A magic link to something without a path (a pipe behind /proc/self/fd/N): the same description again. */
static bool reopened(struct dentry *link, struct file **out)
{
    struct inode *i = link->inode;
    *out = i->ops->reopen ? i->ops->reopen(i) : NULL;
    return *out != NULL;
}

/* The last component, with O_CREAT, under the directory's lock. *created tells. */
static int lookup_or_create(struct walk *w, unsigned flags, mode_t mode, struct dentry **out, bool *created)
{
    struct inode *dir = w->parent->inode;
    *created = false;
    int r = vfs_permission(dir, 1, w->cred);
    if (r)
        return r;
    *out = dentry_find(w->parent, w->last.text, w->last.len);
    if (*out && (*out)->inode)
        goto found;
    if (*out)
        dentry_put(*out);
    rw_write_lock(&dir->lock);
    r = path_lookup_locked(w->parent, w->last.text, w->last.len, out);
    if (!r && !(*out)->inode) {
        struct inode *child = NULL;
        r = vfs_permission(dir, 2, w->cred);
        if (!r && atomic_load_relaxed(&dir->sb->read_only))
            r = -EROFS;
        if (!r && (w->last.want_directory || !dir->ops->create))
            r = w->last.want_directory ? -EISDIR : -EACCES;
        if (!r && dir->nlink == 0)
            r = -ENOENT;
        if (!r)
            r = dir->ops->create(dir, w->last.text, w->last.len, S_IFREG | (mode & 07777), w->cred, &child);
        dentry_forget(*out);
        dentry_put(*out);
        *out = NULL;
        if (!r) {
            *out = dentry_add(w->parent, w->last.text, w->last.len, child);
            *created = true;
            r = *out ? 0 : -ENOMEM;
        }
    }
    rw_write_unlock(&dir->lock);
    if (r)
        return r;
found:
    *out = dentry_cross_mounts(*out);
    if ((flags & O_EXCL) && !*created) {
        dentry_put(*out);
        return -EEXIST;
    }
    return 0;
}

static int open_create(struct dentry *cwd, const char *path, unsigned flags, mode_t mode, const struct cred *c,
                       struct file **out)
{
    struct walk w;
    struct dentry *d = NULL;
    bool created = false;
    int r = path_parent(cwd, path, c, &w);
    while (!r) {
        if (w.last_special) {
            r = -EISDIR;
            if (flags & O_EXCL)
                r = -EEXIST;
            break;
        }
        r = lookup_or_create(&w, flags, mode, &d, &created);
        if (r)
            break;
        if (!S_ISLNK(d->inode->mode))
            break;
        if (flags & O_NOFOLLOW) {
            dentry_put(d);
            r = -ELOOP;
            break;
        }
        if (reopened(d, out)) {
            dentry_put(d);
            path_end(&w);
            return 0;
        }
        r = path_follow_last(&w, d); /* takes d */
        if (!r && w.last_special && !S_ISDIR(w.parent->inode->mode)) { /* a magic link */
            d = w.parent;
            w.parent = NULL;
            break;
        }
    }
    if (!r && w.last.want_directory && !S_ISDIR(d->inode->mode)) {
        dentry_put(d);
        r = -ENOTDIR;
    }
    path_end(&w);
    return r ? r : open_dentry(d, flags, c, created, out);
}

static int open_existing(struct dentry *cwd, const char *path, unsigned flags, const struct cred *c, struct file **out)
{
    struct dentry *d;
    unsigned walk_flags = (flags & O_NOFOLLOW ? 0 : WALK_FOLLOW) | (flags & O_DIRECTORY ? WALK_DIRECTORY : 0);
    int r = path_walk(cwd, path, walk_flags & ~WALK_FOLLOW, c, &d);
    /* Followed apart, so that a magic link can hand over its file. */
    if (!r && S_ISLNK(d->inode->mode) && (walk_flags & WALK_FOLLOW)) {
        if (reopened(d, out)) {
            dentry_put(d);
            return 0;
        }
        dentry_put(d);
        r = path_walk(cwd, path, walk_flags, c, &d);
    } else if (r == -ENOTDIR && (walk_flags & WALK_DIRECTORY) && (walk_flags & WALK_FOLLOW)) {
        r = path_walk(cwd, path, walk_flags, c, &d); /* the last one is a link, maybe to a directory */
    }
    return r ? r : open_dentry(d, flags, c, false, out);
}

int vfs_open(struct dentry *cwd, const char *path, unsigned flags, mode_t mode, const struct cred *c, struct file **out)
{
    if (flags & O_PATH)
        flags &= O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    if (flags & O_CREAT)
        return flags & O_DIRECTORY ? -EINVAL : open_create(cwd, path, flags, mode, c, out);
    return open_existing(cwd, path, flags, c, out);
}

int vfs_read_file(const char *path, size_t max, char **data, size_t *len)
{
    struct file *f;
    int r = vfs_open(NULL, path, O_RDONLY, 0, &kernel_cred, &f);
    if (r)
        return r;
    size_t size = f->inode->size ? f->inode->size : max;
    r = size > max ? -EFBIG : 0;
    char *buf = r ? NULL : kmalloc(size + 1);
    if (!r && !buf)
        r = -ENOMEM;
    size_t done = 0;
    while (!r && done < size) {
        ssize_t n = file_read_kernel(f, buf + done, size - done, done);
        if (n <= 0) {
            r = (int)n;
            break;
        }
        done += (size_t)n;
    }
    file_put(f);
    if (r) {
        kfree(buf);
        return r;
    }
    buf[done] = 0;
    *data = buf;
    *len = done;
    return 0;
}
