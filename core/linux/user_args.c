/* Arguments that live in program memory: paths, scatter lists, times. */
#include "linuxio.h"

char *path_get(uint64_t addr)
{
    char *path = kmalloc(PATH_MAX_WEIR);
    ssize_t len;

    if (!path)
        return err_ptr(-ENOMEM);
    len = copy_string_from_user(path, addr, PATH_MAX_WEIR);
    if (len < 0) {
        kfree(path);
        return err_ptr(len);
    }
    return path;
}

void path_put(char *path)
{
    kfree(path);
}

void fd_pin_cwd(struct process *p, struct dentry **out)
{
    /* Another task's chdir swaps the pointer under siglock and drops its reference after it. */
    uint64_t flags = spin_lock_irqsave(&p->siglock);

    *out = p->cwd;
    if (*out)
        dentry_get(*out);
    spin_unlock_irqrestore(&p->siglock, flags);
}

struct dentry *path_base(int dirfd)
{
    struct dentry *base;
    struct file *f;

    if (dirfd == AT_FDCWD_WEIR) {
        fd_pin_cwd(current_process(), &base);
        return base ? base : vfs_root();
    }
    f = fd_get(dirfd);
    if (!f)
        return err_ptr(-EBADF);
    base = f->dentry;
    if (base)
        dentry_get(base);
    file_put(f);
    return base ? base : err_ptr(-ENOTDIR);
}

int iovec_get(struct iovec_list *l, uint64_t addr, uint64_t count)
{
    size_t total = 0;

    l->vec = l->inline_vec;
    if (count > IOV_MAX_WEIR)
        return -EINVAL;
    if (count > IOV_INLINE) {
        l->vec = kmalloc(count * sizeof(*l->vec));
        if (!l->vec)
            return -ENOMEM;
    }
    if (count && copy_from_user(l->vec, addr, count * sizeof(*l->vec))) {
        iovec_put(l);
        return -EFAULT;
    }
    for (uint64_t i = 0; i < count; i++) {
        if ((int64_t)l->vec[i].len < 0) {
            iovec_put(l);
            return -EINVAL;
        }
        l->vec[i].len = MIN(l->vec[i].len, IO_MAX - total);
        total += l->vec[i].len;
    }
    l->uio = (struct uio){.iov = l->vec, .count = (unsigned)count, .resid = total, .user = true};
    return 0;
}

void iovec_put(struct iovec_list *l)
{
    if (l->vec != l->inline_vec)
        kfree(l->vec);
    l->vec = l->inline_vec;
}

int timespec_get(uint64_t addr, uint64_t *ns)
{
    struct timespec_weir ts;

    if (copy_from_user(&ts, addr, sizeof(ts)))
        return -EFAULT;
    if (ts.sec < 0 || ts.nsec < 0 || ts.nsec >= (int64_t)NSEC_PER_SEC)
        return -EINVAL;
    if ((uint64_t)ts.sec >= INT64_MAX / NSEC_PER_SEC)
        *ns = INT64_MAX;
    else
        *ns = (uint64_t)ts.sec * NSEC_PER_SEC + (uint64_t)ts.nsec;
    return 0;
}

int timespec_put(uint64_t addr, uint64_t ns)
{
    struct timespec_weir ts = {(int64_t)(ns / NSEC_PER_SEC), (int64_t)(ns % NSEC_PER_SEC)};

    return copy_to_user(addr, &ts, sizeof(ts));
}

uint64_t deadline_after(uint64_t ns)
{
    uint64_t now = clock_monotonic_ns();

    return ns >= INT64_MAX - now ? TIME_FOREVER : now + ns;
}

uint64_t deadline_of_realtime(uint64_t realtime_ns)
{
    uint64_t now = clock_realtime_ns();

    return realtime_ns <= now ? clock_monotonic_ns() : deadline_after(realtime_ns - now);
}
