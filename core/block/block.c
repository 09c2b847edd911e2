/* Block devices and the way of a request: check, plug, queue of this CPU, driver, end. */
#include <weir/atomic.h>
#include <weir/block.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/printk.h>
#include <weir/string.h>

static spinlock_t devices_lock = SPINLOCK_INIT; /* thread context only */
static struct list devices = LIST_INIT(devices);
#define NAMES_MAX 702u                      /* vda .. vdzz */
static uint64_t names[BITMAP_WORDS(NAMES_MAX)];

/* ---- devices ---- */

/* vda .. vdz, vdaa .. */
static void make_name(char *name, size_t size, unsigned n)
{
    if (n < 26)
        snprintf(name, size, "vd%c", 'a' + (int)n);
    else
        snprintf(name, size, "vd%c%c", 'a' + (int)((n / 26 - 1) % 26), 'a' + (int)(n % 26));
}

int block_register(struct block_device *d)
{
    const struct block_limits *l = &d->limits;
    bool possible = l->max_segments && l->max_segment_bytes >= SECTOR_SIZE && d->queue_count &&
                    d->logical_block >= SECTOR_SIZE && l->max_bytes >= d->logical_block &&
                    IS_ALIGNED(l->max_bytes, (uint64_t)d->logical_block);
    if (!possible)
        return -EINVAL;
    spin_lock(&devices_lock);
    unsigned number = bitmap_next_clear(names, NAMES_MAX, 0);
    if (number < NAMES_MAX) {
        bitmap_set(names, number);
        make_name(d->name, sizeof(d->name), number);
        d->number = number;
        d->refs = 1;
        list_add_tail(&devices, &d->link);
    }
    spin_unlock(&devices_lock);
    return number < NAMES_MAX ? 0 : -ENOSPC;
}

void block_unregister(struct block_device *d)
{
    atomic_store_relaxed(&d->removed, true);
    spin_lock(&devices_lock);
    list_del(&d->link);
    spin_unlock(&devices_lock);
}

void block_get(struct block_device *d)
{
    spin_lock(&devices_lock);
    d->refs++;
    spin_unlock(&devices_lock);
}

/* devices_lock held. True: it was the last, and the device is the caller's to release. */
static bool put_locked(struct block_device *d)
{
    if (--d->refs)
        return false;
    bitmap_clear(names, d->number);
    return true;
}

void block_put(struct block_device *d)
{
    spin_lock(&devices_lock);
    bool last = put_locked(d);
    spin_unlock(&devices_lock);
    if (last)
        d->ops->release(d);
}


struct block_device *block_find(const char *name)
{
    struct block_device *found = NULL, *d;
    spin_lock(&devices_lock);
    list_for_each_entry(d, &devices, link)
    {
        if (!strcmp(d->name, name))
            found = d;
    }
    if (found)
        found->refs++;
    spin_unlock(&devices_lock);
    return found;
}

struct block_device *block_next(struct block_device *after)
{
    spin_lock(&devices_lock);
    struct list *next = after ? after->link.next : devices.next;
    bool gone = after && atomic_load_relaxed(&after->removed); /* off the list: its links say nothing */
    struct block_device *d = next == &devices || gone ? NULL : list_entry(next, struct block_device, link);
    if (d)
        d->refs++;
    bool last = after && put_locked(after);
    spin_unlock(&devices_lock);
    if (last)
        after->ops->release(after);
    return d;
}

void block_stats(struct block_device *d, struct block_stats *out)
{
    *out = (struct block_stats){ 0 };
    if (d->ops->stats)
        d->ops->stats(d, out);
}

/* ---- requests ---- */

void block_piece_done(struct block_request *r, int status, struct list *done)
{
    int32_t none = 0;
    if (status)
        (void)atomic_cas(&r->status, &none, status); /* the first error stays */
    if (atomic_fetch_sub(&r->pieces, 1) == 1)
        list_add_tail(done, &r->link);
}

void block_end_list(struct list *done)
{
    struct block_request *r, *next;
    list_for_each_entry_safe(r, next, done, link)
        r->end(r, r->status); /* which may free it, or submit it again: no look at its link any more */
    list_init(done);
}

/* Is it a request that the device can do? 0 or the status to end with. 1 = there is nothing to do. */
static int check(struct block_request *r)
{
    struct block_device *d = r->device;
    if (atomic_load_relaxed(&d->removed))
        return -ENODEV;
    if (r->op != BLOCK_READ && d->read_only && r->op != BLOCK_FLUSH && r->op != BLOCK_DRIVER_PRIVATE)
        return -EROFS;
    uint64_t odd = 0; /* bits of bytes and sectors that are less than a block */
    if (r->op == BLOCK_READ || r->op == BLOCK_WRITE) {
        for (unsigned i = 0; i < r->segment_count; i++)
            odd += r->segments[i].len;
        r->sector_count = odd >> SECTOR_SHIFT;
    } else if (r->op == BLOCK_DRIVER_PRIVATE) {
        return 0;
    } else if (r->op == BLOCK_FLUSH) {
        return d->has_flush && !d->read_only ? 0 : 1;
    } else if (r->op == BLOCK_DISCARD ? !d->has_discard : !d->has_write_zeroes) {
        return -EOPNOTSUPP;
    }
    uint64_t end = r->sector + r->sector_count;
    odd |= (r->sector | r->sector_count) << SECTOR_SHIFT;
    if (odd & (d->logical_block - 1) || end < r->sector || end > atomic_load_relaxed(&d->capacity_sectors))
        return -EINVAL;
    return r->sector_count ? 0 : 1;
}

/* True if the request goes on; else it has ended. */
static bool prepare(struct block_request *r)
{
    r->pieces = 1; /* the splitting itself: nothing ends before all parts are counted */
    r->status = 0;
    r->cursor = (struct block_cursor){ .sector = r->sector };
    int result = check(r);
    if (result == 0)
        return true;
    r->end(r, result > 0 ? 0 : result);
    return false;
}

/* Hardware queue i is served on CPU i, so a completion comes back to its submitter's CPU. The polled queues have a
 * map of their own. */
static unsigned queue_of_cpu(const struct block_device *d, bool polled)
{
    unsigned served = d->queue_count - d->poll_queue_count;
    if (polled && d->poll_queue_count)
        return served + this_cpu()->id % d->poll_queue_count;
    return this_cpu()->id % served;
}

void block_submit(struct block_request *r)
{
    if (!prepare(r))
        return;
    struct list one = LIST_INIT(one);
    list_add_tail(&one, &r->link);
    r->device->ops->submit(r->device, queue_of_cpu(r->device, r->polled), &one);
}

bool block_poll(struct block_device *d)
{
    return d->poll_queue_count && d->ops->poll(d, queue_of_cpu(d, true));
}

static void wait_end(struct block_request *r, int status)
{
    r->status = status;
    completion_complete(r->arg);
}

int block_submit_wait(struct block_request *r)
{
    struct completion c;
    completion_init(&c);
    r->end = wait_end;
    r->arg = &c;
    if (!prepare(r))
        return r->status;
    struct block_device *d = r->device;
    unsigned queue = queue_of_cpu(d, r->polled);
    struct list one = LIST_INIT(one);
    list_add_tail(&one, &r->link);
    d->ops->submit(d, queue, &one);
    /* Another thread may take it out of the queue that both poll. */
    while (r->polled && d->poll_queue_count && !atomic_load_acquire(&c.done)) {
        if (!d->ops->poll(d, queue))
            cond_resched();
    }
    completion_wait(&c);
    return r->status;
}

/* ---- plug ---- */

void block_plug_start(struct block_plug *p)
{
    list_init(&p->requests);
    p->mixed = false;
}

void block_submit_plugged(struct block_plug *p, struct block_request *r)
{
    if (!prepare(r))
        return;
    if (list_empty(&p->requests)) {
        p->device = r->device;
        p->polled = r->polled;
    }
    p->mixed |= p->device != r->device || p->polled != r->polled;
    list_add_tail(&p->requests, &r->link);
}

void block_plug_finish(struct block_plug *p)
{
    if (!p->mixed && !list_empty(&p->requests))
        p->device->ops->submit(p->device, queue_of_cpu(p->device, p->polled), &p->requests);
    while (!list_empty(&p->requests)) {
        struct block_request *first = list_first(&p->requests, struct block_request, link);
        struct block_device *d = first->device;
        bool polled = first->polled;
        struct list same = LIST_INIT(same);
        struct block_request *r, *next;
        list_for_each_entry_safe(r, next, &p->requests, link)
        {
            if (r->device != d || r->polled != polled)
                continue;
            list_del(&r->link);
            list_add_tail(&same, &r->link);
        }
        d->ops->submit(d, queue_of_cpu(d, polled), &same);
    }
}

/* ---- helpers ---- */

int block_flush(struct block_device *d)
{
    struct block_request r = { .device = d, .op = BLOCK_FLUSH };
    return block_submit_wait(&r);
}

#define HELPER_SEGMENTS 32u

/* Kernel memory is contiguous by the page only. Stops at a multiple of the logical block. */
static size_t map_buffer(const struct block_device *d, const char *buf, size_t len,
                         struct block_segment *segments, unsigned *count)
{
    size_t done = 0;
    *count = 0;
    while (done < len && *count < HELPER_SEGMENTS) {
        size_t in_page = PAGE_SIZE - ((uintptr_t)(buf + done) & PAGE_MASK);
        size_t take = MIN(in_page, len - done);
        segments[(*count)++] =
            (struct block_segment){ virt_to_phys(buf + done), (uint32_t)take };
        done += take;
    }
    size_t excess = done % d->logical_block;
    for (size_t left = excess; left;) {
        struct block_segment *last = &segments[*count - 1];
        uint32_t take = (uint32_t)MIN(left, (size_t)last->len);
        last->len -= take;
        left -= take;
        *count -= last->len == 0;
    }
    return done - excess;
}

static int transfer(struct block_device *d, enum block_op op, uint64_t offset, const char *buf,
                    size_t len)
{
    if (offset % d->logical_block || len % d->logical_block)
        return -EINVAL;
    while (len) {
        struct block_segment segments[HELPER_SEGMENTS];
        struct block_request r = {
            .device = d,
            .op = op,
            .sector = offset >> SECTOR_SHIFT,
            .segments = segments,
        };
        size_t bytes = map_buffer(d, buf, len, segments, &r.segment_count);
        int error = block_submit_wait(&r);
        if (error)
            return error;
        offset += bytes;
        buf += bytes;
        len -= bytes;
    }
    return 0;
}

int block_read(struct block_device *d, uint64_t offset, void *buf, size_t len)
{
    return transfer(d, BLOCK_READ, offset, buf, len);
}

int block_write(struct block_device *d, uint64_t offset, const void *buf, size_t len)
{
    return transfer(d, BLOCK_WRITE, offset, buf, len);
}
