/*
 * A ring of either layout against a device that writes anything anywhere in the shared memory. Whatever it does:
 * no access outside the ring's memory (ASan), no undefined behaviour, every cookie back at most once
 * between two uses, and after detach all descriptors are free.
 *
 * Input: a byte for the shape of the ring, then a script of operations with their operands.
 */
#include <assert.h>
#include <stdlib.h>
#include <weir/errno.h>
#include <weir/string.h>

#undef assert
#define assert(c) do { if (!(c)) abort(); } while (0)
#include "drivers/virtio/ring.h"
#include "drivers/virtio/virtio_wire.h"

#define SIZE_MAX_RING 16u

static _Alignas(4096) char parts[4096], tables[4096];
static bool out[256];

struct script {
    const uint8_t *at, *end;
};

static unsigned byte(struct script *s)
{
    return s->at < s->end ? *s->at++ : 0;
}

static void add(struct ring *r, struct script *s)
{
    struct virtio_buffer bufs[16];
    unsigned shape = byte(s), id = byte(s), n = shape & 15;
    unsigned in = n ? (shape >> 4) % (n + 1) : 0;
    for (unsigned i = 0; i < n; i++)
        bufs[i] = (struct virtio_buffer){ i * 4096, byte(s) * 3u };
    if (out[id])
        return;
    if (ring_add(r, bufs, n - in, in, &out[id]) == 0)
        out[id] = true;
}

static void drain(struct ring *r)
{
    bool *cookie;
    uint32_t len;
    while ((cookie = ring_get(r, &len))) {
        assert(cookie >= out && cookie < out + 256 && *cookie);
        *cookie = false;
        assert(len <= 16 * 255 * 3);
    }
}

/* One used descriptor in a packed ring: anywhere, with either wrap counter. */
static void device_uses_packed(struct ring *r, struct script *s)
{
    struct wire_packed *d = (void *)ring_addresses(r).descriptors;
    unsigned at = byte(s), id = byte(s);
    d += at % ring_size(r);
    d->id = (uint16_t)(id % 20 == 19 ? id << 8 : id % 18);
    d->length = byte(s);
    d->flags = at & 0x80 ? WIRE_PACKED_AVAIL | WIRE_PACKED_USED : 0;
}

static void device_uses(struct ring *r, struct script *s)
{
    if (r->packed) {
        device_uses_packed(r, s);
        return;
    }
    struct wire_used *u = (void *)ring_addresses(r).device;
    unsigned id = byte(s), len = byte(s);
    u->ring[u->index % ring_size(r)] = (struct wire_used_element){ id % 20 == 19 ? id << 16 : id % 18, len };
    u->index++;
}

static void device_scribbles(struct script *s)
{
    unsigned where = byte(s) | byte(s) << 8, what = byte(s);
    (where & 0x8000 ? tables : parts)[where % 4096] = (char)what;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct script s = { data, data + size };
    unsigned shape = byte(&s);
    memset(out, 0, sizeof(out));
    struct ring_config c = {
        .size = 1u << (shape & 3) << (shape >> 2 & 1),
        .event_index = shape >> 3 & 1,
        .strong_barriers = shape >> 4 & 1,
        .parts = { parts, (uint64_t)parts, sizeof(parts) },
        .tables = { tables, (uint64_t)tables, shape >> 5 ? 512u : 0u },
        .table_entries = shape >> 5,
    };
    bool packed = byte(&s) & 1;
    if (packed)
        c.size += shape >> 4 & 1; /* no power of two */
    struct ring *r = packed ? ring_packed_create(&c) : ring_split_create(&c);
    if (!r)
        return 0;
    while (s.at < s.end) {
        switch (byte(&s) % 8) {
        case 0: case 1: case 2: add(r, &s); break;
        case 3: device_uses(r, &s); break;
        case 4: device_scribbles(&s); break;
        case 5: drain(r); break;
        case 6: (void)!ring_kick_prepare(r); break;
        case 7: (void)!ring_interrupts_enable(r); break;
        }
        assert(ring_free(r) <= ring_size(r) && ring_in_flight(r) <= ring_size(r));
    }
    drain(r);
    bool *cookie;
    while ((cookie = ring_detach(r))) {
        assert(*cookie);
        *cookie = false;
    }
    assert(ring_free(r) == ring_size(r) && ring_in_flight(r) == 0);
    for (unsigned i = 0; i < 256; i++)
        assert(!out[i]);
    ring_destroy(r);
    return 0;
}
