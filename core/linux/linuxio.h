/*
 * What the descriptor, socket, signal and time calls share with each other (private to core/linux).
 */
#ifndef WEIR_LINUX_LINUXIO_H
#define WEIR_LINUX_LINUXIO_H
#include "process.h"
#include "syscall.h"
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>
#include <weir/usercopy.h>
#include <weir/uio.h>
#include <weir/vfs.h>

/* ---- descriptor table: files.c ---- */
/*
 * One table for all tasks of a process. A used bit without a file is a reservation: its number is
 * taken but the descriptor does not exist yet. Key: a atomic, f files->lock.
 */
struct files {
    uint32_t refcount;   /* a */
    spinlock_t lock;     /* thread context only, interrupts stay on */
    unsigned capacity;   /* f multiple of 64 */
    unsigned lowest;     /* f no free number below it */
    struct file **slots; /* f */
    uint64_t *used;      /* f */
    uint64_t *cloexec;   /* f */
};

#define RLIMIT_NOFILE_INDEX 7

/*
 * A file for the length of one system call. A process with a single task cannot close its
 * descriptor meanwhile, so no reference is taken then (the common case: two locked operations saved
 * a call).
 */
struct file_ref {
    struct file *file; /* NULL = EBADF */
    bool counted;
};
static inline struct file_ref file_ref_get(uint64_t fd_arg)
{
    struct files *fs = current_process()->files;
    unsigned fd = (unsigned)fd_arg;
    struct file_ref r = {NULL, false};

    if (likely(atomic_load_relaxed(&fs->refcount) == 1)) {
        if (likely(fd < fs->capacity))
            r.file = fs->slots[fd];
        return r;
    }
    r.file = files_get_file(fs, (int)fd);
    r.counted = true;
    return r;
}
static inline void file_ref_put(struct file_ref r)
{
    if (r.counted && r.file)
        file_put(r.file);
}

int fd_reserve(unsigned minimum, bool cloexec) __must_check; /* number, -EMFILE, -ENOMEM */
void fd_set_file(int fd, struct file *f); /* fills a reservation; takes the reference */
void fd_unreserve(int fd);

static inline bool file_readable(const struct file *f)
{
    uint32_t flags = atomic_load_relaxed(&f->flags);
    return (flags & O_ACCMODE) != O_WRONLY && !(flags & O_PATH);
}
static inline bool file_writable(const struct file *f)
{
    uint32_t flags = atomic_load_relaxed(&f->flags);
    return (flags & O_ACCMODE) != O_RDONLY && !(flags & O_PATH);
}
static inline bool file_nonblocking(const struct file *f)
{
    return atomic_load_relaxed(&f->flags) & O_NONBLOCK;
}

/* read and write as the calls do: streams without the position lock. */
ssize_t file_stream_read(struct file *f, struct uio *u) __must_check;
ssize_t file_stream_write(struct file *f, struct uio *u) __must_check;

/* ---- program memory ---- */
#define IO_MAX       0x7ffff000UL /* Linux's MAX_RW_COUNT */
#define IOV_MAX_WEIR 1024
#define IOV_INLINE   8
/* Scatter list copied from the program. iovec_put frees what iovec_get made. */
struct iovec_list {
    struct iovec_weir inline_vec[IOV_INLINE];
    struct iovec_weir *vec;
    struct uio uio;
};
int iovec_get(struct iovec_list *l, uint64_t addr,
              uint64_t count) __must_check; /* 0, -EINVAL, -EFAULT, -ENOMEM */
void iovec_put(struct iovec_list *l);

/* Path argument in kernel memory; err_ptr(-EFAULT, -ENAMETOOLONG, -ENOMEM). path_put frees. */
char *path_get(uint64_t addr) __must_check;
void path_put(char *path);
/* Directory that a relative path starts at; referenced, err_ptr(-EBADF, -ENOTDIR). */
#define AT_FDCWD_WEIR (-100)
struct dentry *path_base(int dirfd) __must_check;

/* ---- time ---- */
struct timeval_weir {
    int64_t sec, usec;
};
/* Timespec from the program into nanoseconds: 0, -EFAULT, -EINVAL. Saturates below TIME_FOREVER. */
int timespec_get(uint64_t addr, uint64_t *ns) __must_check;
int timespec_put(uint64_t addr, uint64_t ns) __must_check;
uint64_t deadline_after(uint64_t ns); /* absolute monotonic, TIME_FOREVER when it overflows */
/* Absolute realtime to absolute monotonic with the present offset. */
uint64_t deadline_of_realtime(uint64_t realtime_ns);

/* restart_block[0] says what restart_syscall goes on with. */
enum { RESTART_NONE, RESTART_NANOSLEEP, RESTART_POLL, RESTART_FUTEX };
long poll_restart(struct task *t);
long nanosleep_restart(struct task *t);
long futex_restart(struct task *t);

/* ---- signals ---- */
/* Swap the mask for the time of a call; signal delivery restores the old one (pselect, ppoll,
 * epoll_pwait, sigsuspend). mask_restore puts it back at once when the call did not end by a
 * signal. */
int mask_swap_from_user(uint64_t addr, uint64_t size) __must_check; /* addr 0 = nothing to do */
void mask_restore(void);
/* One signal of `set` pending for the current task, taken off the queues. 0 = none. */
int signal_take(sigset_weir set, struct siginfo_weir *info);
bool signal_any_pending(sigset_weir set);
void signal_raise(int signo); /* to the current task, from the kernel */
void siginfo_to_user_layout(const struct siginfo_weir *in, uint8_t out[128]);
void sigmask_set(sigset_weir mask); /* the current task's */

/* ---- files made here ---- */
extern const struct file_ops pipe_read_ops, pipe_write_ops, eventfd_ops, timerfd_ops, signalfd_ops,
    epoll_ops, socket_ops;
mode_t anonymous_mode(const struct file *f); /* S_IFIFO, S_IFSOCK or 0, with permissions */
long pipe_ioctl(struct file *f, unsigned cmd, uint64_t arg);
/* Locks of fcntl and flock go with descriptors. */
void file_locks_close(struct files *owner,
                      struct file *f);   /* a descriptor of the process was closed */
void file_locks_release(struct file *f); /* last reference went */
long file_lock_fcntl(struct file *f, unsigned cmd, uint64_t arg);
void epoll_file_release(struct file *f);
#endif
