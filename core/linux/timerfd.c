/* timerfd: expirations of a timer to read. */
#include "linuxio.h"

#define TFD_TIMER_ABSTIME       1u
#define TFD_TIMER_CANCEL_ON_SET 2u

/* Key: I immutable, l lock (irqsave: the call-back takes it) */
struct timerfd {
    spinlock_t lock;
    struct timer timer;
    int clock;                         /* I */
    uint64_t deadline_ns, interval_ns; /* l monotonic; deadline 0 = disarmed */
    uint64_t expirations;              /* l (a for poll) since the last read */
    struct wait_queue wait;
};

static void timerfd_fire(struct timer *timer)
{
    struct timerfd *t = container_of(timer, struct timerfd, timer);
    uint64_t flags = spin_lock_irqsave(&t->lock), now = clock_monotonic_ns();
    bool due = t->deadline_ns && now >= t->deadline_ns; /* else set anew meanwhile */

    if (due && t->interval_ns) {
        uint64_t passed = 1 + (now - t->deadline_ns) / t->interval_ns;

        t->expirations += passed;
        t->deadline_ns += passed * t->interval_ns;
        timer_arm(timer, t->deadline_ns);
    } else if (due) {
        t->expirations++;
        t->deadline_ns = 0;
    }
    spin_unlock_irqrestore(&t->lock, flags);
    if (due)
        wake_events(&t->wait, POLLIN | POLLRDNORM, UINT32_MAX);
}

static uint64_t timerfd_take(struct timerfd *t)
{
    uint64_t flags = spin_lock_irqsave(&t->lock), n = t->expirations;

    t->expirations = 0;
    spin_unlock_irqrestore(&t->lock, flags);
    return n;
}

static ssize_t timerfd_read(struct file *f, struct uio *u, uint64_t *offset)
{
    struct timerfd *t = f->private;
    uint64_t n;

    if (u->resid < sizeof(n))
        return -EINVAL;
    while (!(n = timerfd_take(t))) {
        if (file_nonblocking(f))
            return -EAGAIN;
        if (wait_event_interruptible(&t->wait, atomic_load_acquire(&t->expirations)))
            return -ERESTARTSYS;
    }
    return uio_copy_out(u, &n, sizeof(n)) == sizeof(n) ? (ssize_t)sizeof(n) : -EFAULT;
}

static unsigned timerfd_poll(struct file *f, struct poll_table *pt)
{
    struct timerfd *t = f->private;

    poll_wait(pt, &t->wait);
    return atomic_load_acquire(&t->expirations) ? POLLIN | POLLRDNORM : 0;
}

static void timerfd_release(struct file *f)
{
    struct timerfd *t = f->private;
    uint64_t flags = spin_lock_irqsave(&t->lock);

    t->deadline_ns = t->interval_ns = 0; /* a running call-back does not arm again */
    spin_unlock_irqrestore(&t->lock, flags);
    timer_cancel_sync(&t->timer);
    kfree(t);
}

const struct file_ops timerfd_ops = {
    .read = timerfd_read, .poll = timerfd_poll, .release = timerfd_release};

long sys_timerfd_create(const uint64_t a[6])
{
    struct timerfd *t;
    struct file *f;

    if ((a[1] & ~(uint64_t)(O_CLOEXEC | O_NONBLOCK)) || (a[0] > 1 && a[0] != 7))
        return -EINVAL;
    t = kzalloc(sizeof(*t));
    if (!t)
        return -ENOMEM;
    spin_init(&t->lock);
    timer_init(&t->timer, timerfd_fire);
    wait_queue_init(&t->wait);
    t->clock = (int)a[0];
    f = file_alloc(&timerfd_ops, t, O_RDWR | (a[1] & O_NONBLOCK));
    if (!f) {
        kfree(t);
        return -ENOMEM;
    }
    return fd_install(f, 0, a[1] & O_CLOEXEC);
}

static void timerfd_left_locked(const struct timerfd *t, uint64_t *value, uint64_t *interval)
{
    uint64_t now = clock_monotonic_ns();

    *interval = t->interval_ns;
    *value = !t->deadline_ns ? 0 : t->deadline_ns > now ? t->deadline_ns - now : 1;
}

static void timerfd_set(struct timerfd *t, bool absolute, uint64_t value, uint64_t interval,
                        uint64_t *old_value, uint64_t *old_interval)
{
    uint64_t deadline = 0, flags;

    if (value)
        deadline = !absolute       ? deadline_after(value)
                   : t->clock == 0 ? deadline_of_realtime(value)
                                   : value;
    flags = spin_lock_irqsave(&t->lock);
    timerfd_left_locked(t, old_value, old_interval);
    timer_cancel(&t->timer);
    t->deadline_ns = deadline;
    t->interval_ns = interval;
    t->expirations = 0;
    if (deadline && deadline != TIME_FOREVER)
        timer_arm(&t->timer, deadline);
    spin_unlock_irqrestore(&t->lock, flags);
}

static long timerfd_out(uint64_t addr, uint64_t value, uint64_t interval)
{
    long error = timespec_put(addr, interval);

    return error ? error : timespec_put(addr + sizeof(struct timespec_weir), value);
}

long sys_timerfd_settime(const uint64_t a[6])
{
    uint64_t value, interval, old_value, old_interval;
    struct file_ref r;
    long result = timespec_get(a[2], &interval);

    if (!result)
        result = timespec_get(a[2] + sizeof(struct timespec_weir), &value);
    if (result)
        return result;
    if (a[1] & ~(uint64_t)(TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET))
        return -EINVAL;
    r = file_ref_get(a[0]);
    if (!r.file) {
        result = -EBADF;
    } else if (r.file->ops != &timerfd_ops) {
        result = -EINVAL;
    } else {
        timerfd_set(r.file->private, a[1] & TFD_TIMER_ABSTIME, value, interval, &old_value,
                    &old_interval);
        if (a[3])
            result = timerfd_out(a[3], old_value, old_interval);
    }
    file_ref_put(r);
    return result;
}

long sys_timerfd_gettime(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    uint64_t value, interval, flags;
    struct timerfd *t;
    long result;

    if (!r.file) {
        result = -EBADF;
    } else if (r.file->ops != &timerfd_ops) {
        result = -EINVAL;
    } else {
        t = r.file->private;
        flags = spin_lock_irqsave(&t->lock);
        timerfd_left_locked(t, &value, &interval);
        spin_unlock_irqrestore(&t->lock, flags);
        result = timerfd_out(a[1], value, interval);
    }
    file_ref_put(r);
    return result;
}
