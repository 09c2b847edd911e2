/*
 * Pipes: a 64 KiB ring between two files. Each end is one open file, shared by dup and fork, so
 * that an end is gone exactly when the last descriptor of it is.
 */
#include "linuxio.h"

#define PIPE_SIZE     65536u
#define PIPE_PAGES    (PIPE_SIZE / PAGE_SIZE)
#define PIPE_BUF_WEIR 4096u

/*
 * Key: m mutex. Head and tail count bytes and wrap with 2^32; poll reads them, and the ends,
 * without the lock.
 */
struct pipe {
    struct mutex mutex;
    uint32_t refcount;   /* a open ends, 2 at first */
    uint32_t head, tail; /* m (a for readers): written up to head, read up to tail */
    bool reader, writer; /* a end open */
    struct wait_queue readable, writable;
    struct page *pages[PIPE_PAGES]; /* m filled on first use */
};

static uint32_t pipe_used(const struct pipe *p)
{
    return atomic_load_acquire(&p->head) - atomic_load_acquire(&p->tail);
}

static uint32_t pipe_room(const struct pipe *p)
{
    return PIPE_SIZE - pipe_used(p);
}

static void pipe_put(struct pipe *p)
{
    if (atomic_fetch_sub(&p->refcount, 1) != 1)
        return;
    for (unsigned i = 0; i < PIPE_PAGES; i++) {
        if (p->pages[i])
            page_put(p->pages[i]);
    }
    kfree(p);
}

/* Copy up to n bytes between the ring at `at` and u. Bytes copied; fewer on a fault or without
 * memory. */
static size_t pipe_copy(struct pipe *p, struct uio *u, uint32_t at, size_t n, bool into_pipe)
{
    size_t done = 0;

    while (done < n) {
        uint32_t position = (at + (uint32_t)done) % PIPE_SIZE;
        struct page **page = &p->pages[position / PAGE_SIZE];
        size_t offset = position % PAGE_SIZE, chunk = MIN(n - done, PAGE_SIZE - offset), copied;
        uint8_t *data;

        if (!*page)
            *page = page_alloc(0, 0);
        if (!*page)
            break;
        data = (uint8_t *)page_virt(*page) + offset;
        copied = into_pipe ? uio_copy_in(u, data, chunk) : uio_copy_out(u, data, chunk);
        done += copied;
        if (copied < chunk)
            break;
    }
    return done;
}

static ssize_t pipe_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct pipe *p = f->private;
    size_t n;

    if (!u->resid)
        return 0;
    for (;;) {
        int error;

        mutex_lock(&p->mutex);
        n = MIN(u->resid, (size_t)pipe_used(p));
        if (n)
            break;
        mutex_unlock(&p->mutex);
        /* Read after the ring was seen empty: a writer that wrote and left is not missed, see the
         * loop. */
        if (!atomic_load_acquire(&p->writer)) {
            if (pipe_used(p))
                continue;
            return 0;
        }
        if (file_nonblocking(f))
            return -EAGAIN;
        error = wait_event_interruptible(&p->readable,
                                         pipe_used(p) || !atomic_load_acquire(&p->writer));
        if (error)
            return -ERESTARTSYS;
    }
    n = pipe_copy(p, u, p->tail, n, false);
    atomic_store_release(&p->tail, p->tail + (uint32_t)n);
    mutex_unlock(&p->mutex);
    if (!n)
        return -EFAULT;
    if (wait_queue_active(&p->writable))
        wake_events(&p->writable, POLLOUT | POLLWRNORM, 1);
    return (ssize_t)n;
}

static bool pipe_has_room(const struct pipe *p, size_t wanted)
{
    return pipe_room(p) >= wanted || !atomic_load_acquire(&p->reader);
}

/* One piece; small writes go in whole or not at all. Bytes, -EPIPE, -EAGAIN (no room), -EFAULT. */
static ssize_t pipe_write_some(struct pipe *p, struct uio *u, size_t least)
{
    ssize_t result;

    mutex_lock(&p->mutex);
    if (!atomic_load_acquire(&p->reader)) {
        result = -EPIPE;
    } else if (pipe_room(p) < least) {
        result = -EAGAIN;
    } else {
        size_t n = pipe_copy(p, u, p->head, MIN(u->resid, (size_t)pipe_room(p)), true);

        atomic_store_release(&p->head, p->head + (uint32_t)n);
        result = n ? (ssize_t)n : -EFAULT;
    }
    mutex_unlock(&p->mutex);
    if (result > 0 && wait_queue_active(&p->readable))
        wake_events(&p->readable, POLLIN | POLLRDNORM, 1);
    return result;
}

static ssize_t pipe_write(struct file *f, struct uio *u, uint64_t *offset)
{
    struct pipe *p = f->private;
    size_t least = u->resid <= PIPE_BUF_WEIR ? u->resid : 1;
    ssize_t done = 0, result = 0;

    while (u->resid) {
        result = pipe_write_some(p, u, least);
        if (result > 0) {
            done += result;
            continue;
        }
        if (result != -EAGAIN || file_nonblocking(f))
            break;
        if (wait_event_interruptible(&p->writable, pipe_has_room(p, least))) {
            result = -ERESTARTSYS;
            break;
        }
    }
    if (result == -EPIPE)
        signal_raise(SIGPIPE);
    return done ? done : result;
}

static unsigned pipe_read_poll(struct file *f, struct poll_table *pt)
{
    struct pipe *p = f->private;
    unsigned events = 0;

    poll_wait(pt, &p->readable);
    if (!atomic_load_acquire(&p->writer))
        events |= POLLHUP;
    if (pipe_used(p))
        events |= POLLIN | POLLRDNORM;
    return events;
}

static unsigned pipe_write_poll(struct file *f, struct poll_table *pt)
{
    struct pipe *p = f->private;
    unsigned events = 0;

    poll_wait(pt, &p->writable);
    if (!atomic_load_acquire(&p->reader))
        events |= POLLERR;
    if (pipe_room(p) >= PIPE_BUF_WEIR)
        events |= POLLOUT | POLLWRNORM;
    return events;
}

static void pipe_read_release(struct file *f)
{
    struct pipe *p = f->private;

    atomic_store_release(&p->reader, false);
    wake_events(&p->writable, POLLERR | POLLOUT | POLLWRNORM, UINT32_MAX);
    pipe_put(p);
}

static void pipe_write_release(struct file *f)
{
    struct pipe *p = f->private;

    atomic_store_release(&p->writer, false);
    wake_events(&p->readable, POLLHUP | POLLIN | POLLRDNORM, UINT32_MAX);
    pipe_put(p);
}

#define FIONREAD_WEIR 0x541bu

long pipe_ioctl(struct file *f, unsigned cmd, uint64_t arg)
{
    struct pipe *p = f->private;
    int32_t used = (int32_t)pipe_used(p);

    return cmd == FIONREAD_WEIR ? copy_to_user(arg, &used, sizeof(used)) : -ENOTTY;
}

const struct file_ops pipe_read_ops = {
    .read = pipe_read,
    .poll = pipe_read_poll,
    .ioctl = pipe_ioctl,
    .release = pipe_read_release,
};
const struct file_ops pipe_write_ops = {
    .write = pipe_write,
    .poll = pipe_write_poll,
    .ioctl = pipe_ioctl,
    .release = pipe_write_release,
};

static int pipe_create(unsigned flags, struct file **reader, struct file **writer)
{
    struct pipe *p = kzalloc(sizeof(*p));

    if (!p)
        return -ENOMEM;
    mutex_init(&p->mutex);
    wait_queue_init(&p->readable);
    wait_queue_init(&p->writable);
    p->refcount = 2;
    p->reader = p->writer = true;
    *reader = file_alloc(&pipe_read_ops, p, O_RDONLY | flags);
    if (!*reader) {
        kfree(p);
        return -ENOMEM;
    }
    *writer = file_alloc(&pipe_write_ops, p, O_WRONLY | flags);
    if (!*writer) {
        p->refcount = 1;
        file_put(*reader);
        return -ENOMEM;
    }
    return 0;
}

static long do_pipe(uint64_t addr, unsigned flags)
{
    struct file *reader, *writer;
    bool cloexec = flags & O_CLOEXEC;
    int fds[2], error;

    if (flags & ~(unsigned)(O_CLOEXEC | O_NONBLOCK | O_DIRECT))
        return -EINVAL;
    error = pipe_create(flags & O_NONBLOCK, &reader, &writer);
    if (error)
        return error;
    fds[0] = fd_install(reader, 0, cloexec);
    if (fds[0] < 0) {
        file_put(writer);
        return fds[0];
    }
    fds[1] = fd_install(writer, 0, cloexec);
    if (fds[1] < 0) {
        (void)!fd_close(fds[0]);
        return fds[1];
    }
    if (copy_to_user(addr, fds, sizeof(fds))) {
        (void)!fd_close(fds[0]);
        (void)!fd_close(fds[1]);
        return -EFAULT;
    }
    return 0;
}

long sys_pipe(const uint64_t a[6])
{
    return do_pipe(a[0], 0);
}

long sys_pipe2(const uint64_t a[6])
{
    return do_pipe(a[0], (unsigned)a[1]);
}
