/*
 * signalfd: blocked signals as something to read. It shows the signals of the process that reads or
 * asks, so a descriptor inherited over fork is the child's own; it is woken when a signal is sent.
 */
#include "signal_internal.h"

/*
 * Whoever polls hangs a waiter on the process's wait queue. Each process that was ever polled
 * through this file stays referenced until the file goes, for an epoll's waiter may still hang
 * there when it is dead.
 */
struct signalfd_process {
    struct signalfd_process *next; /* l */
    struct process *process;       /* I counted */
};
/* Key: a atomic, l lock */
struct signalfd {
    sigset_weir mask; /* a */
    spinlock_t lock;
    struct signalfd_process *processes; /* l */
};

/* Linux struct signalfd_siginfo */
struct signalfd_siginfo {
    uint32_t signo;
    int32_t error, code;
    uint32_t pid, uid;
    int32_t fd;
    uint32_t tid, band, overrun, trapno;
    int32_t status, value_int;
    uint64_t value, utime, stime, addr;
    uint16_t addr_lsb, pad2;
    int32_t syscall;
    uint64_t call_addr;
    uint32_t arch;
    uint8_t pad[28];
};
_Static_assert(sizeof(struct signalfd_siginfo) == 128, "Linux struct signalfd_siginfo");

static bool signalfd_knows(struct signalfd *s, const struct process *p)
{
    for (struct signalfd_process *sp = s->processes; sp; sp = sp->next) {
        if (sp->process == p)
            return true;
    }
    return false;
}

/* Keep p for as long as the file lives. False without memory. */
static bool signalfd_hold(struct signalfd *s, struct process *p)
{
    struct signalfd_process *sp;
    bool known;

    spin_lock(&s->lock);
    known = signalfd_knows(s, p);
    spin_unlock(&s->lock);
    if (known)
        return true;
    sp = kmalloc(sizeof(*sp));
    if (!sp)
        return false;
    sp->process = p;
    process_get(p);
    spin_lock(&s->lock);
    known = signalfd_knows(s, p);
    if (!known) {
        sp->next = s->processes;
        s->processes = sp;
    }
    spin_unlock(&s->lock);
    if (known) {
        process_put(p);
        kfree(sp);
    }
    return true;
}

static unsigned signalfd_poll(struct file *f, struct poll_table *pt)
{
    struct signalfd *s = f->private;
    struct process *p = current_process();

    if (pt && pt->queue) {
        if (!signalfd_hold(s, p))
            return POLLERR;
        poll_wait(pt, &p->signalfd_wait);
    }
    return signal_any_pending(atomic_load_relaxed(&s->mask)) ? POLLIN | POLLRDNORM : 0;
}

static bool signalfd_emit(struct uio *u, const struct siginfo_weir *info)
{
    struct signalfd_siginfo out = {
        .signo = (uint32_t)info->signo,
        .error = info->errno_value,
        .code = info->code,
        .pid = (uint32_t)info->pid,
        .uid = info->uid,
        .status = info->status,
        .value = info->value,
        .value_int = (int32_t)info->value,
        .addr = info->addr,
    };

    return uio_copy_out(u, &out, sizeof(out)) == sizeof(out);
}

static ssize_t signalfd_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct signalfd *s = f->private;
    ssize_t done = 0;

    if (u->resid < sizeof(struct signalfd_siginfo))
        return -EINVAL;
    while (u->resid >= sizeof(struct signalfd_siginfo)) {
        sigset_weir mask = atomic_load_relaxed(&s->mask);
        struct siginfo_weir info;

        /* The pending words are looked at first: draining ends here without a lock. */
        if (signal_any_pending(mask) && signal_take(mask, &info)) {
            if (!signalfd_emit(u, &info))
                return done ? done : -EFAULT;
            done += (ssize_t)sizeof(struct signalfd_siginfo);
            continue;
        }
        if (done)
            break;
        if (file_nonblocking(f))
            return -EAGAIN;
        if (wait_event_interruptible(&current_process()->signalfd_wait,
                                     signal_any_pending(atomic_load_relaxed(&s->mask))))
            return -ERESTARTSYS;
    }
    return done;
}

static void signalfd_release(struct file *f)
{
    struct signalfd *s = f->private;

    while (s->processes) {
        struct signalfd_process *sp = s->processes;

        s->processes = sp->next;
        process_put(sp->process);
        kfree(sp);
    }
    kfree(s);
}

const struct file_ops signalfd_ops = {
    .read = signalfd_read, .poll = signalfd_poll, .release = signalfd_release};

static long signalfd_change(int fd, sigset_weir mask)
{
    struct file_ref r = file_ref_get((uint64_t)fd);
    long result = fd;

    if (!r.file) {
        result = -EBADF;
    } else if (r.file->ops != &signalfd_ops) {
        result = -EINVAL;
    } else {
        struct signalfd *s = r.file->private;

        atomic_store_relaxed(&s->mask, mask);
        wake_events(&current_process()->signalfd_wait, POLLIN,
                    UINT32_MAX); /* what it now shows may be pending */
    }
    file_ref_put(r);
    return result;
}

static long do_signalfd(int fd, uint64_t mask_addr, uint64_t size, unsigned flags)
{
    struct signalfd *s;
    struct file *f;
    sigset_weir mask;

    if ((flags & ~(unsigned)(O_CLOEXEC | O_NONBLOCK)) || size != sizeof(mask))
        return -EINVAL;
    if (copy_from_user(&mask, mask_addr, sizeof(mask)))
        return -EFAULT;
    mask &= ~SIGNALS_UNBLOCKABLE;
    if (fd != -1)
        return signalfd_change(fd, mask);
    s = kzalloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->mask = mask;
    spin_init(&s->lock);
    f = file_alloc(&signalfd_ops, s, O_RDWR | (flags & O_NONBLOCK));
    if (!f) {
        kfree(s);
        return -ENOMEM;
    }
    return fd_install(f, 0, flags & O_CLOEXEC);
}

long sys_signalfd(const uint64_t a[6])
{
    return do_signalfd((int)a[0], a[1], a[2], 0);
}

long sys_signalfd4(const uint64_t a[6])
{
    return do_signalfd((int)a[0], a[1], a[2], (unsigned)a[3]);
}
