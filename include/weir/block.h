/*
 * Block devices and requests (core/block). Sectors are 512 bytes whatever the logical block size.
 *
 * A request is made by its submitter (embedded or slab), owned by the block core from block_submit until
 * `end` is called, exactly once. Its pages must stay referenced until then. Requests larger than the
 * device's limits are split and joined here; the submitter never sees EIO for size.
 */
#ifndef WEIR_BLOCK_H
#define WEIR_BLOCK_H
#include <weir/list.h>
#include <weir/mm.h>
#include <weir/sched.h>

enum block_op { BLOCK_READ, BLOCK_WRITE, BLOCK_FLUSH, BLOCK_DISCARD, BLOCK_WRITE_ZEROES };
struct block_segment { uint64_t phys; uint32_t len; }; /* multiples of 512 bytes */

struct block_request {
    struct block_device *device;
    enum block_op op;
    uint64_t sector;              /* first; 0 for flush */
    uint64_t sector_count;        /* discard, write zeroes */
    struct block_segment *segments; unsigned segment_count;
    bool polled;                  /* may go to a polled queue; the submitter polls */
    /* Interrupt context (or the submitter's when it fails at once, or a poller): mark and wake only.
     * status: 0, -EIO, -ENOSPC, -EOPNOTSUPP, -EROFS, -ENODEV (removed): only what the device said. */
    void (*end)(struct block_request *r, int status);
    void *arg;
    /* block core and driver */
    struct list link; struct block_request *parent; uint32_t children; int status; void *driver_data;
    uint64_t submit_ns;
};
struct block_device {
    char name[16];                /* vda, vdb ... in PCI order */
    uint64_t capacity_sectors;    /* a changes on resize */
    unsigned logical_block;       /* bytes */
    bool read_only, has_flush, has_discard, has_write_zeroes;
    unsigned max_segments, max_segment_bytes, queue_count;
    uint64_t max_bytes, max_discard_sectors;
    const struct block_driver_ops *ops;
    void *driver_data;
    char serial[21];
    struct list link;
};
struct block_driver_ops {
    /* Put requests (already split to fit) on hardware queue `queue`; ring the doorbell once for the
     * list. May sleep for ring space with no lock held. Each request ends through block_end. */
    void (*submit)(struct block_device *d, unsigned queue, struct list *requests);
    bool (*poll)(struct block_device *d, unsigned queue);
};
/* Drivers: */
int block_register(struct block_device *d) __must_check;
void block_unregister(struct block_device *d);      /* pending requests end with -ENODEV */
void block_end(struct block_request *r, int status);/* any context */
/* Users: */
struct block_device *block_find(const char *name);  /* NULL if absent */
struct block_device *block_next(struct block_device *after); /* iterate; NULL starts and ends */
void block_submit(struct block_request *r);         /* thread context */
int block_submit_wait(struct block_request *r) __must_check; /* sets end; returns status */
/* Plug: requests submitted by this thread between start and finish go out together, one doorbell a queue. */
struct block_plug { struct list requests; };
void block_plug_start(struct block_plug *p);
void block_submit_plugged(struct block_plug *p, struct block_request *r);
void block_plug_finish(struct block_plug *p);
int block_flush(struct block_device *d) __must_check; /* waits; 0 when the device has no volatile cache */
int block_read(struct block_device *d, uint64_t offset, void *buf, size_t len) __must_check; /* 512-aligned, waits */
int block_write(struct block_device *d, uint64_t offset, const void *buf, size_t len) __must_check;
#endif
