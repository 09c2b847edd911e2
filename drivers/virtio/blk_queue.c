/*
 * virtio-blk data path. A request on the wire is one chain:
 *
 *   header {type, 0, sector}   16 bytes, device reads
 *   data segments              device reads (write, discard, write zeroes) or writes (read, id)
 *   status                     1 byte, device writes
 *
 * Submitters fill the ring under the queue's lock, kick once for the batch, and sleep without any lock
 * when it is full. Completions are collected under the lock and ended together after it.
 */
#include <weir/atomic.h>
#include <weir/cpu.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "virtio_blk.h"

#define SLOTS_MAX 128u
/* The watchdog looks once a second. A device that keeps a request so long is worth a message, no more: it may be
 * slow, and its memory is not ours while it has the request. */
#define STALLED_LOOKS 10u

_Static_assert(sizeof(struct blk_slot) == 64, "a slot must not cross a page");
_Static_assert(sizeof(struct blk_header) == 16 && sizeof(struct blk_range) == 16, "wire layout");
/* Splitting writes segments straight into the chain. */
_Static_assert(sizeof(struct block_segment) == sizeof(struct virtio_buffer) &&
                   offsetof(struct block_segment, len) == offsetof(struct virtio_buffer, len),
               "a block segment is a virtio buffer");

/* ---- submission ---- */

static uint32_t wire_type(enum block_op op)
{
    switch (op) {
    case BLOCK_READ:
        return BLK_T_IN;
    case BLOCK_WRITE:
        return BLK_T_OUT;
    case BLOCK_FLUSH:
        return BLK_T_FLUSH;
    case BLOCK_DISCARD:
        return BLK_T_DISCARD;
    case BLOCK_WRITE_ZEROES:
        return BLK_T_WRITE_ZEROES;
    case BLOCK_DRIVER_PRIVATE:
        return BLK_T_GET_ID;
    }
    return BLK_T_FLUSH;
}

static struct virtio_buffer buffer_of(const struct blk_slot *slot, size_t offset, uint32_t len)
{
    return (struct virtio_buffer){ slot->phys + offset, len };
}

/* One device request: its data segments stand in q->buffers[1..]. */
struct part {
    unsigned data;
    uint64_t sector, sectors;
};

static int add_part_locked(struct blk_queue *q, struct block_request *r, const struct part *part)
{
    struct blk_slot *slot = q->free;
    if (!slot)
        return -ENOSPC;
    bool is_range = r->op == BLOCK_DISCARD || r->op == BLOCK_WRITE_ZEROES;
    bool device_writes = r->op == BLOCK_READ || r->op == BLOCK_DRIVER_PRIVATE;
    slot->header = (struct blk_header){
        .type = wire_type(r->op),
        .sector = r->op == BLOCK_READ || r->op == BLOCK_WRITE ? part->sector : 0,
    };
    slot->status = BLK_S_PRESET;
    q->buffers[0] = buffer_of(slot, offsetof(struct blk_slot, header), sizeof(slot->header));
    unsigned data = part->data;
    if (is_range) {
        slot->range = (struct blk_range){ .sector = part->sector,
                                          .sectors = (uint32_t)part->sectors };
        q->buffers[1] = buffer_of(slot, offsetof(struct blk_slot, range), sizeof(slot->range));
        data = 1;
    }
    q->buffers[1 + data] = buffer_of(slot, offsetof(struct blk_slot, status), sizeof(slot->status));
    unsigned out = 1 + (device_writes ? 0 : data), in = 1 + (device_writes ? data : 0);
    int error = virtqueue_add(q->vq, q->buffers, out, in, slot);
    if (error)
        return error;
    slot->looks = 0;
    slot->request = r;
    q->free = slot->next_free;
    q->device_requests++;
    return 0;
}

/* Put as many parts in the ring as it takes. -ENOSPC: full, the rest is still in the list. Requests
 * that end without the device (it is fenced) go to `done`. */
static int fill_locked(struct blk_queue *q, struct list *requests, struct list *done)
{
    while (!list_empty(requests)) {
        struct block_request *r = list_first(requests, struct block_request, link);
        struct block_cursor before = r->cursor;
        struct part part;
        if (!block_split_next(r, (struct block_segment *)&q->buffers[1], &part.data, &part.sector,
                              &part.sectors)) {
            list_del(&r->link);
            block_piece_done(r, 0, done); /* with the status that the splitting left */
            continue;
        }
        int error = add_part_locked(q, r, &part);
        if (error == -ENOSPC) {
            /* Not cut after all: others use q->buffers while we sleep. */
            block_split_undo(r, &before);
            return error;
        }
        if (r->cursor.last) {
            list_del(&r->link);
            q->requests++;
        }
        if (error) {
            /* Fenced, or unplugged since the block core looked. */
            bool removed = atomic_load_relaxed(&r->device->removed) ||
                           atomic_load_relaxed(&q->disk->virtio->vanished);
            block_piece_done(r, removed ? -ENODEV : -EIO, done);
        }
    }
    return 0;
}

static bool queue_serve(void *arg);

/* Sleep until a completion after the one counted `seen`. Exclusive: a completion wakes one submitter,
 * whose own completion wakes the next. */
static void wait_for_room(struct blk_queue *q, uint64_t seen)
{
    /* Nobody takes completions out of such a queue but submitters. */
    while (q->poll_only && atomic_load_relaxed(&q->completions) == seen) {
        if (!queue_serve(q))
            cond_resched();
    }
    if (q->poll_only)
        return;
    struct waiter w;
    waiter_init(&w, true);
    for (;;) {
        prepare_wait(&q->room, &w, THREAD_UNINTERRUPTIBLE);
        if (atomic_load_relaxed(&q->completions) != seen)
            break;
        int result = wait_schedule(THREAD_UNINTERRUPTIBLE, TIME_FOREVER);
        assert(result == 0);
    }
    finish_wait(&q->room, &w);
}

static void blk_submit(struct block_device *d, unsigned index, struct list *requests)
{
    struct blk_disk *disk = d->driver_data;
    struct blk_queue *q = &disk->queues[index];
    struct list done = LIST_INIT(done);
    int error;
    do {
        uint64_t flags = spin_lock_irqsave(&q->lock);
        error = fill_locked(q, requests, &done);
        uint64_t seen = q->completions;
        bool kick = virtqueue_kick_prepare(q->vq);
        q->doorbells += kick;
        q->full_waits += error != 0;
        spin_unlock_irqrestore(&q->lock, flags);
        if (kick)
            virtqueue_notify(q->vq);
        if (!q->poll_only)
            irq_source_busy(disk->virtio->irq, index);
        block_end_list(&done);
        if (error)
            wait_for_room(q, seen);
    } while (error);
}

/* ---- completion ---- */

static int status_of(const struct blk_slot *slot)
{
    switch (slot->status) {
    case BLK_S_OK:
        return 0;
    case BLK_S_UNSUPP:
        return -EOPNOTSUPP;
    case BLK_S_IOERR:
        return -EIO;
    default:
        log_error("%s: request ended with the invalid status 0x%02x",
                  slot->request->device->name, slot->status);
        return -EIO;
    }
}

static void slot_done_locked(struct blk_queue *q, struct blk_slot *slot, int status,
                             struct list *done)
{
    block_piece_done(slot->request, status, done);
    slot->request = NULL;
    slot->next_free = q->free;
    q->free = slot;
}

/* After the lock: room for submitters, then the ends. */
static void finish(struct blk_queue *q, unsigned count, struct list *done)
{
    if (wait_queue_active(&q->room))
        wake_events(&q->room, 0, count);
    block_end_list(done);
}

static unsigned take_locked(struct blk_queue *q, struct list *done, unsigned most)
{
    struct blk_slot *slot;
    unsigned count = 0;
    while (count < most && (slot = virtqueue_get(q->vq, NULL))) {
        slot_done_locked(q, slot, status_of(slot), done);
        count++;
    }
    atomic_store_relaxed(&q->completions, q->completions + count);
    return count;
}

/* Any context. Drain a batch, arm, drain again if something came in between. */
static bool queue_serve(void *arg)
{
    struct blk_queue *q = arg;
    unsigned total = 0, most = q->disk->batch;
    bool again;
    q->served_interrupts += this_cpu()->irq_depth != 0; /* statistics: as virtqueue_notify's */
    do {
        struct list done = LIST_INIT(done);
        uint64_t flags = spin_lock_irqsave(&q->lock);
        unsigned count = take_locked(q, &done, most);
        again = count == most || (q->interrupts && virtqueue_enable_interrupts(q->vq));
        spin_unlock_irqrestore(&q->lock, flags);
        if (count)
            finish(q, count, &done);
        total += count;
    } while (again);
    return total != 0;
}

static bool queue_busy(void *arg)
{
    struct blk_queue *q = arg;
    return virtqueue_in_flight(q->vq) != 0;
}

static void report_stalled_locked(const struct blk_queue *q, const struct blk_slot *slot)
{
    static const char *const names[] = { "read", "write", "flush", "discard", "write of zeroes", "command" };
    log_warn("%s: queue %u is stalled: the device has had a %s of sector %lu for %u s", q->disk->block.name,
             virtqueue_index(q->vq), names[slot->request->op], (unsigned long)slot->header.sector, STALLED_LOOKS);
}

static void look_at_ages(struct blk_queue *q)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    for (unsigned i = 0; i < q->slot_count; i++) {
        struct blk_slot *slot = &q->slots[i];
        if (!slot->request || slot->looks == UINT16_MAX)
            continue;
        if (++slot->looks == STALLED_LOOKS)
            report_stalled_locked(q, slot);
        q->oldest = MAX(q->oldest, (unsigned)slot->looks);
    }
    spin_unlock_irqrestore(&q->lock, flags);
}

/* The watchdog's look, once a second. */
static bool queue_pending(void *arg)
{
    struct blk_queue *q = arg;
    if (virtqueue_in_flight(q->vq))
        look_at_ages(q);
    return virtqueue_has_used(q->vq);
}

static void queue_polled(void *arg, bool polled)
{
    struct blk_queue *q = arg;
    uint64_t flags = spin_lock_irqsave(&q->lock);
    q->interrupts = !polled;
    spin_unlock_irqrestore(&q->lock, flags);
}

static void queue_stalled(void *arg)
{
    struct blk_queue *q = arg;
    (void)virtio_check(q->disk->virtio);
}

const struct irq_service blk_queue_service = {
    .serve = queue_serve,
    .busy = queue_busy,
    .pending = queue_pending,
    .stalled = queue_stalled,
    .polled = queue_polled,
};

void blk_queue_abort(struct blk_queue *q, int status)
{
    struct list done = LIST_INIT(done);
    struct blk_slot *slot;
    unsigned count = 0;
    uint64_t flags = spin_lock_irqsave(&q->lock);
    while ((slot = virtqueue_detach(q->vq))) {
        slot_done_locked(q, slot, status, &done);
        count++;
    }
    /* Waiters must see a change even if nothing was in flight. */
    atomic_store_relaxed(&q->completions, q->completions + count + 1);
    spin_unlock_irqrestore(&q->lock, flags);
    wake_events(&q->room, 0, ~0u);
    block_end_list(&done);
}

int blk_queue_restart(struct blk_queue *q)
{
    uint64_t flags = spin_lock_irqsave(&q->lock);
    int error = virtqueue_restart(q->vq);
    spin_unlock_irqrestore(&q->lock, flags);
    return error;
}

/* ---- the block core's view ---- */

static bool blk_poll(struct block_device *d, unsigned index)
{
    struct blk_disk *disk = d->driver_data;
    struct blk_queue *q = &disk->queues[index];
    return virtqueue_has_used(q->vq) && queue_serve(q);
}

static void blk_stats(struct block_device *d, struct block_stats *out)
{
    struct blk_disk *disk = d->driver_data;
    for (unsigned i = 0; i < d->queue_count; i++) {
        struct blk_queue *q = &disk->queues[i];
        out->requests += q->requests;
        out->device_requests += q->device_requests;
        out->completions += q->completions;
        out->doorbells += q->doorbells;
        out->full_waits += q->full_waits;
        out->interrupts += q->served_interrupts;
        out->in_flight += virtqueue_in_flight(q->vq);
        out->queues_used += q->completions != 0;
        out->oldest_s = MAX(out->oldest_s, q->oldest);
    }
}

const struct block_driver_ops blk_block_ops = {
    .submit = blk_submit,
    .poll = blk_poll,
    .stats = blk_stats,
    .release = blk_release,
};

/* ---- start ---- */

int blk_queue_start(struct blk_disk *disk, unsigned index)
{
    struct blk_queue *q = &disk->queues[index];
    unsigned segments = disk->block.limits.max_segments;
    spin_init(&q->lock);
    wait_queue_init(&q->room);
    q->disk = disk;
    q->buffers = kcalloc(segments + 2, sizeof(q->buffers[0]));
    if (!q->buffers)
        return -ENOMEM;
    q->poll_only = index >= disk->block.queue_count - disk->block.poll_queue_count;
    q->vq = virtio_queue_start(disk->virtio, index, 0, segments + 2, q->poll_only ? -1 : (int)index);
    if (is_err(q->vq))
        return (int)ptr_err(q->vq);
    unsigned slots = MIN(virtqueue_size(q->vq), SLOTS_MAX);
    q->slots = kcalloc(slots, sizeof(q->slots[0]));
    if (!q->slots)
        return -ENOMEM;
    for (unsigned i = 0; i < slots; i++) {
        q->slots[i].phys = virt_to_phys(&q->slots[i]);
        q->slots[i].next_free = q->free;
        q->free = &q->slots[i];
    }
    q->slot_count = slots;
    return 0;
}
