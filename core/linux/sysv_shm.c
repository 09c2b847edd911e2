/*
 * System V shared memory: shmget, shmat, shmdt, shmctl.
 *
 * PostgreSQL decides by the number of attachments whether an old server still lives, so that number is exact: one
 * more for each attachment that a fork copies, one less at shmdt, exec and every kind of end, before the parent
 * hears of it. A segment marked for removal goes with its last attachment.
 */
#include "task_internal.h"

#define IPC_CREAT   01000
#define IPC_EXCL    02000
#define IPC_PRIVATE 0
#define IPC_RMID    0
#define IPC_SET     1
#define IPC_STAT    2
#define IPC_INFO    3
#define SHM_INFO    14
#define SHM_STAT    13
#define SHM_LOCK    11
#define SHM_UNLOCK  12
#define SHM_DEST    01000
#define SHM_RDONLY  010000
#define SHM_RND     020000
#define SHM_REMAP   040000
#define SHM_EXEC    0100000
#define SEGMENTS    4096

/* Key: I immutable, m segments_lock */
struct segment {
    struct list link;           /* m */
    int id;                     /* I */
    int key;                    /* m 0 once it is marked for removal */
    uint64_t size;              /* I as asked for */
    struct shm_object *object;  /* I referenced */
    uint32_t uid, gid, mode;    /* m */
    uint32_t cuid, cgid;        /* I */
    bool removed;               /* m */
    uint64_t attached;          /* m */
    int64_t attach_time, detach_time, change_time; /* m seconds */
    int creator_pid, last_pid;  /* m */
};

/* One shmat of one process; list and members belong to that process's tasks. */
struct attachment {
    struct list link;
    struct segment *segment;
    uint64_t addr;
};

static struct mutex segments_lock = MUTEX_INIT(segments_lock);
static struct list segments = LIST_INIT(segments);
static unsigned segment_count;
static int last_id;

static int64_t now_seconds(void)
{
    return (int64_t)(clock_realtime_ns() / NSEC_PER_SEC);
}

static struct segment *find_key(int key)
{
    struct segment *s;

    list_for_each_entry(s, &segments, link) {
        if (s->key == key && !s->removed)
            return s;
    }
    return NULL;
}

static struct segment *find_id(int id)
{
    struct segment *s;

    list_for_each_entry(s, &segments, link) {
        if (s->id == id)
            return s;
    }
    return NULL;
}

static void free_if_unused(struct segment *s)
{
    if (!s->removed || s->attached)
        return;
    list_del(&s->link);
    segment_count--;
    shm_object_put(s->object);
    kfree(s);
}

static bool allowed(const struct segment *s, bool write)
{
    const struct cred *c = &current_process()->cred;
    unsigned shift = c->uid == s->uid || c->uid == s->cuid ? 6 : (c->gid == s->gid ? 3 : 0);
    unsigned bits = (s->mode >> shift) & 7;

    return !c->uid || ((bits & 4) && (!write || (bits & 2)));
}

static long create_segment(int key, uint64_t size, int flags)
{
    struct segment *s;

    if (!size || size > (mm_total_pages() << PAGE_SHIFT))
        return size ? -ENOMEM : -EINVAL;
    if (segment_count >= SEGMENTS)
        return -ENOSPC;
    s = kzalloc(sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->object = shm_object_create(size);
    if (!s->object) {
        kfree(s);
        return -ENOMEM;
    }
    s->id = last_id++;
    s->key = key;
    s->size = size;
    s->mode = (uint32_t)flags & 0777;
    s->uid = s->cuid = current_process()->cred.uid;
    s->gid = s->cgid = current_process()->cred.gid;
    s->creator_pid = current_process()->pid;
    s->change_time = now_seconds();
    list_add_tail(&segments, &s->link);
    segment_count++;
    return s->id;
}

long sys_shmget(const uint64_t a[6])
{
    int key = (int)a[0], flags = (int)a[2];
    struct segment *s;
    long r;

    mutex_lock(&segments_lock);
    s = key == IPC_PRIVATE ? NULL : find_key(key);
    if (!s)
        r = key == IPC_PRIVATE || (flags & IPC_CREAT) ? create_segment(key, a[1], flags) : -ENOENT;
    else if ((flags & IPC_CREAT) && (flags & IPC_EXCL))
        r = -EEXIST;
    else if (!allowed(s, flags & 0222) && (flags & 0777))
        r = -EACCES;
    else if (a[1] > s->size)
        r = -EINVAL;
    else
        r = s->id;
    mutex_unlock(&segments_lock);
    return r;
}

/* Count a new attachment; the segment stays until it is dropped. NULL and *error. */
static struct segment *attach(int id, bool write, long *error)
{
    struct segment *s;

    mutex_lock(&segments_lock);
    s = find_id(id);
    *error = !s ? -EINVAL : (allowed(s, write) ? 0 : -EACCES);
    if (*error)
        s = NULL;
    if (s) {
        s->attached++;
        s->attach_time = now_seconds();
        s->last_pid = current_process()->pid;
    }
    mutex_unlock(&segments_lock);
    return s;
}

static void detach(struct segment *s, int pid)
{
    mutex_lock(&segments_lock);
    assert(s->attached);
    s->attached--;
    s->detach_time = now_seconds();
    s->last_pid = pid;
    free_if_unused(s);
    mutex_unlock(&segments_lock);
}

long sys_shmat(const uint64_t a[6])
{
    struct process *p = current_process();
    uint64_t addr = a[1], flags = a[2];
    bool write = !(flags & SHM_RDONLY);
    struct attachment *at;
    struct segment *s;
    int64_t where;
    long error;

    if (addr && (flags & SHM_RND))
        addr = ALIGN_DOWN(addr, PAGE_SIZE);
    if (!IS_ALIGNED(addr, PAGE_SIZE) || (!addr && (flags & SHM_REMAP)))
        return -EINVAL;
    at = kzalloc(sizeof(*at));
    if (!at)
        return -ENOMEM;
    s = attach((int)a[0], write, &error);
    if (!s) {
        kfree(at);
        return error;
    }
    if (flags & SHM_REMAP)
        error = aspace_munmap(p->aspace, addr, shm_object_size(s->object));
    where = error ? error
                  : aspace_map_shm(p->aspace, addr,
                                   PROT_READ | (write ? PROT_WRITE : 0) | (flags & SHM_EXEC ? PROT_EXEC : 0),
                                   s->object);
    if (where < 0) {
        detach(s, p->pid);
        kfree(at);
        return where == -EEXIST ? -EINVAL : where;
    }
    at->segment = s;
    at->addr = (uint64_t)where;
    /* Tasks of one process may attach at once; the segments' lock is at hand. */
    mutex_lock(&segments_lock);
    list_add_tail(&p->shm_attachments, &at->link);
    mutex_unlock(&segments_lock);
    return where;
}

long sys_shmdt(const uint64_t a[6])
{
    struct process *p = current_process();
    struct attachment *at, *found = NULL;
    int r;

    mutex_lock(&segments_lock);
    list_for_each_entry(at, &p->shm_attachments, link) {
        if (at->addr == a[0]) {
            found = at;
            break;
        }
    }
    if (found)
        list_del(&found->link);
    mutex_unlock(&segments_lock);
    if (!found)
        return -EINVAL;
    r = aspace_munmap(p->aspace, found->addr, shm_object_size(found->segment->object));
    detach(found->segment, p->pid);
    kfree(found);
    return r;
}

int sysv_shm_fork(struct process *child, struct process *parent)
{
    struct attachment *at, *copy;
    int r = 0;

    if (list_empty(&parent->shm_attachments))
        return 0;
    mutex_lock(&segments_lock);
    list_for_each_entry(at, &parent->shm_attachments, link) {
        copy = kzalloc(sizeof(*copy));
        if (!copy) {
            r = -ENOMEM;
            break;
        }
        copy->segment = at->segment;
        copy->addr = at->addr;
        copy->segment->attached++;
        list_add_tail(&child->shm_attachments, &copy->link);
    }
    mutex_unlock(&segments_lock);
    return r;
}

void sysv_shm_exit(struct process *p)
{
    while (!list_empty(&p->shm_attachments)) {
        struct attachment *at = list_first(&p->shm_attachments, struct attachment, link);
        list_del(&at->link);
        detach(at->segment, p->pid);
        kfree(at);
    }
}

/* ---- shmctl ---- */

/* Linux's struct shmid64_ds for x86-64. */
struct shmid_weir {
    int32_t key;
    uint32_t uid, gid, cuid, cgid, mode;
    uint16_t sequence, pad0;
    uint32_t pad1;
    uint64_t unused0, unused1;
    uint64_t size;
    int64_t attach_time, detach_time, change_time;
    int32_t creator_pid, last_pid;
    uint64_t attached, unused2, unused3;
};

static void fill_stat(const struct segment *s, struct shmid_weir *d)
{
    memset(d, 0, sizeof(*d));
    d->key = s->key;
    d->uid = s->uid;
    d->gid = s->gid;
    d->cuid = s->cuid;
    d->cgid = s->cgid;
    d->mode = s->mode | (s->removed ? SHM_DEST : 0);
    d->size = s->size;
    d->attach_time = s->attach_time;
    d->detach_time = s->detach_time;
    d->change_time = s->change_time;
    d->creator_pid = s->creator_pid;
    d->last_pid = s->last_pid;
    d->attached = s->attached;
}

static bool is_owner(const struct segment *s)
{
    uint32_t uid = current_process()->cred.uid;

    return !uid || uid == s->uid || uid == s->cuid;
}

static long remove_segment(struct segment *s)
{
    if (!is_owner(s))
        return -EPERM;
    s->removed = true;
    s->key = IPC_PRIVATE;
    free_if_unused(s);
    return 0;
}

static long set_segment(struct segment *s, const struct shmid_weir *d)
{
    if (!is_owner(s))
        return -EPERM;
    s->uid = d->uid;
    s->gid = d->gid;
    s->mode = d->mode & 0777;
    s->change_time = now_seconds();
    return 0;
}

long sys_shmctl(const uint64_t a[6])
{
    int command = (int)a[1] & 0xff; /* IPC_64 is a flag above; this layout is the only one */
    struct shmid_weir d;
    struct segment *s;
    long r;

    if (command == IPC_SET && copy_from_user(&d, a[2], sizeof(d)))
        return -EFAULT;
    mutex_lock(&segments_lock);
    s = find_id((int)a[0]);
    if (!s) {
        r = -EINVAL;
    } else if (command == IPC_STAT || command == SHM_STAT) {
        fill_stat(s, &d);
        r = allowed(s, false) ? 0 : -EACCES;
    } else if (command == IPC_RMID) {
        r = remove_segment(s);
    } else if (command == IPC_SET) {
        r = set_segment(s, &d);
    } else {
        r = command == SHM_LOCK || command == SHM_UNLOCK ? 0 : -EINVAL;
    }
    mutex_unlock(&segments_lock);
    if (!r && (command == IPC_STAT || command == SHM_STAT) && copy_to_user(a[2], &d, sizeof(d)))
        r = -EFAULT;
    return r;
}
