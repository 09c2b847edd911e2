/*
 * Virtual file system: inodes, dentries, open files, path calls. Implementations: ext4, tmpfs, procfs,
 * devfs (core/fs); pipes, sockets, epoll and the like make files of their own (core/linux).
 *
 * Lifetimes: inode, dentry and file are reference counted (_get/_put). A file is what Linux calls an open
 * file description: shared by dup and fork. All calls are thread context unless said otherwise.
 * Path calls take user-supplied paths already copied into the kernel (at most PATH_MAX_WEIR with NUL).
 */
#ifndef WEIR_VFS_H
#define WEIR_VFS_H
#include <weir/mm.h>
#include <weir/sched.h>
#include <weir/uio.h>
#include <weir/poll.h>
#include <weir/pagecache.h>

#define PATH_MAX_WEIR 4096
#define NAME_MAX_WEIR 255

/* Linux x86-64 values */
#define O_ACCMODE 03
#define O_RDONLY 00
#define O_WRONLY 01
#define O_RDWR 02
#define O_CREAT 0100
#define O_EXCL 0200
#define O_NOCTTY 0400
#define O_TRUNC 01000
#define O_APPEND 02000
#define O_NONBLOCK 04000
#define O_DSYNC 010000
#define O_DIRECT 040000
#define O_LARGEFILE 0100000
#define O_DIRECTORY 0200000
#define O_NOFOLLOW 0400000
#define O_NOATIME 01000000
#define O_CLOEXEC 02000000
#define O_SYNC 04010000
#define O_PATH 010000000
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define S_IFLNK 0120000
#define S_IFREG 0100000
#define S_IFBLK 0060000
#define S_IFDIR 0040000
#define S_IFCHR 0020000
#define S_IFIFO 0010000
#define S_ISDIR(m) (((m) & S_IFMT) == S_IFDIR)
#define S_ISREG(m) (((m) & S_IFMT) == S_IFREG)
#define S_ISLNK(m) (((m) & S_IFMT) == S_IFLNK)

struct cred { uint32_t uid, gid; };
struct inode;
struct dentry;
struct file;
struct super_block;
struct timespec_weir { int64_t sec; int64_t nsec; };

/* Linux struct stat (x86-64), as newfstatat returns it. */
struct stat_weir {
    uint64_t st_dev, st_ino, st_nlink;
    uint32_t st_mode, st_uid, st_gid, pad0;
    uint64_t st_rdev;
    int64_t st_size, st_blksize, st_blocks;
    struct timespec_weir st_atim, st_mtim, st_ctim;
    int64_t unused[3];
};
struct statfs_weir {
    int64_t f_type, f_bsize;
    uint64_t f_blocks, f_bfree, f_bavail, f_files, f_ffree;
    int32_t f_fsid[2];
    int64_t f_namelen, f_frsize, f_flags, f_spare[4];
};

/* Key: I immutable, i inode->lock, a atomic */
struct inode {
    uint64_t ino;                     /* I */
    uint32_t mode, uid, gid, nlink;   /* i */
    uint64_t rdev;                    /* I */
    uint64_t size;                    /* a changed under i; read without lock for SEEK_END */
    struct timespec_weir atime, mtime, ctime; /* i */
    struct super_block *sb;           /* I */
    const struct inode_ops *ops;      /* I */
    const struct file_ops *file_ops;  /* I */
    struct pagecache cache;           /* its own locks; regular files */
    struct rw_mutex lock;             /* i: writes, truncate and name changes exclusive; cached reads shared */
    uint32_t refcount;                /* a */
    uint32_t internal_refs;           /* a of them: held because something is dirty */
    void *private;                    /* I file system's */
    struct list hash_link;            /* inode hash bucket's lock */
    struct list dirty_link;           /* the file system's */
};
struct inode_ops {
    /* Directory operations: dir->lock held for writing by the caller (the VFS). */
    int (*lookup)(struct inode *dir, const char *name, size_t len, struct inode **out); /* -ENOENT */
    int (*create)(struct inode *dir, const char *name, size_t len, mode_t mode, const struct cred *c, struct inode **out);
    int (*mkdir)(struct inode *dir, const char *name, size_t len, mode_t mode, const struct cred *c, struct inode **out);
    int (*symlink)(struct inode *dir, const char *name, size_t len, const char *target, const struct cred *c, struct inode **out);
    int (*link)(struct inode *dir, const char *name, size_t len, struct inode *target);
    int (*unlink)(struct inode *dir, const char *name, size_t len, struct inode *victim);
    int (*rmdir)(struct inode *dir, const char *name, size_t len, struct inode *victim);
    int (*rename)(struct inode *from_dir, const char *from, size_t from_len, struct inode *node,
                  struct inode *to_dir, const char *to, size_t to_len, struct inode *replaced);
    int (*readlink)(struct inode *i, char *buf, size_t size);      /* length */
    /* Magic links of procfs: the place itself, whatever its path is now. */
    int (*follow)(struct inode *i, struct dentry **out);           /* referenced */
    struct file *(*reopen)(struct inode *i);                       /* a file without a path; referenced or NULL */
    /* A page is about to be dirtied by write(): make sure there will be room for it. i held. */
    int (*reserve)(struct inode *i, struct page *p);
    /* Times or size were changed in core by read or write. Any lock may be held, must not block long. */
    void (*touched)(struct inode *i, bool size_changed);
    int (*truncate)(struct inode *i, uint64_t size);               /* both ways; i held */
    uint64_t (*blocks)(struct inode *i);                           /* 512-byte units in use; NULL: cached pages */
    int (*fallocate)(struct inode *i, int mode, uint64_t offset, uint64_t len);
    int (*sync)(struct inode *i, bool datasync);                   /* data, needed metadata, device flush back */
    int (*set_attributes)(struct inode *i);                        /* mode, owner, times changed in core */
    void (*evict)(struct inode *i);                                /* last reference gone; nlink 0 = free it */
};
/* Fill one directory entry; false = no room, stop and keep the position. */
struct dir_sink { bool (*emit)(struct dir_sink *s, const char *name, size_t len, uint64_t ino, unsigned type, uint64_t next_offset); };
struct vm_area;
struct file_ops {
    ssize_t (*read)(struct file *f, struct uio *u, uint64_t *offset);   /* offset NULL-like for streams: ignored */
    ssize_t (*write)(struct file *f, struct uio *u, uint64_t *offset);
    unsigned (*poll)(struct file *f, struct poll_table *pt);            /* NULL = always ready in and out */
    int (*readdir)(struct file *f, struct dir_sink *sink, uint64_t *offset);
    long (*ioctl)(struct file *f, unsigned cmd, uint64_t arg);
    int (*sync)(struct file *f, bool datasync);                         /* NULL: inode ops */
    int (*open)(struct inode *i, struct file *f);
    void (*release)(struct file *f);                                    /* last reference */
    bool seekable;
};
/* Key: I, a, p position lock, s spinlock `lock` */
struct file {
    uint32_t refcount;          /* a */
    uint32_t flags;             /* a O_*: O_APPEND and O_NONBLOCK may change (fcntl) */
    uint64_t position;          /* p */
    struct mutex position_lock; /* p */
    const struct file_ops *ops; /* I */
    struct inode *inode;        /* I NULL for anonymous files */
    struct dentry *dentry;      /* I NULL for anonymous files */
    void *private;              /* I ops owner's */
    uint32_t writeback_error_seen; /* a see inode error sequence (pagecache.h) */
    uint64_t readahead_next;    /* a page index that a sequential reader asks for next */
    uint32_t readahead_window;  /* a pages */
    struct list epoll_items;    /* core/linux/epoll: its lock */
};

struct file *file_alloc(const struct file_ops *ops, void *private, unsigned flags) __must_check; /* anonymous; NULL */
void file_get(struct file *f);
void file_put(struct file *f);  /* release on last */
/* Called by file_put for each file whose last reference went, before ops->release (epoll drops its items).
 * Set once at init. */
void vfs_set_file_release_hook(void (*fn)(struct file *f));
void inode_get(struct inode *i);
void inode_put(struct inode *i);
void dentry_get(struct dentry *d);
void dentry_put(struct dentry *d);

/* Path calls. `cwd`: where relative paths start (the root for absolute ones). Errors: -errno of Linux. */
int vfs_open(struct dentry *cwd, const char *path, unsigned flags, mode_t mode, const struct cred *c, struct file **out) __must_check;
enum { VFS_NOFOLLOW = 1 };
int vfs_lookup(struct dentry *cwd, const char *path, unsigned lookup_flags, const struct cred *c, struct dentry **out) __must_check;
int vfs_stat(struct dentry *cwd, const char *path, unsigned lookup_flags, const struct cred *c, struct stat_weir *out) __must_check;
int vfs_mkdir(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c) __must_check;
/* A socket or fifo inode (mode holds S_IFSOCK or S_IFIFO), for bind() of AF_UNIX and mkfifo. -EEXIST. */
int vfs_mknod(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c) __must_check;
int vfs_rmdir(struct dentry *cwd, const char *path, const struct cred *c) __must_check;
int vfs_unlink(struct dentry *cwd, const char *path, const struct cred *c) __must_check;
int vfs_rename(struct dentry *from_cwd, const char *from, struct dentry *to_cwd, const char *to, const struct cred *c) __must_check;
int vfs_symlink(struct dentry *cwd, const char *target, const char *path, const struct cred *c) __must_check;
int vfs_link(struct dentry *cwd, const char *from, struct dentry *to_cwd, const char *to, unsigned lookup_flags, const struct cred *c) __must_check;
int vfs_readlink(struct dentry *cwd, const char *path, char *buf, size_t size, const struct cred *c) __must_check; /* length */
int vfs_truncate(struct dentry *cwd, const char *path, uint64_t size, const struct cred *c) __must_check;
int vfs_chmod(struct dentry *cwd, const char *path, mode_t mode, const struct cred *c) __must_check;
int vfs_chown(struct dentry *cwd, const char *path, uint32_t uid, uint32_t gid, unsigned lookup_flags, const struct cred *c) __must_check;
int vfs_utimens(struct dentry *cwd, const char *path, const struct timespec_weir times[2], unsigned lookup_flags, const struct cred *c) __must_check;
int vfs_access(struct dentry *cwd, const char *path, int mode, const struct cred *c) __must_check;
int vfs_statfs(struct dentry *cwd, const char *path, struct statfs_weir *out) __must_check;
/* Absolute path of a dentry into buf (getcwd, /proc/self/exe): pointer into buf, or err_ptr. */
char *vfs_path(struct dentry *d, char *buf, size_t size);
struct dentry *vfs_root(void); /* referenced for the caller; NULL before a root is mounted */
struct inode *dentry_inode(struct dentry *d); /* borrowed while d is referenced; NULL for a negative one */
int vfs_permission(struct inode *i, unsigned may, const struct cred *c) __must_check; /* 4 read, 2 write, 1 execute; 0 or -EACCES */
/* A file on an inode that the caller has referenced (memfd, shm): the reference passes to the file. */
struct file *file_open_inode(struct inode *i, struct dentry *d, unsigned flags) __must_check; /* NULL without memory */
int vfs_sync(void) __must_check; /* sync(2): everything written and flushed */

/* On open files. */
int file_stat(struct file *f, struct stat_weir *out) __must_check;
int file_statfs(struct file *f, struct statfs_weir *out) __must_check;
ssize_t file_read(struct file *f, struct uio *u) __must_check;                   /* at and advancing position */
ssize_t file_write(struct file *f, struct uio *u) __must_check;
ssize_t file_pread(struct file *f, struct uio *u, uint64_t offset) __must_check;
ssize_t file_pwrite(struct file *f, struct uio *u, uint64_t offset) __must_check;
int64_t file_seek(struct file *f, int64_t offset, int whence) __must_check;
int file_sync(struct file *f, bool datasync) __must_check;
int file_sync_range(struct file *f, uint64_t offset, uint64_t len, unsigned flags) __must_check;
int file_advise(struct file *f, uint64_t offset, uint64_t len, int advice) __must_check; /* posix_fadvise */
int file_truncate(struct file *f, uint64_t size) __must_check;
int file_fallocate(struct file *f, int mode, uint64_t offset, uint64_t len) __must_check;
int file_chmod(struct file *f, mode_t mode) __must_check;
int file_readdir(struct file *f, struct dir_sink *sink) __must_check;
unsigned file_poll(struct file *f, struct poll_table *pt);
long file_ioctl(struct file *f, unsigned cmd, uint64_t arg);
/* Kernel-side convenience. */
ssize_t file_read_kernel(struct file *f, void *buf, size_t len, uint64_t offset) __must_check;
/* Whole file into kmalloc'ed, NUL-terminated memory; -EFBIG above max. */
int vfs_read_file(const char *path, size_t max, char **data, size_t *len) __must_check;

/* procfs: a file made at open. show() fills text (kmalloc'ed by procfs, grown on demand); task is the
 * process the path names (struct process *), NULL outside /proc/PID. */
struct seq { char *buf; size_t size, len; bool overflow; };
void seq_printf(struct seq *s, const char *fmt, ...) __printf(2, 3);
void proc_register(const char *path, int (*show)(struct seq *s, void *process)); /* "weir/vectors", "self/status" */
/* Supplied by core/linux: who is /proc/self, and pids that exist (for /proc/PID). */
struct proc_hooks {
    int (*self_pid)(void);
    void *(*process_get)(int pid);   /* referenced, NULL if none */
    void (*process_put)(void *process);
    int (*next_pid)(int after);      /* 0 = none */
    struct dentry *(*process_exe)(void *process);                 /* referenced or NULL */
    struct file *(*process_file)(void *process, int fd);          /* referenced or NULL */
    int (*next_fd)(void *process, int after);                     /* -1 = none */
};
void proc_set_hooks(const struct proc_hooks *h);

/* Write back everything and flush, at shutdown: 0 or the first error. Marks the file system clean. */
int vfs_shutdown(void);
#endif
