/* Calls on open file descriptions. */
#include "fs.h"

#define SEEK_DATA_WEIR 3
#define SEEK_HOLE_WEIR 4

static bool readable(const struct file *f) { return (f->flags & O_ACCMODE) != O_WRONLY; }
static bool writable(const struct file *f) { return (f->flags & O_ACCMODE) != O_RDONLY; }

int file_stat(struct file *f, struct stat_weir *out)
{
    if (f->inode) {
        inode_fill_stat(f->inode, out);
        return 0;
    }
    memset(out, 0, sizeof *out);
    out->st_mode = S_IFIFO | 0600;
    out->st_nlink = 1;
    out->st_ino = (uint64_t)(uintptr_t)f >> 6 & 0xffffffff;
    out->st_blksize = PAGE_SIZE;
    return 0;
}

static ssize_t do_read(struct file *f, struct uio *u, uint64_t *offset)
{
    if (!f->ops || !readable(f))
        return -EBADF;
    if (f->inode && S_ISDIR(f->inode->mode))
        return -EISDIR;
    if (!f->ops->read)
        return -EINVAL;
    return f->ops->read(f, u, offset);
}
static ssize_t do_write(struct file *f, struct uio *u, uint64_t *offset)
{
    if (!f->ops || !writable(f))
        return -EBADF;
    if (!f->ops->write)
        return -EINVAL;
    ssize_t n = f->ops->write(f, u, offset);
    if (n > 0 && (f->flags & O_DSYNC)) { /* O_SYNC includes it */
        int r = file_sync(f, (f->flags & O_SYNC) != O_SYNC);
        if (r)
            return r;
    }
    return n;
}
ssize_t file_read(struct file *f, struct uio *u)
{
    uint64_t offset = 0;
    if (!f->ops || !f->ops->seekable)
        return do_read(f, u, &offset);
    mutex_lock(&f->position_lock);
    offset = f->position;
    ssize_t n = do_read(f, u, &offset);
    f->position = offset;
    mutex_unlock(&f->position_lock);
    return n;
}
ssize_t file_write(struct file *f, struct uio *u)
{
    uint64_t offset = 0;
    if (!f->ops || !f->ops->seekable)
        return do_write(f, u, &offset);
    mutex_lock(&f->position_lock);
    offset = f->position;
    ssize_t n = do_write(f, u, &offset);
    f->position = offset;
    mutex_unlock(&f->position_lock);
    return n;
}
ssize_t file_pread(struct file *f, struct uio *u, uint64_t offset)
{
    if (f->ops && !f->ops->seekable)
        return -ESPIPE;
    return (int64_t)offset < 0 ? -EINVAL : do_read(f, u, &offset);
}
ssize_t file_pwrite(struct file *f, struct uio *u, uint64_t offset)
{
    if (f->ops && !f->ops->seekable)
        return -ESPIPE;
    return (int64_t)offset < 0 ? -EINVAL : do_write(f, u, &offset);
}
ssize_t file_read_kernel(struct file *f, void *buf, size_t len, uint64_t offset)
{
    struct iovec_weir one;
    struct uio u;
    uio_init_kernel(&u, &one, buf, len);
    return do_read(f, &u, &offset);
}

int64_t file_seek(struct file *f, int64_t offset, int whence)
{
    if (!f->ops)
        return -EBADF;
    if (!f->ops->seekable)
        return -ESPIPE;
    uint64_t size = f->inode ? atomic_load_acquire(&f->inode->size) : 0;
    int64_t base = 0;
    mutex_lock(&f->position_lock);
    switch (whence) {
    case 0:
        break;
    case 1:
        base = (int64_t)f->position;
        break;
    case 2:
        base = (int64_t)size;
        break;
    case SEEK_DATA_WEIR: /* no holes are told: data up to the end */
    case SEEK_HOLE_WEIR:
        if (offset < 0 || (uint64_t)offset >= size) {
            mutex_unlock(&f->position_lock);
            return -ENXIO;
        }
        if (whence == SEEK_HOLE_WEIR)
            offset = (int64_t)size;
        break;
    default:
        mutex_unlock(&f->position_lock);
        return -EINVAL;
    }
    int64_t at;
    if (__builtin_add_overflow(base, offset, &at) || at < 0)
        at = -EINVAL;
    else
        f->position = (uint64_t)at;
    mutex_unlock(&f->position_lock);
    return at;
}

int file_sync(struct file *f, bool datasync)
{
    if (!f->ops)
        return -EBADF;
    int r = 0, error = 0;
    if (f->ops->sync)
        r = f->ops->sync(f, datasync);
    else if (f->inode && f->inode->ops && f->inode->ops->sync)
        r = f->inode->ops->sync(f->inode, datasync);
    else if (!f->inode || !(S_ISREG(f->inode->mode) || S_ISDIR(f->inode->mode)))
        return -EINVAL;
    /* Errors of write-back that ended earlier, whoever waited for it: once to each description. */
    if (f->inode)
        error = pagecache_check_error(&f->inode->cache, &f->writeback_error_seen);
    return r ? r : error;
}
enum { RANGE_WAIT_BEFORE = 1, RANGE_WRITE = 2, RANGE_WAIT_AFTER = 4 };
int file_sync_range(struct file *f, uint64_t offset, uint64_t len, unsigned flags)
{
    if (!f->inode || !S_ISREG(f->inode->mode))
        return -ESPIPE;
    if ((flags & ~7u) || (int64_t)offset < 0 || (int64_t)(offset + len) < (int64_t)offset)
        return -EINVAL;
    uint64_t first = offset >> PAGE_SHIFT, last = len ? (offset + len - 1) >> PAGE_SHIFT : UINT64_MAX - 1;
    struct pagecache *c = &f->inode->cache;
    int r = 0;
    if (flags & RANGE_WAIT_BEFORE)
        r = pagecache_wait(c, first, last);
    if (!r && (flags & RANGE_WRITE))
        r = pagecache_start_write(c, first, last);
    if (!r && (flags & RANGE_WAIT_AFTER))
        r = pagecache_wait(c, first, last);
    return r;
}
enum { ADVICE_NORMAL, ADVICE_RANDOM, ADVICE_SEQUENTIAL, ADVICE_WILLNEED, ADVICE_DONTNEED, ADVICE_NOREUSE };
int file_advise(struct file *f, uint64_t offset, uint64_t len, int advice)
{
    if (f->ops && !f->ops->seekable)
        return -ESPIPE;
    if (advice < ADVICE_NORMAL || advice > ADVICE_NOREUSE)
        return -EINVAL;
    if (!f->inode || !S_ISREG(f->inode->mode))
        return 0;
    uint64_t size = atomic_load_acquire(&f->inode->size);
    uint64_t end = !len || offset + len < offset ? size : MIN(offset + len, size);
    if (offset >= end)
        return 0;
    if (advice == ADVICE_WILLNEED) {
        uint64_t pages = DIV_ROUND_UP(end, PAGE_SIZE) - (offset >> PAGE_SHIFT);
        pagecache_readahead(&f->inode->cache, offset >> PAGE_SHIFT, (unsigned)MIN(pages, 1024));
    } else if (advice == ADVICE_DONTNEED) {
        uint64_t first = DIV_ROUND_UP(offset, PAGE_SIZE), beyond = end == size ? UINT64_MAX - 1 : end >> PAGE_SHIFT;
        if (beyond > first) {
            int r = pagecache_start_write(&f->inode->cache, first, beyond - 1);
            pagecache_drop_clean(&f->inode->cache, first, beyond - 1);
            return r;
        }
    }
    return 0;
}
int file_truncate(struct file *f, uint64_t size)
{
    struct inode *i = f->inode;
    if (!f->ops || !writable(f))
        return -EINVAL;
    if (!i || !S_ISREG(i->mode) || !i->ops->truncate)
        return -EINVAL;
    rw_write_lock(&i->lock);
    int r = i->ops->truncate(i, size);
    rw_write_unlock(&i->lock);
    return r;
}
int file_fallocate(struct file *f, int mode, uint64_t offset, uint64_t len)
{
    struct inode *i = f->inode;
    if (!f->ops || !writable(f))
        return -EBADF;
    if (!i || !S_ISREG(i->mode))
        return f->ops->seekable ? -ENODEV : -ESPIPE;
    if (!len || (int64_t)offset < 0 || (int64_t)len < 0)
        return -EINVAL;
    if ((int64_t)(offset + len) < 0)
        return -EFBIG;
    if (!i->ops->fallocate)
        return -EOPNOTSUPP;
    rw_write_lock(&i->lock);
    int r = i->ops->fallocate(i, mode, offset, len);
    rw_write_unlock(&i->lock);
    return r;
}
int file_readdir(struct file *f, struct dir_sink *sink)
{
    if (!f->ops)
        return -EBADF;
    if (!f->ops->readdir || !f->inode || !S_ISDIR(f->inode->mode))
        return -ENOTDIR;
    mutex_lock(&f->position_lock);
    rw_read_lock(&f->inode->lock);
    int r = f->inode->nlink ? f->ops->readdir(f, sink, &f->position) : -ENOENT;
    rw_read_unlock(&f->inode->lock);
    mutex_unlock(&f->position_lock);
    return r;
}
unsigned file_poll(struct file *f, struct poll_table *pt)
{
    if (!f->ops)
        return POLLNVAL;
    return f->ops->poll ? f->ops->poll(f, pt) : POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;
}
long file_ioctl(struct file *f, unsigned cmd, uint64_t arg)
{
    if (!f->ops)
        return -EBADF;
    return f->ops->ioctl ? f->ops->ioctl(f, cmd, arg) : -ENOTTY;
}
