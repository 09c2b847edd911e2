/* Calls that change names: mkdir, unlink, rename, link and so on. */
#include "fs.h"

static struct mutex rename_lock = MUTEX_INIT(rename_lock); /* directory moves: keeps the tree a tree */

static int may_change(struct inode *dir, const struct cred *c)
{
    if (atomic_load_relaxed(&dir->sb->read_only))
        return -EROFS;
    return vfs_permission(dir, 3, c);
}
/* Sticky directories (/tmp): only the owner of the entry or of the directory removes it. */
static int may_remove(struct inode *dir, struct inode *victim, const struct cred *c)
{
    int r = may_change(dir, c);
    if (!r && (dir->mode & 01000) && !is_root_user(c) && c->uid != victim->uid && c->uid != dir->uid)
        r = -EPERM;
    return r;
}

enum make { MAKE_DIRECTORY, MAKE_SYMLINK, MAKE_NODE };
static int make(struct dentry *cwd, const char *path, enum make what, mode_t mode, const char *target, const struct cred *c)
{
    struct walk w;
    int r = path_parent(cwd, path, c, &w);
    if (!r && w.last_special)
        r = -EEXIST;
    if (!r && w.last.want_directory && what != MAKE_DIRECTORY)
        r = -ENOENT;
    if (!r) {
        struct inode *dir = w.parent->inode, *child = NULL;
        struct dentry *d;
        rw_write_lock(&dir->lock);
        r = vfs_permission(dir, 1, c);
        if (!r)
            r = path_lookup_locked(w.parent, w.last.text, w.last.len, &d);
        if (!r) {
            if (d->inode)
                r = -EEXIST;
            if (!r)
                r = dir->nlink ? may_change(dir, c) : -ENOENT;
            if (!r && what == MAKE_DIRECTORY)
                r = dir->ops->mkdir ? dir->ops->mkdir(dir, w.last.text, w.last.len, S_IFDIR | (mode & 07777), c, &child) : -EPERM;
            else if (!r && what == MAKE_SYMLINK)
                r = dir->ops->symlink ? dir->ops->symlink(dir, w.last.text, w.last.len, target, c, &child) : -EPERM;
            else if (!r)
                r = dir->ops->create ? dir->ops->create(dir, w.last.text, w.last.len, mode, c, &child) : -EPERM;
            if (!r) {
                dentry_forget(d);
                struct dentry *made = dentry_add(w.parent, w.last.text, w.last.len, child);
                if (made)
                    dentry_put(made);
            }
            dentry_put(d);
        }
        rw_write_unlock(&dir->lock);
    }
    path_end(&w);
    return r;
}
int vfs_mkdir(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c)
{
    return make(cwd, path, MAKE_DIRECTORY, mode, NULL, c);
}
int vfs_symlink(struct dentry *cwd, const char *target, const char *path, const struct cred *c)
{
    return *target ? make(cwd, path, MAKE_SYMLINK, 0777, target, c) : -ENOENT;
}
int vfs_mknod(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c)
{
    uint32_t kind = mode & S_IFMT;
    if (kind != S_IFSOCK && kind != S_IFIFO && kind != S_IFREG)
        return -EPERM;
    return make(cwd, path, MAKE_NODE, mode, NULL, c);
}

static int remove_name(struct dentry *cwd, const char *path, bool directory, const struct cred *c)
{
    struct walk w;
    int r = path_parent(cwd, path, c, &w);
    if (!r && w.last_special)
        r = directory ? -EBUSY : -EISDIR;
    if (!r) {
        struct inode *dir = w.parent->inode;
        struct dentry *d;
        rw_write_lock(&dir->lock);
        r = vfs_permission(dir, 1, c);
        if (!r)
            r = path_lookup_locked(w.parent, w.last.text, w.last.len, &d);
        if (!r) {
            struct inode *victim = d->inode;
            r = victim ? may_remove(dir, victim, c) : -ENOENT;
            if (!r && d->mounted)
                r = -EBUSY;
            if (!r && directory)
                r = !S_ISDIR(victim->mode) ? -ENOTDIR : dir->ops->rmdir ? 0 : -EPERM;
            else if (!r)
                r = S_ISDIR(victim->mode) ? -EISDIR : w.last.want_directory ? -ENOTDIR : dir->ops->unlink ? 0 : -EPERM;
            if (!r) {
                if (directory)
                    rw_write_lock(&victim->lock); /* nothing is created in it meanwhile */
                r = directory ? dir->ops->rmdir(dir, w.last.text, w.last.len, victim)
                              : dir->ops->unlink(dir, w.last.text, w.last.len, victim);
                if (directory)
                    rw_write_unlock(&victim->lock);
            }
            if (!r) {
                dentry_forget(d);
                if (directory)
                    dentry_forget_children(d);
            }
            dentry_put(d);
        }
        rw_write_unlock(&dir->lock);
    }
    path_end(&w);
    return r;
}
int vfs_rmdir(struct dentry *cwd, const char *path, const struct cred *c) { return remove_name(cwd, path, true, c); }
int vfs_unlink(struct dentry *cwd, const char *path, const struct cred *c) { return remove_name(cwd, path, false, c); }

int vfs_link(struct dentry *from_cwd, const char *from, struct dentry *to_cwd, const char *to, unsigned lookup_flags,
             const struct cred *c)
{
    struct dentry *source, *d;
    struct walk w;
    int r = path_walk(from_cwd, from, lookup_flags & VFS_NOFOLLOW ? 0 : WALK_FOLLOW, c, &source);
    if (r)
        return r;
    struct inode *node = source->inode;
    r = path_parent(to_cwd, to, c, &w);
    if (!r && w.last_special)
        r = -EEXIST;
    if (!r) {
        struct inode *dir = w.parent->inode;
        rw_write_lock(&dir->lock);
        r = path_lookup_locked(w.parent, w.last.text, w.last.len, &d);
        if (!r) {
            r = d->inode ? -EEXIST : dir->nlink ? may_change(dir, c) : -ENOENT;
            if (!r && node->sb != dir->sb)
                r = -EXDEV;
            if (!r && S_ISDIR(node->mode))
                r = -EPERM;
            if (!r)
                r = node->nlink && dir->ops->link ? dir->ops->link(dir, w.last.text, w.last.len, node)
                                                  : node->nlink ? -EPERM : -ENOENT;
            if (!r) {
                dentry_forget(d);
                inode_get(node);
                struct dentry *made = dentry_add(w.parent, w.last.text, w.last.len, node);
                if (made)
                    dentry_put(made);
            }
            dentry_put(d);
        }
        rw_write_unlock(&dir->lock);
    }
    path_end(&w);
    dentry_put(source);
    return r;
}

static void lock_two(struct inode *a, struct inode *b)
{
    if (a > b) {
        struct inode *t = a;
        a = b;
        b = t;
    }
    rw_write_lock(&a->lock);
    if (a != b)
        rw_write_lock(&b->lock);
}
static void unlock_two(struct inode *a, struct inode *b)
{
    rw_write_unlock(&a->lock);
    if (a != b)
        rw_write_unlock(&b->lock);
}

/* Both directories locked. from and to are the entries; to may be negative. */
static int rename_checked(struct walk *fw, struct dentry *from, struct walk *tw, struct dentry *to, const struct cred *c)
{
    struct inode *node = from->inode, *replaced = to->inode;
    struct inode *from_dir = fw->parent->inode, *to_dir = tw->parent->inode;
    if (!node)
        return -ENOENT;
    bool directory = S_ISDIR(node->mode);
    int r = may_remove(from_dir, node, c);
    if (!r)
        r = replaced ? may_remove(to_dir, replaced, c) : may_change(to_dir, c);
    if (r)
        return r;
    if (!to_dir->nlink)
        return -ENOENT;
    if (!directory && (fw->last.want_directory || tw->last.want_directory))
        return -ENOTDIR;
    if (replaced == node)
        return 1; /* two names of one file: nothing to do */
    if (replaced && S_ISDIR(replaced->mode) && !directory)
        return -EISDIR;
    if (replaced && !S_ISDIR(replaced->mode) && directory)
        return -ENOTDIR;
    if (from->mounted || to->mounted)
        return -EBUSY;
    if (directory && dentry_is_below(tw->parent, from))
        return -EINVAL;
    if (!from_dir->ops->rename)
        return -EPERM;
    return from_dir->ops->rename(from_dir, fw->last.text, fw->last.len, node, to_dir, tw->last.text, tw->last.len, replaced);
}

int vfs_rename(struct dentry *from_cwd, const char *from, struct dentry *to_cwd, const char *to, const struct cred *c)
{
    struct walk fw, tw = { 0 };
    struct dentry *source = NULL, *target = NULL;
    int r = path_parent(from_cwd, from, c, &fw);
    if (!r)
        r = path_parent(to_cwd, to, c, &tw);
    if (!r && (fw.last_special || tw.last_special))
        r = -EBUSY;
    if (!r && fw.parent->sb != tw.parent->sb)
        r = -EXDEV;
    if (!r) {
        struct inode *from_dir = fw.parent->inode, *to_dir = tw.parent->inode;
        mutex_lock(&rename_lock);
        lock_two(from_dir, to_dir);
        r = path_lookup_locked(fw.parent, fw.last.text, fw.last.len, &source);
        if (!r)
            r = path_lookup_locked(tw.parent, tw.last.text, tw.last.len, &target);
        if (!r)
            r = rename_checked(&fw, source, &tw, target, c);
        if (!r) {
            if (target->inode && S_ISDIR(target->inode->mode))
                dentry_forget_children(target);
            if (dentry_move(source, tw.parent, tw.last.text, tw.last.len)) {
                /* No memory for the name: forget both, the next lookup reads the disk. */
                dentry_forget(source);
                dentry_forget(target);
            }
        }
        unlock_two(from_dir, to_dir);
        mutex_unlock(&rename_lock);
    }
    if (source)
        dentry_put(source);
    if (target)
        dentry_put(target);
    path_end(&fw);
    path_end(&tw);
    return r > 0 ? 0 : r;
}
