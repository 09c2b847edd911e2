/* What a file is: the stat family, statfs, access, directory listings. */
#include "linuxio.h"

#define AT_SYMLINK_NOFOLLOW     0x100u
#define AT_REMOVEDIR_OR_EACCESS 0x200u
#define AT_NO_AUTOMOUNT         0x800u
#define AT_EMPTY_PATH           0x1000u
#define AT_STATX_SYNC_TYPE      0x6000u

static int stat_file(struct file *f, struct stat_weir *st)
{
    if (f->inode)
        return file_stat(f, st);
    memset(st, 0, sizeof(*st));
    st->st_dev = 1;
    st->st_ino = 1 + ((uint64_t)f->private >> 4) % 0xffffff;
    st->st_nlink = 1;
    st->st_mode = anonymous_mode(f);
    st->st_uid = current_process()->cred.uid;
    st->st_gid = current_process()->cred.gid;
    st->st_blksize = 4096;
    return 0;
}

static long stat_fd(uint64_t fd, struct stat_weir *st)
{
    struct file_ref r = file_ref_get(fd);
    long result = r.file ? stat_file(r.file, st) : -EBADF;

    file_ref_put(r);
    return result;
}

static long stat_path(int dirfd, uint64_t path_addr, unsigned at_flags, struct stat_weir *st)
{
    struct dentry *base;
    char *path;
    long result;
    char first;

    /* fstat of the C library comes as an empty path: look at one byte before copying a path. */
    if (at_flags & AT_EMPTY_PATH) {
        if (!path_addr)
            first = 0;
        else if (copy_from_user(&first, path_addr, 1))
            return -EFAULT;
        if (!first && dirfd >= 0)
            return stat_fd((uint64_t)dirfd, st);
    }
    path = path_get(path_addr);
    if (is_err(path))
        return ptr_err(path);
    base = path_base(path[0] == '/' ? AT_FDCWD_WEIR : dirfd);
    if (is_err(base)) {
        result = ptr_err(base);
    } else {
        const char *p = !path[0] && (at_flags & AT_EMPTY_PATH) ? "." : path;

        result = vfs_stat(base, p, at_flags & AT_SYMLINK_NOFOLLOW ? VFS_NOFOLLOW : 0,
                          &current_process()->cred, st);
        dentry_put(base);
    }
    path_put(path);
    return result;
}

static long stat_out(long result, uint64_t addr, const struct stat_weir *st)
{
    return result ? result : copy_to_user(addr, st, sizeof(*st));
}

long sys_stat(const uint64_t a[6])
{
    struct stat_weir st;

    return stat_out(stat_path(AT_FDCWD_WEIR, a[0], 0, &st), a[1], &st);
}

long sys_lstat(const uint64_t a[6])
{
    struct stat_weir st;

    return stat_out(stat_path(AT_FDCWD_WEIR, a[0], AT_SYMLINK_NOFOLLOW, &st), a[1], &st);
}

long sys_fstat(const uint64_t a[6])
{
    struct stat_weir st;

    return stat_out(stat_fd(a[0], &st), a[1], &st);
}

long sys_newfstatat(const uint64_t a[6])
{
    struct stat_weir st;

    if (a[3] & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH))
        return -EINVAL;
    return stat_out(stat_path((int)a[0], a[1], (unsigned)a[3], &st), a[2], &st);
}

struct statx_time {
    int64_t sec;
    uint32_t nsec;
    int32_t pad;
};
/* Linux struct statx */
struct statx_weir {
    uint32_t mask, blksize;
    uint64_t attributes;
    uint32_t nlink, uid, gid;
    uint16_t mode, pad0;
    uint64_t ino, size, blocks, attributes_mask;
    struct statx_time atime, btime, ctime, mtime;
    uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
    uint64_t mnt_id;
    uint32_t dio_mem_align, dio_offset_align;
    uint64_t spare[12];
};
_Static_assert(sizeof(struct statx_weir) == 256, "Linux struct statx");
#define STATX_BASIC_STATS 0x7ffu

static uint32_t device_major(uint64_t dev)
{
    return (uint32_t)(((dev >> 8) & 0xfff) | ((dev >> 32) & ~0xfffULL));
}

static uint32_t device_minor(uint64_t dev)
{
    return (uint32_t)((dev & 0xff) | ((dev >> 12) & ~0xffULL));
}

static struct statx_time statx_time_of(struct timespec_weir t)
{
    return (struct statx_time){t.sec, (uint32_t)t.nsec, 0};
}

long sys_statx(const uint64_t a[6])
{
    struct stat_weir st;
    struct statx_weir x;
    long result;

    if (a[2] &
        ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH | AT_STATX_SYNC_TYPE))
        return -EINVAL;
    result = stat_path((int)a[0], a[1], (unsigned)a[2], &st);
    if (result)
        return result;
    memset(&x, 0, sizeof(x));
    x.mask = STATX_BASIC_STATS;
    x.blksize = (uint32_t)st.st_blksize;
    x.nlink = (uint32_t)st.st_nlink;
    x.uid = st.st_uid;
    x.gid = st.st_gid;
    x.mode = (uint16_t)st.st_mode;
    x.ino = st.st_ino;
    x.size = (uint64_t)st.st_size;
    x.blocks = (uint64_t)st.st_blocks;
    x.atime = statx_time_of(st.st_atim);
    x.ctime = statx_time_of(st.st_ctim);
    x.mtime = statx_time_of(st.st_mtim);
    x.rdev_major = device_major(st.st_rdev);
    x.rdev_minor = device_minor(st.st_rdev);
    x.dev_major = device_major(st.st_dev);
    x.dev_minor = device_minor(st.st_dev);
    return copy_to_user(a[4], &x, sizeof(x));
}

long sys_statfs(const uint64_t a[6])
{
    struct statfs_weir st;
    struct dentry *base;
    char *path = path_get(a[0]);
    long result;

    if (is_err(path))
        return ptr_err(path);
    base = path_base(AT_FDCWD_WEIR);
    result = vfs_statfs(base, path, &st);
    dentry_put(base);
    path_put(path);
    return result ? result : copy_to_user(a[1], &st, sizeof(st));
}

long sys_fstatfs(const uint64_t a[6])
{
    struct statfs_weir st;
    struct file_ref r = file_ref_get(a[0]);
    long result = r.file ? 0 : -EBADF;

    if (r.file && r.file->inode) {
        result = file_statfs(r.file, &st);
    } else if (r.file) {
        memset(&st, 0, sizeof(st));
        st.f_type = (anonymous_mode(r.file) & S_IFMT) == S_IFSOCK ? 0x534f434b : 0x50495045;
        st.f_bsize = st.f_frsize = 4096;
        st.f_namelen = NAME_MAX_WEIR;
    }
    file_ref_put(r);
    return result ? result : copy_to_user(a[1], &st, sizeof(st));
}

static long do_access(int dirfd, uint64_t path_addr, int mode)
{
    struct dentry *base;
    char *path;
    long result;

    if (mode & ~7)
        return -EINVAL;
    path = path_get(path_addr);
    if (is_err(path))
        return ptr_err(path);
    base = path_base(path[0] == '/' ? AT_FDCWD_WEIR : dirfd);
    if (is_err(base)) {
        result = ptr_err(base);
    } else {
        result = vfs_access(base, path, mode, &current_process()->cred);
        dentry_put(base);
    }
    path_put(path);
    return result;
}

long sys_access(const uint64_t a[6])
{
    return do_access(AT_FDCWD_WEIR, a[0], (int)a[1]);
}

long sys_faccessat(const uint64_t a[6])
{
    return do_access((int)a[0], a[1], (int)a[2]);
}

/* Real and effective ids are one here, so AT_EACCESS changes nothing. */
long sys_faccessat2(const uint64_t a[6])
{
    if (a[3] & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_REMOVEDIR_OR_EACCESS | AT_EMPTY_PATH))
        return -EINVAL;
    return do_access((int)a[0], a[1], (int)a[2]);
}

/* ---- directory listings ---- */

struct dirent64_weir {
    uint64_t ino;
    int64_t next;
    uint16_t length;
    uint8_t type;
    char name[];
};
/* The directory is locked while it is read, so entries are gathered here and copied out afterwards.
 */
struct getdents_sink {
    struct dir_sink sink;
    uint8_t *buf;
    size_t size, used;
    bool full;
};
#define GETDENTS_BUFFER 8192UL

static bool getdents_emit(struct dir_sink *s, const char *name, size_t len, uint64_t ino,
                          unsigned type, uint64_t next_offset)
{
    struct getdents_sink *g = container_of(s, struct getdents_sink, sink);
    size_t length = ALIGN_UP(offsetof(struct dirent64_weir, name) + len + 1, 8UL);
    struct dirent64_weir *d = (struct dirent64_weir *)(g->buf + g->used);

    if (g->size - g->used < length) {
        g->full = true;
        return false;
    }
    memset(d, 0, length);
    d->ino = ino;
    d->next = (int64_t)next_offset;
    d->length = (uint16_t)length;
    d->type = (uint8_t)type;
    memcpy(d->name, name, len);
    g->used += length;
    return true;
}

static long getdents_on(struct file *f, uint64_t addr, size_t size)
{
    struct getdents_sink g = {.sink.emit = getdents_emit, .size = MIN(size, GETDENTS_BUFFER)};
    long result;

    if (!f->inode || !S_ISDIR(f->inode->mode))
        return -ENOTDIR;
    g.buf = kmalloc(GETDENTS_BUFFER);
    if (!g.buf)
        return -ENOMEM;
    result = file_readdir(f, &g.sink);
    if (result >= 0) {
        result = (long)g.used;
        if (!g.used && g.full)
            result = -EINVAL; /* not even one entry fits */
        else if (copy_to_user(addr, g.buf, g.used))
            result = -EFAULT;
    }
    kfree(g.buf);
    return result;
}

long sys_getdents64(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result =
        r.file && file_readable(r.file) ? getdents_on(r.file, a[1], (uint32_t)a[2]) : -EBADF;

    file_ref_put(r);
    return result;
}
