/* /dev: a tmpfs whose nodes are made at boot; what a node does is found by its device number. */
#include "fs.h"
#include "blockdev.h"
#include <weir/block.h>
#include <weir/printk.h>
#include <weir/random.h>
#include <weir/spinlock.h>
#include <weir/cpu.h>

#define MAKEDEV(major, minor) ((uint64_t)(major) << 8 | (minor))

static ssize_t null_read(struct file *f, struct uio *u, uint64_t *offset) { return 0; }
static ssize_t null_write(struct file *f, struct uio *u, uint64_t *offset)
{
    ssize_t n = (ssize_t)u->resid;
    u->resid = 0;
    return n;
}
static ssize_t zero_read(struct file *f, struct uio *u, uint64_t *offset)
{
    size_t done = 0;
    while (u->resid) {
        size_t want = MIN(u->resid, 64 * PAGE_SIZE), n = uio_zero_out(u, want);
        done += n;
        if (n < want)
            break;
        cond_resched();
    }
    return done || !u->resid ? (ssize_t)done : -EFAULT;
}
static ssize_t full_write(struct file *f, struct uio *u, uint64_t *offset) { return u->resid ? -ENOSPC : 0; }
static ssize_t random_read(struct file *f, struct uio *u, uint64_t *offset)
{
    char buf[256];
    size_t done = 0;
    while (u->resid) {
        size_t want = MIN(u->resid, sizeof buf);
        random_bytes(buf, want);
        size_t n = uio_copy_out(u, buf, want);
        done += n;
        if (n < want)
            break;
        cond_resched();
    }
    return done || !u->resid ? (ssize_t)done : -EFAULT;
}

/* ---- console ---- */
#define INPUT_SIZE 256
static struct wait_queue input_wait = WAIT_QUEUE_INIT(input_wait);
static spinlock_t input_lock = SPINLOCK_INIT;
static char input[INPUT_SIZE];               /* input_lock, interrupts off */
static unsigned input_head, input_tail;      /* the same; free-running */

static void console_input(char c)
{
    uint64_t flags = spin_lock_irqsave(&input_lock);
    if (input_head - input_tail < INPUT_SIZE)
        input[input_head++ % INPUT_SIZE] = c == '\r' ? '\n' : c;
    spin_unlock_irqrestore(&input_lock, flags);
    wake_all(&input_wait);
}
static bool input_ready(void) { return atomic_load_relaxed(&input_head) != atomic_load_relaxed(&input_tail); }
static ssize_t console_read(struct file *f, struct uio *u, uint64_t *offset)
{
    char buf[INPUT_SIZE];
    size_t n = 0, want = MIN(u->resid, sizeof buf);
    if (!want)
        return 0;
    while (!n) {
        if (!input_ready()) {
            if (f->flags & O_NONBLOCK)
                return -EAGAIN;
            int r = wait_event_interruptible(&input_wait, input_ready());
            if (r)
                return -ERESTARTSYS;
        }
        uint64_t flags = spin_lock_irqsave(&input_lock);
        while (n < want && input_head != input_tail)
            buf[n++] = input[input_tail++ % INPUT_SIZE];
        spin_unlock_irqrestore(&input_lock, flags);
    }
    size_t copied = uio_copy_out(u, buf, n);
    return copied ? (ssize_t)copied : -EFAULT;
}
static ssize_t console_file_write(struct file *f, struct uio *u, uint64_t *offset)
{
    char buf[256];
    size_t done = 0;
    while (u->resid) {
        size_t n = uio_copy_in(u, buf, MIN(u->resid, sizeof buf));
        if (!n)
            break;
        console_write(buf, n);
        done += n;
    }
    return done || !u->resid ? (ssize_t)done : -EFAULT;
}
static unsigned console_poll(struct file *f, struct poll_table *pt)
{
    poll_wait(pt, &input_wait);
    return POLLOUT | POLLWRNORM | (input_ready() ? POLLIN | POLLRDNORM : 0);
}

static const struct file_ops null_ops = { .read = null_read, .write = null_write, .seekable = true };
static const struct file_ops zero_ops = { .read = zero_read, .write = null_write, .seekable = true };
static const struct file_ops full_ops = { .read = zero_read, .write = full_write, .seekable = true };
static const struct file_ops random_ops = { .read = random_read, .write = null_write, .seekable = true };
static const struct file_ops console_ops = { .read = console_read, .write = console_file_write, .poll = console_poll };

static const struct device {
    const char *name;
    mode_t mode;
    uint64_t rdev;
    const struct file_ops *ops;
} devices[] = {
    { "null", S_IFCHR | 0666, MAKEDEV(1, 3), &null_ops },
    { "zero", S_IFCHR | 0666, MAKEDEV(1, 5), &zero_ops },
    { "full", S_IFCHR | 0666, MAKEDEV(1, 7), &full_ops },
    { "random", S_IFCHR | 0666, MAKEDEV(1, 8), &random_ops },
    { "urandom", S_IFCHR | 0666, MAKEDEV(1, 9), &random_ops },
    { "tty", S_IFCHR | 0666, MAKEDEV(5, 0), &console_ops },
    { "console", S_IFCHR | 0666, MAKEDEV(5, 1), &console_ops },
};
static const struct { const char *name, *target; } links[] = {
    { "fd", "/proc/self/fd" }, { "stdin", "/proc/self/fd/0" }, { "stdout", "/proc/self/fd/1" }, { "stderr", "/proc/self/fd/2" },
};

#define BLOCK_MAJOR 254
const struct file_ops *devfs_find(uint32_t mode, uint64_t rdev, void **private)
{
    if ((mode & S_IFMT) == S_IFBLK && rdev >> 8 == BLOCK_MAJOR) {
        for (struct block_device *d = NULL; (d = block_next(d));) {
            if (d->number == (rdev & 255)) {
                *private = d; /* with the reference that blockdev_release gives back */
                return &blockdev_ops;
            }
        }
        return NULL;
    }
    for (unsigned n = 0; n < ARRAY_SIZE(devices); n++) {
        if (devices[n].rdev == rdev && (mode & S_IFMT) == S_IFCHR)
            return devices[n].ops;
    }
    return NULL;
}

static void add_node(struct inode *dir, const char *name, mode_t mode, uint64_t rdev)
{
    struct inode *i;
    if (dir->ops->create(dir, name, strlen(name), mode, &kernel_cred, &i)) {
        log_warn("/dev/%s: no memory", name);
        return;
    }
    i->rdev = rdev;
    inode_put(i);
}

int devfs_mount(struct super_block **out)
{
    int r = tmpfs_mount(0755, out);
    if (r)
        return r;
    struct super_block *sb = *out;
    struct inode *dir = sb->root->inode, *made;
    sb->type = "devtmpfs";
    str_copy(sb->source, "dev", sizeof sb->source);
    for (unsigned n = 0; n < ARRAY_SIZE(devices); n++)
        add_node(dir, devices[n].name, devices[n].mode, devices[n].rdev);
    for (struct block_device *d = NULL; (d = block_next(d));)
        add_node(dir, d->name, S_IFBLK | 0660, MAKEDEV(BLOCK_MAJOR, d->number));
    for (unsigned n = 0; n < ARRAY_SIZE(links); n++) {
        if (!dir->ops->symlink(dir, links[n].name, strlen(links[n].name), links[n].target, &kernel_cred, &made))
            inode_put(made);
    }
    if (!dir->ops->mkdir(dir, "shm", 3, S_IFDIR | 01777, &kernel_cred, &made))
        inode_put(made);
    console_set_input(console_input);
    return 0;
}
