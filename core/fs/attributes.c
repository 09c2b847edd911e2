/* Calls on a path that read or change attributes. */
#include "fs.h"

int vfs_lookup(struct dentry *cwd, const char *path, unsigned lookup_flags, const struct cred *c, struct dentry **out)
{
    return path_walk(cwd, path, lookup_flags & VFS_NOFOLLOW ? 0 : WALK_FOLLOW, c, out);
}
int vfs_stat(struct dentry *cwd, const char *path, unsigned lookup_flags, const struct cred *c, struct stat_weir *out)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, lookup_flags, c, &d);
    if (r)
        return r;
    inode_fill_stat(d->inode, out);
    dentry_put(d);
    return 0;
}
int vfs_readlink(struct dentry *cwd, const char *path, char *buf, size_t size, const struct cred *c)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, VFS_NOFOLLOW, c, &d);
    if (r)
        return r;
    r = S_ISLNK(d->inode->mode) && d->inode->ops->readlink ? d->inode->ops->readlink(d->inode, buf, size) : -EINVAL;
    dentry_put(d);
    return r;
}
int vfs_access(struct dentry *cwd, const char *path, int mode, const struct cred *c)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, 0, c, &d);
    if (r)
        return r;
    if (mode & 7)
        r = vfs_permission(d->inode, (unsigned)mode & 7, c);
    if (!r && (mode & 2) && atomic_load_relaxed(&d->sb->read_only) && (S_ISREG(d->inode->mode) || S_ISDIR(d->inode->mode)))
        r = -EROFS;
    dentry_put(d);
    return r;
}
static void fill_statfs(struct super_block *sb, struct statfs_weir *out)
{
    memset(out, 0, sizeof *out);
    out->f_bsize = out->f_frsize = PAGE_SIZE;
    out->f_namelen = NAME_MAX_WEIR;
    out->f_fsid[0] = (int32_t)sb->dev;
    out->f_flags = 0x20 | (atomic_load_relaxed(&sb->read_only) ? 1 : 0); /* ST_VALID */
    if (sb->ops->statfs)
        sb->ops->statfs(sb, out);
}
int vfs_statfs(struct dentry *cwd, const char *path, struct statfs_weir *out)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, 0, &kernel_cred, &d);
    if (r)
        return r;
    fill_statfs(d->sb, out);
    dentry_put(d);
    return 0;
}
int file_statfs(struct file *f, struct statfs_weir *out)
{
    if (f->inode && f->inode->sb) {
        fill_statfs(f->inode->sb, out);
        return 0;
    }
    memset(out, 0, sizeof *out);
    out->f_type = 0x50495045; /* pipefs */
    out->f_bsize = out->f_frsize = PAGE_SIZE;
    out->f_namelen = NAME_MAX_WEIR;
    return 0;
}

/* i->lock held for writing. */
static int attributes_changed(struct inode *i)
{
    i->ctime = time_now();
    return i->ops->set_attributes ? i->ops->set_attributes(i) : 0;
}
static int change_mode(struct inode *i, mode_t mode, const struct cred *c)
{
    if (atomic_load_relaxed(&i->sb->read_only))
        return -EROFS;
    if (c && !is_root_user(c) && c->uid != i->uid)
        return -EPERM;
    if (S_ISLNK(i->mode))
        return -EOPNOTSUPP;
    rw_write_lock(&i->lock);
    i->mode = (i->mode & S_IFMT) | (mode & 07777);
    int r = attributes_changed(i);
    rw_write_unlock(&i->lock);
    return r;
}
int vfs_chmod(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, 0, c, &d);
    if (r)
        return r;
    r = change_mode(d->inode, mode, c);
    dentry_put(d);
    return r;
}
int file_chmod(struct file *f, mode_t mode)
{
    return f->inode && f->inode->sb ? change_mode(f->inode, mode, NULL) : -EINVAL;
}
int vfs_chown(struct dentry *cwd, const char *path, uint32_t uid, uint32_t gid, unsigned lookup_flags, const struct cred *c)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, lookup_flags, c, &d);
    if (r)
        return r;
    struct inode *i = d->inode;
    bool owner_only = (uid == ~0u || uid == i->uid) && (gid == ~0u || gid == c->gid || gid == i->gid) && c->uid == i->uid;
    if (atomic_load_relaxed(&i->sb->read_only))
        r = -EROFS;
    else if (!is_root_user(c) && !owner_only)
        r = -EPERM;
    if (!r) {
        rw_write_lock(&i->lock);
        if (uid != ~0u)
            i->uid = uid;
        if (gid != ~0u)
            i->gid = gid;
        if (!is_root_user(c) && !S_ISDIR(i->mode))
            i->mode &= ~06000u;
        r = attributes_changed(i);
        rw_write_unlock(&i->lock);
    }
    dentry_put(d);
    return r;
}
#define UTIME_NOW_WEIR 0x3fffffff
#define UTIME_OMIT_WEIR 0x3ffffffe
static void set_time(struct timespec_weir *to, const struct timespec_weir *from)
{
    if (from->nsec == UTIME_NOW_WEIR)
        *to = time_now();
    else if (from->nsec != UTIME_OMIT_WEIR)
        *to = *from;
}
int vfs_utimens(struct dentry *cwd, const char *path, const struct timespec_weir times[2], unsigned lookup_flags, const struct cred *c)
{
    static const struct timespec_weir now[2] = { { 0, UTIME_NOW_WEIR }, { 0, UTIME_NOW_WEIR } };
    struct dentry *d;
    int r = vfs_lookup(cwd, path, lookup_flags, c, &d);
    if (r)
        return r;
    struct inode *i = d->inode;
    bool only_now = !times || (times[0].nsec == UTIME_NOW_WEIR && times[1].nsec == UTIME_NOW_WEIR);
    if (atomic_load_relaxed(&i->sb->read_only))
        r = -EROFS;
    else if (!is_root_user(c) && c->uid != i->uid)
        r = only_now ? vfs_permission(i, 2, c) : -EPERM;
    if (!r) {
        times = times ? times : now;
        rw_write_lock(&i->lock);
        set_time(&i->atime, &times[0]);
        set_time(&i->mtime, &times[1]);
        r = attributes_changed(i);
        rw_write_unlock(&i->lock);
    }
    dentry_put(d);
    return r;
}
int vfs_truncate(struct dentry *cwd, const char *path, uint64_t size, const struct cred *c)
{
    struct dentry *d;
    int r = vfs_lookup(cwd, path, 0, c, &d);
    if (r)
        return r;
    struct inode *i = d->inode;
    if (S_ISDIR(i->mode))
        r = -EISDIR;
    else if (!S_ISREG(i->mode) || !i->ops->truncate)
        r = -EINVAL;
    else if (atomic_load_relaxed(&i->sb->read_only))
        r = -EROFS;
    else
        r = vfs_permission(i, 2, c);
    if (!r) {
        rw_write_lock(&i->lock);
        r = i->ops->truncate(i, size);
        rw_write_unlock(&i->lock);
    }
    dentry_put(d);
    return r;
}
