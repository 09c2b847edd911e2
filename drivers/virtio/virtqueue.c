/* Virtqueues of a device: ring memory, set-up at the transport, doorbells, the step from a ring that
 * found a lie to a fenced device. */
#include <weir/atomic.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/sched.h>
#include <weir/string.h>

#include "ring.h"
#include "transport.h"
#include "virtio_wire.h"

#define NO_SOURCE (-1)
#define RESET_TIMEOUT_NS (2 * NSEC_PER_SEC)
#define RESET_POLL_NS (100 * NSEC_PER_USEC)
/* Chains that can have an indirect table at the same time; more go direct. */
#define TABLES_MIN 32u
#define TABLES_TOTAL 512u /* of a device, when it has few queues */
#define TABLE_ENTRIES_MAX 64u

/* Key: I immutable, o the owner's lock, a atomic. */
struct virtqueue {
    struct virtio_device *device;  /* I */
    struct ring *ring;             /* I */
    unsigned index;                /* I */
    int source;                    /* I irq source, NO_SOURCE = never interrupts */
    volatile uint16_t *doorbell;   /* I NULL = by the transport */
    bool kick_held;                /* o a doorbell was wanted before DRIVER_OK */
    struct page *ring_pages;       /* I */
    struct page *table_pages;      /* I NULL = none */
    struct virtqueue_stats stats;  /* o; notifies: a */
    struct list link;              /* device's list: its driver's set-up thread */
};

static unsigned order_of(size_t bytes)
{
    unsigned order = 0;
    while ((PAGE_SIZE << order) < bytes)
        order++;
    return order;
}

static struct page *alloc_memory(size_t bytes, struct ring_memory *out)
{
    struct page *p = page_alloc(order_of(bytes), MM_ZERO);
    if (!p)
        return NULL;
    *out = (struct ring_memory){ page_virt(p), page_phys(p), bytes };
    return p;
}

static unsigned power_of_two_at_most(unsigned n)
{
    unsigned p = 1;
    while (p * 2 <= n)
        p *= 2;
    return p;
}

/* Indirect tables are a luxury: half as many when memory is short, down to none. */
static void alloc_tables(struct virtqueue *q, struct ring_config *c, unsigned max_segments)
{
    c->table_entries = MIN(MIN(max_segments, c->size), TABLE_ENTRIES_MAX);
    if (c->table_entries < 2 || !virtio_has(q->device, VIRTIO_F_INDIRECT_DESC))
        return;
    unsigned wanted = MAX(TABLES_TOTAL / MAX(virtio_queue_count(q->device), 1u), TABLES_MIN);
    for (unsigned count = MIN(c->size, wanted); count && !q->table_pages; count /= 2)
        q->table_pages = alloc_memory(count * c->table_entries * sizeof(struct wire_descriptor),
                                      &c->tables);
}

/* The largest ring up to `size` for which there is contiguous memory. */
static int make_ring(struct virtqueue *q, unsigned size, unsigned max_segments)
{
    struct ring_config c = {
        .event_index = virtio_has(q->device, VIRTIO_F_EVENT_IDX),
        .strong_barriers = virtio_has(q->device, VIRTIO_F_ORDER_PLATFORM),
    };
    bool packed = virtio_has(q->device, VIRTIO_F_RING_PACKED);
    c.page_aligned = q->device->transport->legacy;
    for (c.size = size; c.size && !q->ring_pages; c.size /= 2) {
        size_t bytes = packed ? ring_packed_bytes(c.size) : ring_split_bytes(c.size, c.page_aligned);
        q->ring_pages = alloc_memory(bytes, &c.parts);
        if (q->ring_pages || q->device->transport->legacy)
            break; /* a legacy queue cannot be smaller than the device says */
    }
    if (!q->ring_pages)
        return -ENOMEM;
    alloc_tables(q, &c, max_segments);
    q->ring = packed ? ring_packed_create(&c) : ring_split_create(&c);
    return q->ring ? 0 : -ENOMEM;
}

static void free_queue(struct virtqueue *q)
{
    if (q->ring)
        ring_destroy(q->ring);
    if (q->table_pages)
        page_put(q->table_pages);
    if (q->ring_pages)
        page_put(q->ring_pages);
    list_del(&q->link);
    kfree(q);
}

/* Point every queue of the source at the entry; false if the device refuses it for one of them. */
static bool set_source_entry(struct virtio_device *d, int source, int entry)
{
    struct virtqueue *q;
    uint16_t wanted = entry < 0 ? VIRTIO_NO_VECTOR : (uint16_t)entry;
    list_for_each_entry(q, &d->queues, link)
    {
        if (q->source == source && d->transport->queue_vector(d, q->index, wanted) != wanted)
            return false;
    }
    return true;
}

static void bind_entry(struct virtqueue *q)
{
    struct virtio_device *d = q->device;
    if (q->source == NO_SOURCE) {
        d->transport->queue_vector(d, q->index, VIRTIO_NO_VECTOR);
        return;
    }
    int entry = irq_entry_of(d->irq, (unsigned)q->source);
    while (!set_source_entry(d, q->source, entry)) {
        if (entry < 0)
            return; /* it refuses to have none: nothing to lose */
        entry = irq_refused(d->irq, (unsigned)q->source);
    }
}

/* Tell the device where the ring is. */
static void set_up(struct virtqueue *q)
{
    struct ring_addresses a = ring_addresses(q->ring);
    struct virtio_queue_setup setup = {
        .size = ring_size(q->ring),
        .descriptors = a.descriptors,
        .driver = a.driver,
        .device = a.device,
    };
    q->device->transport->queue_setup(q->device, q->index, &setup);
}

struct virtqueue *virtio_queue_start(struct virtio_device *d, unsigned index, unsigned max_size,
                                     unsigned max_segments, int source)
{
    unsigned size = index < virtio_queue_count(d) ? d->transport->queue_size(d, index) : 0;
    if (size == 0)
        return err_ptr(-ENOENT);
    if (max_size)
        size = MIN(size, max_size);
    if (d->transport->legacy)
        size = d->transport->queue_size(d, index); /* as it is, or not at all */
    else if (virtio_has(d, VIRTIO_F_RING_PACKED))
        size = MIN(size, RING_SIZE_MAX);
    else
        size = power_of_two_at_most(MIN(size, RING_SIZE_MAX));

    struct virtqueue *q = kzalloc(sizeof(*q));
    if (!q)
        return err_ptr(-ENOMEM);
    q->device = d;
    q->index = index;
    q->source = source < 0 ? NO_SOURCE : source;
    list_add_tail(&d->queues, &q->link);
    int error = make_ring(q, size, max_segments);
    if (error)
        goto fail;

    set_up(q);
    if (!d->transport->queue_notify)
        q->doorbell = d->transport->queue_doorbell(d, index);
    if (!q->doorbell && !d->transport->queue_notify) {
        log_error("%s: doorbell of queue %u lies outside its region", d->name, index);
        error = -EIO;
        goto fail;
    }
    bind_entry(q);
    ring_interrupts_disable(q->ring);
    d->transport->queue_enable(d, index);
    return q;
fail:
    free_queue(q);
    return err_ptr(error);
}

const char *virtqueue_fault(const struct virtqueue *q)
{
    enum ring_fault fault = ring_fault(q->ring);
    return fault == RING_OK ? NULL : ring_fault_text(fault);
}

int virtqueue_reset(struct virtqueue *q)
{
    struct virtio_device *d = q->device;
    uint64_t deadline = clock_monotonic_ns() + RESET_TIMEOUT_NS;
    if (!virtio_has(d, VIRTIO_F_RING_RESET))
        return -EOPNOTSUPP;
    if (atomic_load_relaxed(&d->broken))
        return -EIO;
    for (bool busy = d->transport->queue_reset(d, q->index, true); busy;
         busy = d->transport->queue_reset(d, q->index, false)) {
        if (clock_monotonic_ns() > deadline)
            return -ETIMEDOUT;
        sleep_until_ns(clock_monotonic_ns() + RESET_POLL_NS);
    }
    return 0;
}

int virtqueue_restart(struct virtqueue *q)
{
    struct virtio_device *d = q->device;
    unsigned offered = d->transport->queue_size(d, q->index);
    ring_reset(q->ring);
    if (offered < ring_size(q->ring))
        return -EIO;
    set_up(q);
    /* The entries that the sources have are fixed, but the device forgot them all. */
    int entry = q->source == NO_SOURCE ? -1 : irq_entry_of(d->irq, (unsigned)q->source);
    uint16_t wanted = entry < 0 ? VIRTIO_NO_VECTOR : (uint16_t)entry;
    if (d->transport->queue_vector(d, q->index, wanted) != wanted)
        return -EIO;
    ring_interrupts_disable(q->ring);
    d->transport->queue_enable(d, q->index);
    return 0;
}

void virtqueue_destroy(struct virtqueue *q)
{
    free_queue(q);
}

void virtio_shutdown(struct virtio_device *d)
{
    while (!list_empty(&d->queues))
        free_queue(list_first(&d->queues, struct virtqueue, link));
    irq_free(d->irq);
    d->irq = NULL;
}

void virtqueue_assert_served(struct virtio_device *d)
{
    struct virtqueue *q;
    list_for_each_entry(q, &d->queues, link)
    {
        if (q->source != NO_SOURCE && !irq_bound(d->irq, (unsigned)q->source))
            panic("%s: queue %u has nobody to serve it", d->name, q->index);
    }
}

unsigned virtio_queue_count(struct virtio_device *d)
{
    return d->transport->queue_count(d);
}

struct virtio_device *virtqueue_device(const struct virtqueue *q)
{
    return q->device;
}

unsigned virtqueue_size(const struct virtqueue *q)
{
    return ring_size(q->ring);
}

unsigned virtqueue_index(const struct virtqueue *q)
{
    return q->index;
}

unsigned virtqueue_free(const struct virtqueue *q)
{
    return ring_free(q->ring);
}

unsigned virtqueue_max_segments(const struct virtqueue *q)
{
    return ring_size(q->ring);
}

unsigned virtqueue_in_flight(const struct virtqueue *q)
{
    return ring_in_flight(q->ring);
}

/* ---- the data path ---- */

int virtqueue_add(struct virtqueue *q, const struct virtio_buffer *bufs, unsigned out, unsigned in,
                  void *cookie)
{
    if (unlikely(atomic_load_relaxed(&q->device->broken)))
        return -EIO;
    int error = ring_add(q->ring, bufs, out, in, cookie);
    if (!error)
        q->stats.added++;
    return error;
}

bool virtqueue_kick_prepare(struct virtqueue *q)
{
    bool wanted = ring_kick_prepare(q->ring);
    if (likely(q->device->driver_ok))
        return wanted;
    q->kick_held |= wanted;
    return false;
}

void virtqueue_notify(struct virtqueue *q)
{
    if (unlikely(atomic_load_relaxed(&q->device->broken)))
        return;
    assert(q->device->driver_ok || q->device->broken);
    q->stats.notifies++; /* statistics: a lost increment between two submitters is accepted */
    if (likely(q->doorbell != NULL))
        *q->doorbell = (uint16_t)q->index;
    else
        q->device->transport->queue_notify(q->device, q->index);
}

void virtqueue_send_held_kicks(struct virtio_device *d)
{
    struct virtqueue *q;
    list_for_each_entry(q, &d->queues, link)
    {
        if (q->kick_held) {
            q->kick_held = false;
            virtqueue_notify(q);
        }
    }
}

static void lied(struct virtqueue *q)
{
    struct virtio_device *d = q->device;
    if (virtio_has(d, VIRTIO_F_RING_RESET) && d->on_queue_fault && d->on_queue_fault(q))
        return;
    virtio_fence(d, virtqueue_fault(q));
}

void *virtqueue_get(struct virtqueue *q, uint32_t *len)
{
    if (unlikely(atomic_load_relaxed(&q->device->broken)))
        return NULL;
    void *cookie = ring_get(q->ring, len);
    if (likely(cookie)) {
        q->stats.completed++;
        return cookie;
    }
    if (unlikely(ring_fault(q->ring) != RING_OK))
        lied(q);
    return NULL;
}

bool virtqueue_has_used(const struct virtqueue *q)
{
    return !atomic_load_relaxed(&q->device->broken) && ring_has_used(q->ring);
}

void virtqueue_disable_interrupts(struct virtqueue *q)
{
    ring_interrupts_disable(q->ring);
}

bool virtqueue_enable_interrupts(struct virtqueue *q)
{
    return ring_interrupts_enable(q->ring) && !atomic_load_relaxed(&q->device->broken);
}

void *virtqueue_detach(struct virtqueue *q)
{
    return ring_detach(q->ring);
}

void virtqueue_stats(const struct virtqueue *q, struct virtqueue_stats *out)
{
    *out = q->stats;
}
