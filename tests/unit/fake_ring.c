#include "tests/unit/fake_ring.h"

static void walk(struct fake_chain *c, volatile struct wire_descriptor *table, unsigned size, unsigned at, bool in_table)
{
    for (unsigned steps = 0;; steps++) {
        if (steps >= size || at >= size) {
            c->wrong = "chain loops or leaves its table";
            return;
        }
        volatile struct wire_descriptor *d = &table[at];
        if (d->flags & WIRE_DESC_INDIRECT) {
            unsigned n = d->length / 16;
            if (in_table || steps || (d->flags & WIRE_DESC_NEXT) || d->length % 16 || n == 0)
                c->wrong = "indirect descriptor nested, chained or of a wrong length";
            else {
                c->indirect = true;
                walk(c, (void *)d->address, n, 0, true);
            }
            return;
        }
        if (c->out + c->in >= 256) {
            c->wrong = "chain too long";
            return;
        }
        c->bufs[c->out + c->in] = (struct virtio_buffer){ d->address, d->length };
        if (d->flags & WIRE_DESC_WRITE) {
            c->in++;
            c->in_bytes += d->length;
        } else {
            if (c->in)
                c->wrong = "readable after writable";
            c->out++;
            c->out_bytes += d->length;
        }
        if (!(d->flags & WIRE_DESC_NEXT))
            return;
        at = d->next;
    }
}

/* ---- packed ---- */

static void add_buffer(struct fake_chain *c, volatile struct wire_packed *d)
{
    if (c->out + c->in >= 256) {
        c->wrong = "chain too long";
        return;
    }
    c->bufs[c->out + c->in] = (struct virtio_buffer){ d->address, d->length };
    if (d->flags & WIRE_DESC_WRITE) {
        c->in++;
        c->in_bytes += d->length;
        return;
    }
    if (c->in)
        c->wrong = "readable after writable";
    c->out++;
    c->out_bytes += d->length;
}

static bool is_available(uint16_t flags, bool wrap)
{
    return !!(flags & WIRE_PACKED_AVAIL) == wrap && !!(flags & WIRE_PACKED_USED) != wrap;
}

static void step(unsigned *at, bool *wrap, unsigned count, unsigned size)
{
    for (; count; count--) {
        if (++*at == size) {
            *at = 0;
            *wrap = !*wrap;
        }
    }
}

static bool packed_take(struct fake_ring *f, struct fake_chain *c)
{
    unsigned count = 0;
    if (!is_available(f->packed_desc[f->avail_at].flags, f->avail_wrap))
        return false;
    *c = (struct fake_chain){ 0 };
    for (bool more = true; more && !c->wrong;) {
        volatile struct wire_packed *d = &f->packed_desc[f->avail_at];
        more = d->flags & WIRE_DESC_NEXT;
        if (!is_available(d->flags, f->avail_wrap))
            c->wrong = "a list that is not available to its end";
        if ((d->flags & WIRE_DESC_INDIRECT) && (count || more || d->length % 16 || !d->length))
            c->wrong = "indirect descriptor chained or of a wrong length";
        c->head = d->id;
        step(&f->avail_at, &f->avail_wrap, 1, f->size);
        count++;
        if (!(d->flags & WIRE_DESC_INDIRECT)) {
            add_buffer(c, d);
            continue;
        }
        c->indirect = true;
        for (unsigned i = 0; i < d->length / 16; i++) {
            volatile struct wire_packed *t = (volatile struct wire_packed *)d->address + i;
            if (t->flags & ~WIRE_DESC_WRITE)
                c->wrong = "a flag other than WRITE in a table";
            add_buffer(c, t);
        }
    }
    f->counts[c->head % 256] = (uint16_t)count;
    return true;
}

static bool packed_complete(struct fake_ring *f, uint32_t id, uint32_t len)
{
    volatile struct wire_packed *d = &f->packed_desc[f->used_at];
    unsigned before = f->used_at, count = id < 256 && f->counts[id] ? f->counts[id] : 1;
    bool wrap = f->used_wrap;
    d->id = (uint16_t)id;
    d->length = len;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    d->flags = wrap ? WIRE_PACKED_AVAIL | WIRE_PACKED_USED : 0;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    step(&f->used_at, &f->used_wrap, count, f->size);
    if (f->driver->flags != WIRE_EVENT_DESCRIPTOR)
        return f->driver->flags == WIRE_EVENT_ENABLE;
    unsigned event = f->driver->offset_wrap & 0x7fff;
    bool event_wrap = f->driver->offset_wrap >> 15;
    /* Is it among the descriptors from `before` on that this completion went over? */
    for (unsigned at = before; count; count--, step(&at, &wrap, 1, f->size)) {
        if (at == event && wrap == event_wrap)
            return true;
    }
    return false;
}

/* ---- both ---- */

bool fake_ring_take(struct fake_ring *f, struct fake_chain *c)
{
    if (f->packed)
        return packed_take(f, c);
    if (f->avail->index == f->avail_seen)
        return false;
    *c = (struct fake_chain){ .head = f->avail->ring[f->avail_seen % f->size] };
    f->avail_seen++;
    walk(c, f->desc, f->size, c->head, false);
    return true;
}

bool fake_ring_complete(struct fake_ring *f, uint32_t id, uint32_t len)
{
    if (f->packed)
        return packed_complete(f, id, len);
    uint16_t before = f->used_index;
    f->used->ring[before % f->size].id = id;
    f->used->ring[before % f->size].length = len;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    f->used->index = ++f->used_index;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (!f->event_index)
        return !(f->avail->flags & WIRE_AVAIL_NO_INTERRUPT);
    return (uint16_t)(f->used_index - *fake_used_event(f) - 1) < (uint16_t)(f->used_index - before);
}
