/*
 * Split virtqueue (virtio 1.2 section 2.7).
 *
 * Shared memory is written for the device and read with suspicion. What we need to know about a
 * chain (its length, its table, its cookie) is kept in private memory, so a device that scribbles
 * over the descriptors can spoil its own data, not ours.
 *
 * All indices run freely in 16 bits and are compared by subtraction.
 */
#include <weir/atomic.h>
#include <weir/errno.h>
#include <weir/mm.h>
#include <weir/printk.h>
#include <weir/string.h>

#include "ring.h"
#include "virtio_wire.h"

#define NO_TABLE 0xffffu
#define LEGACY_PAGE 4096UL
#define CHAIN_BYTES_MAX (1ULL << 32)

/* Private twin of a descriptor. `next` links the free list, or the descriptors of a chain; the rest
 * is meaningful at the head of an outstanding chain. */
struct split_slot {
    void *cookie;      /* NULL = not outstanding */
    uint32_t in_bytes; /* writable bytes posted, clipped to 32 bits */
    uint16_t next;
    uint16_t count;    /* ring descriptors that the chain takes */
    uint16_t table;    /* indirect table in use, or NO_TABLE */
};

/* Key: I immutable, o the owner's lock, w written by the device at any time. */
struct split_ring {
    struct ring base;                     /* I first: what the dispatch in ring.h looks at */
    uint16_t size;                        /* I */
    uint16_t mask;                        /* I */
    bool event_index;                     /* I */
    bool strong_barriers;                 /* I */
    uint16_t table_entries;               /* I */
    volatile struct wire_descriptor *desc;/* I */
    volatile struct wire_available *avail;/* I */
    volatile struct wire_used *used;      /* I contents w */
    volatile uint16_t *used_event;        /* I we write: interrupt when used passes this */
    volatile uint16_t *avail_event;       /* I contents w: notify when avail passes this */
    size_t device_at;                     /* I offset of the used ring */
    struct ring_memory parts, tables;     /* I */

    uint16_t avail_index;                 /* o as published */
    uint16_t kicked_index;                /* o avail_index at the last ring_kick_prepare */
    uint16_t used_index;                  /* o next completion to take */
    uint16_t free_head;                   /* o */
    uint16_t free_count;                  /* o */
    uint16_t in_flight;                   /* o */
    uint16_t detach_next;                 /* o */
    uint16_t table_count;                 /* o tables on the free stack */
    uint16_t *table_stack;                /* o */
    enum ring_fault fault;                /* o */
    struct split_slot slots[];            /* o */
};

static size_t driver_offset(unsigned size)
{
    return sizeof(struct wire_descriptor) * size;
}

static size_t device_offset(unsigned size, bool page_aligned)
{
    /* flags, index, ring and used_event: 2 bytes each; the used ring wants 4-byte alignment. */
    return ALIGN_UP(driver_offset(size) + 2 * (3 + size), page_aligned ? LEGACY_PAGE : 64UL);
}

static size_t device_bytes(unsigned size)
{
    return 6 + sizeof(struct wire_used_element) * size;
}

size_t ring_split_bytes(unsigned size, bool page_aligned)
{
    return device_offset(size, page_aligned) + device_bytes(size);
}

static void write_barrier(const struct split_ring *r)
{
    if (r->strong_barriers)
        barrier_full();
    else
        barrier_write();
}

static void read_barrier(const struct split_ring *r)
{
    if (r->strong_barriers)
        barrier_full();
    else
        barrier_read();
}

static bool config_is_possible(const struct ring_config *c)
{
    if (c->size == 0 || c->size > RING_SIZE_MAX || (c->size & (c->size - 1)))
        return false;
    return c->parts.bytes >= ring_split_bytes(c->size, c->page_aligned) && IS_ALIGNED(c->parts.phys, 16);
}

static void init_tables(struct split_ring *r, const struct ring_config *c)
{
    if (c->tables.bytes == 0 || c->table_entries < 2)
        return;
    r->table_entries = (uint16_t)MIN(c->table_entries, c->size);
    size_t count = c->tables.bytes / (r->table_entries * sizeof(struct wire_descriptor));
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

struct ring *ring_split_create(const struct ring_config *c)
{
    if (!config_is_possible(c))
        return NULL;
    struct split_ring *r = kzalloc(sizeof(*r) + c->size * sizeof(r->slots[0]));
    if (!r)
        return NULL;
    r->size = (uint16_t)c->size;
    r->mask = (uint16_t)(c->size - 1);
    r->event_index = c->event_index;
    r->strong_barriers = c->strong_barriers;
    r->parts = c->parts;

    char *base = c->parts.virt;
    memset(base, 0, ring_split_bytes(c->size, c->page_aligned));
    r->device_at = device_offset(c->size, c->page_aligned);
    r->desc = (volatile struct wire_descriptor *)base;
    r->avail = (volatile struct wire_available *)(base + driver_offset(c->size));
    r->used = (volatile struct wire_used *)(base + r->device_at);
    r->used_event = &r->avail->ring[c->size];
    r->avail_event = (volatile uint16_t *)&r->used->ring[c->size];

    for (unsigned i = 0; i < c->size; i++) {
        r->slots[i].next = (uint16_t)(i + 1);
        r->slots[i].table = NO_TABLE;
    }
    r->free_count = r->size;
    init_tables(r, c);
    return &r->base;
}

void split_destroy(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    if (!r)
        return;
    kfree(r->table_stack);
    kfree(r);
}

struct ring_addresses split_addresses(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return (struct ring_addresses){
        .descriptors = r->parts.phys,
        .driver = r->parts.phys + driver_offset(r->size),
        .device = r->parts.phys + r->device_at,
    };
}

unsigned split_size(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return r->size;
}

unsigned split_free(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return r->free_count;
}

unsigned split_in_flight(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return atomic_load_relaxed(&r->in_flight);
}

enum ring_fault split_fault(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return atomic_load_relaxed(&r->fault);
}

/* A descriptor's length, flags and next, as one word. */
#define CONTROL_FLAGS(f) ((uint64_t)(f) << 32)
#define CONTROL_NEXT(i)  ((uint64_t)(i) << 48)

static void set_control(volatile struct wire_descriptor *d, uint64_t control)
{
    *(volatile uint64_t *)&d->length = control;
}

/* 0, or the error that the buffers themselves are. `empty` is negative if one of them has no bytes. */
static int check_bytes(uint64_t total, uint64_t empty)
{
    if (empty >> 63)
        return -EINVAL;
    return total > CHAIN_BYTES_MAX ? -E2BIG : 0;
}

static inline void set_slot(struct split_slot *s, uint16_t table, unsigned count, uint64_t in_bytes)
{
    s->table = table;
    s->count = (uint16_t)count;
    s->in_bytes = (uint32_t)MIN(in_bytes, (uint64_t)UINT32_MAX);
}

/* Write a chain into a table. Returns its writable bytes, or the error that the buffers are. A function of its own:
 * inlined, its loops spill everything that ring_add holds. */
static int64_t __attribute__((noinline)) fill_table(volatile struct wire_descriptor *t, const struct virtio_buffer *b,
                                                    unsigned out, unsigned in)
{
    unsigned n = out + in, i = 0;
    uint64_t total = 0, readable = 0, empty = 0, len, control = CONTROL_FLAGS(WIRE_DESC_NEXT) | CONTROL_NEXT(1);
    if (likely(n == 3 && in && in < 3)) { /* a disk's request for one piece of memory: the loop below, unrolled */
        uint64_t middle = b[1].len, first = b[0].len, last = b[2].len;
        t[0].address = b[0].phys;
        set_control(&t[0], control | first);
        t[1].address = b[1].phys;
        set_control(&t[1], CONTROL_FLAGS(in == 2 ? WIRE_DESC_NEXT | WIRE_DESC_WRITE : WIRE_DESC_NEXT) | CONTROL_NEXT(2) | middle);
        t[2].address = b[2].phys;
        set_control(&t[2], CONTROL_FLAGS(WIRE_DESC_WRITE) | last);
        int error = check_bytes(first + middle + last, (first - 1) | (middle - 1) | (last - 1));
        return unlikely(error) ? error : (int64_t)(last + (in == 2 ? middle : 0));
    }
    do {
        if (i == out) {
            readable = total;
            control |= CONTROL_FLAGS(WIRE_DESC_WRITE);
        }
        len = b[i].len;
        t[i].address = b[i].phys;
        set_control(&t[i], control | len);
        control += CONTROL_NEXT(1);
        total += len;
        empty |= len - 1;
    } while (++i < n);
    set_control(&t[n - 1], len | CONTROL_FLAGS(in ? WIRE_DESC_WRITE : 0)); /* nothing behind it */
    int error = check_bytes(total, empty);
    if (unlikely(error))
        return error;
    return in ? (int64_t)(total - readable) : 0;
}

/* One ring descriptor that points to a table holding the chain. The table is not the device's until the ring
 * descriptor is, so what it holds is checked in the same pass. */
static inline int add_indirect(struct split_ring *r, struct split_slot *s, const struct virtio_buffer *bufs, unsigned out,
                               unsigned in)
{
    uint16_t table = r->table_stack[r->table_count - 1];
    size_t offset = (size_t)table * r->table_entries * sizeof(struct wire_descriptor);
    int64_t in_bytes = fill_table((void *)((char *)r->tables.virt + offset), bufs, out, in);
    if (unlikely(in_bytes < 0))
        return (int)in_bytes;
    r->table_count--;
    volatile struct wire_descriptor *d = &r->desc[r->free_head];
    d->address = r->tables.phys + offset;
    set_control(d, (out + in) * sizeof(struct wire_descriptor) | CONTROL_FLAGS(WIRE_DESC_INDIRECT));
    set_slot(s, table, 1, (uint64_t)in_bytes);
    r->free_head = s->next;
    r->free_count--;
    return 0;
}

static int __attribute__((noinline)) add_direct(struct split_ring *r, struct split_slot *s, const struct virtio_buffer *bufs,
                                                unsigned out, unsigned in)
{
    unsigned n = out + in;
    uint64_t out_bytes = 0, in_bytes = 0, empty = 0;
    for (unsigned i = 0; i < n; i++) {
        if (i < out)
            out_bytes += bufs[i].len;
        else
            in_bytes += bufs[i].len;
        empty |= bufs[i].len - 1ULL;
    }
    int error = check_bytes(out_bytes + in_bytes, empty);
    if (error)
        return error;
    uint16_t at = r->free_head;
    for (unsigned i = 0; i < n; i++) {
        unsigned flags = (i >= out ? WIRE_DESC_WRITE : 0) | (i + 1 < n ? WIRE_DESC_NEXT : 0);
        uint16_t next = r->slots[at].next;
        r->desc[at].address = bufs[i].phys;
        set_control(&r->desc[at], bufs[i].len | CONTROL_FLAGS(flags) | CONTROL_NEXT(i + 1 < n ? next : 0));
        at = next;
    }
    set_slot(s, NO_TABLE, n, in_bytes);
    r->free_head = at;
    r->free_count = (uint16_t)(r->free_count - n);
    return 0;
}

int split_add(struct ring *base, const struct virtio_buffer *bufs, unsigned out, unsigned in,
             void *cookie)
{
    struct split_ring *r = (struct split_ring *)base;
    assert(cookie);
    if (unlikely(r->fault))
        return -EIO;
    uint64_t n = (uint64_t)out + in;
    bool indirect = n > 1 && n <= r->table_entries && r->table_count && r->free_count; /* no table is longer than the ring */
    if (!indirect) {
        if (n > r->size)
            return -E2BIG;
        if (n == 0)
            return -EINVAL;
        if (r->free_count < n)
            return -ENOSPC;
    }
    uint16_t head = r->free_head;
    struct split_slot *s = &r->slots[head];
    int error = indirect ? add_indirect(r, s, bufs, out, in) : add_direct(r, s, bufs, out, in);
    if (unlikely(error))
        return error;
    s->cookie = cookie;
    atomic_store_relaxed(&r->in_flight, (uint16_t)(r->in_flight + 1));

    uint16_t index = r->avail_index;
    r->avail->ring[index & r->mask] = head;
    /* The device must see descriptors and ring entry before it sees the index that covers them. */
    write_barrier(r);
    r->avail_index = ++index;
    r->avail->index = index;
    return 0;
}

bool split_kick_prepare(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    /* Our index must be visible before we read what the device wants: it publishes its wish, then
     * re-reads our index. Without the full barrier both could miss the other (store then load). */
    barrier_full();
    uint16_t now = r->avail_index, before = r->kicked_index;
    r->kicked_index = now;
    if (now == before || r->fault)
        return false;
    if (!r->event_index)
        return !(r->used->flags & WIRE_USED_NO_NOTIFY);
    /* Is the event among the entries before..now-1? In 16 bits, whatever wrapped. */
    uint16_t event = *r->avail_event;
    return (uint16_t)(now - event - 1) < (uint16_t)(now - before);
}

bool split_has_used(const struct ring *base)
{
    const struct split_ring *r = (const struct split_ring *)base;
    return r->used->index != r->used_index;
}

static inline __attribute__((always_inline)) void recycle(struct split_ring *r, uint16_t head)
{
    struct split_slot *s = &r->slots[head];
    s->cookie = NULL;
    if (s->table != NO_TABLE) {
        r->table_stack[r->table_count++] = s->table;
        s->table = NO_TABLE;
    }
    uint16_t last = head;
    for (unsigned i = 1; i < s->count; i++)
        last = r->slots[last].next;
    r->slots[last].next = r->free_head;
    r->free_head = head;
    r->free_count = (uint16_t)(r->free_count + s->count);
    atomic_store_relaxed(&r->in_flight, (uint16_t)(r->in_flight - 1));
}

static void *broken(struct split_ring *r, enum ring_fault why)
{
    atomic_store_relaxed(&r->fault, why);
    return NULL;
}

void *split_get(struct ring *base, uint32_t *len)
{
    struct split_ring *r = (struct split_ring *)base;
    if (r->fault)
        return NULL;
    uint16_t pending = (uint16_t)(r->used->index - r->used_index);
    if (!pending)
        return NULL;
    if (pending > r->in_flight)
        return broken(r, RING_FAULT_INDEX);
    /* The element, and the data it speaks of, are read only after the index that covers them. */
    read_barrier(r);
    volatile struct wire_used_element *e = &r->used->ring[r->used_index & r->mask];
    uint32_t id = e->id, length = e->length; /* once: the device may change them under us */
    if (id >= r->size)
        return broken(r, RING_FAULT_ID);
    void *cookie = r->slots[id].cookie;
    if (!cookie)
        return broken(r, RING_FAULT_NOT_OUTSTANDING);
    if (length > r->slots[id].in_bytes)
        return broken(r, RING_FAULT_LENGTH);
    r->used_index++;
    recycle(r, (uint16_t)id);
    if (len)
        *len = length;
    return cookie;
}

void split_interrupts_disable(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    /* With event index the available flags stay 0; an event half the index space away never comes
     * up, since at most 32768 completions can be outstanding. */
    if (r->event_index)
        *r->used_event = (uint16_t)(r->used_index + 0x8000);
    else
        r->avail->flags = WIRE_AVAIL_NO_INTERRUPT;
}

bool split_interrupts_enable(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    if (r->event_index)
        *r->used_event = r->used_index;
    else
        r->avail->flags = 0;
    /* The device must see the wish before we look at its index: a completion is then either seen
     * here, or the device sees the wish and interrupts. */
    barrier_full();
    return split_has_used(&r->base);
}

void *split_detach(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    for (; r->detach_next < r->size; r->detach_next++) {
        void *cookie = r->slots[r->detach_next].cookie;
        if (!cookie)
            continue;
        recycle(r, r->detach_next);
        return cookie;
    }
    return NULL;
}

void split_reset(struct ring *base)
{
    struct split_ring *r = (struct split_ring *)base;
    assert(r->in_flight == 0);
    memset(r->parts.virt, 0, r->device_at + device_bytes(r->size));
    r->avail_index = r->kicked_index = r->used_index = r->detach_next = 0;
    atomic_store_relaxed(&r->fault, RING_OK);
}
