/* Descriptor tables: numbers to open files. */
#include "linuxio.h"
#include <weir/init.h>

#define FILES_FIRST 64
#define FILES_MOST  (1u << 20)

static bool files_allocate(unsigned capacity, struct file ***slots, uint64_t **used,
                           uint64_t **cloexec)
{
    *slots = kcalloc(capacity, sizeof(struct file *));
    *used = kcalloc(BITMAP_WORDS(capacity), sizeof(uint64_t));
    *cloexec = kcalloc(BITMAP_WORDS(capacity), sizeof(uint64_t));
    if (*slots && *used && *cloexec)
        return true;
    kfree(*slots);
    kfree(*used);
    kfree(*cloexec);
    return false;
}

static struct files *files_make(unsigned capacity)
{
    struct files *fs = kzalloc(sizeof(*fs));

    if (!fs)
        return NULL;
    fs->refcount = 1;
    fs->capacity = capacity;
    spin_init(&fs->lock);
    if (!files_allocate(capacity, &fs->slots, &fs->used, &fs->cloexec)) {
        kfree(fs);
        return NULL;
    }
    return fs;
}

struct files *files_create(void)
{
    return files_make(FILES_FIRST);
}

/* Room for numbers below `want`. Allocates without the lock, so another task may have grown it
 * first. */
static int files_grow(struct files *fs, unsigned want)
{
    unsigned capacity = FILES_FIRST;
    struct file **slots;
    uint64_t *used, *cloexec;

    while (capacity < want)
        capacity *= 2;
    if (!files_allocate(capacity, &slots, &used, &cloexec))
        return -ENOMEM;
    spin_lock(&fs->lock);
    if (fs->capacity < capacity) {
        unsigned old = fs->capacity;
        struct file **old_slots = fs->slots;
        uint64_t *old_used = fs->used, *old_cloexec = fs->cloexec;

        memcpy(slots, old_slots, old * sizeof(*slots));
        memcpy(used, old_used, BITMAP_WORDS(old) * sizeof(*used));
        memcpy(cloexec, old_cloexec, BITMAP_WORDS(old) * sizeof(*cloexec));
        fs->slots = slots;
        fs->used = used;
        fs->cloexec = cloexec;
        fs->capacity = capacity;
        slots = old_slots;
        used = old_used;
        cloexec = old_cloexec;
    }
    spin_unlock(&fs->lock);
    kfree(slots);
    kfree(used);
    kfree(cloexec);
    return 0;
}

struct files *files_copy(struct files *from)
{
    struct files *fs;
    unsigned capacity = atomic_load_relaxed(&from->capacity);

    for (;;) {
        fs = files_make(capacity);
        if (!fs)
            return NULL;
        spin_lock(&from->lock);
        if (from->capacity == fs->capacity)
            break;
        capacity = from->capacity;
        spin_unlock(&from->lock);
        files_put(fs);
    }
    for (unsigned fd = bitmap_next_set(from->used, capacity, 0); fd < capacity;
         fd = bitmap_next_set(from->used, capacity, fd + 1)) {
        if (!from->slots[fd])
            continue; /* another task's reservation */
        file_get(from->slots[fd]);
        fs->slots[fd] = from->slots[fd];
        bitmap_set(fs->used, fd);
        if (bitmap_test(from->cloexec, fd))
            bitmap_set(fs->cloexec, fd);
    }
    spin_unlock(&from->lock);
    return fs;
}

void files_get(struct files *fs)
{
    atomic_fetch_add(&fs->refcount, 1);
}

void files_put(struct files *fs)
{
    if (atomic_fetch_sub(&fs->refcount, 1) != 1)
        return;
    for (unsigned fd = 0; fd < fs->capacity; fd++) {
        struct file *f = fs->slots[fd];

        if (!f)
            continue;
        fs->slots[fd] = NULL;
        file_locks_close(fs, f);
        file_put(f);
        cond_resched();
    }
    kfree(fs->slots);
    kfree(fs->used);
    kfree(fs->cloexec);
    kfree(fs);
}

/* Take fd out of the table; NULL if it does not exist. */
static struct file *files_detach(struct files *fs, unsigned fd)
{
    struct file *f = NULL;

    spin_lock(&fs->lock);
    if (fd < fs->capacity && fs->slots[fd]) {
        f = fs->slots[fd];
        fs->slots[fd] = NULL;
        bitmap_clear(fs->used, fd);
        bitmap_clear(fs->cloexec, fd);
        fs->lowest = MIN(fs->lowest, fd);
    }
    spin_unlock(&fs->lock);
    return f;
}

int fd_close(int fd)
{
    struct files *fs = current_process()->files;
    struct file *f = files_detach(fs, (unsigned)fd);

    if (!f)
        return -EBADF;
    file_locks_close(fs, f);
    file_put(f);
    return 0;
}

void files_close_on_exec(struct files *fs)
{
    for (unsigned fd = 0; fd < fs->capacity; fd++) {
        struct file *f;

        if (!bitmap_test(fs->cloexec, fd))
            continue;
        f = files_detach(fs, fd);
        if (f) {
            file_locks_close(fs, f);
            file_put(f);
        }
    }
}

struct file *files_get_file(struct files *fs, int fd_arg)
{
    unsigned fd = (unsigned)fd_arg;
    struct file *f = NULL;

    spin_lock(&fs->lock);
    if (fd < fs->capacity && (f = fs->slots[fd]) != NULL)
        file_get(f);
    spin_unlock(&fs->lock);
    return f;
}

struct file *fd_get(int fd)
{
    return files_get_file(current_process()->files, fd);
}

int files_next_fd(struct files *fs, int after)
{
    int found = -1;

    spin_lock(&fs->lock);
    for (unsigned fd = (unsigned)(after + 1); fd < fs->capacity; fd++) {
        if (fs->slots[fd]) {
            found = (int)fd;
            break;
        }
    }
    spin_unlock(&fs->lock);
    return found;
}

static unsigned fd_limit(void)
{
    uint64_t soft = current_process()->rlimit[RLIMIT_NOFILE_INDEX].soft;

    return (unsigned)MIN(soft, (uint64_t)FILES_MOST);
}

int fd_reserve(unsigned minimum, bool cloexec)
{
    struct files *fs = current_process()->files;
    unsigned limit = fd_limit(), fd;

    for (;;) {
        int error;

        spin_lock(&fs->lock);
        fd = bitmap_next_clear(fs->used, fs->capacity, MAX(minimum, fs->lowest));
        fd = MAX(fd, minimum); /* a minimum beyond the table */
        if (fd >= limit) {
            spin_unlock(&fs->lock);
            return -EMFILE;
        }
        if (fd < fs->capacity)
            break;
        spin_unlock(&fs->lock);
        error = files_grow(fs, fd + 1);
        if (error)
            return error;
    }
    bitmap_set(fs->used, fd);
    if (cloexec)
        bitmap_set(fs->cloexec, fd);
    else
        bitmap_clear(fs->cloexec, fd);
    if (minimum <= fs->lowest)
        fs->lowest = fd + 1;
    spin_unlock(&fs->lock);
    return (int)fd;
}

void fd_set_file(int fd, struct file *f)
{
    struct files *fs = current_process()->files;

    spin_lock(&fs->lock);
    fs->slots[fd] = f;
    spin_unlock(&fs->lock);
}

void fd_unreserve(int fd)
{
    struct files *fs = current_process()->files;

    spin_lock(&fs->lock);
    bitmap_clear(fs->used, (unsigned)fd);
    bitmap_clear(fs->cloexec, (unsigned)fd);
    fs->lowest = MIN(fs->lowest, (unsigned)fd);
    spin_unlock(&fs->lock);
}

int fd_install(struct file *f, int minimum, bool cloexec)
{
    int fd = fd_reserve((unsigned)minimum, cloexec);

    if (fd < 0)
        file_put(f);
    else
        fd_set_file(fd, f);
    return fd;
}

/* ---- calls on the table itself ---- */

long sys_close(const uint64_t a[6])
{
    return fd_close((int)a[0]);
}

long sys_dup(const uint64_t a[6])
{
    struct file *f = fd_get((int)a[0]);

    return f ? fd_install(f, 0, false) : -EBADF;
}

/* dup2 and dup3 once the numbers differ: replaces what `to` names, without a moment in which it is
 * free. */
static long dup_to(unsigned from, unsigned to, bool cloexec)
{
    struct files *fs = current_process()->files;
    struct file *f, *old;

    if (to >= fd_limit())
        return -EBADF;
    f = files_get_file(fs, (int)from);
    if (!f)
        return -EBADF;
    if (to >= fs->capacity) {
        int error = files_grow(fs, to + 1);

        if (error) {
            file_put(f);
            return error;
        }
    }
    spin_lock(&fs->lock);
    old = fs->slots[to];
    if (!old && bitmap_test(fs->used, to)) { /* reserved by a call of another task: as Linux */
        spin_unlock(&fs->lock);
        file_put(f);
        return -EBUSY;
    }
    fs->slots[to] = f;
    bitmap_set(fs->used, to);
    if (cloexec)
        bitmap_set(fs->cloexec, to);
    else
        bitmap_clear(fs->cloexec, to);
    spin_unlock(&fs->lock);
    if (old) {
        file_locks_close(fs, old);
        file_put(old);
    }
    return to;
}

long sys_dup2(const uint64_t a[6])
{
    if ((unsigned)a[0] == (unsigned)a[1]) {
        struct file_ref r = file_ref_get(a[0]);
        long result = r.file ? (long)(unsigned)a[1] : -EBADF;

        file_ref_put(r);
        return result;
    }
    return dup_to((unsigned)a[0], (unsigned)a[1], false);
}

long sys_dup3(const uint64_t a[6])
{
    if ((a[2] & ~(uint64_t)O_CLOEXEC) || (unsigned)a[0] == (unsigned)a[1])
        return -EINVAL;
    return dup_to((unsigned)a[0], (unsigned)a[1], a[2] & O_CLOEXEC);
}

#define CLOSE_RANGE_UNSHARE 2u
#define CLOSE_RANGE_CLOEXEC 4u

long sys_close_range(const uint64_t a[6])
{
    struct files *fs = current_process()->files;
    unsigned first = (unsigned)a[0], last = (unsigned)a[1], flags = (unsigned)a[2];

    if ((flags & ~(CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)) || first > last)
        return -EINVAL;
    for (unsigned fd = first; fd <= last && fd < atomic_load_relaxed(&fs->capacity); fd++) {
        if (!(flags & CLOSE_RANGE_CLOEXEC)) {
            (void)!fd_close((int)fd);
            continue;
        }
        spin_lock(&fs->lock);
        if (fs->slots[fd])
            bitmap_set(fs->cloexec, fd);
        spin_unlock(&fs->lock);
    }
    return 0;
}

/* ---- fcntl ---- */

enum {
    F_DUPFD = 0,
    F_GETFD = 1,
    F_SETFD = 2,
    F_GETFL = 3,
    F_SETFL = 4,
    F_GETLK = 5,
    F_SETLK = 6,
    F_SETLKW = 7,
    F_SETOWN = 8,
    F_GETOWN = 9,
    F_SETSIG = 10,
    F_GETSIG = 11,
    F_DUPFD_CLOEXEC = 1030,
    F_SETPIPE_SZ = 1031,
    F_GETPIPE_SZ = 1032
};
#define FD_CLOEXEC 1
#define SETFL_BITS (O_APPEND | O_NONBLOCK | O_DIRECT | O_NOATIME | 020000 /* O_ASYNC */)

static long fcntl_dup(struct file *f, uint64_t minimum, bool cloexec)
{
    if (minimum >= fd_limit())
        return -EINVAL;
    file_get(f);
    return fd_install(f, (int)minimum, cloexec);
}

static long fcntl_cloexec(unsigned fd, bool set, bool value)
{
    struct files *fs = current_process()->files;
    long result = 0;

    spin_lock(&fs->lock);
    if (fd >= fs->capacity || !fs->slots[fd])
        result = -EBADF;
    else if (!set)
        result = bitmap_test(fs->cloexec, fd) ? FD_CLOEXEC : 0;
    else if (value)
        bitmap_set(fs->cloexec, fd);
    else
        bitmap_clear(fs->cloexec, fd);
    spin_unlock(&fs->lock);
    return result;
}

static long fcntl_set_flags(struct file *f, uint32_t wanted)
{
    uint32_t old = atomic_load_relaxed(&f->flags);

    while (!atomic_cas(&f->flags, &old, (old & ~(uint32_t)SETFL_BITS) | (wanted & SETFL_BITS)))
        ;
    return 0;
}

static long fcntl_pipe_size(struct file *f, bool set, uint64_t size)
{
    if (f->ops != &pipe_read_ops && f->ops != &pipe_write_ops)
        return -EBADF;
    return set && size > 65536 ? -EPERM : 65536;
}

static long fcntl_on(struct file *f, unsigned fd, unsigned cmd, uint64_t arg)
{
    switch (cmd) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
        return fcntl_dup(f, arg, cmd == F_DUPFD_CLOEXEC);
    case F_GETFD:
        return fcntl_cloexec(fd, false, false);
    case F_SETFD:
        return fcntl_cloexec(fd, true, arg & FD_CLOEXEC);
    case F_GETFL:
        /* What open alone uses is not remembered by Linux either; O_LARGEFILE is what a 64-bit
         * program sees. */
        return (long)(atomic_load_relaxed(&f->flags) &
                      ~(uint32_t)(O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_CLOEXEC)) |
               (f->inode ? O_LARGEFILE : 0);
    case F_SETFL:
        return fcntl_set_flags(f, (uint32_t)arg);
    case F_GETLK:
    case F_SETLK:
    case F_SETLKW:
        return file_lock_fcntl(f, cmd, arg);
    case F_SETOWN: /* no SIGIO is ever sent */
    case F_SETSIG:
        return 0;
    case F_GETOWN:
    case F_GETSIG:
        return 0;
    case F_SETPIPE_SZ:
    case F_GETPIPE_SZ:
        return fcntl_pipe_size(f, cmd == F_SETPIPE_SZ, arg);
    default:
        return -EINVAL;
    }
}

long sys_fcntl(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file)
        return -EBADF;
    result = fcntl_on(r.file, (unsigned)a[0], (unsigned)a[1], a[2]);
    file_ref_put(r);
    return result;
}

/* ---- ioctl ---- */

enum {
    FIONREAD = 0x541b,
    FIONBIO = 0x5421,
    FIONCLEX = 0x5450,
    FIOCLEX = 0x5451,
    FIOASYNC = 0x5452
};

static long ioctl_nonblocking(struct file *f, uint64_t arg)
{
    uint32_t on;

    if (get_user_u32(&on, arg))
        return -EFAULT;
    if (on)
        atomic_fetch_or(&f->flags, (uint32_t)O_NONBLOCK);
    else
        atomic_fetch_and(&f->flags, ~(uint32_t)O_NONBLOCK);
    return 0;
}

static long ioctl_readable(struct file *f, uint64_t arg)
{
    int32_t left;

    if (f->ops->ioctl)
        return f->ops->ioctl(f, FIONREAD, arg);
    if (!f->inode || !S_ISREG(f->inode->mode))
        return -ENOTTY;
    left = (int32_t)(atomic_load_relaxed(&f->inode->size) - f->position);
    return copy_to_user(arg, &left, sizeof(left));
}

long sys_ioctl(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file || (r.file->flags & O_PATH)) {
        file_ref_put(r);
        return -EBADF;
    }
    switch ((uint32_t)a[1]) {
    case FIOCLEX:
    case FIONCLEX:
        result = fcntl_cloexec((unsigned)a[0], true, (uint32_t)a[1] == FIOCLEX);
        break;
    case FIONBIO:
        result = ioctl_nonblocking(r.file, a[2]);
        break;
    case FIOASYNC: /* no SIGIO is ever sent */
        result = 0;
        break;
    case FIONREAD:
        result = ioctl_readable(r.file, a[2]);
        break;
    default:
        result = r.file->ops->ioctl ? file_ioctl(r.file, (unsigned)a[1], a[2]) : -ENOTTY;
        break;
    }
    file_ref_put(r);
    return result;
}

mode_t anonymous_mode(const struct file *f)
{
    if (f->ops == &pipe_read_ops || f->ops == &pipe_write_ops)
        return S_IFIFO | 0600;
    if (f->ops == &socket_ops)
        return S_IFSOCK | 0777;
    return 0600;
}

static void file_released(struct file *f)
{
    epoll_file_release(f);
    file_locks_release(f);
}

static void files_init(void)
{
    vfs_set_file_release_hook(file_released);
}
INIT_CALL(INIT_CORE, files_init);
