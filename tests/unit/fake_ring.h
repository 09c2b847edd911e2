/* The device's side of a ring of either layout, honest or not. Physical addresses are addresses of the process. */
#ifndef FAKE_RING_H
#define FAKE_RING_H
#include "drivers/virtio/ring.h"
#include "drivers/virtio/virtio_wire.h"

struct fake_ring {
    unsigned size;
    volatile struct wire_descriptor *desc;
    volatile struct wire_available *avail;
    volatile struct wire_used *used;
    uint16_t avail_seen, used_index;
    bool event_index;
    /* packed */
    bool packed;
    volatile struct wire_packed *packed_desc;
    volatile struct wire_event *driver, *device;
    unsigned avail_at, used_at;
    bool avail_wrap, used_wrap;
    uint16_t counts[256]; /* descriptors of the chain that was taken with an id */
};
/* One chain as the device sees it. */
struct fake_chain {
    uint16_t head; /* packed: the buffer id */
    unsigned out, in;
    struct virtio_buffer bufs[256];
    bool indirect;
    uint64_t out_bytes, in_bytes;
    const char *wrong; /* a rule that the driver broke, NULL = fine */
};
static inline void fake_ring_init(struct fake_ring *f, unsigned size, struct ring_addresses a, bool event_index)
{
    *f = (struct fake_ring){ .size = size, .desc = (void *)a.descriptors, .avail = (void *)a.driver,
                             .used = (void *)a.device, .event_index = event_index };
}
static inline void fake_packed_init(struct fake_ring *f, unsigned size, struct ring_addresses a, bool event_index)
{
    *f = (struct fake_ring){ .size = size, .packed = true, .packed_desc = (void *)a.descriptors, .driver = (void *)a.driver,
                             .device = (void *)a.device, .event_index = event_index, .avail_wrap = true, .used_wrap = true };
}
static inline volatile uint16_t *fake_avail_event(struct fake_ring *f) { return (volatile uint16_t *)&f->used->ring[f->size]; }
static inline volatile uint16_t *fake_used_event(struct fake_ring *f) { return &f->avail->ring[f->size]; }
/* Takes the next available chain; false if there is none. */
bool fake_ring_take(struct fake_ring *f, struct fake_chain *c);
/* Completes: true if the driver wants an interrupt for it. */
bool fake_ring_complete(struct fake_ring *f, uint32_t id, uint32_t len);
#endif
