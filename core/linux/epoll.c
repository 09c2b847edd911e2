/*
 * epoll. An item watches one (file, descriptor). A call-back on the file's wait queue puts the item
 * on the ready list and wakes a waiter, so that waiting costs O(ready).
 *
 * An item does not keep its file alive: when the file's last reference goes, file_put calls
 * epoll_file_release, which removes the items before the file's own release runs.
 *
 * Locks, in this order: epoll_links (sleeping: which item hangs on which file) > epoll->mutex
 * (sleeping: the item tree; held while files are asked) > a source's wait-queue lock > epoll->lock
 * (spin, irqsave: the ready list) > wait-queue locks of the epoll itself. Nested epolls repeat the
 * last three, outer ones later; depth is bounded and loops are refused.
 */
#include "linuxio.h"
#include <weir/init.h>

#define EPOLLEXCLUSIVE     (1u << 28)
#define EPOLLWAKEUP        (1u << 29)
#define EPOLLONESHOT       (1u << 30)
#define EPOLLET            (1u << 31)
#define EPOLL_PRIVATE_BITS (EPOLLEXCLUSIVE | EPOLLWAKEUP | EPOLLONESHOT | EPOLLET)
#define EPOLL_NEST_MOST    4
#define ITEM_QUEUES        2 /* most wait queues that one file registers with */

enum { EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL = 2, EPOLL_CTL_MOD = 3 };
struct epoll_event_user {
    uint32_t events;
    uint64_t data;
} __packed;

struct epoll;
struct epoll_waiter {
    struct waiter waiter;
    struct wait_queue *queue; /* NULL = unused */
    struct epoll_item *item;
};
/* Key: I immutable, m epoll->mutex, l epoll->lock, g epoll_links. */
struct epoll_item {
    struct rb_node node;    /* m */
    struct epoll *epoll;    /* I */
    struct file *file;      /* I not counted */
    int fd;                 /* I */
    uint32_t events;        /* m (a for the call-back) */
    uint64_t data;          /* m */
    struct list ready_link; /* l on the ready list, or pointing to itself */
    struct list file_link;  /* g */
    struct epoll_waiter waiters[ITEM_QUEUES];
};
struct epoll {
    struct file *file; /* I the file that this is */
    struct mutex mutex;
    struct rb_tree items; /* m */
    spinlock_t lock;
    struct list ready;      /* l */
    struct wait_queue wait; /* threads in epoll_wait */
    struct wait_queue poll; /* who polls this epoll */
};

static struct mutex epoll_links = MUTEX_INIT(epoll_links);
static struct slab_cache *item_slab;

/* ---- call-back ---- */

/* Put on the ready list; true if it was not there. */
static bool item_mark_ready(struct epoll_item *item)
{
    struct epoll *ep = item->epoll;
    uint64_t flags = spin_lock_irqsave(&ep->lock);
    bool added = list_empty(&item->ready_link);

    if (added)
        list_add_tail(&ep->ready, &item->ready_link);
    spin_unlock_irqrestore(&ep->lock, flags);
    return added;
}

static void epoll_wake(struct epoll *ep)
{
    if (wait_queue_active(&ep->wait))
        wake_one(&ep->wait);
    if (wait_queue_active(&ep->poll))
        wake_events(&ep->poll, POLLIN | POLLRDNORM, 1);
}

static bool epoll_callback(struct waiter *w, unsigned events)
{
    struct epoll_item *item = container_of(w, struct epoll_waiter, waiter)->item;
    uint32_t wanted = atomic_load_relaxed(&item->events);

    if (!(wanted & ~EPOLL_PRIVATE_BITS))
        return false; /* a one-shot that has fired */
    /* A waker that names no event says only that something changed. */
    if (events && !(events & wanted))
        return false;
    /* Even when it is on the list already a waiter may be going to sleep after having looked: the
     * waiter tests the list after it has queued itself, and the list is changed before this. */
    item_mark_ready(item);
    epoll_wake(item->epoll);
    return true;
}

struct item_poll_table {
    struct poll_table pt;
    struct epoll_item *item;
    bool full;
};

static void item_queue(struct poll_table *pt, struct wait_queue *q)
{
    struct item_poll_table *t = container_of(pt, struct item_poll_table, pt);

    for (unsigned i = 0; i < ITEM_QUEUES; i++) {
        struct epoll_waiter *w = &t->item->waiters[i];

        if (w->queue)
            continue;
        w->queue = q;
        w->item = t->item;
        waiter_init_fn(&w->waiter, epoll_callback);
        w->waiter.exclusive = t->item->events & EPOLLEXCLUSIVE;
        wait_queue_add(q, &w->waiter);
        return;
    }
    t->full = true;
}

static unsigned file_events(struct file *f, struct poll_table *pt)
{
    return f->ops->poll ? f->ops->poll(f, pt) : POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;
}

/* ---- tree ---- */

static int item_compare(const struct epoll_item *item, const struct file *f, int fd)
{
    if (item->file != f)
        return item->file < f ? -1 : 1;
    return item->fd < fd ? -1 : item->fd > fd;
}

static struct epoll_item *item_find(struct epoll *ep, const struct file *f, int fd)
{
    struct rb_node *n = ep->items.root;

    while (n) {
        struct epoll_item *item = container_of(n, struct epoll_item, node);
        int c = item_compare(item, f, fd);

        if (!c)
            return item;
        n = c > 0 ? n->left : n->right;
    }
    return NULL;
}

static void item_insert(struct epoll *ep, struct epoll_item *new_item)
{
    struct rb_node **link = &ep->items.root, *parent = NULL;

    while (*link) {
        struct epoll_item *item = container_of(*link, struct epoll_item, node);

        parent = *link;
        link =
            item_compare(item, new_item->file, new_item->fd) > 0 ? &parent->left : &parent->right;
    }
    rb_insert(&ep->items, &new_item->node, parent, link);
}

/* epoll_links and ep->mutex held. The call-backs are gone first, so nobody puts it on the list
 * again. */
static void item_remove_locked(struct epoll *ep, struct epoll_item *item)
{
    uint64_t flags;

    for (unsigned i = 0; i < ITEM_QUEUES; i++) {
        if (item->waiters[i].queue)
            wait_queue_remove(item->waiters[i].queue, &item->waiters[i].waiter);
    }
    flags = spin_lock_irqsave(&ep->lock);
    list_del(&item->ready_link);
    spin_unlock_irqrestore(&ep->lock, flags);
    list_del(&item->file_link);
    rb_remove(&ep->items, &item->node);
    slab_free(item_slab, item);
}

void epoll_file_release(struct file *f)
{
    /* Both ends are looked at: a remover on another CPU unlinks in two steps, and the file must
     * outlive the second. No reference is left, so nothing is added any more. */
    if (likely(atomic_load_acquire(&f->epoll_items.next) == &f->epoll_items &&
               atomic_load_acquire(&f->epoll_items.prev) == &f->epoll_items))
        return;
    mutex_lock(&epoll_links);
    while (!list_empty(&f->epoll_items)) {
        struct epoll_item *item = list_first(&f->epoll_items, struct epoll_item, file_link);
        struct epoll *ep = item->epoll;

        mutex_lock(&ep->mutex);
        item_remove_locked(ep, item);
        mutex_unlock(&ep->mutex);
    }
    mutex_unlock(&epoll_links);
}

static void epoll_release(struct file *f)
{
    struct epoll *ep = f->private;
    struct rb_node *n;

    mutex_lock(&epoll_links);
    mutex_lock(&ep->mutex);
    while ((n = rb_first(&ep->items)) != NULL)
        item_remove_locked(ep, container_of(n, struct epoll_item, node));
    mutex_unlock(&ep->mutex);
    mutex_unlock(&epoll_links);
    kfree(ep);
}

/* ---- harvest ---- */

#define HARVEST_CHUNK 16

/*
 * Ask the files of ready items what they have; up to `most` answers. Items that stay ready by level
 * go back to the end of the list, so that a full answer is fair to the others.
 */
static unsigned harvest(struct epoll *ep, struct epoll_event_user *out, unsigned most)
{
    struct list batch, again;
    unsigned n = 0;
    uint64_t flags;
    bool left;

    list_init(&batch);
    list_init(&again);
    mutex_lock(&ep->mutex);
    flags = spin_lock_irqsave(&ep->lock);
    list_splice_tail(&batch, &ep->ready);
    while (!list_empty(&batch) && n < most) {
        struct epoll_item *item = list_first(&batch, struct epoll_item, ready_link);
        unsigned events;

        /* Off the list before the file is asked: a change after the answer puts it on anew. */
        list_del(&item->ready_link);
        spin_unlock_irqrestore(&ep->lock, flags);
        events = file_events(item->file, NULL) & item->events;
        if (events) {
            out[n++] = (struct epoll_event_user){events, item->data};
            if (item->events & EPOLLONESHOT)
                atomic_store_relaxed(&item->events, item->events & EPOLL_PRIVATE_BITS);
        }
        flags = spin_lock_irqsave(&ep->lock);
        if (events && !(item->events & (EPOLLET | EPOLLONESHOT)) && list_empty(&item->ready_link))
            list_add_tail(&again, &item->ready_link);
    }
    /* What was not looked at comes first next time. */
    list_splice_tail(&batch, &ep->ready);
    list_splice_tail(&batch, &again);
    list_splice_tail(&ep->ready, &batch);
    left = !list_empty(&ep->ready);
    spin_unlock_irqrestore(&ep->lock, flags);
    mutex_unlock(&ep->mutex);
    /* The call-backs woke one thread for each event; what is left is another thread's work. */
    if (left && wait_queue_active(&ep->wait))
        wake_one(&ep->wait);
    return n;
}

static bool epoll_has_ready(struct epoll *ep)
{
    return !list_empty(&ep->ready); /* a hint: harvest asks the files */
}

/* Wait exclusively: one event wakes one thread. */
static int epoll_sleep(struct epoll *ep, uint64_t deadline_ns)
{
    struct waiter w;
    int error = 0;

    waiter_init(&w, true);
    for (;;) {
        prepare_wait(&ep->wait, &w, THREAD_INTERRUPTIBLE);
        if (atomic_load_acquire(&ep->ready.next) != &ep->ready)
            break;
        error = wait_schedule(THREAD_INTERRUPTIBLE, deadline_ns);
        if (error)
            break;
    }
    finish_wait(&ep->wait, &w);
    return error;
}

/* One pass: going on after it would report level-triggered items twice. */
static long epoll_collect_few(struct epoll *ep, uint64_t addr, unsigned most)
{
    struct epoll_event_user out[HARVEST_CHUNK];
    unsigned n = harvest(ep, out, MIN(most, (unsigned)HARVEST_CHUNK));

    if (n && copy_to_user(addr, out, n * sizeof(out[0])))
        return -EFAULT;
    return n;
}

static long epoll_collect(struct epoll *ep, uint64_t addr, unsigned most)
{
    unsigned room = MIN(most, 512u);
    struct epoll_event_user *out;
    long n;

    if (most <= HARVEST_CHUNK)
        return epoll_collect_few(ep, addr, most);
    out = kmalloc(room * sizeof(*out));
    if (!out)
        return epoll_collect_few(ep, addr, most);
    n = harvest(ep, out, room);
    if (n && copy_to_user(addr, out, (size_t)n * sizeof(*out)))
        n = -EFAULT;
    kfree(out);
    return n;
}

static long epoll_wait_on(struct epoll *ep, uint64_t addr, int most, uint64_t deadline_ns)
{
    for (;;) {
        long n;
        int error;

        if (epoll_has_ready(ep)) {
            n = epoll_collect(ep, addr, (unsigned)most);
            if (n)
                return n;
        }
        if (!deadline_ns)
            return 0;
        error = epoll_sleep(ep, deadline_ns);
        if (error == -ETIMEDOUT)
            return epoll_has_ready(ep) ? epoll_collect(ep, addr, (unsigned)most) : 0;
        if (error)
            return -EINTR; /* even under SA_RESTART */
    }
}

static long do_epoll_wait(uint64_t fd, uint64_t addr, int most, uint64_t deadline_ns)
{
    struct file_ref r;
    long result;

    if (most <= 0 || most > INT32_MAX / (int)sizeof(struct epoll_event_user))
        return -EINVAL;
    r = file_ref_get(fd);
    if (!r.file)
        result = -EBADF;
    else if (r.file->ops != &epoll_ops)
        result = -EINVAL;
    else
        result = epoll_wait_on(r.file->private, addr, most, deadline_ns);
    file_ref_put(r);
    return result;
}

static uint64_t deadline_of_ms(int timeout_ms)
{
    if (timeout_ms < 0)
        return TIME_FOREVER;
    return timeout_ms ? deadline_after((uint64_t)timeout_ms * NSEC_PER_MSEC) : 0;
}

long sys_epoll_wait(const uint64_t a[6])
{
    return do_epoll_wait(a[0], a[1], (int)a[2], deadline_of_ms((int)a[3]));
}

static long epoll_wait_masked(const uint64_t a[6], uint64_t deadline_ns)
{
    long result = mask_swap_from_user(a[4], a[5]);

    if (result)
        return result;
    result = do_epoll_wait(a[0], a[1], (int)a[2], deadline_ns);
    if (result == -EINTR)
        return -ERESTART_NEVER; /* the handler runs under the swapped mask, then the old one returns
                                 */
    mask_restore();
    return result;
}

long sys_epoll_pwait(const uint64_t a[6])
{
    return epoll_wait_masked(a, deadline_of_ms((int)a[3]));
}

long sys_epoll_pwait2(const uint64_t a[6])
{
    uint64_t ns, deadline_ns = TIME_FOREVER;

    if (a[3]) {
        int error = timespec_get(a[3], &ns);

        if (error)
            return error;
        deadline_ns = ns ? deadline_after(ns) : 0;
    }
    return epoll_wait_masked(a, deadline_ns);
}

/* ---- control ---- */

static unsigned epoll_poll(struct file *f, struct poll_table *pt)
{
    struct epoll *ep = f->private;
    struct epoll_item *item, *next;
    unsigned events = 0;
    struct list batch;
    uint64_t flags;

    poll_wait(pt, &ep->poll);
    if (!epoll_has_ready(ep))
        return 0;
    /* An item on the list may have lost its event: ask, and keep those that have one. */
    list_init(&batch);
    mutex_lock(&ep->mutex);
    flags = spin_lock_irqsave(&ep->lock);
    list_splice_tail(&batch, &ep->ready);
    while (!list_empty(&batch) && !events) {
        item = list_first(&batch, struct epoll_item, ready_link);
        list_del(&item->ready_link);
        spin_unlock_irqrestore(&ep->lock, flags);
        if (file_events(item->file, NULL) & item->events)
            events = POLLIN | POLLRDNORM;
        flags = spin_lock_irqsave(&ep->lock);
        if (events && list_empty(&item->ready_link))
            list_add(&batch, &item->ready_link);
    }
    list_for_each_entry_safe (item, next, &batch, ready_link) {
        list_del(&item->ready_link);
        list_add_tail(&ep->ready, &item->ready_link);
    }
    spin_unlock_irqrestore(&ep->lock, flags);
    mutex_unlock(&ep->mutex);
    return events;
}

const struct file_ops epoll_ops = {.poll = epoll_poll, .release = epoll_release};

/* Levels of epolls that watch ep. epoll_links held, so no link changes; bounded by what was let in.
 */
static unsigned levels_above(const struct epoll *ep)
{
    struct epoll_item *item;
    unsigned most = 0;

    list_for_each_entry (item, &ep->file->epoll_items, file_link)
        most = MAX(most, 1 + levels_above(item->epoll));
    return most;
}

/* Levels of epolls below f, f itself included; more than EPOLL_NEST_MOST where ep is among them. */
static unsigned levels_below(struct file *f, const struct epoll *ep)
{
    struct epoll *inner = f->private;
    unsigned most = 0;

    if (f->ops != &epoll_ops)
        return 0;
    if (inner == ep)
        return EPOLL_NEST_MOST + 1;
    mutex_lock(&inner->mutex);
    for (struct rb_node *n = rb_first(&inner->items); n; n = rb_next(n))
        most = MAX(most, levels_below(container_of(n, struct epoll_item, node)->file, ep));
    mutex_unlock(&inner->mutex);
    return 1 + most;
}

/* A loop, or so deep that the call-backs would fill the kernel stack. */
static bool nests_badly(struct file *f, const struct epoll *ep)
{
    return f->ops == &epoll_ops && levels_below(f, ep) + levels_above(ep) > EPOLL_NEST_MOST;
}

/* epoll_links and ep->mutex held. */
static long item_add(struct epoll *ep, struct file *f, int fd, const struct epoll_event_user *ev)
{
    struct epoll_item *item = slab_alloc(item_slab);
    struct item_poll_table t = {.pt.queue = item_queue, .item = item};
    unsigned events;

    if (!item)
        return -ENOMEM;
    memset(item, 0, sizeof(*item));
    item->epoll = ep;
    item->file = f;
    item->fd = fd;
    item->events = ev->events | POLLERR | POLLHUP;
    item->data = ev->data;
    list_init(&item->ready_link);
    item_insert(ep, item);
    list_add_tail(&f->epoll_items, &item->file_link);
    events = file_events(f, &t.pt) & item->events;
    if (t.full) {
        item_remove_locked(ep, item);
        return -ENOMEM;
    }
    if (events) {
        item_mark_ready(item);
        epoll_wake(ep);
    }
    return 0;
}

/* ep->mutex held. */
static long item_modify(struct epoll *ep, struct epoll_item *item,
                        const struct epoll_event_user *ev)
{
    if ((item->events & EPOLLEXCLUSIVE) || (ev->events & EPOLLEXCLUSIVE))
        return -EINVAL;
    item->data = ev->data;
    atomic_store_relaxed(&item->events, ev->events | POLLERR | POLLHUP);
    /* The call-back sees the new interest, or what it dropped under the old one is seen by asking
     * now. */
    barrier_full();
    if (file_events(item->file, NULL) & item->events) {
        item_mark_ready(item);
        epoll_wake(ep);
    }
    return 0;
}

static long item_delete(struct epoll *ep, struct file *f, int fd)
{
    struct epoll_item *item;
    long result = -ENOENT;

    mutex_lock(&epoll_links);
    mutex_lock(&ep->mutex);
    item = item_find(ep, f, fd);
    if (item) {
        item_remove_locked(ep, item);
        result = 0;
    }
    mutex_unlock(&ep->mutex);
    mutex_unlock(&epoll_links);
    return result;
}

static long item_create(struct epoll *ep, struct file *f, int fd, const struct epoll_event_user *ev)
{
    long result;

    if ((ev->events & EPOLLEXCLUSIVE) && f->ops == &epoll_ops)
        return -EINVAL;
    mutex_lock(&epoll_links);
    if (nests_badly(f, ep)) {
        mutex_unlock(&epoll_links);
        return -ELOOP;
    }
    mutex_lock(&ep->mutex);
    result = item_find(ep, f, fd) ? -EEXIST : item_add(ep, f, fd, ev);
    mutex_unlock(&ep->mutex);
    mutex_unlock(&epoll_links);
    return result;
}

static long item_change(struct epoll *ep, struct file *f, int fd, const struct epoll_event_user *ev)
{
    struct epoll_item *item;
    long result = -ENOENT;

    mutex_lock(&ep->mutex);
    item = item_find(ep, f, fd);
    if (item)
        result = item_modify(ep, item, ev);
    mutex_unlock(&ep->mutex);
    return result;
}

static long epoll_control(struct file *epf, struct file *f, int op, int fd,
                          const struct epoll_event_user *ev)
{
    if (!epf || !f)
        return -EBADF;
    if (!f->ops->poll) /* regular files and directories */
        return -EPERM;
    if (epf == f || epf->ops != &epoll_ops)
        return -EINVAL;
    switch (op) {
    case EPOLL_CTL_ADD:
        return item_create(epf->private, f, fd, ev);
    case EPOLL_CTL_DEL:
        return item_delete(epf->private, f, fd);
    case EPOLL_CTL_MOD:
        return item_change(epf->private, f, fd, ev);
    default:
        return -EINVAL;
    }
}

long sys_epoll_ctl(const uint64_t a[6])
{
    struct epoll_event_user ev = {0, 0};
    struct file_ref ep, target;
    long result;

    if ((int)a[1] != EPOLL_CTL_DEL && copy_from_user(&ev, a[3], sizeof(ev)))
        return -EFAULT;
    ep = file_ref_get(a[0]);
    target = file_ref_get(a[2]);
    result = epoll_control(ep.file, target.file, (int)a[1], (int)a[2], &ev);
    file_ref_put(target);
    file_ref_put(ep);
    return result;
}

static long epoll_make(unsigned flags)
{
    struct epoll *ep;
    struct file *f;

    if (flags & ~(unsigned)O_CLOEXEC)
        return -EINVAL;
    ep = kzalloc(sizeof(*ep));
    if (!ep)
        return -ENOMEM;
    mutex_init(&ep->mutex);
    spin_init(&ep->lock);
    list_init(&ep->ready);
    wait_queue_init(&ep->wait);
    wait_queue_init(&ep->poll);
    f = file_alloc(&epoll_ops, ep, O_RDWR);
    if (!f) {
        kfree(ep);
        return -ENOMEM;
    }
    ep->file = f;
    return fd_install(f, 0, flags & O_CLOEXEC);
}

long sys_epoll_create(const uint64_t a[6])
{
    return (int)a[0] <= 0 ? -EINVAL : epoll_make(0);
}

long sys_epoll_create1(const uint64_t a[6])
{
    return epoll_make((unsigned)a[0]);
}

static void epoll_init(void)
{
    item_slab = slab_create("epoll_item", sizeof(struct epoll_item), 64);
}
INIT_CALL(INIT_CORE, epoll_init);
