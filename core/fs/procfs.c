/*
 * /proc: names registered by whoever knows the content, /proc/PID through hooks of the Linux layer. Inodes and dentries
 * are made for each lookup, so nothing is stale. A registered path that begins with "self/" exists in every /proc/PID.
 */
#include "proc.h"
#include "seq.h"
#include <weir/printk.h>

#define ENTRIES_MAX 96
#define PROC_PATH_MAX 48

/* Key: I immutable once counted in entry_count (a) */
struct proc_entry {
    char path[PROC_PATH_MAX];                       /* I */
    int (*show)(struct seq *s, void *process);      /* a replaced by a later registration */
};
static struct proc_entry entries[ENTRIES_MAX];
static unsigned entry_count; /* a */
static struct mutex entries_lock = MUTEX_INIT(entries_lock);
static const struct proc_hooks *hooks; /* a */

enum kind { ROOT, DIRECTORY, FILE_ENTRY, SELF, FD_DIRECTORY, FD_LINK, EXE_LINK };
struct proc_node {
    enum kind kind;
    int pid;                    /* 0 outside /proc/PID */
    int fd;
    char prefix[PROC_PATH_MAX]; /* directories: "" , "sys/kernel/", "self/" */
    const struct proc_entry *entry;
};

void proc_register(const char *path, int (*show)(struct seq *s, void *process))
{
    mutex_lock(&entries_lock);
    unsigned n = entry_count, at = 0;
    while (at < n && strcmp(entries[at].path, path))
        at++;
    if (at < n) {
        atomic_store_release(&entries[at].show, show);
    } else if (n < ENTRIES_MAX && strlen(path) < PROC_PATH_MAX) {
        str_copy(entries[n].path, path, PROC_PATH_MAX);
        entries[n].show = show;
        atomic_store_release(&entry_count, n + 1);
    } else {
        log_error("proc: no room for %s", path);
    }
    mutex_unlock(&entries_lock);
}
void proc_set_hooks(const struct proc_hooks *h) { atomic_store_release(&hooks, h); }
static const struct proc_hooks *get_hooks(void) { return atomic_load_acquire(&hooks); }

static const struct inode_ops proc_dir_inode_ops, proc_file_inode_ops, proc_link_inode_ops;
static const struct file_ops proc_dir_ops, proc_file_ops;

static struct inode *proc_inode(struct super_block *sb, const struct proc_node *like)
{
    uint64_t ino = 1 + ((uint64_t)like->pid << 24) + ((uint64_t)like->kind << 20) + (uint64_t)like->fd;
    if (like->entry)
        ino += (uint64_t)(like->entry - entries);
    for (const char *p = like->prefix; *p; p++)
        ino += (uint64_t)(uint8_t)*p << 8;
    struct inode *i = inode_new(sb, ino, NULL);
    struct proc_node *n = kmalloc(sizeof *n);
    if (!i || !n) {
        kfree(n);
        if (i)
            inode_put(i);
        return NULL;
    }
    *n = *like;
    i->private = n;
    i->atime = i->mtime = i->ctime = time_now();
    switch (n->kind) {
    case ROOT:
    case DIRECTORY:
    case FD_DIRECTORY:
        i->mode = S_IFDIR | 0555;
        i->nlink = 2;
        i->ops = &proc_dir_inode_ops;
        i->file_ops = &proc_dir_ops;
        break;
    case FILE_ENTRY:
        i->mode = S_IFREG | 0444;
        i->ops = &proc_file_inode_ops;
        i->file_ops = &proc_file_ops;
        break;
    default:
        i->mode = S_IFLNK | 0777;
        i->ops = &proc_link_inode_ops;
    }
    return i;
}

static bool process_exists(int pid)
{
    const struct proc_hooks *h = get_hooks();
    void *p = h && h->process_get ? h->process_get(pid) : NULL;
    if (p)
        h->process_put(p);
    return p != NULL;
}
static bool fd_exists(int pid, int fd)
{
    const struct proc_hooks *h = get_hooks();
    void *p = h && h->process_get ? h->process_get(pid) : NULL;
    struct file *f = p && h->process_file ? h->process_file(p, fd) : NULL;
    if (f)
        file_put(f);
    if (p)
        h->process_put(p);
    return f != NULL;
}
/* Decimal without sign, or -1. */
static int parse_number(const char *name, size_t len)
{
    int v = 0;
    if (!len || len > 9 || (name[0] == '0' && len > 1))
        return -1;
    for (size_t k = 0; k < len; k++) {
        if (name[k] < '0' || name[k] > '9')
            return -1;
        v = v * 10 + name[k] - '0';
    }
    return v;
}

/* A registered path that begins with prefix+name: the entry itself, or *directory if it goes on. */
static const struct proc_entry *find(const char *prefix, const char *name, size_t len, bool *directory)
{
    size_t head = strlen(prefix);
    *directory = false;
    for (unsigned n = atomic_load_acquire(&entry_count), k = 0; k < n; k++) {
        const char *p = entries[k].path;
        if (strncmp(p, prefix, head) || strncmp(p + head, name, len))
            continue;
        if (!p[head + len])
            return &entries[k];
        if (p[head + len] == '/')
            *directory = true;
    }
    return NULL;
}

static int proc_lookup(struct inode *dir, const char *name, size_t len, struct inode **out)
{
    const struct proc_node *at = dir->private;
    struct proc_node n = { .pid = at->pid };
    bool is_self_dir = at->pid && !strcmp(at->prefix, "self/"), directory;
    int number = parse_number(name, len);
    if (at->kind == FD_DIRECTORY) {
        if (number < 0 || !fd_exists(at->pid, number))
            return -ENOENT;
        n.kind = FD_LINK;
        n.fd = number;
    } else if (at->kind == ROOT && len == 4 && !memcmp(name, "self", 4)) {
        n.kind = SELF;
    } else if (at->kind == ROOT && number > 0) {
        if (!process_exists(number))
            return -ENOENT;
        n.kind = DIRECTORY;
        n.pid = number;
        str_copy(n.prefix, "self/", sizeof n.prefix);
    } else if (is_self_dir && len == 2 && !memcmp(name, "fd", 2)) {
        n.kind = FD_DIRECTORY;
    } else if (is_self_dir && len == 3 && !memcmp(name, "exe", 3)) {
        n.kind = EXE_LINK;
    } else {
        n.entry = find(at->prefix, name, len, &directory);
        if (!n.entry && !directory)
            return -ENOENT;
        n.kind = n.entry ? FILE_ENTRY : DIRECTORY;
        if (directory && !n.entry) {
            if (strlen(at->prefix) + len + 2 > sizeof n.prefix)
                return -ENOENT;
            scnprintf(n.prefix, sizeof n.prefix, "%s%.*s/", at->prefix, (int)len, name);
        }
    }
    *out = proc_inode(dir->sb, &n);
    return *out ? 0 : -ENOMEM;
}

/* ---- links ---- */
static struct file *fd_file(const struct proc_node *n)
{
    const struct proc_hooks *h = get_hooks();
    void *p = h && h->process_get ? h->process_get(n->pid) : NULL;
    struct file *f = p && h->process_file ? h->process_file(p, n->fd) : NULL;
    if (p)
        h->process_put(p);
    return f;
}
static struct dentry *exe_of(int pid)
{
    const struct proc_hooks *h = get_hooks();
    void *p = h && h->process_get ? h->process_get(pid) : NULL;
    struct dentry *d = p && h->process_exe ? h->process_exe(p) : NULL;
    if (p)
        h->process_put(p);
    return d;
}
static int put_path(struct dentry *d, char *buf, size_t size)
{
    char *text = kmalloc(PATH_MAX_WEIR);
    if (!text)
        return -ENOMEM;
    char *path = vfs_path(d, text, PATH_MAX_WEIR);
    int r = is_err(path) ? (int)ptr_err(path) : 0;
    if (!r) {
        size_t n = MIN(strlen(path), size);
        memcpy(buf, path, n);
        r = (int)n;
    }
    kfree(text);
    return r;
}
static int proc_readlink(struct inode *i, char *buf, size_t size)
{
    const struct proc_node *n = i->private;
    char text[32];
    int r = -ENOENT;
    if (n->kind == SELF) {
        const struct proc_hooks *h = get_hooks();
        int pid = h && h->self_pid ? h->self_pid() : 0;
        if (pid <= 0)
            return -ENOENT;
        r = scnprintf(text, sizeof text, "%d", pid);
    } else if (n->kind == EXE_LINK) {
        struct dentry *d = exe_of(n->pid);
        if (d) {
            r = put_path(d, buf, size);
            dentry_put(d);
        }
        return r;
    } else {
        struct file *f = fd_file(n);
        if (!f)
            return -ENOENT;
        if (f->dentry)
            r = put_path(f->dentry, buf, size);
        else
            r = scnprintf(text, sizeof text, "anon:[%d]", n->fd);
        bool done = f->dentry != NULL;
        file_put(f);
        if (done)
            return r;
    }
    size_t len = MIN((size_t)r, size);
    memcpy(buf, text, len);
    return (int)len;
}
static int proc_follow(struct inode *i, struct dentry **out)
{
    const struct proc_node *n = i->private;
    *out = NULL;
    if (n->kind == EXE_LINK) {
        *out = exe_of(n->pid);
    } else if (n->kind == FD_LINK) {
        struct file *f = fd_file(n);
        if (f && f->dentry) {
            dentry_get(f->dentry);
            *out = f->dentry;
        }
        if (f)
            file_put(f);
    } else {
        /* "self": a plain relative link, resolved here at once. */
        char text[16];
        int len = proc_readlink(i, text, sizeof text);
        if (len < 0)
            return len;
        struct dentry *root = i->sb->root;
        return path_lookup(root, text, (size_t)len, &kernel_cred, out);
    }
    return *out ? 0 : -ENOENT;
}
/* A description without a path of its own (pipe, socket, and console files): opened again by sharing it. */
static struct file *proc_reopen(struct inode *i)
{
    const struct proc_node *n = i->private;
    struct file *f = n->kind == FD_LINK ? fd_file(n) : NULL;
    if (f && f->dentry) {
        file_put(f);
        return NULL;
    }
    return f;
}

/* ---- files ---- */
static int proc_open(struct inode *i, struct file *f)
{
    const struct proc_node *n = i->private;
    const struct proc_hooks *h = get_hooks();
    void *process = NULL;
    if ((f->flags & O_ACCMODE) != O_RDONLY)
        return -EACCES;
    if (n->pid) {
        process = h->process_get(n->pid);
        if (!process)
            return -ESRCH;
    }
    int r = seq_open(f, atomic_load_acquire(&n->entry->show), process);
    if (process)
        h->process_put(process);
    return r;
}

/* ---- directories ---- */
struct reader { struct dir_sink *sink; uint64_t *offset, at; bool full; };
/* Positions count names in a fixed order; processes and descriptors sort after all others by number. */
static bool put(struct reader *r, const char *name, size_t len, unsigned type)
{
    if (r->full)
        return false;
    if (r->at++ < *r->offset)
        return true;
    if (!r->sink->emit(r->sink, name, len, 2 + r->at, type, r->at)) {
        r->full = true;
        return false;
    }
    *r->offset = r->at;
    return true;
}
#define NUMBERS_FROM (1ull << 32)
static void put_numbers(struct reader *r, const struct proc_node *n)
{
    const struct proc_hooks *h = get_hooks();
    void *p = NULL;
    if (!h || r->full)
        return;
    if (n->kind == FD_DIRECTORY && !(p = h->process_get(n->pid)))
        return;
    int number = *r->offset > NUMBERS_FROM ? (int)(*r->offset - NUMBERS_FROM) - 1 : n->kind == FD_DIRECTORY ? -1 : 0;
    for (;;) {
        number = p ? h->next_fd(p, number) : h->next_pid(number);
        if (p ? number < 0 : number <= 0)
            break;
        char text[16];
        int len = scnprintf(text, sizeof text, "%d", number);
        uint64_t next = NUMBERS_FROM + (uint64_t)number + 1;
        if (!r->sink->emit(r->sink, text, (size_t)len, next, p ? S_IFLNK >> 12 : S_IFDIR >> 12, next))
            break;
        *r->offset = next;
    }
    if (p)
        h->process_put(p);
}
static int proc_readdir(struct file *f, struct dir_sink *sink, uint64_t *offset)
{
    const struct proc_node *n = f->inode->private;
    struct reader r = { .sink = sink, .offset = offset };
    size_t head = strlen(n->prefix);
    if (*offset < NUMBERS_FROM) {
        put(&r, ".", 1, S_IFDIR >> 12);
        put(&r, "..", 2, S_IFDIR >> 12);
        if (n->kind == ROOT)
            put(&r, "self", 4, S_IFLNK >> 12);
        if (n->pid && n->kind == DIRECTORY && !strcmp(n->prefix, "self/")) {
            put(&r, "fd", 2, S_IFDIR >> 12);
            put(&r, "exe", 3, S_IFLNK >> 12);
        }
        for (unsigned count = atomic_load_acquire(&entry_count), k = 0; n->kind != FD_DIRECTORY && k < count; k++) {
            const char *p = entries[k].path, *slash;
            if (strncmp(p, n->prefix, head) || (n->kind == ROOT && !strncmp(p, "self/", 5)))
                continue;
            p += head;
            slash = strchr(p, '/');
            size_t len = slash ? (size_t)(slash - p) : strlen(p);
            bool seen = false; /* a directory that an earlier entry has named already */
            for (unsigned j = 0; slash && j < k && !seen; j++)
                seen = !strncmp(entries[j].path, entries[k].path, head + len + 1);
            if (!seen)
                put(&r, p, len, slash ? S_IFDIR >> 12 : S_IFREG >> 12);
        }
    }
    if (n->kind == ROOT || n->kind == FD_DIRECTORY)
        put_numbers(&r, n);
    return 0;
}
static void proc_evict(struct inode *i) { kfree(i->private); }

static const struct inode_ops proc_dir_inode_ops = { .lookup = proc_lookup, .evict = proc_evict };
static const struct inode_ops proc_file_inode_ops = { .evict = proc_evict };
static const struct inode_ops proc_link_inode_ops = {
    .readlink = proc_readlink, .follow = proc_follow, .reopen = proc_reopen, .evict = proc_evict,
};
static const struct file_ops proc_dir_ops = { .readdir = proc_readdir, .seekable = true };
static const struct file_ops proc_file_ops = { .read = seq_read, .open = proc_open, .release = seq_release, .seekable = true };

static void proc_statfs(struct super_block *sb, struct statfs_weir *out) { out->f_type = 0x9fa0; }
static const struct super_ops proc_super_ops = { .statfs = proc_statfs };

int procfs_mount(struct super_block **out)
{
    struct super_block *sb = kzalloc(sizeof *sb);
    if (!sb)
        return -ENOMEM;
    sb->ops = &proc_super_ops;
    sb->type = "proc";
    str_copy(sb->source, "proc", sizeof sb->source);
    sb->dev = super_new_dev();
    sb->uncached = true;
    struct proc_node n = { .kind = ROOT };
    struct inode *i = proc_inode(sb, &n);
    sb->root = i ? dentry_new_root(sb, i) : NULL;
    if (!sb->root) {
        kfree(sb);
        return -ENOMEM;
    }
    proc_register_system();
    *out = sb;
    return 0;
}
