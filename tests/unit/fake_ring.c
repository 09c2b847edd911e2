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

bool fake_ring_take(struct fake_ring *f, struct fake_chain *c)
{
    if (f->avail->index == f->avail_seen)
        return false;
    *c = (struct fake_chain){ .head = f->avail->ring[f->avail_seen % f->size] };
    f->avail_seen++;
    walk(c, f->desc, f->size, c->head, false);
    return true;
}

bool fake_ring_complete(struct fake_ring *f, uint32_t id, uint32_t len)
{
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
