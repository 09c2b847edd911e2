/* eventfd: a counter to add to and to wait for. memfd_create: a file without a name. */
#include "linuxio.h"

#define EFD_SEMAPHORE 1u
#define EVENTFD_MOST  (UINT64_MAX - 1)

/* Key: l lock */
struct eventfd {
    spinlock_t lock;
    uint64_t count; /* l (a for poll) */
    bool semaphore; /* I */
    struct wait_queue wait;
};

static bool eventfd_take(struct eventfd *e, uint64_t *value)
{
    bool taken;

    spin_lock(&e->lock);
    taken = e->count != 0;
    *value = e->semaphore ? 1 : e->count;
    if (taken)
        e->count -= *value;
    spin_unlock(&e->lock);
    return taken;
}

static bool eventfd_add(struct eventfd *e, uint64_t value)
{
    bool fits;

    spin_lock(&e->lock);
    fits = value <= EVENTFD_MOST - e->count;
    if (fits)
        e->count += value;
    spin_unlock(&e->lock);
    return fits;
}

static ssize_t eventfd_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct eventfd *e = f->private;
    uint64_t value;

    if (u->resid < sizeof(value))
        return -EINVAL;
    while (!eventfd_take(e, &value)) {
        if (file_nonblocking(f))
            return -EAGAIN;
        if (wait_event_interruptible(&e->wait, atomic_load_acquire(&e->count)))
            return -ERESTARTSYS;
    }
    if (wait_queue_active(&e->wait))
        wake_events(&e->wait, POLLOUT, 1);
    return uio_copy_out(u, &value, sizeof(value)) == sizeof(value) ? (ssize_t)sizeof(value)
                                                                   : -EFAULT;
}

static ssize_t eventfd_write(struct file *f, struct uio *u, uint64_t *offset)
{
    struct eventfd *e = f->private;
    uint64_t value;

    if (u->resid < sizeof(value))
        return -EINVAL;
    if (uio_copy_in(u, &value, sizeof(value)) != sizeof(value))
        return -EFAULT;
    if (value == UINT64_MAX)
        return -EINVAL;
    while (!eventfd_add(e, value)) {
        if (file_nonblocking(f))
            return -EAGAIN;
        if (wait_event_interruptible(&e->wait,
                                     value <= EVENTFD_MOST - atomic_load_acquire(&e->count)))
            return -ERESTARTSYS;
    }
    if (wait_queue_active(&e->wait))
        wake_events(&e->wait, POLLIN, 1);
    return sizeof(value);
}

static unsigned eventfd_poll(struct file *f, struct poll_table *pt)
{
    struct eventfd *e = f->private;
    uint64_t count;

    poll_wait(pt, &e->wait);
    count = atomic_load_acquire(&e->count);
    return (count ? POLLIN | POLLRDNORM : 0) | (count < EVENTFD_MOST ? POLLOUT | POLLWRNORM : 0);
}

static void eventfd_release(struct file *f)
{
    kfree(f->private);
}

const struct file_ops eventfd_ops = {
    .read = eventfd_read,
    .write = eventfd_write,
    .poll = eventfd_poll,
    .release = eventfd_release,
};

static long do_eventfd(uint32_t initial, unsigned flags)
{
    struct eventfd *e;
    struct file *f;

    if (flags & ~(EFD_SEMAPHORE | O_CLOEXEC | O_NONBLOCK))
        return -EINVAL;
    e = kzalloc(sizeof(*e));
    if (!e)
        return -ENOMEM;
    spin_init(&e->lock);
    wait_queue_init(&e->wait);
    e->count = initial;
    e->semaphore = flags & EFD_SEMAPHORE;
    f = file_alloc(&eventfd_ops, e, O_RDWR | (flags & O_NONBLOCK));
    if (!f) {
        kfree(e);
        return -ENOMEM;
    }
    return fd_install(f, 0, flags & O_CLOEXEC);
}

long sys_eventfd(const uint64_t a[6])
{
    return do_eventfd((uint32_t)a[0], 0);
}

long sys_eventfd2(const uint64_t a[6])
{
    return do_eventfd((uint32_t)a[0], (unsigned)a[1]);
}

#define MFD_CLOEXEC       1u
#define MFD_ALLOW_SEALING 2u
#define MFD_NOEXEC_SEAL   8u
#define MFD_EXEC          16u

long sys_memfd_create(const uint64_t a[6])
{
    static uint64_t serial;
    const struct cred *c = &current_process()->cred;
    struct dentry *root;
    struct file *f;
    char path[48], name[250];
    ssize_t len = copy_string_from_user(name, a[0], sizeof(name));
    int error;

    if (len < 0)
        return len == -ENAMETOOLONG ? -EINVAL : len;
    if (a[1] & ~(uint64_t)(MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | MFD_EXEC))
        return -EINVAL;
    /* A file of the shared-memory file system that loses its name at once. */
    snprintf(path, sizeof(path), "/dev/shm/.memfd-%lu",
             (unsigned long)atomic_fetch_add(&serial, 1));
    root = vfs_root();
    error = vfs_open(root, path, O_RDWR | O_CREAT | O_EXCL, 0600, c, &f);
    if (!error) {
        error = vfs_unlink(root, path, c);
        if (error)
            file_put(f);
    }
    dentry_put(root);
    return error ? error : fd_install(f, 0, a[1] & MFD_CLOEXEC);
}
