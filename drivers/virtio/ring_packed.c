/*
 * Packed virtqueue (virtio 1.2 section 2.8): one ring of descriptors that both sides write.
 *
 * A descriptor is available when its AVAIL bit equals the driver's wrap counter and its USED bit does not;
 * used when both equal the device's. Each side turns its counter over when it passes the end of the ring, and both
 * start at 1. The device writes one used descriptor for a chain, wherever it has got to, and skips the chain's
 * length; so a chain is known by the buffer id in it, and everything we must remember about it is kept in private
 * memory under that id.
 */
#include <weir/atomic.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "ring.h"
#include "virtio_wire.h"

#define NO_TABLE 0xffffu
#define CHAIN_BYTES_MAX (1ULL << 32)

/* A buffer id. The rest is meaningful while it is outstanding. */
struct packed_slot {
    void *cookie;      /* NULL = not outstanding */
    uint32_t in_bytes; /* writable bytes posted, clipped to 32 bits */
    uint16_t next;     /* free list */
    uint16_t count;    /* ring descriptors that the chain takes */
    uint16_t table;    /* indirect table in use, or NO_TABLE */
};

/* Key: I immutable, o the owner's lock, w written by the device at any time. */
struct packed_ring {
    struct ring base;                     /* I first: what the dispatch in ring.h looks at */
    uint16_t size;                        /* I */
    bool event_index;                     /* I */
    bool strong_barriers;                 /* I */
    uint16_t table_entries;               /* I */
    volatile struct wire_packed *desc;    /* I contents w */
    volatile struct wire_event *driver;   /* I we write: which completion shall interrupt */
    volatile struct wire_event *device;   /* I contents w: which chain wants a doorbell */
    struct ring_memory parts, tables;     /* I */

    uint16_t next;                        /* o descriptor to fill next */
    bool wrap;                            /* o our counter */
    uint16_t added;                       /* o descriptors since the last kick_prepare */
    uint16_t used_next;                   /* o where the device's next completion will be */
    bool used_wrap;                       /* o the device's counter there */
    uint16_t free_id;                     /* o */
    uint16_t free_count;                  /* o descriptors */
    uint16_t in_flight;                   /* o */
    uint16_t detach_next;                 /* o */
    uint16_t table_count;                 /* o tables on the free stack */
    uint16_t *table_stack;                /* o */
    enum ring_fault fault;                /* o */
    struct packed_slot slots[];           /* o */
};

static size_t driver_offset(unsigned size)
{
    return sizeof(struct wire_packed) * size;
}

static size_t device_offset(unsigned size)
{
    return driver_offset(size) + 64; /* not on the line that we write */
}

size_t ring_packed_bytes(unsigned size)
{
    return device_offset(size) + sizeof(struct wire_event);
}

static void write_barrier(const struct packed_ring *r)
{
    if (r->strong_barriers)
        barrier_full();
    else
        barrier_write();
}

static void read_barrier(const struct packed_ring *r)
{
    if (r->strong_barriers)
        barrier_full();
    else
        barrier_read();
}

static void init_tables(struct packed_ring *r, const struct ring_config *c)
{
    if (c->tables.bytes == 0 || c->table_entries < 2)
        return;
    r->table_entries = (uint16_t)MIN(c->table_entries, c->size);
    size_t count = c->tables.bytes / (r->table_entries * sizeof(struct wire_packed));
    count = MIN(count, (size_t)c->size);
    r->table_stack = kcalloc(count, sizeof(uint16_t));
    if (!r->table_stack)
        return; /* direct chains only */
    r->tables = c->tables;
    while (r->table_count < count) {
        r->table_stack[r->table_count] = r->table_count;
        r->table_count++;
    }
}

struct ring *ring_packed_create(const struct ring_config *c)
{
    if (c->size == 0 || c->size > RING_SIZE_MAX || c->parts.bytes < ring_packed_bytes(c->size) ||
        !IS_ALIGNED(c->parts.phys, 16))
        return NULL;
    struct packed_ring *r = kzalloc(sizeof(*r) + c->size * sizeof(r->slots[0]));
    if (!r)
        return NULL;
    r->base.packed = true;
    r->size = (uint16_t)c->size;
    r->event_index = c->event_index;
    r->strong_barriers = c->strong_barriers;
    r->parts = c->parts;
    r->wrap = r->used_wrap = true;

    char *base = c->parts.virt;
    memset(base, 0, ring_packed_bytes(c->size));
    r->desc = (volatile struct wire_packed *)base;
    r->driver = (volatile struct wire_event *)(base + driver_offset(c->size));
    r->device = (volatile struct wire_event *)(base + device_offset(c->size));
    for (unsigned i = 0; i < c->size; i++) {
        r->slots[i].next = (uint16_t)(i + 1);
        r->slots[i].table = NO_TABLE;
    }
    r->free_count = r->size;
    init_tables(r, c);
    return &r->base;
}

void packed_destroy(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    kfree(r->table_stack);
    kfree(r);
}

struct ring_addresses packed_addresses(const struct ring *base)
{
    const struct packed_ring *r = (const struct packed_ring *)base;
    return (struct ring_addresses){
        .descriptors = r->parts.phys,
        .driver = r->parts.phys + driver_offset(r->size),
        .device = r->parts.phys + device_offset(r->size),
    };
}

unsigned packed_size(const struct ring *base)
{
    return ((const struct packed_ring *)base)->size;
}

unsigned packed_free(const struct ring *base)
{
    return ((const struct packed_ring *)base)->free_count;
}

unsigned packed_in_flight(const struct ring *base)
{
    return atomic_load_relaxed(&((const struct packed_ring *)base)->in_flight);
}

enum ring_fault packed_fault(const struct ring *base)
{
    return atomic_load_relaxed(&((const struct packed_ring *)base)->fault);
}

/* ---- supplying ---- */

/* 0, or the error that the buffers themselves are. Sums the writable bytes. */
static int check_buffers(const struct virtio_buffer *bufs, unsigned out, unsigned n, uint64_t *in_bytes)
{
    uint64_t total = 0;
    *in_bytes = 0;
    for (unsigned i = 0; i < n; i++) {
        if (bufs[i].len == 0)
            return -EINVAL;
        total += bufs[i].len;
        if (i >= out)
            *in_bytes += bufs[i].len;
    }
    return total > CHAIN_BYTES_MAX ? -E2BIG : 0;
}

/* AVAIL as our counter, USED as its opposite. */
static uint16_t available(bool wrap)
{
    return wrap ? WIRE_PACKED_AVAIL : WIRE_PACKED_USED;
}

static void advance(uint16_t *at, bool *wrap, unsigned count, unsigned size)
{
    unsigned to = *at + count;
    if (to >= size) {
        to -= size;
        *wrap = !*wrap;
    }
    *at = (uint16_t)to;
}

/* Everything but the first descriptor's flags, which publish the chain. Returns those. */
static uint16_t fill_direct(struct packed_ring *r, uint16_t id, const struct virtio_buffer *bufs, unsigned out,
                            unsigned n)
{
    uint16_t at = r->next, first_flags = 0;
    bool wrap = r->wrap;
    for (unsigned i = 0; i < n; i++) {
        volatile struct wire_packed *d = &r->desc[at];
        unsigned flags = available(wrap) | (i >= out ? WIRE_DESC_WRITE : 0u) |
                         (i + 1 < n ? WIRE_DESC_NEXT : 0u);
        d->address = bufs[i].phys;
        d->length = bufs[i].len;
        d->id = id;
        if (i == 0)
            first_flags = (uint16_t)flags;
        else
            d->flags = (uint16_t)flags;
        advance(&at, &wrap, 1, r->size);
    }
    return first_flags;
}

static uint16_t fill_table(struct packed_ring *r, uint16_t id, const struct virtio_buffer *bufs, unsigned out,
                           unsigned n)
{
    uint16_t table = r->table_stack[--r->table_count];
    size_t offset = (size_t)table * r->table_entries * sizeof(struct wire_packed);
    volatile struct wire_packed *t = (void *)((char *)r->tables.virt + offset);
    for (unsigned i = 0; i < n; i++) {
        t[i].address = bufs[i].phys;
        t[i].length = bufs[i].len;
        t[i].id = 0;
        t[i].flags = i >= out ? WIRE_DESC_WRITE : 0;
    }
    volatile struct wire_packed *d = &r->desc[r->next];
    d->address = r->tables.phys + offset;
    d->length = (uint32_t)(n * sizeof(struct wire_packed));
    d->id = id;
    r->slots[id].table = table;
    return (uint16_t)(available(r->wrap) | WIRE_DESC_INDIRECT);
}

int packed_add(struct ring *base, const struct virtio_buffer *bufs, unsigned out, unsigned in, void *cookie)
{
    struct packed_ring *r = (struct packed_ring *)base;
    uint64_t in_bytes, total = (uint64_t)out + in;
    assert(cookie);
    if (unlikely(r->fault))
        return -EIO;
    if (total > r->size)
        return -E2BIG;
    if (total == 0)
        return -EINVAL;
    unsigned n = (unsigned)total;
    int error = check_buffers(bufs, out, n, &in_bytes);
    if (unlikely(error))
        return error;
    bool indirect = n > 1 && n <= r->table_entries && r->table_count > 0;
    unsigned count = indirect ? 1 : n;
    if (r->free_count < count)
        return -ENOSPC;

    uint16_t id = r->free_id;
    struct packed_slot *s = &r->slots[id];
    r->free_id = s->next;
    r->free_count = (uint16_t)(r->free_count - count);
    s->cookie = cookie;
    s->count = (uint16_t)count;
    s->in_bytes = (uint32_t)MIN(in_bytes, (uint64_t)UINT32_MAX);
    uint16_t flags = indirect ? fill_table(r, id, bufs, out, n) : fill_direct(r, id, bufs, out, n);
    atomic_store_relaxed(&r->in_flight, (uint16_t)(r->in_flight + 1));
    /* The device must see the whole list before the flags that make its first descriptor available. */
    write_barrier(r);
    r->desc[r->next].flags = flags;
    advance(&r->next, &r->wrap, count, r->size);
    r->added = (uint16_t)(r->added + count);
    return 0;
}

bool packed_kick_prepare(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    /* Our flags must be visible before we read what the device wants: it publishes its wish, then looks at
     * the next descriptor again. Without the full barrier both could miss the other (store then load). */
    barrier_full();
    unsigned added = r->added;
    r->added = 0;
    if (!added || r->fault)
        return false;
    uint32_t both = *(volatile uint32_t *)r->device; /* offset and flags belong together */
    unsigned wish = both >> 16 & WIRE_EVENT_MASK, offset = both & 0x7fff;
    if (wish != WIRE_EVENT_DESCRIPTOR || !r->event_index)
        return wish != WIRE_EVENT_DISABLE;
    /* Positions since our counter last turned; an offset with the other counter is a lap behind. */
    bool event_wrap = both >> 15 & 1;
    int event = (int)offset - (event_wrap != r->wrap ? r->size : 0);
    int now = r->next, before = now - (int)added;
    return event >= before && event < now;
}

/* ---- receiving ---- */

bool packed_has_used(const struct ring *base)
{
    const struct packed_ring *r = (const struct packed_ring *)base;
    uint16_t flags = r->desc[r->used_next].flags;
    bool avail = flags & WIRE_PACKED_AVAIL, used = flags & WIRE_PACKED_USED;
    return avail == used && used == r->used_wrap;
}

static void recycle(struct packed_ring *r, uint16_t id)
{
    struct packed_slot *s = &r->slots[id];
    s->cookie = NULL;
    if (s->table != NO_TABLE) {
        r->table_stack[r->table_count++] = s->table;
        s->table = NO_TABLE;
    }
    s->next = r->free_id;
    r->free_id = id;
    r->free_count = (uint16_t)(r->free_count + s->count);
    atomic_store_relaxed(&r->in_flight, (uint16_t)(r->in_flight - 1));
}

static void *broken(struct packed_ring *r, enum ring_fault why)
{
    atomic_store_relaxed(&r->fault, why);
    return NULL;
}

void *packed_get(struct ring *base, uint32_t *len)
{
    struct packed_ring *r = (struct packed_ring *)base;
    if (r->fault || !packed_has_used(base))
        return NULL;
    /* The rest of the descriptor, and the data it speaks of, are read only after the flags. */
    read_barrier(r);
    volatile struct wire_packed *d = &r->desc[r->used_next];
    uint16_t id = d->id; /* once: the device may change them under us */
    uint32_t length = d->length;
    if (id >= r->size)
        return broken(r, RING_FAULT_ID);
    struct packed_slot *s = &r->slots[id];
    void *cookie = s->cookie;
    if (!cookie)
        return broken(r, RING_FAULT_NOT_OUTSTANDING);
    if (length > s->in_bytes)
        return broken(r, RING_FAULT_LENGTH);
    advance(&r->used_next, &r->used_wrap, s->count, r->size);
    recycle(r, id);
    if (len)
        *len = length;
    return cookie;
}

void packed_interrupts_disable(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    r->driver->flags = WIRE_EVENT_DISABLE;
}

bool packed_interrupts_enable(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    if (r->event_index) {
        r->driver->offset_wrap = (uint16_t)(r->used_next | r->used_wrap << 15);
        /* The device must not pair the new flags with an old offset. */
        write_barrier(r);
        r->driver->flags = WIRE_EVENT_DESCRIPTOR;
    } else {
        r->driver->flags = WIRE_EVENT_ENABLE;
    }
    /* The device must see the wish before we look at its descriptor: a completion is then either seen here,
     * or the device sees the wish and interrupts. */
    barrier_full();
    return packed_has_used(base);
}

void *packed_detach(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    for (; r->detach_next < r->size; r->detach_next++) {
        void *cookie = r->slots[r->detach_next].cookie;
        if (!cookie)
            continue;
        recycle(r, r->detach_next);
        return cookie;
    }
    return NULL;
}

void packed_reset(struct ring *base)
{
    struct packed_ring *r = (struct packed_ring *)base;
    assert(r->in_flight == 0);
    memset(r->parts.virt, 0, ring_packed_bytes(r->size));
    r->next = r->added = r->used_next = r->detach_next = 0;
    r->wrap = r->used_wrap = true;
    atomic_store_relaxed(&r->fault, RING_OK);
}
