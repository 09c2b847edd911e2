/*
 * Raw disks: read and write go straight to the device (there is no cache, so O_DIRECT and buffered access agree).
 * Unaligned edges are read, changed and written back under a lock.
 */
#include "blockdev.h"
#include "fs.h"
#include <weir/block.h>
#include <weir/usercopy.h>

#define CHUNK_PAGES 64u
#define BLKGETSIZE 0x1260
#define BLKFLSBUF 0x1261
#define BLKSSZGET 0x1268
#define BLKGETSIZE64 0x80081272

static struct mutex edge_lock = MUTEX_INIT(edge_lock); /* read-change-write of parts of a block */

static uint64_t device_size(const struct block_device *d) { return atomic_load_relaxed(&d->capacity_sectors) * 512; }

/* One request of up to CHUNK_PAGES pages through a bounce buffer. pos and len are block aligned. */
static int transfer(struct block_device *d, enum block_op op, uint64_t pos, char *buf, size_t len)
{
    return op == BLOCK_READ ? block_read(d, pos, buf, len) : block_write(d, pos, buf, len);
}

static ssize_t blockdev_io(struct file *f, struct uio *u, uint64_t *offset, bool write)
{
    struct block_device *d = f->private;
    uint64_t size = device_size(d), pos = *offset, start = pos;
    uint64_t block = MAX(d->logical_block, 512u);
    if (write && d->read_only)
        return -EROFS;
    if (pos >= size)
        return write && u->resid ? -ENOSPC : 0;
    char *buf = kmalloc(CHUNK_PAGES * PAGE_SIZE);
    if (!buf)
        return -ENOMEM;
    int r = 0;
    while (u->resid && pos < size && !r) {
        uint64_t first = ALIGN_DOWN(pos, block);
        size_t n = (size_t)MIN(MIN(u->resid, size - pos), CHUNK_PAGES * PAGE_SIZE - (pos - first));
        uint64_t end = MIN(ALIGN_UP(pos + n, block), size);
        bool edges = first != pos || end != pos + n, locked = write && edges;
        if (locked)
            mutex_lock(&edge_lock);
        if (!write || edges)
            r = transfer(d, BLOCK_READ, first, buf, (size_t)(end - first));
        size_t copied = 0;
        if (!r)
            copied = write ? uio_copy_in(u, buf + (pos - first), n) : uio_copy_out(u, buf + (pos - first), n);
        if (!r && write && copied == n)
            r = transfer(d, BLOCK_WRITE, first, buf, (size_t)(end - first));
        if (locked)
            mutex_unlock(&edge_lock);
        if (!r && copied < n)
            r = -EFAULT;
        if (!r || (!write && copied))
            pos += copied;
        cond_resched();
    }
    kfree(buf);
    *offset = pos;
    return pos > start ? (ssize_t)(pos - start) : r;
}
static ssize_t blockdev_read(struct file *f, struct uio *u, uint64_t *offset) { return blockdev_io(f, u, offset, false); }
static ssize_t blockdev_write(struct file *f, struct uio *u, uint64_t *offset) { return blockdev_io(f, u, offset, true); }
static int blockdev_sync(struct file *f, bool datasync) { return block_flush(f->private); }
static void blockdev_release(struct file *f) { block_put(f->private); }
static int blockdev_open(struct inode *i, struct file *f)
{
    struct block_device *d = f->private;
    if (d->read_only && (f->flags & O_ACCMODE) != O_RDONLY) {
        block_put(d); /* a file that was not opened is not released */
        return -EROFS;
    }
    atomic_store_release(&i->size, device_size(d)); /* for SEEK_END */
    return 0;
}
static long blockdev_ioctl(struct file *f, unsigned cmd, uint64_t arg)
{
    struct block_device *d = f->private;
    uint64_t bytes = device_size(d), sectors = bytes / 512;
    uint32_t block = d->logical_block;
    switch (cmd) {
    case BLKGETSIZE64:
        return copy_to_user(arg, &bytes, sizeof bytes);
    case BLKGETSIZE:
        return copy_to_user(arg, &sectors, sizeof sectors);
    case BLKSSZGET:
        return copy_to_user(arg, &block, sizeof block);
    case BLKFLSBUF:
        return 0;
    default:
        return -ENOTTY;
    }
}
const struct file_ops blockdev_ops = {
    .read = blockdev_read, .write = blockdev_write, .sync = blockdev_sync, .open = blockdev_open, .ioctl = blockdev_ioctl,
    .release = blockdev_release,
    .seekable = true,
};
