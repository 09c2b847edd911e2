/* Path walking: one component at a time from the name cache, else from the directory under its lock. */
#include "fs.h"

#define LINKS_MAX 40

const struct cred kernel_cred = { 0, 0 };
bool is_root_user(const struct cred *c) { return c->uid == 0; }

int vfs_permission(struct inode *i, unsigned may, const struct cred *c)
{
    uint32_t mode = i->mode;
    if (is_root_user(c)) {
        /* Executing needs some x bit, even for root. */
        return (may & 1) && !S_ISDIR(mode) && !(mode & 0111) ? -EACCES : 0;
    }
    unsigned have = c->uid == i->uid ? mode >> 6 : c->gid == i->gid ? mode >> 3 : mode;
    return (may & ~have & 7) ? -EACCES : 0;
}

int path_lookup_locked(struct dentry *dir, const char *name, size_t len, struct dentry **out)
{
    struct inode *i = dir->inode, *child = NULL;
    *out = dentry_find(dir, name, len);
    if (*out)
        return 0;
    int r = i->ops->lookup(i, name, len, &child);
    if (r && r != -ENOENT)
        return r;
    *out = dentry_add(dir, name, len, child);
    return *out ? 0 : -ENOMEM;
}

int path_lookup(struct dentry *dir, const char *name, size_t len, const struct cred *c, struct dentry **out)
{
    struct inode *i = dir->inode;
    if (!S_ISDIR(i->mode) || !i->ops->lookup)
        return -ENOTDIR;
    int r = vfs_permission(i, 1, c);
    if (r)
        return r;
    if (len > NAME_MAX_WEIR)
        return -ENAMETOOLONG;
    if (len == 1 && name[0] == '.') {
        dentry_get(dir);
        *out = dir;
        return 0;
    }
    if (len == 2 && name[0] == '.' && name[1] == '.') {
        *out = dentry_cross_mounts(dentry_parent_of(dir));
        return 0;
    }
    *out = dentry_find(dir, name, len);
    if (!*out) {
        rw_write_lock(&i->lock);
        r = path_lookup_locked(dir, name, len, out);
        rw_write_unlock(&i->lock);
        if (r)
            return r;
    }
    *out = dentry_cross_mounts(*out);
    return 0;
}

/* Start of a path: "/" or cwd, referenced; skips leading slashes. */
static int path_start(struct dentry *cwd, const char **path, struct dentry **at)
{
    struct dentry *from = **path == '/' || !cwd ? root_dentry() : cwd;
    while (**path == '/')
        (*path)++;
    if (!from)
        return -ENOENT;
    dentry_get(from);
    *at = from;
    return 0;
}

/* Next component of *path into n; want_directory if a slash follows. */
static void next_component(const char **path, struct name *n)
{
    const char *p = *path;
    n->text = p;
    while (*p && *p != '/')
        p++;
    n->len = (size_t)(p - n->text);
    n->want_directory = *p == '/';
    while (*p == '/')
        p++;
    *path = p;
}

/* link (reference taken over) is followed from directory w->parent: the rest of the path becomes target/rest. For a magic
 * link *jump is the place itself. */
static int follow(struct walk *w, struct dentry *link, const char **rest, struct dentry **jump)
{
    struct inode *i = link->inode;
    *jump = NULL;
    if (++w->links > LINKS_MAX) {
        dentry_put(link);
        return -ELOOP;
    }
    if (i->ops->follow) {
        int r = i->ops->follow(i, jump);
        dentry_put(link);
        return r;
    }
    char *buf = kmalloc(PATH_MAX_WEIR);
    int r = -ENOMEM;
    if (buf) {
        r = i->ops->readlink ? i->ops->readlink(i, buf, PATH_MAX_WEIR) : -EINVAL;
        size_t tail = strlen(*rest);
        if (r == 0)
            r = -ENOENT;
        else if (r > 0 && (size_t)r + tail + 2 > PATH_MAX_WEIR)
            r = -ENAMETOOLONG;
        if (r > 0) {
            if (tail)
                buf[r++] = '/';
            memcpy(buf + r, *rest, tail + 1);
            kfree(w->buffer);
            w->buffer = buf;
            *rest = buf;
            r = 0;
        } else {
            kfree(buf);
        }
    }
    dentry_put(link);
    return r;
}

/* Walk `path` from w->parent (referenced). With stop_at_last, w->last is left unresolved. Result in w->parent. */
static int walk(struct walk *w, const char *path, unsigned flags, bool stop_at_last)
{
    int r = 0;
    w->last = (struct name){ 0 };
    w->last_special = false;
    for (;;) {
        struct name n;
        next_component(&path, &n);
        if (!n.len) {
            w->last_special = true;
            return (flags & WALK_DIRECTORY) && !S_ISDIR(w->parent->inode->mode) ? -ENOTDIR : 0;
        }
        bool last = !*path;
        bool dots = n.text[0] == '.' && (n.len == 1 || (n.len == 2 && n.text[1] == '.'));
        if (last && stop_at_last && !dots) {
            if (!S_ISDIR(w->parent->inode->mode))
                return -ENOTDIR;
            w->last = n;
            return n.len > NAME_MAX_WEIR ? -ENAMETOOLONG : 0;
        }
        struct dentry *next;
        r = path_lookup(w->parent, n.text, n.len, w->cred, &next);
        if (r)
            return r;
        if (!next->inode) {
            dentry_put(next);
            return -ENOENT;
        }
        if (S_ISLNK(next->inode->mode) && (!last || n.want_directory || (flags & WALK_FOLLOW))) {
            struct dentry *jump;
            const char *rest = path;
            if (last && n.want_directory)
                flags |= WALK_DIRECTORY;
            r = follow(w, next, &rest, &jump);
            if (r)
                return r;
            path = rest;
            if (jump) {
                dentry_put(w->parent);
                w->parent = jump;
            } else if (*path == '/') {
                dentry_put(w->parent);
                r = path_start(NULL, &path, &w->parent);
                if (r) {
                    w->parent = NULL;
                    return r;
                }
            }
            continue;
        }
        bool is_directory = S_ISDIR(next->inode->mode);
        dentry_put(w->parent);
        w->parent = next;
        if ((n.want_directory || (last && (flags & WALK_DIRECTORY))) && !is_directory)
            return -ENOTDIR;
        if (last) {
            w->last_special = true;
            return 0;
        }
    }
}

int path_walk(struct dentry *cwd, const char *path, unsigned walk_flags, const struct cred *c, struct dentry **out)
{
    struct walk w = { .cred = c };
    if (!*path)
        return -ENOENT;
    int r = path_start(cwd, &path, &w.parent);
    if (!r)
        r = walk(&w, path, walk_flags, false);
    if (!r) {
        *out = w.parent;
        w.parent = NULL;
    }
    path_end(&w);
    return r;
}

int path_parent(struct dentry *cwd, const char *path, const struct cred *c, struct walk *w)
{
    *w = (struct walk){ .cred = c };
    if (!*path)
        return -ENOENT;
    int r = path_start(cwd, &path, &w->parent);
    return r ? r : walk(w, path, 0, true);
}
int path_follow_last(struct walk *w, struct dentry *link)
{
    const char *rest = "";
    struct dentry *jump;
    int r = follow(w, link, &rest, &jump);
    if (r)
        return r;
    if (jump) {
        dentry_put(w->parent);
        w->parent = jump;
        w->last = (struct name){ 0 };
        w->last_special = true;
        return 0;
    }
    if (*rest == '/') {
        dentry_put(w->parent);
        w->parent = NULL;
        r = path_start(NULL, &rest, &w->parent);
        if (r)
            return r;
    }
    return walk(w, rest, 0, true);
}
void path_end(struct walk *w)
{
    if (w->parent)
        dentry_put(w->parent);
    kfree(w->buffer);
    w->parent = NULL;
    w->buffer = NULL;
}
