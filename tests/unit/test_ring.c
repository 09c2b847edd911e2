/* Rings of both layouts against a device that may lie. Numbers are those of docs/virtio-rules.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>
#include <weir/errno.h>
#include <weir/string.h>

#include "tests/unit/fake_ring.h"

struct rig {
    struct ring *ring;
    struct fake_ring device;
    void *parts, *tables;
};

static bool packed; /* which layout the tests make */
static int use_split(void **state) { packed = false; return 0; }
static int use_packed(void **state) { packed = true; return 0; }

static struct rig rig(unsigned size, bool event_index, unsigned tables, unsigned entries)
{
    struct rig g = { 0 };
    size_t bytes = ALIGN_UP(packed ? ring_packed_bytes(size) : ring_split_bytes(size, false), 4096UL), table_bytes = (size_t)tables * entries * 16;
    g.parts = aligned_alloc(4096, bytes);
    g.tables = table_bytes ? aligned_alloc(4096, ALIGN_UP(table_bytes, 4096UL)) : NULL;
    memset(g.parts, 0xa5, bytes);
    struct ring_config c = { .size = size, .event_index = event_index, .parts = { g.parts, (uint64_t)g.parts, bytes },
                             .tables = { g.tables, (uint64_t)g.tables, table_bytes }, .table_entries = entries };
    g.ring = packed ? ring_packed_create(&c) : ring_split_create(&c);
    assert_non_null(g.ring);
    if (packed)
        fake_packed_init(&g.device, size, ring_addresses(g.ring), event_index);
    else
        fake_ring_init(&g.device, size, ring_addresses(g.ring), event_index);
    return g;
}
static void rig_free(struct rig *g)
{
    ring_destroy(g->ring);
    free(g->parts);
    free(g->tables);
}
static char cookies[70000];
static const struct virtio_buffer three[3] = { { 0x1000, 16 }, { 0x9876543210000, 4096 }, { 0x3000, 1 } };

static void rule28_parts_are_aligned(void **s)
{
    for (unsigned size = 1; size <= RING_SIZE_MAX; size *= 2) {
        struct rig g = rig(size, true, 0, 0);
        struct ring_addresses a = ring_addresses(g.ring);
        assert_int_equal(a.descriptors % 16, 0);
        assert_int_equal(a.driver % 2, 0);
        assert_int_equal(a.device % 4, 0);
        assert_true(a.driver >= a.descriptors + 16 * size);
        assert_true(a.device >= a.driver + 6 + 2 * size);
        assert_true(a.device + 6 + 8 * size <= a.descriptors + ring_split_bytes(size, false));
        rig_free(&g);
    }
}
static void rule29_addresses_keep_64_bits(void **s)
{
    struct rig g = rig(4, false, 0, 0);
    struct fake_chain c;
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    assert_true(fake_ring_take(&g.device, &c));
    assert_true(c.bufs[1].phys == 0x9876543210000);
    rig_free(&g);
}
static void rule31_impossible_sizes_are_refused(void **s)
{
    unsigned bad[] = { 0, 3, 100, 65536 };
    static char memory[4096] __attribute__((aligned(4096)));
    for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
        struct ring_config c = { .size = bad[i], .parts = { memory, (uint64_t)memory, 1UL << 30 } };
        assert_null(ring_split_create(&c));
    }
    struct ring_config small = { .size = 256, .parts = { memory, (uint64_t)memory, 4096 } };
    assert_null(ring_split_create(&small));
}
static void rule33_indices_start_at_zero(void **s)
{
    struct rig g = rig(8, true, 0, 0);
    assert_int_equal(g.device.used->flags, 0);
    assert_int_equal(g.device.used->index, 0);
    assert_int_equal(g.device.avail->index, 0);
    assert_int_equal(g.device.avail->flags, 0);
    rig_free(&g);
}
static void rule35_readable_before_writable(void **s)
{
    for (unsigned tables = 0; tables < 2; tables++) {
        struct rig g = rig(8, false, tables, 4);
        struct fake_chain c;
        assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
        assert_true(fake_ring_take(&g.device, &c));
        assert_null(c.wrong);
        assert_int_equal(c.indirect, tables);
        assert_int_equal(c.out, 1);
        assert_int_equal(c.in, 2);
        assert_int_equal(c.in_bytes, 4097);
        rig_free(&g);
    }
}
static void rule37_38_flag_decides_without_event_index(void **s)
{
    struct rig g = rig(8, false, 0, 0);
    assert_false(ring_kick_prepare(g.ring)); /* nothing added */
    assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
    assert_true(ring_kick_prepare(g.ring));
    assert_false(ring_kick_prepare(g.ring));
    g.device.used->flags = WIRE_USED_NO_NOTIFY;
    assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
    assert_false(ring_kick_prepare(g.ring));
    rig_free(&g);
}
/* All starting points around the 16-bit wrap, batches of 1 to 5, every event near the batch: notify
 * exactly if the event is one of the entries published since the last check, and never mind the flag. */
static void rule38_event_decides_in_16_bits(void **s)
{
    struct rig g = rig(8, true, 0, 0);
    struct fake_chain c;
    uint16_t index = 0;
    g.device.used->flags = WIRE_USED_NO_NOTIFY;
    for (unsigned step = 0; step < 66000; step++) {
        unsigned batch = step % 5 + 1, offset = step % 11;
        uint16_t event = (uint16_t)(index - 3 + offset);
        for (unsigned i = 0; i < batch; i++)
            assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
        *fake_avail_event(&g.device) = event;
        bool among = false;
        for (unsigned i = 0; i < batch; i++)
            among |= (uint16_t)(index + i) == event;
        assert_int_equal(ring_kick_prepare(g.ring), among);
        index = (uint16_t)(index + batch);
        while (fake_ring_take(&g.device, &c))
            fake_ring_complete(&g.device, c.head, 0);
        while (ring_get(g.ring, NULL))
            ;
    }
    assert_int_equal(ring_fault(g.ring), RING_OK);
    rig_free(&g);
}
static void rule39_never_longer_than_the_ring_nor_over_4_gib(void **s)
{
    struct rig g = rig(4, false, 4, 4);
    struct virtio_buffer five[5] = { { 0, 1 }, { 0, 1 }, { 0, 1 }, { 0, 1 }, { 0, 1 } };
    assert_int_equal(ring_add(g.ring, five, 2, 3, cookies), -E2BIG);
    assert_int_equal(ring_add(g.ring, five, ~0u, 2, cookies), -E2BIG);
    struct virtio_buffer huge[2] = { { 0, 0xffffffff }, { 0, 2 } };
    assert_int_equal(ring_add(g.ring, huge, 1, 1, cookies), -E2BIG);
    for (unsigned i = 0; i < 3; i++) { /* an empty one anywhere, on either side; refused without a trace */
        struct virtio_buffer holed[3] = { { 0, 1 }, { 0, 1 }, { 0, 1 } };
        holed[i].len = 0;
        for (unsigned out = 0; out <= 3; out++)
            assert_int_equal(ring_add(g.ring, holed, out, 3 - out, cookies), -EINVAL);
        assert_int_equal(ring_free(g.ring), 4);
        assert_int_equal(ring_in_flight(g.ring), 0);
    }
    huge[1].len = 1;
    assert_int_equal(ring_add(g.ring, huge, 1, 1, cookies), 0);
    struct virtio_buffer empty = { 0, 0 };
    assert_int_equal(ring_add(g.ring, &empty, 1, 0, cookies), -EINVAL);
    assert_int_equal(ring_add(g.ring, three, 0, 0, cookies), -EINVAL);
    rig_free(&g);
}
static void rule40_descriptors_in_flight_are_left_alone(void **s)
{
    struct rig g = rig(8, true, 2, 4);
    struct fake_chain first, later, again;
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    assert_int_equal(ring_add(g.ring, three, 2, 1, cookies + 1), 0);
    assert_true(fake_ring_take(&g.device, &first));
    for (unsigned i = 0; i < 1000; i++) {
        while (fake_ring_take(&g.device, &later))
            fake_ring_complete(&g.device, later.head, 0);
        while (ring_get(g.ring, NULL))
            ;
        while (ring_add(g.ring, three, 1 + i % 2, 1, cookies + 2) == 0)
            ;
    }
    struct fake_ring peek = g.device;
    peek.avail_seen = (uint16_t)(peek.avail->index - 1);
    peek.avail->ring[peek.avail_seen % 8] = first.head;
    assert_true(fake_ring_take(&peek, &again));
    assert_int_equal(memcmp(&first, &again, sizeof(first)), 0);
    rig_free(&g);
}
/* The device publishes between our last look and our wish: enable must say so. */
static void rule43_enable_finds_what_came_meanwhile(void **s)
{
    for (unsigned event = 0; event < 2; event++) {
        struct rig g = rig(8, event, 0, 0);
        struct fake_chain c;
        ring_interrupts_disable(g.ring);
        assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
        assert_true(fake_ring_take(&g.device, &c));
        assert_false(ring_interrupts_enable(g.ring));
        assert_true(fake_ring_complete(&g.device, c.head, 0)); /* armed: interrupts */
        assert_true(ring_interrupts_enable(g.ring));
        assert_non_null(ring_get(g.ring, NULL));
        assert_false(ring_interrupts_enable(g.ring));
        ring_interrupts_disable(g.ring);
        assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
        assert_true(fake_ring_take(&g.device, &c));
        assert_false(fake_ring_complete(&g.device, c.head, 0)); /* disabled: silent */
        if (event && !packed)
            assert_int_equal(g.device.avail->flags, 0);
        rig_free(&g);
    }
}
static void rule45_a_short_length_is_passed_on(void **s)
{
    struct rig g = rig(8, false, 0, 0);
    struct fake_chain c;
    uint32_t len = 99;
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    fake_ring_take(&g.device, &c);
    fake_ring_complete(&g.device, c.head, 17);
    assert_ptr_equal(ring_get(g.ring, &len), cookies);
    assert_int_equal(len, 17);
    rig_free(&g);
}

static void broken(struct rig *g, enum ring_fault why)
{
    assert_null(ring_get(g->ring, NULL));
    assert_int_equal(ring_fault(g->ring), why);
    assert_int_equal(ring_add(g->ring, three, 1, 0, cookies), -EIO);
    assert_false(ring_kick_prepare(g->ring));
    assert_null(ring_get(g->ring, NULL));
    rig_free(g);
}
static struct rig one_in_flight(struct fake_chain *c)
{
    struct rig g = rig(8, true, 2, 4);
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    assert_true(fake_ring_take(&g.device, c));
    return g;
}
static void rule46_id_out_of_range(void **s)
{
    struct fake_chain c;
    uint32_t ids[] = { 8, 65535, 65536, 0xffffffff };
    for (unsigned i = 0; i < (packed ? 2 : ARRAY_SIZE(ids)); i++) { /* packed ids have 16 bits */
        struct rig g = one_in_flight(&c);
        fake_ring_complete(&g.device, ids[i], 0);
        broken(&g, RING_FAULT_ID);
    }
}
static void rule46_id_not_outstanding(void **s)
{
    struct fake_chain c;
    struct rig g = one_in_flight(&c);
    fake_ring_complete(&g.device, (c.head + 1u) % 8, 0);
    broken(&g, RING_FAULT_NOT_OUTSTANDING);
}
static void rule46_id_twice(void **s)
{
    struct fake_chain c;
    struct rig g = one_in_flight(&c);
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies + 1), 0);
    fake_ring_complete(&g.device, c.head, 0);
    fake_ring_complete(&g.device, c.head, 0);
    assert_ptr_equal(ring_get(g.ring, NULL), cookies);
    broken(&g, RING_FAULT_NOT_OUTSTANDING);
}
static void rule46_length_over_what_was_posted(void **s)
{
    struct fake_chain c;
    struct rig g = one_in_flight(&c);
    fake_ring_complete(&g.device, c.head, 4098);
    broken(&g, RING_FAULT_LENGTH);
}
static void rule46_index_jumps(void **s)
{
    struct fake_chain c;
    uint16_t jumps[] = { 2, 9, 32768, 65535 };
    for (unsigned i = 0; i < ARRAY_SIZE(jumps); i++) {
        struct rig g = one_in_flight(&c);
        g.device.used->index = jumps[i];
        broken(&g, RING_FAULT_INDEX);
    }
}
static void rule47_48_one_table_a_chain(void **s)
{
    struct rig g = rig(4, false, 4, 4);
    struct fake_chain c;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ring_add(g.ring, three, 1, 2, cookies + i), 0); /* 12 buffers in a ring of 4 */
    assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), -ENOSPC);
    for (unsigned i = 0; i < 4; i++) {
        assert_true(fake_ring_take(&g.device, &c));
        assert_null(c.wrong);
        assert_true(c.indirect);
        assert_int_equal(c.out + c.in, 3);
        if (packed)
            continue;
        assert_int_equal(g.device.desc[c.head].length, 48);
        assert_int_equal(g.device.desc[c.head].flags, WIRE_DESC_INDIRECT);
    }
    rig_free(&g);
}
static void rule49_direct_when_tables_are_out(void **s)
{
    struct rig g = rig(8, false, 1, 4);
    struct fake_chain c;
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies + 1), 0);
    assert_int_equal(ring_free(g.ring), 4);
    fake_ring_take(&g.device, &c);
    assert_true(c.indirect);
    fake_ring_take(&g.device, &c);
    assert_false(c.indirect);
    assert_null(c.wrong);
    struct virtio_buffer six[6] = { { 1, 1 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 1, 1 }, { 1, 1 } };
    assert_int_equal(ring_add(g.ring, six, 6, 0, cookies), -ENOSPC); /* too long for a table, too many now */
    rig_free(&g);
}
/* 200,000 chains of random shape completed out of order: every cookie comes back once with its length,
 * and all descriptors and tables are free at the end. The index wraps three times. */
static void soak(unsigned size, bool event, unsigned tables)
{
    struct rig g = rig(size, event, tables, 4);
    struct fake_chain held[64];
    unsigned held_count = 0, added = 0, returned = 0;
    static unsigned char state[200000];
    memset(state, 0, sizeof(state));
    unsigned seed = 1;
    for (unsigned idle = 0; returned < 200000; idle++) {
        unsigned n, before = returned;
        assert_true(idle < 1000); /* the device answers everything within a few turns */
        do {
            seed = seed * 1103515245 + 12345;
            n = 1 + (seed >> 16) % MIN(size, 3u);
            unsigned in = (seed >> 20) % (n + 1);
            if (added == 200000 || ring_add(g.ring, three, n - in, in, &state[added]))
                break;
            state[added++] = 1;
        } while ((seed >> 24) & 3);
        (void)!ring_kick_prepare(g.ring);
        while (held_count < 64 && fake_ring_take(&g.device, &held[held_count])) {
            assert_null(held[held_count].wrong);
            held_count++;
        }
        for (unsigned k = (seed >> 8) % (held_count + 1); k; k--) {
            unsigned at = (seed >> 4) % held_count;
            fake_ring_complete(&g.device, held[at].head, (uint32_t)held[at].in_bytes);
            held[at] = held[--held_count];
        }
        unsigned char *cookie;
        while ((cookie = ring_get(g.ring, NULL))) {
            assert_int_equal(*cookie, 1);
            *cookie = 2;
            returned++;
        }
        if (returned != before)
            idle = 0;
        (void)!ring_interrupts_enable(g.ring);
    }
    assert_int_equal(ring_fault(g.ring), RING_OK);
    assert_int_equal(ring_free(g.ring), size);
    assert_int_equal(ring_in_flight(g.ring), 0);
    rig_free(&g);
}
static void nothing_is_lost_across_the_wrap(void **s)
{
    soak(1, true, 0);
    soak(2, false, 0);
    soak(4, true, 0);
    soak(8, true, 3);
    soak(64, false, 64);
    soak(256, true, 16);
}
static void rule63_detach_returns_each_outstanding_once(void **s)
{
    struct rig g = rig(8, true, 2, 4);
    unsigned seen = 0;
    char *cookie;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(ring_add(g.ring, three, 1, i % 2, cookies + i), 0);
    while ((cookie = ring_detach(g.ring)))
        seen |= 1u << (cookie - cookies);
    assert_int_equal(seen, 15);
    assert_int_equal(ring_in_flight(g.ring), 0);
    assert_null(ring_detach(g.ring));
    rig_free(&g);
}

/* ---- packed only ---- */

static void rule31_any_size_but_none_for_packed(void **s)
{
    static char memory[4096] __attribute__((aligned(4096)));
    struct ring_config c = { .size = 0, .parts = { memory, (uint64_t)memory, sizeof(memory) } };
    assert_null(ring_packed_create(&c));
    c.size = 32769;
    assert_null(ring_packed_create(&c));
    c.size = 252;
    assert_null(ring_packed_create(&c)); /* the events do not fit */
    c.size = 7;
    struct ring *r = ring_packed_create(&c);
    assert_non_null(r);
    assert_int_equal(ring_addresses(r).descriptors % 16, 0);
    assert_int_equal(ring_addresses(r).driver % 4, 0);
    assert_int_equal(ring_addresses(r).device % 4, 0);
    ring_destroy(r);
    soak(3, true, 0);
    soak(7, true, 2);
    soak(100, false, 30);
}

/* Nothing of a list may look available before its first descriptor does: the device stops at the first, so what
 * counts is that the first is written last. Seen here as: a list that did not fit left no trace. */
static void rule50_a_list_that_does_not_fit_leaves_no_trace(void **s)
{
    struct rig g = rig(4, true, 0, 0);
    struct fake_chain c;
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), 0);
    assert_int_equal(ring_add(g.ring, three, 1, 2, cookies), -ENOSPC);
    assert_true(fake_ring_take(&g.device, &c));
    assert_null(c.wrong);
    assert_false(fake_ring_take(&g.device, &c));
    rig_free(&g);
}

/* Every position of the wish against every batch, over many laps. */
static void rule52_a_doorbell_when_the_wish_is_in_the_batch(void **s)
{
    struct rig g = rig(5, true, 0, 0);
    struct fake_chain c;
    unsigned at = 0, lap = 0;
    for (unsigned step = 0; step < 5000; step++) {
        unsigned batch = step % 4 + 1, ahead = step % 5; /* the wish is `ahead` of the batch's start: 0..4 */
        unsigned wish = (at + ahead) % 5, wish_lap = lap + (at + ahead) / 5;
        g.device.device->offset_wrap = (uint16_t)(wish | (wish_lap % 2 ? 0 : 0x8000));
        g.device.device->flags = WIRE_EVENT_DESCRIPTOR;
        for (unsigned i = 0; i < batch; i++)
            assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
        assert_int_equal(ring_kick_prepare(g.ring), ahead < batch);
        assert_false(ring_kick_prepare(g.ring));
        lap += (at + batch) / 5;
        at = (at + batch) % 5;
        while (fake_ring_take(&g.device, &c))
            fake_ring_complete(&g.device, c.head, 0);
        while (ring_get(g.ring, NULL))
            ;
    }
    g.device.device->flags = WIRE_EVENT_DISABLE;
    assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
    assert_false(ring_kick_prepare(g.ring));
    g.device.device->flags = WIRE_EVENT_ENABLE;
    assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
    assert_true(ring_kick_prepare(g.ring));
    rig_free(&g);
}

/* A descriptor of the lap before still says used; it must not be taken again. */
static void rule51_the_lap_before_does_not_count(void **s)
{
    struct rig g = rig(2, false, 0, 0);
    struct fake_chain c;
    for (unsigned i = 0; i < 9; i++) {
        assert_null(ring_get(g.ring, NULL));
        assert_int_equal(ring_add(g.ring, three, 1, 0, cookies), 0);
        assert_null(ring_get(g.ring, NULL));
        assert_true(fake_ring_take(&g.device, &c));
        fake_ring_complete(&g.device, c.head, 0);
        assert_non_null(ring_get(g.ring, NULL));
    }
    rig_free(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(rule28_parts_are_aligned, use_split),
        cmocka_unit_test_setup(rule29_addresses_keep_64_bits, use_split),
        cmocka_unit_test_setup(rule31_impossible_sizes_are_refused, use_split),
        cmocka_unit_test_setup(rule33_indices_start_at_zero, use_split),
        cmocka_unit_test_setup(rule35_readable_before_writable, use_split),
        cmocka_unit_test_setup(rule37_38_flag_decides_without_event_index, use_split),
        cmocka_unit_test_setup(rule38_event_decides_in_16_bits, use_split),
        cmocka_unit_test_setup(rule39_never_longer_than_the_ring_nor_over_4_gib, use_split),
        cmocka_unit_test_setup(rule40_descriptors_in_flight_are_left_alone, use_split),
        cmocka_unit_test_setup(rule43_enable_finds_what_came_meanwhile, use_split),
        cmocka_unit_test_setup(rule45_a_short_length_is_passed_on, use_split),
        cmocka_unit_test_setup(rule46_id_out_of_range, use_split),
        cmocka_unit_test_setup(rule46_id_not_outstanding, use_split),
        cmocka_unit_test_setup(rule46_id_twice, use_split),
        cmocka_unit_test_setup(rule46_length_over_what_was_posted, use_split),
        cmocka_unit_test_setup(rule46_index_jumps, use_split),
        cmocka_unit_test_setup(rule47_48_one_table_a_chain, use_split),
        cmocka_unit_test_setup(rule49_direct_when_tables_are_out, use_split),
        cmocka_unit_test_setup(nothing_is_lost_across_the_wrap, use_split),
        cmocka_unit_test_setup(rule63_detach_returns_each_outstanding_once, use_split),
        { "packed: rule29_addresses_keep_64_bits", rule29_addresses_keep_64_bits, use_packed, NULL, NULL },
        { "packed: rule35_readable_before_writable", rule35_readable_before_writable, use_packed, NULL, NULL },
        { "packed: rule39_never_longer_than_the_ring_nor_over_4_gib", rule39_never_longer_than_the_ring_nor_over_4_gib, use_packed, NULL, NULL },
        { "packed: rule43_enable_finds_what_came_meanwhile", rule43_enable_finds_what_came_meanwhile, use_packed, NULL, NULL },
        { "packed: rule45_a_short_length_is_passed_on", rule45_a_short_length_is_passed_on, use_packed, NULL, NULL },
        { "packed: rule46_id_out_of_range", rule46_id_out_of_range, use_packed, NULL, NULL },
        { "packed: rule46_id_not_outstanding", rule46_id_not_outstanding, use_packed, NULL, NULL },
        { "packed: rule46_id_twice", rule46_id_twice, use_packed, NULL, NULL },
        { "packed: rule46_length_over_what_was_posted", rule46_length_over_what_was_posted, use_packed, NULL, NULL },
        { "packed: rule47_48_one_table_a_chain", rule47_48_one_table_a_chain, use_packed, NULL, NULL },
        { "packed: rule49_direct_when_tables_are_out", rule49_direct_when_tables_are_out, use_packed, NULL, NULL },
        { "packed: nothing_is_lost_across_the_wrap", nothing_is_lost_across_the_wrap, use_packed, NULL, NULL },
        { "packed: rule63_detach_returns_each_outstanding_once", rule63_detach_returns_each_outstanding_once, use_packed, NULL, NULL },
        cmocka_unit_test_setup(rule31_any_size_but_none_for_packed, use_packed),
        cmocka_unit_test_setup(rule50_a_list_that_does_not_fit_leaves_no_trace, use_packed),
        cmocka_unit_test_setup(rule51_the_lap_before_does_not_count, use_packed),
        cmocka_unit_test_setup(rule52_a_doorbell_when_the_wish_is_in_the_batch, use_packed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
