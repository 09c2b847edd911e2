/*
 * Advisory locks: fcntl's on byte ranges, owned by a process, and flock's on whole files, owned by
 * an open file. Both live in one hash by inode. A process's range locks on a file go when it closes
 * any descriptor of that file; flock's go with the last reference of the open file.
 */
#include "linuxio.h"
#include <weir/init.h>

enum { F_GETLK = 5, F_SETLK = 6, F_SETLKW = 7, F_RDLCK = 0, F_WRLCK = 1, F_UNLCK = 2 };
enum { LOCK_SH = 1, LOCK_EX = 2, LOCK_NB = 4, LOCK_UN = 8 };
struct flock_user {
    int16_t type, whence;
    int32_t pad;
    int64_t start, len;
    int32_t pid, pad2;
};

#define LOCK_BUCKETS 64

/* Key: I immutable, b bucket lock. The owner is never followed. */
struct file_lock {
    struct list link;    /* b */
    struct inode *inode; /* I kept by the descriptor */
    const void *owner;   /* I struct files for ranges, struct file for flock */
    bool whole;          /* I flock */
    int type;            /* b F_RDLCK or F_WRLCK */
    uint64_t start, end; /* b [start, end] inclusive */
    int pid;             /* I */
};
struct lock_bucket {
    spinlock_t lock; /* thread context */
    struct list locks;
    struct wait_queue wait; /* woken when a lock goes */
};
static struct lock_bucket lock_buckets[LOCK_BUCKETS];
static uint32_t locks_alive; /* a: no lock anywhere costs one look */

static struct lock_bucket *bucket_of(const struct inode *i)
{
    return &lock_buckets[((uint64_t)i >> 6) % LOCK_BUCKETS];
}

static bool overlaps(const struct file_lock *l, uint64_t start, uint64_t end)
{
    return l->start <= end && start <= l->end;
}

static struct file_lock *find_conflict(struct lock_bucket *b, const struct file_lock *want)
{
    struct file_lock *l;

    list_for_each_entry (l, &b->locks, link) {
        if (l->inode == want->inode && l->whole == want->whole && l->owner != want->owner &&
            (l->type == F_WRLCK || want->type == F_WRLCK) && overlaps(l, want->start, want->end))
            return l;
    }
    return NULL;
}

static void lock_unlink(struct file_lock *l, struct list *freed)
{
    list_del(&l->link);
    list_add_tail(freed, &l->link);
    atomic_fetch_sub(&locks_alive, 1);
}

static void lock_insert(struct lock_bucket *b, struct file_lock *l)
{
    list_add_tail(&b->locks, &l->link);
    atomic_fetch_add(&locks_alive, 1);
}

/*
 * Clear the owner's locks in the range; a lock cut in the middle needs `spare` for its second part.
 * Cleared locks go to `freed`.
 */
static void clear_range(struct lock_bucket *b, const struct file_lock *want,
                        struct file_lock **spare, struct list *freed)
{
    struct file_lock *l, *next;

    list_for_each_entry_safe (l, next, &b->locks, link) {
        if (l->inode != want->inode || l->whole != want->whole || l->owner != want->owner ||
            !overlaps(l, want->start, want->end))
            continue;
        if (l->start < want->start && l->end > want->end) {
            struct file_lock *tail = *spare;

            *spare = NULL;
            *tail = *l;
            tail->start = want->end + 1;
            l->end = want->start - 1;
            lock_insert(b, tail);
        } else if (l->start < want->start) {
            l->end = want->start - 1;
        } else if (l->end > want->end) {
            l->start = want->end + 1;
        } else {
            lock_unlink(l, freed);
        }
    }
}

static void free_list(struct list *freed)
{
    while (!list_empty(freed)) {
        struct file_lock *l = list_first(freed, struct file_lock, link);

        list_del(&l->link);
        kfree(l);
    }
}

/* 0 or -EAGAIN (conflict), -ENOMEM. */
static int lock_try(const struct file_lock *want)
{
    struct lock_bucket *b = bucket_of(want->inode);
    struct file_lock *entry = kmalloc(sizeof(*entry)), *spare = kmalloc(sizeof(*spare));
    struct list freed;
    int result = 0;

    list_init(&freed);
    if (!entry || !spare) {
        kfree(entry);
        kfree(spare);
        return -ENOMEM;
    }
    spin_lock(&b->lock);
    if (want->type != F_UNLCK && find_conflict(b, want)) {
        result = -EAGAIN;
    } else {
        clear_range(b, want, &spare, &freed);
        if (want->type != F_UNLCK) {
            *entry = *want;
            lock_insert(b, entry);
            entry = NULL;
        }
    }
    spin_unlock(&b->lock);
    if (!result)
        wake_all(&b->wait); /* weaker or gone locks may let others in */
    free_list(&freed);
    kfree(entry);
    kfree(spare);
    return result;
}

static int lock_wait(const struct file_lock *want)
{
    struct lock_bucket *b = bucket_of(want->inode);
    struct waiter w;
    int result;

    waiter_init(&w, false);
    for (;;) {
        result = lock_try(want);
        if (result != -EAGAIN)
            break;
        prepare_wait(&b->wait, &w, THREAD_INTERRUPTIBLE);
        spin_lock(&b->lock);
        result = find_conflict(b, want) ? -EAGAIN : 0;
        spin_unlock(&b->lock);
        if (result) {
            result = wait_schedule(THREAD_INTERRUPTIBLE, TIME_FOREVER);
            if (result) {
                result = -ERESTARTSYS;
                finish_wait(&b->wait, &w);
                break;
            }
        }
        finish_wait(&b->wait, &w);
    }
    return result;
}

/* ---- fcntl ---- */

static int range_from_user(const struct file *f, const struct flock_user *u, struct file_lock *want)
{
    int64_t start = u->start, end;

    if (u->whence == 1)
        start += (int64_t)f->position;
    else if (u->whence == 2)
        start += (int64_t)atomic_load_relaxed(&f->inode->size);
    else if (u->whence != 0)
        return -EINVAL;
    if (u->len < 0) {
        end = start - 1;
        start += u->len;
    } else {
        end = u->len ? start + u->len - 1 : INT64_MAX;
    }
    if (start < 0 || end < start)
        return -EINVAL;
    want->start = (uint64_t)start;
    want->end = (uint64_t)end;
    return 0;
}

static long lock_query(const struct file_lock *want, struct flock_user *u, uint64_t addr)
{
    struct lock_bucket *b = bucket_of(want->inode);
    struct file_lock *l;

    spin_lock(&b->lock);
    l = find_conflict(b, want);
    if (l) {
        u->type = (int16_t)l->type;
        u->whence = 0;
        u->start = (int64_t)l->start;
        u->len = l->end == INT64_MAX ? 0 : (int64_t)(l->end - l->start + 1);
        u->pid = l->pid;
    } else {
        u->type = F_UNLCK;
    }
    spin_unlock(&b->lock);
    return copy_to_user(addr, u, sizeof(*u));
}

long file_lock_fcntl(struct file *f, unsigned cmd, uint64_t arg)
{
    struct file_lock want = {
        .inode = f->inode, .owner = current_process()->files, .pid = current_process()->pid};
    struct flock_user u;
    int error;

    if (copy_from_user(&u, arg, sizeof(u)))
        return -EFAULT;
    if (!f->inode || u.type < F_RDLCK || u.type > F_UNLCK)
        return -EINVAL;
    want.type = u.type;
    error = range_from_user(f, &u, &want);
    if (error)
        return error;
    if (cmd == F_GETLK)
        return u.type == F_UNLCK ? -EINVAL : lock_query(&want, &u, arg);
    if ((u.type == F_RDLCK && !file_readable(f)) || (u.type == F_WRLCK && !file_writable(f)))
        return -EBADF;
    return cmd == F_SETLKW ? lock_wait(&want) : lock_try(&want);
}

/* ---- flock ---- */

long sys_flock(const uint64_t a[6])
{
    struct file_ref r = file_ref_get(a[0]);
    unsigned op = (unsigned)a[1] & ~(unsigned)LOCK_NB;
    struct file_lock want = {.whole = true, .end = INT64_MAX, .pid = current_process()->pid};
    long result;

    if (!r.file || (r.file->flags & O_PATH)) {
        result = -EBADF;
    } else if (!r.file->inode || (op != LOCK_SH && op != LOCK_EX && op != LOCK_UN)) {
        result = -EINVAL;
    } else {
        want.inode = r.file->inode;
        want.owner = r.file;
        want.type = op == LOCK_SH ? F_RDLCK : op == LOCK_EX ? F_WRLCK : F_UNLCK;
        result = a[1] & LOCK_NB ? lock_try(&want) : lock_wait(&want);
    }
    file_ref_put(r);
    return result;
}

/* ---- going away ---- */

static void drop_locks(struct inode *i, const void *owner, bool whole)
{
    struct lock_bucket *b = bucket_of(i);
    struct file_lock want = {.inode = i, .owner = owner, .whole = whole, .end = INT64_MAX};
    struct file_lock *none = NULL;
    struct list freed;

    list_init(&freed);
    spin_lock(&b->lock);
    clear_range(b, &want, &none, &freed); /* the whole range: no lock is cut */
    spin_unlock(&b->lock);
    if (list_empty(&freed))
        return;
    wake_all(&b->wait);
    free_list(&freed);
}

void file_locks_close(struct files *owner, struct file *f)
{
    if (unlikely(atomic_load_relaxed(&locks_alive)) && f->inode)
        drop_locks(f->inode, owner, false);
}

void file_locks_release(struct file *f)
{
    if (unlikely(atomic_load_relaxed(&locks_alive)) && f->inode)
        drop_locks(f->inode, f, true);
}

static void file_locks_init(void)
{
    for (unsigned i = 0; i < LOCK_BUCKETS; i++) {
        spin_init(&lock_buckets[i].lock);
        list_init(&lock_buckets[i].locks);
        wait_queue_init(&lock_buckets[i].wait);
    }
}
INIT_CALL(INIT_CORE, file_locks_init);
