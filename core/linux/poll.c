/* poll, ppoll, select, pselect6. */
#include "linuxio.h"

/*
 * One wait over many queues. A call-back on any of them marks `triggered` and wakes the thread; the
 * files are asked again only afterwards, since asking may itself block.
 */
#define POLL_INLINE 12
struct poll_wait_table;
struct poll_entry {
    struct waiter waiter;
    struct wait_queue *queue;
    struct file *file; /* referenced, so that the queue stays */
    struct poll_wait_table *table;
};
struct poll_chunk {
    struct poll_chunk *next;
    unsigned used;
    struct poll_entry entries[30];
};
struct poll_wait_table {
    struct poll_table pt;
    struct thread *thread;
    struct file *file; /* being asked */
    bool triggered;    /* a */
    int error;
    unsigned used;
    struct poll_entry entries[POLL_INLINE];
    struct poll_chunk *more;
    struct wait_queue own; /* the thread's sleep; nobody wakes through it */
};

static bool poll_callback(struct waiter *w, unsigned events)
{
    struct poll_entry *e = container_of(w, struct poll_entry, waiter);

    atomic_store_release(&e->table->triggered, true);
    return thread_wake(e->table->thread);
}

static struct poll_entry *poll_entry_new(struct poll_wait_table *t)
{
    struct poll_chunk *c = t->more;

    if (t->used < POLL_INLINE)
        return &t->entries[t->used++];
    if (!c || c->used == ARRAY_SIZE(c->entries)) {
        c = kmalloc(sizeof(*c));
        if (!c)
            return NULL;
        c->used = 0;
        c->next = t->more;
        t->more = c;
    }
    return &c->entries[c->used++];
}

static void poll_queue(struct poll_table *pt, struct wait_queue *q)
{
    struct poll_wait_table *t = container_of(pt, struct poll_wait_table, pt);
    struct poll_entry *e = poll_entry_new(t);

    if (!e) {
        t->error = -ENOMEM;
        return;
    }
    e->queue = q;
    e->table = t;
    e->file = t->file;
    file_get(e->file);
    waiter_init_fn(&e->waiter, poll_callback);
    wait_queue_add(q, &e->waiter);
}

static void poll_table_init(struct poll_wait_table *t)
{
    t->pt.queue = poll_queue;
    t->thread = current;
    t->triggered = false;
    t->error = 0;
    t->used = 0;
    t->more = NULL;
    wait_queue_init(&t->own);
}

static void poll_entries_drop(struct poll_entry *entries, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        wait_queue_remove(entries[i].queue, &entries[i].waiter);
        file_put(entries[i].file);
    }
}

static void poll_table_end(struct poll_wait_table *t)
{
    poll_entries_drop(t->entries, t->used);
    while (t->more) {
        struct poll_chunk *c = t->more;

        t->more = c->next;
        poll_entries_drop(c->entries, c->used);
        kfree(c);
    }
}

/* What one descriptor has now; registers while t->pt.queue is set. */
static unsigned poll_fd(struct poll_wait_table *t, int fd)
{
    struct file_ref r = file_ref_get((uint64_t)fd);
    unsigned events;

    if (!r.file || (r.file->flags & O_PATH)) {
        file_ref_put(r);
        return POLLNVAL;
    }
    t->file = r.file;
    events = r.file->ops->poll ? r.file->ops->poll(r.file, &t->pt)
                               : POLLIN | POLLOUT | POLLRDNORM | POLLWRNORM;
    file_ref_put(r);
    return events;
}

/*
 * Ask all through scan(); sleep until something may have changed. scan returns how many are ready.
 * The result: a count, 0 at the deadline, -EINTR.
 */
static int poll_loop(struct poll_wait_table *t, int (*scan)(struct poll_wait_table *, void *),
                     void *arg, uint64_t deadline_ns)
{
    if (!deadline_ns)
        t->pt.queue = NULL; /* only asking */
    for (;;) {
        int ready = scan(t, arg), error;

        t->pt.queue = NULL; /* registered once */
        if (ready || t->error)
            return ready ? ready : t->error;
        if (!deadline_ns)
            return 0;
        error = wait_event_interruptible_timeout(&t->own, atomic_load_acquire(&t->triggered),
                                                 deadline_ns);
        if (error == -ETIMEDOUT) {
            ready = scan(t, arg);
            return ready;
        }
        if (error)
            return -EINTR;
        /* Cleared before the files are asked: what happens while they are sets it again. */
        atomic_store_relaxed(&t->triggered, false);
        barrier_full();
    }
}

/* ---- poll ---- */

struct pollfd_user {
    int32_t fd;
    int16_t events, revents;
};
#define POLLFD_INLINE 16
struct pollfd_list {
    struct pollfd_user *fds;
    unsigned count;
};

static int pollfd_scan(struct poll_wait_table *t, void *arg)
{
    struct pollfd_list *l = arg;
    int ready = 0;

    for (unsigned i = 0; i < l->count; i++) {
        struct pollfd_user *p = &l->fds[i];
        unsigned events = 0;

        if (p->fd >= 0)
            events = poll_fd(t, p->fd) & ((uint16_t)p->events | POLLERR | POLLHUP | POLLNVAL);
        p->revents = (int16_t)events;
        if (events) {
            ready++;
            t->pt.queue = NULL; /* the answer is there: no need to register further */
        }
    }
    return ready;
}

static long poll_with(struct pollfd_user *fds, uint64_t addr, unsigned count, uint64_t deadline_ns)
{
    struct pollfd_list list = {fds, count};
    struct poll_wait_table table;
    long result;

    if (copy_from_user(fds, addr, count * sizeof(*fds)))
        return -EFAULT;
    poll_table_init(&table);
    result = poll_loop(&table, pollfd_scan, &list, deadline_ns);
    poll_table_end(&table);
    if (result >= 0 && count && copy_to_user(addr, fds, count * sizeof(*fds)))
        return -EFAULT;
    return result;
}

static long do_poll(uint64_t addr, uint64_t count, uint64_t deadline_ns)
{
    struct pollfd_user few[POLLFD_INLINE], *fds = few;
    long result;

    if (count > current_process()->rlimit[RLIMIT_NOFILE_INDEX].soft)
        return -EINVAL;
    if (count > POLLFD_INLINE) {
        fds = kmalloc(count * sizeof(*fds));
        if (!fds)
            return -ENOMEM;
    }
    result = poll_with(fds, addr, (unsigned)count, deadline_ns);
    if (fds != few)
        kfree(fds);
    return result;
}

long poll_restart(struct task *t)
{
    long result = do_poll((uint64_t)t->restart_block[1], (uint64_t)t->restart_block[2],
                          (uint64_t)t->restart_block[3]);

    return result == -EINTR ? -ERESTART_RESTARTBLOCK : result;
}

long sys_poll(const uint64_t a[6])
{
    struct task *t = current_task();
    int timeout_ms = (int)a[2];
    uint64_t deadline_ns = timeout_ms < 0    ? TIME_FOREVER
                           : timeout_ms == 0 ? 0
                                             : deadline_after((uint64_t)timeout_ms * NSEC_PER_MSEC);
    long result = do_poll(a[0], (uint32_t)a[1], deadline_ns);

    if (result != -EINTR)
        return result;
    t->restart_block[0] = RESTART_POLL;
    t->restart_block[1] = (int64_t)a[0];
    t->restart_block[2] = (uint32_t)a[1];
    t->restart_block[3] = (int64_t)deadline_ns;
    return -ERESTART_RESTARTBLOCK;
}

/* Deadline of an optional timespec: TIME_FOREVER without one, 0 for no wait. */
static int deadline_from_user(uint64_t addr, uint64_t *deadline_ns)
{
    uint64_t ns;
    int error;

    *deadline_ns = TIME_FOREVER;
    if (!addr)
        return 0;
    error = timespec_get(addr, &ns);
    if (!error)
        *deadline_ns = ns ? deadline_after(ns) : 0;
    return error;
}

/* As Linux: what is left of the time goes back to the program, if that can be written. */
static void write_time_left(uint64_t addr, uint64_t deadline_ns)
{
    uint64_t now = clock_monotonic_ns();

    if (addr && deadline_ns != TIME_FOREVER)
        (void)!timespec_put(addr, deadline_ns > now ? deadline_ns - now : 0);
}

/* A signal ends the call with the swapped mask in force, so that its handler runs; anything else
 * restores. */
static long finish_masked(long result)
{
    if (result == -EINTR)
        return -ERESTARTNOHAND;
    mask_restore();
    return result;
}

long sys_ppoll(const uint64_t a[6])
{
    uint64_t deadline_ns;
    long result = deadline_from_user(a[2], &deadline_ns);

    if (!result)
        result = mask_swap_from_user(a[3], a[4]);
    if (result)
        return result;
    result = do_poll(a[0], (uint32_t)a[1], deadline_ns);
    write_time_left(a[2], deadline_ns);
    return finish_masked(result);
}

/* ---- select ---- */

#define SELECT_READ         (POLLIN | POLLRDNORM | POLLHUP | POLLERR)
#define SELECT_WRITE        (POLLOUT | POLLWRNORM | POLLERR)
#define SELECT_EXCEPT       POLLPRI
#define SELECT_INLINE_WORDS 2

/* Three sets in, three out, each `words` long, one behind the other. */
struct select_sets {
    unsigned count, words;
    uint64_t *bits;
    bool bad_fd;
};

static int select_scan(struct poll_wait_table *t, void *arg)
{
    static const unsigned interest[3] = {SELECT_READ, SELECT_WRITE, SELECT_EXCEPT};
    struct select_sets *s = arg;
    int ready = 0;

    memset(s->bits + 3 * s->words, 0, 3 * s->words * sizeof(uint64_t));
    for (unsigned fd = 0; fd < s->count; fd++) {
        unsigned word = fd / 64, events;
        uint64_t bit = 1ULL << (fd % 64);

        if (!((s->bits[word] | s->bits[word + s->words] | s->bits[word + 2 * s->words]) >>
              (fd % 64))) {
            fd |= 63; /* nothing more in this word */
            continue;
        }
        if (!((s->bits[word] | s->bits[word + s->words] | s->bits[word + 2 * s->words]) & bit))
            continue;
        events = poll_fd(t, (int)fd);
        if (events & POLLNVAL) {
            s->bad_fd = true;
            return 1;
        }
        for (unsigned i = 0; i < 3; i++) {
            if ((s->bits[word + i * s->words] & bit) && (events & interest[i])) {
                s->bits[word + (3 + i) * s->words] |= bit;
                ready++;
            }
        }
        if (ready)
            t->pt.queue = NULL;
    }
    return ready;
}

static long select_copy(const struct select_sets *s, const uint64_t addr[3], bool out)
{
    size_t bytes = DIV_ROUND_UP(s->count, 64) * 8;

    for (unsigned i = 0; i < 3; i++) {
        if (!addr[i] || !bytes)
            continue;
        if (out ? copy_to_user(addr[i], s->bits + (3 + i) * s->words, bytes)
                : copy_from_user(s->bits + i * s->words, addr[i], bytes))
            return -EFAULT;
    }
    return 0;
}

static long select_with(struct select_sets *s, const uint64_t addr[3], uint64_t deadline_ns)
{
    struct poll_wait_table table;
    long result = select_copy(s, addr, false);

    if (result)
        return result;
    poll_table_init(&table);
    result = poll_loop(&table, select_scan, s, deadline_ns);
    poll_table_end(&table);
    if (s->bad_fd)
        return -EBADF;
    if (result >= 0 && select_copy(s, addr, true))
        return -EFAULT;
    return result;
}

static long do_select(int count, const uint64_t addr[3], uint64_t deadline_ns)
{
    uint64_t few[6 * SELECT_INLINE_WORDS] = {0};
    struct select_sets s = {.words = SELECT_INLINE_WORDS, .bits = few};
    long result;

    if (count < 0)
        return -EINVAL;
    /* Beyond the table no descriptor exists; bits there are ignored as by Linux. */
    s.count = MIN((unsigned)count,
                  ALIGN_UP(atomic_load_relaxed(&current_process()->files->capacity), 64u));
    if (s.count > SELECT_INLINE_WORDS * 64) {
        s.words = DIV_ROUND_UP(s.count, 64);
        s.bits = kcalloc(6 * s.words, sizeof(uint64_t));
        if (!s.bits)
            return -ENOMEM;
    }
    result = select_with(&s, addr, deadline_ns);
    if (s.bits != few)
        kfree(s.bits);
    return result;
}

long sys_select(const uint64_t a[6])
{
    uint64_t deadline_ns = TIME_FOREVER;
    struct timeval_weir tv;
    long result;

    if (a[4]) {
        uint64_t ns;

        if (copy_from_user(&tv, a[4], sizeof(tv)))
            return -EFAULT;
        if (tv.sec < 0 || tv.usec < 0)
            return -EINVAL;
        ns = (uint64_t)MIN(tv.sec, (int64_t)(INT64_MAX / NSEC_PER_SEC / 2)) * NSEC_PER_SEC +
             (uint64_t)MIN(tv.usec, 1000000000L) * NSEC_PER_USEC;
        deadline_ns = ns ? deadline_after(ns) : 0;
    }
    result = do_select((int)a[0], &a[1], deadline_ns);
    if (a[4] && deadline_ns != TIME_FOREVER) {
        uint64_t now = clock_monotonic_ns(), left = deadline_ns > now ? deadline_ns - now : 0;

        tv = (struct timeval_weir){(int64_t)(left / NSEC_PER_SEC),
                                   (int64_t)(left % NSEC_PER_SEC / NSEC_PER_USEC)};
        (void)!copy_to_user(a[4], &tv, sizeof(tv));
    }
    return result == -EINTR ? -ERESTARTNOHAND : result;
}

long sys_pselect6(const uint64_t a[6])
{
    struct {
        uint64_t set, size;
    } mask = {0, 0};
    uint64_t deadline_ns;
    long result = deadline_from_user(a[4], &deadline_ns);

    if (result)
        return result;
    if (a[5] && copy_from_user(&mask, a[5], sizeof(mask)))
        return -EFAULT;
    result = mask_swap_from_user(mask.set, mask.size);
    if (result)
        return result;
    result = do_select((int)a[0], &a[1], deadline_ns);
    write_time_left(a[4], deadline_ns);
    return finish_masked(result);
}
