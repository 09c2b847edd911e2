/* Private to the virtio-blk driver: start-up (virtio_blk.c) and data path (blk_queue.c). */
#ifndef WEIR_VIRTIO_BLK_H
#define WEIR_VIRTIO_BLK_H
#include <weir/block.h>
#include <weir/virtio.h>

#include "blk_wire.h"

/* What the device reads and writes of one request, beside the data. Slots are made with the queue, so
 * a submission never allocates. 64-byte slots of an aligned array cross no page. */
struct blk_slot {
    struct blk_header header;
    struct blk_range range;
    uint8_t status;
    uint16_t looks;                /* private to us from here: of the watchdog, since it was sent */
    struct block_request *request; /* NULL = free */
    struct blk_slot *next_free;
    uint64_t phys;                 /* of the slot itself */
} __cacheline;

/* Key: I immutable after start, l lock (interrupts off), a atomic. */
struct blk_queue {
    spinlock_t lock;
    struct blk_disk *disk;          /* I */
    struct virtqueue *vq;           /* l; the pointer I */
    struct blk_slot *slots;         /* I */
    struct blk_slot *free;          /* l */
    struct virtio_buffer *buffers;  /* l one chain: header, data, status */
    bool interrupts;                /* l false = an irq poller looks, or submitters do (poll_only) */
    bool poll_only;                 /* I for polled requests */
    uint64_t completions;           /* a written under l; a full ring's waiters watch it */
    struct wait_queue room;         /* submitters that wait for a completion; exclusive */
    unsigned slot_count;            /* I */
    unsigned oldest;                /* l looks that the watchdog saw a request at most */
    uint64_t requests, device_requests, doorbells, full_waits, served_interrupts; /* l, the last none */
} __cacheline;

struct blk_disk {
    struct virtio_device *virtio;   /* I */
    struct block_device block;
    struct blk_queue *queues;       /* I block.queue_count */
    unsigned batch;                 /* I completions taken at once; few only to measure what batches gain */
};

extern const struct block_driver_ops blk_block_ops;
extern const struct irq_service blk_queue_service;
void blk_release(struct block_device *d);
int blk_queue_start(struct blk_disk *disk, unsigned index) __must_check;
/* The device is reset: end what it had with `status`, once. */
void blk_queue_abort(struct blk_queue *q, int status);
/* After that: the queue as new at the device. 0 or -EIO. */
int blk_queue_restart(struct blk_queue *q) __must_check;
#endif
