/* read, write and their kin; positions; syncing. */
#include "linuxio.h"

#define RWF_HIPRI  1u
#define RWF_DSYNC  2u
#define RWF_SYNC   4u
#define RWF_APPEND 16u

ssize_t file_stream_read(struct file *f, struct uio *u)
{
    uint64_t unused = 0;

    if (f->ops->seekable)
        return file_read(f, u);
    return f->ops->read ? f->ops->read(f, u, &unused) : -EINVAL;
}

ssize_t file_stream_write(struct file *f, struct uio *u)
{
    uint64_t unused = 0;

    if (f->ops->seekable)
        return file_write(f, u);
    return f->ops->write ? f->ops->write(f, u, &unused) : -EINVAL;
}

/* Positions: -1 = the file's own. */
static ssize_t do_read(uint64_t fd, struct uio *u, int64_t offset)
{
    struct file_ref r = file_ref_get(fd);
    ssize_t result;

    if (unlikely(!r.file))
        return -EBADF;
    if (unlikely(!file_readable(r.file)))
        result = -EBADF;
    else if (offset == -1)
        result = file_stream_read(r.file, u);
    else if (!r.file->ops->seekable)
        result = -ESPIPE;
    else
        result = file_pread(r.file, u, (uint64_t)offset);
    file_ref_put(r);
    return result;
}

static ssize_t do_write(uint64_t fd, struct uio *u, int64_t offset, unsigned rwf)
{
    struct file_ref r = file_ref_get(fd);
    ssize_t result;

    if (unlikely(!r.file))
        return -EBADF;
    if (unlikely(!file_writable(r.file)))
        result = -EBADF;
    else if (offset == -1)
        result = file_stream_write(r.file, u);
    else if (!r.file->ops->seekable)
        result = -ESPIPE;
    else
        result = file_pwrite(r.file, u, (uint64_t)offset);
    if (unlikely(rwf & (RWF_DSYNC | RWF_SYNC)) && result > 0) {
        int error = file_sync(r.file, !(rwf & RWF_SYNC));

        result = error ? error : result;
    }
    file_ref_put(r);
    return result;
}

long sys_read(const uint64_t a[6])
{
    struct iovec_weir one;
    struct uio u;

    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    return do_read(a[0], &u, -1);
}

long sys_write(const uint64_t a[6])
{
    struct iovec_weir one;
    struct uio u;

    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    return do_write(a[0], &u, -1, 0);
}

long sys_pread64(const uint64_t a[6])
{
    struct iovec_weir one;
    struct uio u;

    if ((int64_t)a[3] < 0)
        return -EINVAL;
    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    return do_read(a[0], &u, (int64_t)a[3]);
}

long sys_pwrite64(const uint64_t a[6])
{
    struct iovec_weir one;
    struct uio u;

    if ((int64_t)a[3] < 0)
        return -EINVAL;
    uio_init_user(&u, &one, a[1], MIN(a[2], IO_MAX));
    return do_write(a[0], &u, (int64_t)a[3], 0);
}

static long vectored(const uint64_t a[6], bool write, int64_t offset, unsigned rwf)
{
    struct iovec_list l;
    long result;

    result = iovec_get(&l, a[1], a[2]);
    if (result)
        return result;
    result = write ? do_write(a[0], &l.uio, offset, rwf) : do_read(a[0], &l.uio, offset);
    iovec_put(&l);
    return result;
}

long sys_readv(const uint64_t a[6])
{
    return vectored(a, false, -1, 0);
}

long sys_writev(const uint64_t a[6])
{
    return vectored(a, true, -1, 0);
}

long sys_preadv(const uint64_t a[6])
{
    return (int64_t)a[3] < 0 ? -EINVAL : vectored(a, false, (int64_t)a[3], 0);
}

long sys_pwritev(const uint64_t a[6])
{
    return (int64_t)a[3] < 0 ? -EINVAL : vectored(a, true, (int64_t)a[3], 0);
}

/* The position takes two arguments in the 32-bit world, so the flags are the sixth. -1: as readv.
 */
long sys_preadv2(const uint64_t a[6])
{
    if (a[5] & ~(uint64_t)(RWF_HIPRI | RWF_DSYNC | RWF_SYNC))
        return -EOPNOTSUPP;
    return (int64_t)a[3] < -1 ? -EINVAL : vectored(a, false, (int64_t)a[3], 0);
}

long sys_pwritev2(const uint64_t a[6])
{
    if (a[5] & ~(uint64_t)(RWF_HIPRI | RWF_DSYNC | RWF_SYNC))
        return -EOPNOTSUPP;
    return (int64_t)a[3] < -1 ? -EINVAL : vectored(a, true, (int64_t)a[3], (unsigned)a[5]);
}

long sys_lseek(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (unlikely(!r.file || (r.file->flags & O_PATH)))
        result = -EBADF;
    else if (!r.file->inode || !r.file->ops->seekable)
        result = -ESPIPE;
    else
        result = file_seek(r.file, (int64_t)a[1], (int)a[2]);
    file_ref_put(r);
    return result;
}

/* ---- syncing and space ---- */

static long do_sync(uint64_t fd, bool datasync)
{
    struct file_ref r = file_ref_get(fd);
    long result;

    if (!r.file || (r.file->flags & O_PATH))
        result = -EBADF;
    else if (!r.file->inode)
        result = -EINVAL;
    else
        result = file_sync(r.file, datasync);
    file_ref_put(r);
    return result;
}

long sys_fsync(const uint64_t a[6])
{
    return do_sync(a[0], false);
}

long sys_fdatasync(const uint64_t a[6])
{
    return do_sync(a[0], true);
}

long sys_sync(const uint64_t a[6])
{
    (void)!vfs_sync();
    return 0;
}

long sys_syncfs(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result = r.file ? vfs_sync() : -EBADF;

    file_ref_put(r);
    return result;
}

long sys_sync_file_range(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file)
        result = -EBADF;
    else if ((int64_t)a[1] < 0 || (int64_t)a[2] < 0 || (int64_t)(a[1] + a[2]) < 0 || (a[3] & ~7ULL))
        result = -EINVAL;
    else if (!r.file->inode)
        result = -ESPIPE;
    else
        result = file_sync_range(r.file, a[1], a[2], (unsigned)a[3]);
    file_ref_put(r);
    return result;
}

long sys_ftruncate(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file)
        result = -EBADF;
    else if ((int64_t)a[1] < 0 || !r.file->inode || !S_ISREG(r.file->inode->mode) ||
             !file_writable(r.file))
        result = -EINVAL;
    else
        result = file_truncate(r.file, a[1]);
    file_ref_put(r);
    return result;
}

long sys_fallocate(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file)
        result = -EBADF;
    else if ((int64_t)a[2] < 0 || (int64_t)a[3] <= 0)
        result = -EINVAL;
    else if (!file_writable(r.file))
        result = -EBADF;
    else if (!r.file->inode)
        result = -ESPIPE;
    else
        result = file_fallocate(r.file, (int)a[1], a[2], a[3]);
    file_ref_put(r);
    return result;
}

long sys_fadvise64(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file)
        result = -EBADF;
    else if (!r.file->inode)
        result = -ESPIPE;
    else if (a[3] > 5)
        result = -EINVAL;
    else
        result = file_advise(r.file, a[1], a[2], (int)a[3]);
    file_ref_put(r);
    return result;
}

long sys_readahead(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file || !file_readable(r.file))
        result = -EBADF;
    else if (!r.file->inode || !S_ISREG(r.file->inode->mode))
        result = -EINVAL;
    else
        result = file_advise(r.file, a[1], a[2], 3 /* POSIX_FADV_WILLNEED */);
    file_ref_put(r);
    return result;
}

/* ---- from file to file inside the kernel ---- */

#define COPY_CHUNK 4096UL

/* Move up to len bytes. Offsets: NULL = the file's position. Bytes moved, or the error if none
 * were. */
static long copy_between(struct file *in, uint64_t *in_offset, struct file *out,
                         uint64_t *out_offset, size_t len)
{
    size_t done = 0;
    long error = 0;
    void *buf = kmalloc(COPY_CHUNK);

    if (!buf)
        return -ENOMEM;
    while (done < len) {
        struct iovec_weir one;
        struct uio u;
        ssize_t got, put;

        uio_init_kernel(&u, &one, buf, MIN(COPY_CHUNK, len - done));
        got = in_offset ? file_pread(in, &u, *in_offset) : file_stream_read(in, &u);
        if (got <= 0) {
            error = got;
            break;
        }
        uio_init_kernel(&u, &one, buf, (size_t)got);
        put = out_offset ? file_pwrite(out, &u, *out_offset) : file_stream_write(out, &u);
        if (put < got) {
            /* What was read but not taken must be read again. */
            int64_t back = got - MAX(put, 0);

            if (!in_offset && in->ops->seekable && file_seek(in, -back, 1) < 0)
                error = -EIO;
        }
        if (put < 0) {
            error = put;
            break;
        }
        if (in_offset)
            *in_offset += (uint64_t)put;
        if (out_offset)
            *out_offset += (uint64_t)put;
        done += (size_t)put;
        if (put < got)
            break;
        if (thread_signal_pending(current)) {
            error = -EINTR;
            break;
        }
        cond_resched();
    }
    kfree(buf);
    return done ? (long)done : error;
}

long sys_sendfile(const uint64_t a[6])
{
    struct file_ref out = file_ref_get(a[0]), in = file_ref_get(a[1]);
    uint64_t offset = 0;
    long result = -EBADF;

    if (in.file && out.file && file_readable(in.file) && file_writable(out.file)) {
        if (!in.file->inode || !in.file->ops->seekable)
            result = -EINVAL;
        else if (a[2] && copy_from_user(&offset, a[2], sizeof(offset)))
            result = -EFAULT;
        else if ((int64_t)offset < 0)
            result = -EINVAL;
        else
            result =
                copy_between(in.file, a[2] ? &offset : NULL, out.file, NULL, MIN(a[3], IO_MAX));
        if (result > 0 && a[2] && copy_to_user(a[2], &offset, sizeof(offset)))
            result = -EFAULT;
    }
    file_ref_put(in);
    file_ref_put(out);
    return result;
}

static bool regular(const struct file *f)
{
    return f->inode && S_ISREG(f->inode->mode);
}

long sys_copy_file_range(const uint64_t a[6])
{
    struct file_ref in = file_ref_get(a[0]), out = file_ref_get(a[2]);
    uint64_t in_offset = 0, out_offset = 0;
    long result = -EBADF;

    if (!in.file || !out.file || !file_readable(in.file) || !file_writable(out.file))
        goto out;
    result = -EINVAL;
    if (a[5] || !regular(in.file) || !regular(out.file) || in.file->inode == out.file->inode)
        goto out;
    result = -EFAULT;
    if ((a[1] && copy_from_user(&in_offset, a[1], 8)) ||
        (a[3] && copy_from_user(&out_offset, a[3], 8)))
        goto out;
    result = copy_between(in.file, a[1] ? &in_offset : NULL, out.file, a[3] ? &out_offset : NULL,
                          MIN(a[4], IO_MAX));
    if (result > 0 && ((a[1] && copy_to_user(a[1], &in_offset, 8)) ||
                       (a[3] && copy_to_user(a[3], &out_offset, 8))))
        result = -EFAULT;
out:
    file_ref_put(in);
    file_ref_put(out);
    return result;
}
