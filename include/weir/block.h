/*
 * Block devices and requests (core/block). Sectors are 512 bytes whatever the logical block size.
 *
 * A request is made by its submitter (embedded, slab, or on its stack when it waits), owned by the
 * block core from block_submit until `end` is called, exactly once. Its pages and its segment list
 * must stay until then. Requests larger than the device's limits are split and joined here; the
 * submitter never sees an error for size. Submitting allocates nothing, so it cannot fail for memory;
 * it may sleep for room in the device's queue.
 */
#ifndef WEIR_BLOCK_H
#define WEIR_BLOCK_H
#include <weir/list.h>
#include <weir/mm.h>
#include <weir/sched.h>

#define SECTOR_SHIFT 9
#define SECTOR_SIZE  512u

enum block_op { BLOCK_READ, BLOCK_WRITE, BLOCK_FLUSH, BLOCK_DISCARD, BLOCK_WRITE_ZEROES,
                BLOCK_DRIVER_PRIVATE /* a driver's own, never from outside */ };
/* Any length; the sum of a request is a multiple of the device's logical block. Neighbours in memory
 * are joined on the way to the device. */
struct block_segment { uint64_t phys; uint32_t len; };

/* How far a request has been cut into device requests. */
struct block_cursor { unsigned segment; uint32_t offset; uint64_t sector; bool last; /* nothing is left */ };

struct block_request {
    struct block_device *device;
    enum block_op op;
    uint64_t sector;              /* first; 0 for flush; multiple of the logical block */
    uint64_t sector_count;        /* discard, write zeroes; computed for reads and writes */
    struct block_segment *segments; unsigned segment_count;
    /* Goes to a polled queue, if the device has any: nothing but block_poll takes its completion, and the submitter
     * calls that (on the same CPU) until the request has ended. */
    bool polled;
    /* Interrupt context (or the submitter's when it fails at once, or a poller): mark and wake only.
     * status: 0, -EIO, -EOPNOTSUPP, -EROFS, -ENODEV (removed), -EINVAL (not aligned to the logical
     * block, or beyond the capacity); I/O errors only when the device said so. */
    void (*end)(struct block_request *r, int status);
    void *arg;
    /* Block core and driver. */
    struct list link;             /* plug, submission list, list of finished ones */
    uint32_t pieces;              /* a parts in flight, + 1 while more are to come */
    int32_t status;               /* a the first error of a part */
    struct block_cursor cursor;
};

struct block_limits {
    unsigned max_segments;        /* of one device request, >= 1 */
    uint32_t max_segment_bytes;   /* multiple of 512 */
    uint64_t max_bytes;           /* of one device request, multiple of logical_block */
    uint64_t max_discard_sectors, max_write_zeroes_sectors; /* of one device request */
};
struct block_stats { /* sums over the queues since boot */
    uint64_t requests, device_requests, completions, doorbells, full_waits, in_flight;
    uint64_t interrupts;      /* in which a queue was served; less than one each where queues share a vector */
    unsigned queues_used;     /* queues that have completed anything */
    unsigned oldest_s;        /* seconds that a request was seen with the device at most, since boot */
};
struct block_device {
    char name[16];                /* vda, vdb ... in PCI order */
    uint64_t capacity_sectors;    /* a changes on resize */
    unsigned logical_block;       /* bytes */
    unsigned physical_block;      /* bytes, for alignment */
    bool read_only, has_flush, has_discard, has_write_zeroes;
    bool removed;                 /* a */
    bool mounted;                 /* a a file system on it is mounted: not to be written past it */
    unsigned queue_count;         /* all; the polled ones are the last */
    unsigned poll_queue_count;    /* < queue_count */
    struct block_limits limits;
    const struct block_driver_ops *ops;
    void *driver_data;
    char serial[21];
    struct list link;             /* the device list's lock */
    unsigned refs;                /* the device list's lock; one is the registration's */
    unsigned number;              /* behind the name; free again with the last reference */
};
struct block_driver_ops {
    /* Put requests on hardware queue `queue`; one doorbell for the list as far as there is room. May
     * sleep for room with no lock held. The driver takes each off the list, cuts it with
     * block_split_next and tells block_piece_done of each part. */
    void (*submit)(struct block_device *d, unsigned queue, struct list *requests);
    bool (*poll)(struct block_device *d, unsigned queue); /* take completions; true if there were any */
    void (*stats)(struct block_device *d, struct block_stats *out);
    /* Unregistered, and the last reference has gone: nobody can submit any more. Thread context. NULL =
     * the device is never unregistered. */
    void (*release)(struct block_device *d);
};

/* ---- for drivers ---- */
/* Names the device (the first letter that is free) and makes it visible. 0 or -EINVAL (impossible limits). */
int block_register(struct block_device *d) __must_check;
/* Hides the device: nobody finds it, new requests end with -ENODEV. The registration's reference stays,
 * for the driver to put when it has ended what was in flight. */
void block_unregister(struct block_device *d);
/* One device request out of what is left of r: sectors [*sector, *sector + *sectors), and for reads and
 * writes `*count` segments in `out` (room for limits.max_segments). Each part is counted in r->pieces, where the
 * last (r->cursor.last) takes over from the splitting itself. False when nothing is left, or with r->status -EINVAL
 * when the segments are so scattered that the device cannot take one block of them. */
bool block_split_next(struct block_request *r, struct block_segment *out, unsigned *count,
                      uint64_t *sector, uint64_t *sectors);
/* The part just cut was not sent: back to `before`, the cursor as it was. */
void block_split_undo(struct block_request *r, const struct block_cursor *before);
/* A part ended (or the splitting did, before its last part). If it was the last: r goes to the tail of `done`. Any
 * context; the driver ends those with block_end_list after its lock is released. */
void block_piece_done(struct block_request *r, int status, struct list *done);
void block_end_list(struct list *done);
/* ---- for users ---- */
/* A device is valid as long as one has a reference; a forgotten block_put costs the memory of a device
 * that was unplugged, no more. */
struct block_device *block_find(const char *name);  /* with a reference; NULL if absent */
/* Iterate; NULL starts and ends. Gives back the reference to `after`, takes one to the next: who leaves
 * the loop early keeps one. After an unplugged device the iteration ends. */
struct block_device *block_next(struct block_device *after);
void block_get(struct block_device *d);
void block_put(struct block_device *d);             /* thread context */
void block_submit(struct block_request *r);         /* thread context, no spinlock; may sleep */
int block_submit_wait(struct block_request *r) __must_check; /* sets end; returns status; polls if r->polled */
/* Take completions of polled requests that this CPU has submitted; true if there were any. Thread context. */
bool block_poll(struct block_device *d);
/* Plug: requests submitted by this thread between start and finish go out together, one doorbell a
 * queue. Do not sleep for their completion before finish. */
struct block_plug {
    struct list requests;
    struct block_device *device; /* of the first */
    bool polled, mixed;          /* mixed: not all are the same device's, or not all are polled */
};
void block_plug_start(struct block_plug *p);
void block_submit_plugged(struct block_plug *p, struct block_request *r);
void block_plug_finish(struct block_plug *p);
int block_flush(struct block_device *d) __must_check; /* waits; 0 when the device has no volatile cache */
/* Synchronous, kernel memory; offset and len multiples of the logical block. */
int block_read(struct block_device *d, uint64_t offset, void *buf, size_t len) __must_check;
int block_write(struct block_device *d, uint64_t offset, const void *buf, size_t len) __must_check;
void block_stats(struct block_device *d, struct block_stats *out);
#endif
