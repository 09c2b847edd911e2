/* Calls that name files: open, make, remove, rename, links, owners, modes, times, working
 * directory. */
#include "linuxio.h"

#define AT_SYMLINK_NOFOLLOW 0x100u
#define AT_REMOVEDIR        0x200u
#define AT_SYMLINK_FOLLOW   0x400u
#define AT_EMPTY_PATH       0x1000u

/* One path argument with the directory it starts from. path_arg_get fills it, path_arg_put
 * releases. */
struct path_arg {
    char *path;
    struct dentry *base;
};

static long path_arg_get(struct path_arg *p, int dirfd, uint64_t addr)
{
    p->path = path_get(addr);
    if (is_err(p->path))
        return ptr_err(p->path);
    p->base = path_base(p->path[0] == '/' ? AT_FDCWD_WEIR : dirfd);
    if (is_err(p->base)) {
        path_put(p->path);
        return ptr_err(p->base);
    }
    return 0;
}

static void path_arg_put(struct path_arg *p)
{
    dentry_put(p->base);
    path_put(p->path);
}

static const struct cred *cred(void)
{
    return &current_process()->cred;
}

static mode_t masked(uint64_t mode)
{
    return (mode_t)mode & 07777 & ~atomic_load_relaxed(&current_process()->umask);
}

static long do_open(int dirfd, uint64_t addr, unsigned flags, uint64_t mode)
{
    struct path_arg p;
    struct file *f;
    long result;
    int fd;

    result = path_arg_get(&p, dirfd, addr);
    if (result)
        return result;
    fd = fd_reserve(0, flags & O_CLOEXEC);
    result = fd;
    if (fd >= 0) {
        result = vfs_open(p.base, p.path, flags & ~(unsigned)O_CLOEXEC, masked(mode), cred(), &f);
        if (result) {
            fd_unreserve(fd);
        } else {
            fd_set_file(fd, f);
            result = fd;
        }
    }
    path_arg_put(&p);
    return result;
}

long sys_open(const uint64_t a[6])
{
    return do_open(AT_FDCWD_WEIR, a[0], (unsigned)a[1], a[2]);
}

long sys_openat(const uint64_t a[6])
{
    return do_open((int)a[0], a[1], (unsigned)a[2], a[3]);
}

long sys_creat(const uint64_t a[6])
{
    return do_open(AT_FDCWD_WEIR, a[0], O_CREAT | O_WRONLY | O_TRUNC, a[1]);
}

static long do_mknod(int dirfd, uint64_t addr, uint64_t mode)
{
    struct path_arg p;
    mode_t kind = mode & S_IFMT ? (mode_t)mode & S_IFMT : S_IFREG;
    long result;

    if (kind == S_IFIFO)
        return -EPERM; /* a named pipe could be made but not opened */
    result = path_arg_get(&p, dirfd, addr);
    if (result)
        return result;
    result = vfs_mknod(p.base, p.path, kind | masked(mode), cred());
    path_arg_put(&p);
    return result;
}

long sys_mknod(const uint64_t a[6])
{
    return do_mknod(AT_FDCWD_WEIR, a[0], a[1]);
}

long sys_mknodat(const uint64_t a[6])
{
    return do_mknod((int)a[0], a[1], a[2]);
}

static long do_mkdir(int dirfd, uint64_t addr, uint64_t mode)
{
    struct path_arg p;
    long result = path_arg_get(&p, dirfd, addr);

    if (result)
        return result;
    result = vfs_mkdir(p.base, p.path, masked(mode), cred());
    path_arg_put(&p);
    return result;
}

long sys_mkdir(const uint64_t a[6])
{
    return do_mkdir(AT_FDCWD_WEIR, a[0], a[1]);
}

long sys_mkdirat(const uint64_t a[6])
{
    return do_mkdir((int)a[0], a[1], a[2]);
}

static long do_unlink(int dirfd, uint64_t addr, bool directory)
{
    struct path_arg p;
    long result = path_arg_get(&p, dirfd, addr);

    if (result)
        return result;
    result = directory ? vfs_rmdir(p.base, p.path, cred()) : vfs_unlink(p.base, p.path, cred());
    path_arg_put(&p);
    return result;
}

long sys_rmdir(const uint64_t a[6])
{
    return do_unlink(AT_FDCWD_WEIR, a[0], true);
}

long sys_unlink(const uint64_t a[6])
{
    return do_unlink(AT_FDCWD_WEIR, a[0], false);
}

long sys_unlinkat(const uint64_t a[6])
{
    if (a[2] & ~(uint64_t)AT_REMOVEDIR)
        return -EINVAL;
    return do_unlink((int)a[0], a[1], a[2] & AT_REMOVEDIR);
}

#define RENAME_NOREPLACE 1u

/* Without replacing: a new link fails where the name exists, which a look before a rename could
 * miss. A directory cannot be linked: there the look has to do. */
static int rename_noreplace(struct path_arg *from, struct path_arg *to)
{
    struct stat_weir st;
    int error = vfs_stat(from->base, from->path, VFS_NOFOLLOW, cred(), &st);

    if (error)
        return error;
    if (S_ISDIR(st.st_mode)) {
        if (!vfs_stat(to->base, to->path, VFS_NOFOLLOW, cred(), &st))
            return -EEXIST;
        return vfs_rename(from->base, from->path, to->base, to->path, cred());
    }
    error = vfs_link(from->base, from->path, to->base, to->path, VFS_NOFOLLOW, cred());
    return error ? error : vfs_unlink(from->base, from->path, cred());
}

static long do_rename(int from_fd, uint64_t from_addr, int to_fd, uint64_t to_addr, unsigned flags)
{
    struct path_arg from, to;
    long result;

    if (flags & ~RENAME_NOREPLACE)
        return -EINVAL;
    result = path_arg_get(&from, from_fd, from_addr);
    if (result)
        return result;
    result = path_arg_get(&to, to_fd, to_addr);
    if (!result) {
        result = flags ? rename_noreplace(&from, &to)
                       : vfs_rename(from.base, from.path, to.base, to.path, cred());
        path_arg_put(&to);
    }
    path_arg_put(&from);
    return result;
}

long sys_rename(const uint64_t a[6])
{
    return do_rename(AT_FDCWD_WEIR, a[0], AT_FDCWD_WEIR, a[1], 0);
}

long sys_renameat(const uint64_t a[6])
{
    return do_rename((int)a[0], a[1], (int)a[2], a[3], 0);
}

long sys_renameat2(const uint64_t a[6])
{
    return do_rename((int)a[0], a[1], (int)a[2], a[3], (unsigned)a[4]);
}

static long do_link(int from_fd, uint64_t from_addr, int to_fd, uint64_t to_addr, unsigned flags)
{
    struct path_arg from, to;
    long result;

    if (flags & ~AT_SYMLINK_FOLLOW)
        return -EINVAL;
    result = path_arg_get(&from, from_fd, from_addr);
    if (result)
        return result;
    result = path_arg_get(&to, to_fd, to_addr);
    if (!result) {
        result = vfs_link(from.base, from.path, to.base, to.path,
                          flags & AT_SYMLINK_FOLLOW ? 0 : VFS_NOFOLLOW, cred());
        path_arg_put(&to);
    }
    path_arg_put(&from);
    return result;
}

long sys_link(const uint64_t a[6])
{
    return do_link(AT_FDCWD_WEIR, a[0], AT_FDCWD_WEIR, a[1], 0);
}

long sys_linkat(const uint64_t a[6])
{
    return do_link((int)a[0], a[1], (int)a[2], a[3], (unsigned)a[4]);
}

static long do_symlink(uint64_t target_addr, int dirfd, uint64_t addr)
{
    struct path_arg p;
    char *target = path_get(target_addr);
    long result;

    if (is_err(target))
        return ptr_err(target);
    result = target[0] ? path_arg_get(&p, dirfd, addr) : -ENOENT;
    if (!result) {
        result = vfs_symlink(p.base, target, p.path, cred());
        path_arg_put(&p);
    }
    path_put(target);
    return result;
}

long sys_symlink(const uint64_t a[6])
{
    return do_symlink(a[0], AT_FDCWD_WEIR, a[1]);
}

long sys_symlinkat(const uint64_t a[6])
{
    return do_symlink(a[0], (int)a[1], a[2]);
}

static long do_readlink(int dirfd, uint64_t addr, uint64_t out, int64_t size)
{
    struct path_arg p;
    char *buf;
    long result;

    if (size <= 0)
        return -EINVAL;
    result = path_arg_get(&p, dirfd, addr);
    if (result)
        return result;
    buf = kmalloc(PATH_MAX_WEIR);
    result =
        buf ? vfs_readlink(p.base, p.path, buf, (size_t)MIN(size, (int64_t)PATH_MAX_WEIR), cred())
            : -ENOMEM;
    if (result > 0 && copy_to_user(out, buf, (size_t)result))
        result = -EFAULT;
    kfree(buf);
    path_arg_put(&p);
    return result;
}

long sys_readlink(const uint64_t a[6])
{
    return do_readlink(AT_FDCWD_WEIR, a[0], a[1], (int)a[2]);
}

long sys_readlinkat(const uint64_t a[6])
{
    return do_readlink((int)a[0], a[1], a[2], (int)a[3]);
}

long sys_truncate(const uint64_t a[6])
{
    struct path_arg p;
    long result;

    if ((int64_t)a[1] < 0)
        return -EINVAL;
    result = path_arg_get(&p, AT_FDCWD_WEIR, a[0]);
    if (result)
        return result;
    result = vfs_truncate(p.base, p.path, a[1], cred());
    path_arg_put(&p);
    return result;
}

/* ---- attributes ---- */

static long do_chmod(int dirfd, uint64_t addr, uint64_t mode)
{
    struct path_arg p;
    long result = path_arg_get(&p, dirfd, addr);

    if (result)
        return result;
    result = vfs_chmod(p.base, p.path, (mode_t)mode & 07777, cred());
    path_arg_put(&p);
    return result;
}

long sys_chmod(const uint64_t a[6])
{
    return do_chmod(AT_FDCWD_WEIR, a[0], a[1]);
}

long sys_fchmodat(const uint64_t a[6])
{
    return do_chmod((int)a[0], a[1], a[2]);
}

long sys_fchmod(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file || (r.file->flags & O_PATH))
        result = -EBADF;
    else
        result = r.file->inode ? file_chmod(r.file, (mode_t)a[1] & 07777) : 0;
    file_ref_put(r);
    return result;
}

static long do_chown(int dirfd, uint64_t addr, uint64_t uid, uint64_t gid, unsigned lookup_flags)
{
    struct path_arg p;
    long result = path_arg_get(&p, dirfd, addr);

    if (result)
        return result;
    result = vfs_chown(p.base, p.path, (uint32_t)uid, (uint32_t)gid, lookup_flags, cred());
    path_arg_put(&p);
    return result;
}

/* Change what set_attributes stores. fn runs with the inode locked. */
static long change_inode(struct inode *i, long (*fn)(struct inode *, void *), void *arg)
{
    long result;

    rw_write_lock(&i->lock);
    result = fn(i, arg);
    if (!result) {
        uint64_t now = clock_realtime_ns();

        i->ctime =
            (struct timespec_weir){(int64_t)(now / NSEC_PER_SEC), (int64_t)(now % NSEC_PER_SEC)};
        if (i->ops && i->ops->set_attributes)
            result = i->ops->set_attributes(i);
    }
    rw_write_unlock(&i->lock);
    return result;
}

static long set_owner(struct inode *i, void *arg)
{
    const struct cred *want = arg, *c = cred();
    bool root = c->uid == 0;

    if (!root && ((want->uid != UINT32_MAX && want->uid != i->uid) || i->uid != c->uid ||
                  (want->gid != UINT32_MAX && want->gid != i->gid && want->gid != c->gid)))
        return -EPERM;
    if (want->uid != UINT32_MAX)
        i->uid = want->uid;
    if (want->gid != UINT32_MAX)
        i->gid = want->gid;
    return 0;
}

static long chown_fd(uint64_t fd, uint64_t uid, uint64_t gid)
{
    struct file_ref r = file_ref_get(fd);
    struct cred want = {(uint32_t)uid, (uint32_t)gid};
    long result;

    if (!r.file)
        result = -EBADF;
    else
        result = r.file->inode ? change_inode(r.file->inode, set_owner, &want) : 0;
    file_ref_put(r);
    return result;
}

long sys_chown(const uint64_t a[6])
{
    return do_chown(AT_FDCWD_WEIR, a[0], a[1], a[2], 0);
}

long sys_lchown(const uint64_t a[6])
{
    return do_chown(AT_FDCWD_WEIR, a[0], a[1], a[2], VFS_NOFOLLOW);
}

long sys_fchown(const uint64_t a[6])
{
    return chown_fd(a[0], a[1], a[2]);
}

static bool empty_path(uint64_t addr)
{
    char first;

    return addr && !copy_from_user(&first, addr, 1) && !first;
}

long sys_fchownat(const uint64_t a[6])
{
    if (a[4] & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    if ((a[4] & AT_EMPTY_PATH) && empty_path(a[1]) && (int)a[0] >= 0)
        return chown_fd(a[0], a[2], a[3]);
    return do_chown((int)a[0], a[1], a[2], a[3], a[4] & AT_SYMLINK_NOFOLLOW ? VFS_NOFOLLOW : 0);
}

#define UTIME_NOW  ((1L << 30) - 1)
#define UTIME_OMIT ((1L << 30) - 2)

static struct timespec_weir resolve_time(struct timespec_weir wanted, struct timespec_weir old)
{
    uint64_t now = clock_realtime_ns();

    if (wanted.nsec == UTIME_OMIT)
        return old;
    if (wanted.nsec == UTIME_NOW)
        return (struct timespec_weir){(int64_t)(now / NSEC_PER_SEC), (int64_t)(now % NSEC_PER_SEC)};
    return wanted;
}

static long set_times(struct inode *i, void *arg)
{
    const struct timespec_weir *t = arg;

    if (cred()->uid != 0 && cred()->uid != i->uid)
        return -EPERM;
    i->atime = resolve_time(t[0], i->atime);
    i->mtime = resolve_time(t[1], i->mtime);
    return 0;
}

static bool time_valid(const struct timespec_weir *t)
{
    return t->nsec == UTIME_NOW || t->nsec == UTIME_OMIT ||
           (t->nsec >= 0 && t->nsec < (int64_t)NSEC_PER_SEC);
}

static long utimens_fd(uint64_t fd, struct timespec_weir t[2])
{
    struct file_ref r = file_ref_get(fd);
    long result;

    if (!r.file)
        result = -EBADF;
    else
        result = r.file->inode ? change_inode(r.file->inode, set_times, t) : 0;
    file_ref_put(r);
    return result;
}

static long utimens_path(int dirfd, uint64_t addr, struct timespec_weir t[2], unsigned lookup_flags)
{
    struct path_arg p;
    struct stat_weir st;
    long result = path_arg_get(&p, dirfd, addr);

    if (result)
        return result;
    result = vfs_stat(p.base, p.path, lookup_flags, cred(), &st);
    if (!result) {
        t[0] = resolve_time(t[0], st.st_atim);
        t[1] = resolve_time(t[1], st.st_mtim);
        result = vfs_utimens(p.base, p.path, t, lookup_flags, cred());
    }
    path_arg_put(&p);
    return result;
}

long sys_utimensat(const uint64_t a[6])
{
    struct timespec_weir t[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};

    if (a[3] & ~(uint64_t)(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH))
        return -EINVAL;
    if (a[2] && copy_from_user(t, a[2], sizeof(t)))
        return -EFAULT;
    if (!time_valid(&t[0]) || !time_valid(&t[1]))
        return -EINVAL;
    if (t[0].nsec == UTIME_OMIT && t[1].nsec == UTIME_OMIT)
        return 0;
    if (!a[1]) /* futimens */
        return utimens_fd(a[0], t);
    return utimens_path((int)a[0], a[1], t, a[3] & AT_SYMLINK_NOFOLLOW ? VFS_NOFOLLOW : 0);
}

long sys_utimes(const uint64_t a[6])
{
    struct timespec_weir t[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    struct timeval_weir tv[2];

    if (a[1]) {
        if (copy_from_user(tv, a[1], sizeof(tv)))
            return -EFAULT;
        for (int i = 0; i < 2; i++) {
            if (tv[i].usec < 0 || tv[i].usec >= 1000000)
                return -EINVAL;
            t[i] = (struct timespec_weir){tv[i].sec, tv[i].usec * 1000};
        }
    }
    return utimens_path(AT_FDCWD_WEIR, a[0], t, 0);
}

long sys_utime(const uint64_t a[6])
{
    struct timespec_weir t[2] = {{0, UTIME_NOW}, {0, UTIME_NOW}};
    int64_t seconds[2];

    if (a[1]) {
        if (copy_from_user(seconds, a[1], sizeof(seconds)))
            return -EFAULT;
        t[0] = (struct timespec_weir){seconds[0], 0};
        t[1] = (struct timespec_weir){seconds[1], 0};
    }
    return utimens_path(AT_FDCWD_WEIR, a[0], t, 0);
}

long sys_umask(const uint64_t a[6])
{
    return atomic_exchange(&current_process()->umask, (mode_t)a[0] & 0777);
}

/* ---- working directory ---- */

long sys_getcwd(const uint64_t a[6])
{
    struct dentry *cwd = path_base(AT_FDCWD_WEIR);
    char *buf = kmalloc(PATH_MAX_WEIR), *path;
    long result;

    if (!buf) {
        dentry_put(cwd);
        return -ENOMEM;
    }
    path = vfs_path(cwd, buf, PATH_MAX_WEIR);
    if (is_err(path)) {
        result = ptr_err(path);
    } else {
        size_t len = strlen(path) + 1;

        if (len > a[1])
            result = -ERANGE;
        else
            result = copy_to_user(a[0], path, len) ? -EFAULT : (long)len;
    }
    kfree(buf);
    dentry_put(cwd);
    return result;
}

/* Make d the working directory; takes the reference. */
static long change_cwd(struct dentry *d)
{
    struct process *p = current_process();
    struct dentry *old;
    uint64_t flags;
    long result = vfs_access(d, ".", 1, cred()); /* a directory, and searchable */

    if (result) {
        dentry_put(d);
        return result;
    }
    flags = spin_lock_irqsave(&p->siglock);
    old = p->cwd;
    p->cwd = d;
    spin_unlock_irqrestore(&p->siglock, flags);
    if (old)
        dentry_put(old);
    return 0;
}

long sys_chdir(const uint64_t a[6])
{
    struct path_arg p;
    struct dentry *d;
    long result = path_arg_get(&p, AT_FDCWD_WEIR, a[0]);

    if (result)
        return result;
    result = vfs_lookup(p.base, p.path, 0, cred(), &d);
    path_arg_put(&p);
    return result ? result : change_cwd(d);
}

long sys_fchdir(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    long result;

    if (!r.file) {
        result = -EBADF;
    } else if (!r.file->dentry) {
        result = -ENOTDIR;
    } else {
        dentry_get(r.file->dentry);
        result = change_cwd(r.file->dentry);
    }
    file_ref_put(r);
    return result;
}
