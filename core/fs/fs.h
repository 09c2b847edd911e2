/*
 * Inside of core/fs: super blocks, dentries, the inode table, path walking.
 *
 * Lock order (sleeping): rename_lock > directory inode->lock (two: by address) > file inode->lock > file system's own
 * locks > page locks. Spinlocks, innermost: dcache_lock, inode hash buckets, dirty_lock, a cache's lock > LRU shard.
 * Page faults take page locks and file-system locks, never an inode lock; so program memory may be touched with an
 * inode lock held, and must not be with a page lock or a file system's lock held.
 */
#ifndef FS_FS_H
#define FS_FS_H
#include <weir/errno.h>
#include <weir/string.h>
#include <weir/vfs.h>

struct super_ops {
    int (*commit)(struct super_block *sb);             /* write metadata back, no device flush */
    int (*sync)(struct super_block *sb);               /* everything on stable storage */
    int (*unmount)(struct super_block *sb);            /* after sync; the root dentry's tree is gone */
    void (*statfs)(struct super_block *sb, struct statfs_weir *out);
};
/* Made by a file system's mount function, lives until shutdown. Key: I immutable, m mount_lock */
struct super_block {
    const struct super_ops *ops;    /* I */
    const char *type;               /* I "ext4" */
    char source[24], target[64];    /* I for /proc/mounts */
    uint64_t dev;                   /* I st_dev, unique */
    struct dentry *root;            /* I */
    void *private;                  /* I */
    bool read_only;                 /* a */
    bool uncached;                  /* I dentries are made anew for each lookup (procfs) */
    struct list link;               /* m */
};

#define DENTRY_INLINE_NAME 40
/* Key: I immutable, d dcache_lock */
struct dentry {
    uint32_t refcount;              /* d */
    bool hashed;                    /* d */
    struct super_block *sb;         /* I */
    struct dentry *parent;          /* d itself for a root; holds a reference */
    struct inode *inode;            /* d NULL = negative; set once */
    struct dentry *mounted;         /* d root of the file system mounted here */
    struct dentry *mountpoint;      /* I of a root: where it is mounted; NULL for the first */
    struct list hash_link, lru_link;/* d */
    uint32_t hash;                  /* d */
    uint16_t name_len;              /* d */
    char *name;                     /* d inline_name or kmalloc'ed; not terminated */
    char inline_name[DENTRY_INLINE_NAME];
};

/* ---- inode.c ---- */
/* A new inode, refcount 1, not in the table. ops, mode and so on are the caller's to set. NULL without memory. */
struct inode *inode_new(struct super_block *sb, uint64_t ino, const struct pagecache_ops *cache_ops);
struct inode *inode_find(struct super_block *sb, uint64_t ino); /* referenced or NULL */
void inode_publish(struct inode *i);                            /* into the table */
struct timespec_weir time_now(void);
void inode_fill_stat(struct inode *i, struct stat_weir *out);
void inode_hold_cache(struct pagecache *c);                     /* for pagecache_ops */
void inode_release_cache(struct pagecache *c);
uint64_t inode_count(void);

/* ---- dentry.c ---- */
struct dentry *dentry_new_root(struct super_block *sb, struct inode *root); /* takes the inode's reference */
/* Child from the cache, referenced (may be negative), or NULL. */
struct dentry *dentry_find(struct dentry *parent, const char *name, size_t len);
/* Add a child with an inode (reference passes) or NULL = negative; referenced. If a child of that name is in the cache
 * by now, that one is returned. NULL without memory (the inode is put). */
struct dentry *dentry_add(struct dentry *parent, const char *name, size_t len, struct inode *inode);
void dentry_forget(struct dentry *d);                            /* out of the hash: the name is gone */
/* d gets a new parent and name; an entry of that name leaves the hash. -ENOMEM before anything is changed. */
int dentry_move(struct dentry *d, struct dentry *to_parent, const char *name, size_t len) __must_check;
void dentry_forget_children(struct dentry *d);                   /* cached names below d */
bool dentry_is_below(struct dentry *d, struct dentry *ancestor); /* same file system; d itself counts */
void dentry_drop_unused(struct super_block *sb);                 /* unmount: every unused dentry */
struct dentry *dentry_cross_mounts(struct dentry *d);            /* reference of d passes */
struct dentry *dentry_parent_of(struct dentry *d);               /* for "..": referenced */
void dentry_set_mounted(struct dentry *at, struct dentry *root);

/* ---- path.c ---- */
struct name { const char *text; size_t len; bool want_directory; };
struct walk {
    const struct cred *cred;
    struct dentry *parent;      /* result of path_parent, referenced */
    struct name last;           /* points into the path or into buffer */
    bool last_special;          /* "", "/", "." or "..": last is empty and parent is the place itself */
    char *buffer;               /* rest of a path after a symbolic link; kmalloc'ed */
    unsigned links;
};
enum { WALK_FOLLOW = 1, WALK_DIRECTORY = 2 };
/* Whole path -> referenced dentry with an inode. */
int path_walk(struct dentry *cwd, const char *path, unsigned walk_flags, const struct cred *c, struct dentry **out);
/* All but the last component. path_end() gives everything back. */
int path_parent(struct dentry *cwd, const char *path, const struct cred *c, struct walk *w);
/* The last component of w is a symbolic link `link`: go on through it; w->parent and w->last are new. */
int path_follow_last(struct walk *w, struct dentry *link);
void path_end(struct walk *w);
/* One name in a directory: referenced, may be negative. Checks search permission. dir->lock not held. */
int path_lookup(struct dentry *dir, const char *name, size_t len, const struct cred *c, struct dentry **out);
int path_lookup_locked(struct dentry *dir, const char *name, size_t len, struct dentry **out); /* dir->lock held for writing */
bool is_root_user(const struct cred *c);
extern const struct cred kernel_cred;

/* ---- filemap.c: regular files through the page cache ---- */
ssize_t filemap_read(struct file *f, struct uio *u, uint64_t *offset);
ssize_t filemap_write(struct file *f, struct uio *u, uint64_t *offset);
/* Zero cached bytes [from, end of its page): before a file grows past a partial last page. i->lock held. */
int filemap_zero_tail(struct inode *i, uint64_t from);

/* ---- super.c ---- */
void super_register(struct super_block *sb, const char *source, const char *target);
uint64_t super_new_dev(void);
void super_commit_all(void);
int super_unmount_last(struct super_block *sb) __must_check; /* tests */
int super_mount_at(struct super_block *sb, const char *path) __must_check;
void super_for_each(void (*fn)(struct super_block *sb, void *arg), void *arg);
struct dentry *root_dentry(void); /* not referenced; NULL without a root */

/* ---- writeback.c ---- */
void writeback_start(void);
void writeback_stop(void);
void writeback_all(void);
void writeback_metadata_dirtied(void);

/* ---- file systems ---- */
struct block_device;
int ext4_mount(struct block_device *device, bool read_only, struct super_block **out) __must_check;
int tmpfs_mount(mode_t root_mode, struct super_block **out) __must_check;
int devfs_mount(struct super_block **out) __must_check;
int procfs_mount(struct super_block **out) __must_check;
int sysfs_mount(struct super_block **out) __must_check;
/* Operations of a device node by its number, whatever file system it is on; NULL = no such device. */
const struct file_ops *devfs_find(uint32_t mode, uint64_t rdev, void **private);
#endif
